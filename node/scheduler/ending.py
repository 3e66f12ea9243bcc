"""Where a round ends: whole batches of each member, so that all are done at about the same time. Pure.

A member with long batches can end only now and then. A round that lasts a little longer, up to where it does, costs
nobody anything: the samples it holds too many are fewer in the next one.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

ALIGNED = 8
"""So many of the slowest members are looked at: it is they who can end only now and then."""
EXCESS_WEIGHT = 0.1
"""Of two ends at which members wait as long, the earlier one is taken."""
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Runner:
    """A member whose end is open: the batches it has done by now, in part, and those it cannot go back behind."""

    position: float
    least: int
    batch_s: float
    batch_size: float

    def done_by(self, seconds: float) -> int:
        """Whole batches after so long."""
        return max(self.least, math.floor(self.position + seconds / self.batch_s + ROUNDING))

    def takes(self, batches: int) -> float:
        """Seconds until so many are done."""
        return max(0.0, (batches - self.position) * self.batch_s)


def ends(runners: Mapping[str, Runner], others: Sequence[float], samples: float, slack: float) -> dict[str, int]:
    """How many batches each of the runners does: together at least `samples`, at most `slack` more than is needed.

    `others` are the seconds after which members are done whose end is settled.
    """
    if not runners:
        return {}
    soonest, done = _soonest(runners, samples)
    rate = sum(runner.batch_size / runner.batch_s for runner in runners.values())
    least = _samples(runners, done)
    best, best_cost = done, _wait(runners, done, others)
    for end in _later_ends(runners.values(), others, soonest, soonest + slack / rate):
        chosen = {name: runner.done_by(end) for name, runner in runners.items()}
        excess = _samples(runners, chosen) - least
        if excess <= slack:
            cost = _wait(runners, chosen, others) + EXCESS_WEIGHT * excess / rate
            if cost < best_cost:
                best, best_cost = chosen, cost
    return best


def _soonest(runners: Mapping[str, Runner], samples: float) -> tuple[float, dict[str, int]]:
    """When the samples are reached, and the batches of each by then: one after the other, as they are finished."""
    rate = sum(runner.batch_size / runner.batch_s for runner in runners.values())
    now = sum(runner.position * runner.batch_size for runner in runners.values())
    end = max(0.0, (samples - now) / rate)
    done = {name: runner.done_by(end) for name, runner in runners.items()}
    reached = _samples(runners, done)
    queue = [(runner.takes(done[name] + 1), name) for name, runner in runners.items()]
    heapq.heapify(queue)
    while reached < samples - ROUNDING:
        end, name = heapq.heappop(queue)
        done[name] += 1
        reached += runners[name].batch_size
        heapq.heappush(queue, (runners[name].takes(done[name] + 1), name))
    return end, done


def _later_ends(runners: Iterable[Runner], others: Iterable[float], soonest: float, latest: float) -> Iterator[float]:
    """When a slow member has just finished a batch, or the last of those whose end is settled is done."""
    last = max(others, default=0.0)
    if soonest < last <= latest:
        yield last
    for runner in heapq.nlargest(ALIGNED, runners, key=lambda runner: runner.batch_s):
        for batches in itertools.count(runner.done_by(soonest) + 1):
            end = runner.takes(batches)
            if end > latest:
                break
            yield end


def _wait(runners: Mapping[str, Runner], done: Mapping[str, int], others: Iterable[float]) -> float:
    """How long the first to be done waits for the last."""
    times = [*(runner.takes(done[name]) for name, runner in runners.items()), *others]
    return max(times) - min(times)


def _samples(runners: Mapping[str, Runner], done: Mapping[str, int]) -> float:
    return sum(runner.batch_size * done[name] for name, runner in runners.items())
