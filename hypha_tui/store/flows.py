"""Transfers in numbers: how long they take, which do not move, which had to be done again. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from hypha_tui.store import text
from hypha_tui.store.columns import Cell, Look
from node.views import TransferView

STALLED_AFTER_S: Final = 2.0
"""A transfer that is older than this and moves nothing is stalled; a younger one may just begin."""


@dataclass(frozen=True, slots=True)
class Flows:
    """The transfers that the cluster shows now: those under way, and those that ended a moment ago."""

    active: int
    bytes_per_s: float
    stalled: int
    failed: int
    again: int
    """Transfers of what had failed on its way to the same node."""
    median_s: float | None
    slow_s: float | None
    """The 95th percentile."""


def flows(look: Look) -> Flows:
    """All transfers in numbers."""
    transfers = look.store.views(TransferView)
    active = [one for one in transfers if one.state == "active"]
    failed = Counter((one.what, one.name, one.target) for one in transfers if one.state == "failed")
    took = sorted(one.size_bytes / one.bytes_per_s for one in transfers if one.state == "done" and one.bytes_per_s > 0)
    return Flows(
        active=len(active),
        bytes_per_s=sum(one.bytes_per_s for one in active),
        stalled=sum(
            one.bytes_per_s <= 0 and look.store.age_s("transfer", one.id, look.now) > STALLED_AFTER_S for one in active
        ),
        failed=failed.total(),
        again=sum((one.what, one.name, one.target) in failed for one in transfers if one.state != "failed"),
        median_s=part(took, 0.5),
        slow_s=part(took, 0.95),
    )


def part(values: list[float], share: float) -> float | None:
    """The value below which so many of these sorted ones lie (the nearest one); None of none."""
    return values[min(int(share * len(values)), len(values) - 1)] if values else None


def flow_lines(found: Flows, look: Look) -> list[list[Cell]]:
    """Two lines: what moves, and what does not."""
    first: list[Cell] = [(f"{found.active} active  {text.rate(found.bytes_per_s)}", "text")]
    if found.median_s is not None and found.slow_s is not None:
        first.append((f"  p50 {short(found.median_s)}  p95 {short(found.slow_s)}", "dim"))
    second: list[Cell] = []
    for number, word, tone in (
        (found.stalled, "stalled", "late"),
        (found.again, "again after a failure", "offer"),
        (found.failed, "failed", "lost"),
    ):
        if number:
            second.append((f"{look.glyphs.state[tone]} {number} {word}  ", tone))
    return [first, second] if second else [first]


def short(seconds: float) -> str:
    """A short duration: `85ms`, `1.9s`, `2m07s`."""
    if seconds < 0.1:
        return f"{seconds * 1e3:.0f}ms"
    return f"{seconds:.1f}s" if seconds < 60 else text.long_age(seconds)
