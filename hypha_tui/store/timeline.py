"""The life of an object as lines: moments in their order, and a bar that shows how they lie in time. Pure.

Ages count back from now; what lies ahead has a negative one. `wall` writes an age as a time of day.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from hypha_tui.store import text
from hypha_tui.store.cluster import FINISHED, LIVE_LEASES, SeenEvent
from hypha_tui.store.columns import STATE_TONES, Cell, Look
from node.views import JobView, LeaseHistory, LeaseView

Line = list[Cell]
Wall = Callable[[float], str]
LABEL: Final = 13
DUE_S: Final = 3.0
"""News of a renewal may be so old."""
KEPT: Final = 400
"""Moments that are told, the newest ones."""
TONES: Final = {
    "offered": "offer", "accepted": "ok", "renewed": "dim", "dispatched": "busy",
    "released": "done", "lapsed": "done", "expired": "lost", "lost": "lost",
}  # fmt: skip
LEVELS: Final = {"info": "text", "warning": "late", "error": "lost"}


@dataclass(frozen=True, slots=True)
class Moment:
    """Something that happened, or is planned."""

    age_s: float
    what: str
    text: str = ""
    tone: str = "text"


def of_events(events: Iterable[SeenEvent], look: Look) -> list[Moment]:
    """What events tell, oldest first."""
    return [
        Moment(
            look.now - seen.at,
            seen.event.name,
            f"{look.store.name_of(seen.event.node)}: {look.store.with_names(seen.event.text)}",
            LEVELS.get(seen.event.level, "text"),
        )
        for seen in events
    ]


def moment_lines(moments: Iterable[Moment], wall: Wall) -> list[Line]:
    """Moments one a line, the newest first, each with its time of day and age."""
    lines: list[Line] = []
    for moment in sorted(moments, key=lambda one: one.age_s)[:KEPT]:
        ago = f"{text.age(moment.age_s)} ago" if moment.age_s >= 0 else f"in {-moment.age_s:.1f}s"
        lines.append(
            [
                (f"{wall(moment.age_s)}  {ago:>9}  ", "dim"),
                (text.fit(moment.what, 16), moment.tone),
                (f" {text.clean(moment.text)}", "text" if moment.tone in ("dim", "text") else moment.tone),
            ]
        )
    return lines or [[("nothing is known of what happened", "dim")]]


# ---- leases -------------------------------------------------------------------------------------------------------


def lease_lines(
    lease: LeaseView, history: LeaseHistory | None, since_s: float, look: Look, wall: Wall, width: int
) -> list[Line]:
    """The whole life of a lease. `since_s`: how long ago the history was told."""
    left = look.store.remaining_s(lease.id, look.now)
    is_live = lease.state in LIVE_LEASES
    moments = [Moment(mark.age_s + since_s, mark.name, mark.text) for mark in history.marks] if history else []
    planned = history.next_renewal_s - since_s if history and history.next_renewal_s is not None else None
    lines: list[Line] = []
    first = {moment.what: moment for moment in reversed(moments)}
    before: Moment | None = None
    for name in ("offered", "accepted", "dispatched", "released", "lapsed", "expired", "lost"):
        if name in first:
            lines.append(_mark_line(first[name], before, wall, look))
            before = first[name]
    if lease.renewals:
        lines.append(_renewals(lease, moments))
    if is_live:
        lines += _planned(lease, planned, left, wall)
    if lease.reason:
        lines.append(_row("because", (look.store.with_names(lease.reason), "late")))
    if moments:
        lines += [[], *_lease_bars(lease, moments, planned, left, look, width), []]
        lines += moment_lines((_gap(moments, at) for at in range(len(moments))), wall)
        if history and history.earlier_renewals:
            lines.append([(f"and {history.earlier_renewals:,} earlier renewals", "dim")])
    if history is None:
        lines.append([("asking its worker and its scheduler...", "dim")])
    return lines + [[(text.clean(look.store.with_names(problem)), "late")] for problem in (history or _NO).problems]


_NO: Final = LeaseHistory(lease_id="", marks=[])


def _row(label: str, *cells: Cell) -> Line:
    return [(label.ljust(LABEL), "dim"), *((text.clean(value), tone) for value, tone in cells)]


def _mark_line(mark: Moment, before: Moment | None, wall: Wall, look: Look) -> Line:
    after = f"   after {_short(before.age_s - mark.age_s)}" if before is not None else ""
    words = f"   {look.store.with_names(mark.text)}" if mark.text else ""
    when = (f"{wall(mark.age_s)}  {text.age(mark.age_s)} ago", TONES.get(mark.what, "text"))
    return _row(mark.what, when, (after, "dim"), (words, "dim"))


def _renewals(lease: LeaseView, moments: list[Moment]) -> Line:
    ages = [moment.age_s for moment in moments if moment.what == "renewed"]
    gaps = [older - newer for older, newer in pairwise(ages)]
    cells: list[Cell] = [(f"{lease.renewals:,} times", "text")]
    if gaps:
        cells.append((f"   every {_short(statistics.median(gaps))}, {_short(max(gaps))} at most", "text"))
    if ages:
        cells.append((f"   last {_short(ages[-1])} ago", "dim"))
    return _row("renewed", *cells)


def _planned(lease: LeaseView, planned: float | None, left: float, wall: Wall) -> list[Line]:
    if lease.state == "offered":
        return [_row("lapses", (f"{wall(-left)}  in {left:.1f}s, unless it is accepted", "offer"))]
    lines: list[Line] = []
    if planned is not None:
        late = "due now" if planned > -DUE_S else f"due since {-planned:.1f}s"
        due = f"{wall(-planned)}  in {planned:.1f}s" if planned >= 0 else late
        lines.append(_row("next renewal", (due, "busy")))
    if left < 0:
        return [*lines, _row("ends", (f"should have ended {-left:.1f}s ago", "late"))]
    return [*lines, _row("ends", (f"{wall(-left)}  in {left:.1f}s of {lease.duration_s:.0f}s, unless renewed", "text"))]


def _gap(moments: list[Moment], at: int) -> Moment:
    moment = moments[at]
    words = moment.text
    if at and moment.what == moments[at - 1].what == "renewed":
        words = f"after {_short(moments[at - 1].age_s - moment.age_s)}  {words}"
    return Moment(moment.age_s, moment.what, words.strip(), TONES.get(moment.what, "text"))


def _short(seconds: float) -> str:
    return f"{seconds:.2f}s" if seconds < 10 else f"{seconds:.1f}s" if seconds < 60 else text.long_age(seconds)


def _lease_bars(
    lease: LeaseView, moments: list[Moment], planned: float | None, left: float, look: Look, width: int
) -> list[Line]:
    """The whole life, and below it the last lease period on a larger scale."""
    is_live = lease.state in LIVE_LEASES
    begin = max(moment.age_s for moment in moments)
    end = -max(left, 0.0) if is_live else min(moment.age_s for moment in moments)
    lines = [_lease_bar("life", begin, end, moments, planned if is_live else None, is_live, look, width)]
    recent = min(max(lease.duration_s, 4.0), begin)
    if is_live and begin > 2 * lease.duration_s:
        lines.append(_lease_bar("lately", recent, end, moments, planned, True, look, width))
    legend: Line = [
        (" " * 8, "dim"),
        (f"{look.glyphs.bar_full} held", "ok"),
        (f"   {look.glyphs.vertical} renewed", "busy"),
    ]
    if is_live:
        legend += [(f"   {look.glyphs.cursor} now", "title"), ("   n next renewal", "offer"), ("   x ends", "late")]
    return [*lines, legend]


def _lease_bar(
    name: str,
    begin: float,
    end: float,
    moments: list[Moment],
    planned: float | None,
    is_live: bool,
    look: Look,
    width: int,
) -> Line:
    glyphs = look.glyphs
    span = begin - end
    label = f"{name:<8}"
    after = f" {_short(span)}"
    room = max(width - len(label) - len(after), 10)
    cells: list[Cell] = [(glyphs.bar_empty, "dim")] * room

    def place(age_s: float) -> int:
        return min(max(int((begin - age_s) / span * (room - 1) + 0.5), 0), room - 1) if span > 0 else 0

    now = min(max(moment.age_s for moment in moments), max(end, 0.0))
    accepted = next((moment.age_s for moment in moments if moment.what == "accepted"), None)
    if accepted is not None:
        for at in range(place(min(accepted, begin)), place(now) + 1):
            cells[at] = (glyphs.bar_full, "ok")
    marks = {"offered": ("o", "offer"), "accepted": ("a", "ok"), "dispatched": ("t", "busy")}
    for moment in moments:
        if moment.age_s <= begin:
            sign = marks.get(moment.what, (glyphs.vertical, "busy") if moment.what == "renewed" else ("x", "lost"))
            cells[place(moment.age_s)] = sign
    if is_live:
        cells[place(end)] = ("x", "late")
        if planned is not None and planned >= 0:
            cells[place(-planned)] = ("n", "offer")
        cells[place(0.0)] = (glyphs.cursor, "title")
    return [(label, "dim"), *cells, (after, "dim")]


# ---- jobs ---------------------------------------------------------------------------------------------------------


def job_moments(job: JobView, events: Iterable[SeenEvent], look: Look) -> list[Moment]:
    """The life of a job: submitted, placed, rounds with how long they took, what went wrong, its end. Newest last."""
    age_s = look.store.age_s("job", job.id, look.now)
    moments = [Moment(age_s, "submitted", f"to {look.store.name_of(job.scheduler)}")]
    rounds = _rounds(job, age_s, look)
    # the curves know every round, and more of each than its event
    moments += of_events((seen for seen in events if not rounds or seen.event.name != "round.committed"), look)
    moments += rounds
    if job.state in FINISHED and job.took_s is not None:
        words = look.store.with_names(job.reason) or f"took {text.long_age(job.took_s)}"
        moments.append(Moment(max(age_s - job.took_s, 0.0), job.state, words, STATE_TONES.get(job.state, "text")))
    return sorted(moments, key=lambda one: -one.age_s)


def _rounds(job: JobView, age_s: float, look: Look) -> list[Moment]:
    """Committed rounds, each with how long it took and what it came to."""
    commits = look.store.commits.get(job.id)
    if commits is None:
        return []
    said = {
        name: dict(series.points())
        for name in ("loss", "samples_per_s")
        if (series := look.store.series_of(job.id, name).get("")) is not None
    }
    moments: list[Moment] = []
    before: float | None = None
    for round_, t_s in commits.points():
        loss, speed = said.get("loss", {}).get(round_), said.get("samples_per_s", {}).get(round_)
        parts = [f"took {_short(t_s - before)}"] if before is not None and t_s >= before else []
        parts += [f"loss {text.number(loss)}"] if loss is not None else []
        parts += [f"{text.number(speed, 1)} samples/s"] if speed is not None else []
        moments.append(Moment(max(age_s - t_s, 0.0), f"round {round_ + 1:.0f}", "  ".join(parts), "ok"))
        before = t_s
    return moments


def job_bar(moments: list[Moment], look: Look, width: int) -> list[Line]:
    """A job's rounds and troubles along its life; empty before the second moment."""
    begin = max((moment.age_s for moment in moments), default=0.0)
    if len(moments) < 2 or begin <= 0:
        return []
    glyphs = look.glyphs
    room = max(width - 8, 10)
    cells: list[Cell] = [(glyphs.bar_empty, "dim")] * room
    for moment in sorted(moments, key=lambda one: ("ok", "late", "lost").index(one.tone) if one.tone in _LOUD else -1):
        at = min(max(int((begin - moment.age_s) / begin * (room - 1) + 0.5), 0), room - 1)
        if moment.tone in _LOUD:
            cells[at] = (glyphs.vertical if moment.tone == "ok" else glyphs.state[moment.tone], moment.tone)
    legend: Line = [
        (f"{glyphs.vertical} a round is committed", "ok"),
        (f"   {glyphs.state['late']} warning", "late"),
        (f"   {glyphs.state['lost']} error", "lost"),
    ]
    return [[*cells, (f" {text.long_age(begin)}", "dim")], legend, []]


_LOUD: Final = ("ok", "late", "lost")
