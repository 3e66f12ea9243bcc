"""How far a job is: in rounds where it trains, in slices where it answers."""

from __future__ import annotations

from typing import NamedTuple

from node.views import JobView


class Advance(NamedTuple):
    """So many `done` of `whole`, counted in `unit`."""

    unit: str
    done: int
    whole: int

    @property
    def part(self) -> float:
        """From 0 to 1."""
        return self.done / self.whole if self.whole else 0.0


def advance(job: JobView) -> Advance:
    """How far this job is. A job without rounds goes by its slices."""
    if job.rounds:
        return Advance("round", job.round, job.rounds)
    return Advance("slice", job.slices.get("used", 0), sum(job.slices.values()))
