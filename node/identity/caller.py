"""Who is at the other end."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

Role = Literal["node", "operator"]
OPERATOR_UNIT = "operator"
"""The organizational unit (OU) that marks an operator's certificate."""


@dataclass(frozen=True, slots=True)
class Caller:
    """A peer whose certificate we have accepted. `expires_at` is in seconds since 1970, for its certificate."""

    peer_id: str
    role: Role
    name: str
    expires_at: float
    serial: int = 0

    @property
    def is_operator(self) -> bool:
        """Whether it may submit, cancel and look at everything."""
        return self.role == "operator"

    @property
    def days_left(self) -> float:
        """Days until its certificate expires; negative once it has."""
        return (self.expires_at - time.time()) / 86400
