"""How long to wait between attempts at a peer or a source."""

from __future__ import annotations

import random

from node.network.backoff import Backoff

FIRST_S = 0.1
MOST_S = 5.0


def new_backoff() -> Backoff:
    """Doubling delays up to five seconds, spread so that workers do not come back together."""
    return Backoff(random.Random(), first_s=FIRST_S, most_s=MOST_S)
