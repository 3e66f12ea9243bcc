"""What happens to a cluster, and when: a function of the seed alone."""

from __future__ import annotations

import random
from dataclasses import dataclass

KINDS = {"kill": 5, "freeze": 3, "cut": 3, "slow-line": 2, "slow-worker": 2}
"""How often each is drawn. freeze: SIGSTOP; cut: nothing passes to and from the node, or between two halves."""
ROLES = {"worker": 5, "parameter-server": 3, "scheduler": 3, "data": 1, "gateway": 1}
FIRST_S = 1.0


@dataclass(frozen=True, order=True)
class Fault:
    """One thing that happens to one node, `at_s` seconds after the first commit, and how long it lasts."""

    at_s: float
    kind: str
    role: str
    lasts_s: float
    draw: float
    """Chooses among the nodes of that role when the moment has come."""
    half: bool = False
    """A cut between two halves of the cluster instead of around one node."""

    def __str__(self) -> str:
        what = "cut in halves" if self.half else f"{self.kind} {self.role}"
        return f"{self.at_s:5.1f} s {what} for {self.lasts_s:.1f} s"


def faults(seed: int, *, seconds: float, a_minute: float) -> list[Fault]:
    """The faults of one run: so many a minute on average, at random moments (a Poisson process), for `seconds`."""
    draw = random.Random(seed)
    made = []
    at = FIRST_S + draw.expovariate(a_minute / 60.0)
    while at < seconds:
        kind = _one_of(draw, KINDS)
        role = _one_of(draw, ROLES)
        if kind == "slow-worker":
            role = "worker"
        lasts = {
            "kill": draw.uniform(0.3, 4.0),
            "freeze": draw.choice([draw.uniform(0.2, 2.0), draw.uniform(2.0, 12.0)]),
            "cut": draw.choice([draw.uniform(0.5, 4.0), draw.uniform(4.0, 12.0)]),
            "slow-line": draw.uniform(2.0, 8.0),
            "slow-worker": draw.uniform(2.0, 8.0),
        }[kind]
        made.append(Fault(at, kind, role, lasts, draw.random(), half=kind == "cut" and draw.random() < 0.3))
        at += draw.expovariate(a_minute / 60.0)
    return made


def _one_of(draw: random.Random, weights: dict[str, int]) -> str:
    (name,) = draw.choices(list(weights), list(weights.values()))
    return name
