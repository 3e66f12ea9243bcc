"""The cluster in a few lines each: leases, slices, transfers, links. Pure; what the overview shows."""

from __future__ import annotations

import heapq
from collections import Counter
from typing import Final

from hypha_tui.store import text
from hypha_tui.store.cluster import FINISHED
from hypha_tui.store.columns import STATE_TONES, Cell, Look, lease_tone
from hypha_tui.store.flows import flow_lines, flows, part, short
from node.views import DatasetView, JobView, LeaseView, PeerView, TransferView

Line = list[Cell]
SOON_S: Final = 5.0
STEP_S: Final = 10.0
NEXT: Final = 12
SLICE_TONES: Final = {"used": "done", "assigned": "busy", "available": "ok"}
UPWARDS: Final = frozenset({"update", "artifact"})


def leases_digest(look: Look, width: int) -> list[Line]:
    """How many are in which state, how far apart their renewals are, which end soon."""
    leases = look.store.views(LeaseView)
    if not leases:
        return [[("no leases", "dim")]]
    words: Counter[tuple[str, str]] = Counter()
    held: list[tuple[float, str, LeaseView]] = []
    for lease in leases:
        left = look.store.remaining_s(lease.id, look.now)
        words[lease_tone(lease, left)] += 1
        if lease.state == "held":
            held.append((left, lease.id, lease))
    lines = [_state_counts(words, look, width)]
    if held:
        soon = sum(left < SOON_S for left, _, _ in held)
        apart = part(look.store.renewals.apart_s(look.now), 0.95)
        renewed: Line = [("renewal p95 ", "dim"), ("-" if apart is None else short(apart), "text")]
        ending: Line = [(f"in < {SOON_S:.0f} s ends ", "dim"), (f"{soon:,}", "late" if soon else "text")]
        lines += [[*renewed, ("  ", "dim"), *ending]] if width >= 38 else [renewed, ending]
    bar_width = 10 if width >= 34 else 6
    for left, _, lease in heapq.nsmallest(NEXT, held):
        tone, _ = lease_tone(lease, left)
        what = f"{look.store.name_of(lease.worker)} {look.glyphs.dot} {lease.executor}"
        name = text.fit(what if width >= 40 else what.split()[0], max(width - bar_width - 8, 6), mark=look.glyphs.cut)
        share = left / lease.duration_s if lease.duration_s else 0.0
        # One that is overdue for long is not worth a line painted each second.
        told = f"{left:4.1f}s" if left > -STEP_S else f"-{text.age(-left // STEP_S * STEP_S)}"
        lines.append([(f"{name} ", "text"), (f"{look.glyphs.bar(share, bar_width)} {told}", tone)])
    return lines


def _state_counts(words: Counter[tuple[str, str]], look: Look, width: int) -> Line:
    """How many are in each state: by sign and word, and where that is too long all but the first by sign alone."""
    ranked = sorted(words.items(), key=lambda entry: -entry[1])
    length = sum(len(f"{word} {number:,}") + 4 for (_, word), number in ranked) - 2
    line: Line = []
    for place, ((tone, word), number) in enumerate(ranked):
        name = f"{word} " if place == 0 or length <= width else ""
        line += [(f"{look.glyphs.state.get(tone, ' ')} {name}", tone), (f"{number:,}  ", "text")]
    return line


def slices_digest(look: Look, width: int) -> list[Line]:
    """How much of the present passes is used, assigned and available, and which datasets there are."""
    total: Counter[str] = Counter()
    for job in look.store.views(JobView):
        if job.state not in FINISHED:
            total.update(job.slices)
    whole = total.total()
    lines: list[Line] = []
    for state, tone in SLICE_TONES.items() if whole else ():
        share = total[state] / whole
        bar = look.glyphs.bar(share, max(min(width - 16, 20), 4))
        lines.append([(f"{state:<10}", "dim"), (f"{bar} {share * 100:3.0f}%", tone)])
    if not whole:
        lines.append([("no job reads data now", "dim")])
    datasets = {view.name: view for view in look.store.views(DatasetView)}
    providers = Counter(view.name for view in look.store.views(DatasetView))
    for view in sorted(datasets.values(), key=lambda view: view.name)[:6]:
        nodes = f" at {providers[view.name]} nodes" if providers[view.name] > 1 else ""
        plural = "" if view.slices == 1 else "s"
        right = f"  {view.slices:,} slice{plural}{nodes}"
        name = text.fit(view.name, max(width - len(right), 6), mark=look.glyphs.cut)
        lines.append([(name, "data"), (right, "dim")])
    return lines


def transfers_digest(look: Look, width: int) -> list[Line]:
    """What moves, and what ended a moment ago."""
    found = flows(look)
    first, *others = flow_lines(found, look)
    if len(first) > 1 and sum(len(words) for words, _ in first) > width:
        first, *others = first[:1], [(first[1][0].strip(), first[1][1])], *others
    lines = [first, *others]
    transfers = look.store.views(TransferView)
    active = [one for one in transfers if one.state == "active"]
    ended = [one for one in transfers if one.state != "active"]
    shown = heapq.nsmallest(24, active, key=lambda one: (-one.age_s, one.id))
    if len(shown) < 24:
        ages = {one.id: look.store.age_s("transfer", one.id, look.now) for one in ended}
        shown += heapq.nsmallest(24 - len(shown), ended, key=lambda one: (ages[one.id], one.id))
    bar_width = 8 if width >= 34 else 4
    for one in shown:
        share = one.done_bytes / one.size_bytes if one.size_bytes else 0.0
        source = look.store.name_of(one.source) if width >= 34 else ""
        where = f"{one.what} {source}{look.glyphs.arrow}{look.store.name_of(one.target)}"
        tone = STATE_TONES.get(one.state, "dim")
        if one.state == "active":
            right = f" {look.glyphs.bar(share, bar_width)} {share * 100:3.0f}%"
        else:
            right = f" {look.glyphs.state[tone]} {text.rate(one.bytes_per_s) if one.state == 'done' else 'failed':>9}"
        room = max(width - len(right), 8)
        lines.append([(text.fit(where, room, mark=look.glyphs.cut), "text"), (right, tone)])
    return lines


def links_digest(look: Look, width: int) -> list[Line]:
    """Peers by state, what the jobs have sent, how much smaller updates were made, who is slowest to answer."""
    peers = look.store.views(PeerView)
    states: Line = []
    for state, number in Counter(peer.state for peer in peers).most_common():
        word, tone = look.state(STATE_TONES.get(state, "dim"), state)
        states += [(f"{word} ", tone), (f"{number:,}  ", "text")]
    lines = [states or [("no peers yet", "dim")]]
    active = [one for one in look.store.views(TransferView) if one.state == "active"]
    up = sum(one.bytes_per_s for one in active if one.what in UPWARDS)
    down = sum(one.bytes_per_s for one in active if one.what not in UPWARDS)
    lines.append([(f"{look.glyphs.up}{text.rate(up)} {look.glyphs.down}{text.rate(down)}", "text"), ("  now", "dim")])
    jobs = look.store.views(JobView)
    sent, got = sum(job.bytes_up for job in jobs), sum(job.bytes_down for job in jobs)
    moved = f"{look.glyphs.up}{text.size(sent)} {look.glyphs.down}{text.size(got)}"
    lines.append([(moved, "text"), ("  in all", "dim")])
    running = [job for job in look.store.jobs_by_activity() if job.state not in FINISHED]
    saved = next((last for job in running if (last := _last(look, job.id, "compression")) is not None), None)
    if saved is not None:
        lines.append([("updates are ", "dim"), (f"{saved:.1f}x smaller", "text")])
    speed = sum(job.samples_per_s or 0.0 for job in running)
    plural = "" if len(running) == 1 else "s"
    lines.append([(f"{text.number(speed, 1)} samples/s in {len(running)} job{plural}", "text")])
    slowest = max((peer for peer in peers if peer.rtt_ms is not None), key=lambda one: one.rtt_ms or 0.0, default=None)
    if slowest is not None:
        name = text.fit(look.store.name_of(slowest.id), max(min(width - 18, 16), 6), mark=look.glyphs.cut).strip()
        lines.append([("slowest ", "dim"), (f"{name} {slowest.rtt_ms:.0f} ms", "text")])
    return lines


def _last(look: Look, job_id: str, name: str) -> float | None:
    series = look.store.series_of(job_id, name).get("")
    return None if series is None else series.last
