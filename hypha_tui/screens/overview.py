"""Overview: the whole cluster on one screen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Container
from textual.widget import Widget

from hypha_tui.screens.view import Target, View
from hypha_tui.store import text
from hypha_tui.store.cluster import FINISHED, Changes
from hypha_tui.store.columns import COLUMNS, STATE_TONES, Cell, Column, Look, lease_tone
from hypha_tui.store.summary import brief
from hypha_tui.widgets.curve import Curve
from hypha_tui.widgets.drawing import Drawing, Line
from hypha_tui.widgets.event_log import EventLog
from hypha_tui.widgets.lines import Lines
from hypha_tui.widgets.live_table import LiveTable
from node.views import AnyView, DatasetView, JobView, LeaseView, PeerView, TransferView


class OverviewView(View):
    """Jobs, leases, the curve of the busiest job, transfers, the cluster, the last events."""

    scopes = ("table",)

    def __init__(self, drawing: Drawing, look: Callable[[], Look], wall: Callable[[], float]) -> None:
        super().__init__("overview", drawing, look)
        self._jobs = LiveTable(
            "job", _job_columns(), drawing, look, sort="state", empty="no jobs: press 5, then a", id="over-table"
        )
        self._job = Lines(drawing, id="over-job")
        self._jobs_panel = Container(self._jobs, self._job, id="over-jobs", classes="panel")
        self._table_height = 0
        self._curve_title = ""
        self._leases = Lines(drawing, id="over-leases", classes="panel")
        self._cluster = Lines(drawing, id="over-cluster", classes="panel")
        self._curve = Curve(drawing, id="over-curve", classes="panel")
        self._transfers = Lines(drawing, id="over-transfers", classes="panel")
        self._events = EventLog(drawing, look, wall, id="over-events")
        self._events.add_class("panel")

    def compose(self) -> ComposeResult:
        """Three rows."""
        titles: list[tuple[Widget, str]] = [
            (self._jobs_panel, "Jobs"),
            (self._leases, "Leases"),
            (self._cluster, "Cluster"),
            (self._curve, "Validation loss"),
            (self._transfers, "Transfers"),
            (self._events, "Events"),
        ]
        for widget, title in titles:
            widget.border_title = title
        with Container(id="over-top"):
            yield self._jobs_panel
            yield self._leases
            yield self._cluster
        with Container(id="over-middle"):
            yield self._curve
            yield self._transfers
        yield self._events

    def sync(self, changes: Changes | None) -> None:
        """Every panel; each repaints only what differs."""
        look = self.look()
        self._jobs.sync(changes)
        self._show_job(look)
        self._leases.show(_leases(look, self._leases.size.width))
        self._cluster.show(_cluster(look))
        self._transfers.show(_transfers(look, self._transfers.size.width))
        self._events.sync(changes is None or changes.events)

    def _show_job(self, look: Look) -> None:
        """The job under the cursor in the lines that the table leaves free."""
        room = self._jobs_panel.content_size.height
        table = min(len(self._jobs.order) + 1, room)
        if self._table_height != table:
            self._table_height = table
            self._jobs.styles.height = max(table, 2)
        job = look.store.get(JobView, self._jobs.cursor_id or "")
        if job is not None:
            self._plot(look, job)
        self._job.show(brief(job, look, self._job.size.width) if job is not None and table < room else [])

    def _plot(self, look: Look, job: JobView) -> None:
        """The job's validation loss, or where it has none the loss of its workers."""
        has_validation = job.eval_loss is not None or not look.store.series_of(job.id, "loss")
        what = "Validation loss" if has_validation else "Training loss"
        title = text.clean(f"{what}, {job.name or job.id}")
        if self._curve_title != title:
            self._curve_title = title
            self._curve.border_title = Text(title)
        self._curve.plot(look, job.id, "eval_loss" if has_validation else "loss")

    def on_live_table_moved(self, _message: LiveTable.Moved) -> None:
        """Another job: other lines."""
        self._show_job(self.look())

    @property
    def state_line(self) -> str:
        """The jobs table's."""
        return self._jobs.state_line

    @property
    def selected(self) -> Target | None:
        """The job under the cursor."""
        return None if self._jobs.cursor_id is None else ("job", self._jobs.cursor_id)


def _job_columns() -> list[Column[AnyView]]:
    """The columns that matter most, narrow enough for a third of the screen."""
    widths = {"state": 11, "name": 12, "round": 6, "workers": 4, "value": 6, "loss": 6, "speed": 6, "eta": 7}
    by_key = {column.key: column for column in COLUMNS["job"]}
    by_key["value"] = replace(by_key["eval"], key="value", title="VALID", cell=_eval_loss)
    return [replace(by_key[key], width=width, level=0) for key, width in widths.items()]


def _eval_loss(view: AnyView, _look: Look) -> Cell:
    return text.number(view.eval_loss if isinstance(view, JobView) else None), "text"


def _leases(look: Look, width: int) -> list[Line]:
    leases = look.store.views(LeaseView)
    words: Counter[tuple[str, str]] = Counter()
    soon: list[tuple[float, LeaseView]] = []
    for lease in leases:
        left = look.store.remaining_s(lease.id, look.now)
        words[lease_tone(lease, left)] += 1
        if lease.state == "held":
            soon.append((left, lease))
    if not leases:
        return [[("no leases", "dim")]]
    counts: Line = []
    for (tone, word), number in sorted(words.items(), key=lambda entry: -entry[1]):
        counts += [(f"{look.glyphs.state.get(tone, ' ')} {word} ", tone), (f"{number}  ", "text")]
    lines = [counts, [("next to renew", "dim")]]
    bar_width = 10 if width >= 34 else 6
    for left, lease in sorted(soon, key=lambda entry: entry[0])[:8]:
        tone, _ = lease_tone(lease, left)
        what = f"{look.store.name_of(lease.worker)} {look.glyphs.dot} {lease.executor}"
        name = text.fit(what if width >= 40 else what.split()[0], max(width - bar_width - 8, 6), mark=look.glyphs.cut)
        part = left / lease.duration_s if lease.duration_s else 0.0
        lines.append([(f"{name} ", "text"), (f"{look.glyphs.bar(part, bar_width)} {left:4.1f}s", tone)])
    return lines


def _transfers(look: Look, width: int) -> list[Line]:
    transfers = look.store.views(TransferView)
    active = sorted((one for one in transfers if one.state == "active"), key=lambda one: (-one.age_s, one.id))
    failed = sum(one.state == "failed" for one in transfers)
    speed = sum(one.bytes_per_s for one in active)
    head: Line = [(f"{len(active)} active  {text.rate(speed)}", "text")]
    if failed:
        head.append((f"  {look.glyphs.state['lost']} {failed} failed", "lost"))
    lines = [head]
    bar_width = 8 if width >= 34 else 4
    ended = [one for one in transfers if one.state != "active"]
    ended.sort(key=lambda one: (look.store.age_s("transfer", one.id, look.now), one.id))
    for one in [*active, *ended][:24]:
        part = one.done_bytes / one.size_bytes if one.size_bytes else 0.0
        source = look.store.name_of(one.source) if width >= 34 else ""
        where = f"{one.what} {source}{look.glyphs.arrow}{look.store.name_of(one.target)}"
        tone = STATE_TONES.get(one.state, "dim")
        if one.state == "active":
            right = f" {look.glyphs.bar(part, bar_width)} {part * 100:3.0f}%"
        else:
            right = f" {look.glyphs.state[tone]} {text.rate(one.bytes_per_s) if one.state == 'done' else 'failed':>9}"
        room = max(width - len(right), 8)
        lines.append([(text.fit(where, room, mark=look.glyphs.cut), "text"), (right, tone)])
    return lines


def _cluster(look: Look) -> list[Line]:
    peers = look.store.views(PeerView)
    states = Counter(peer.state for peer in peers)
    line: Line = []
    for state, number in states.most_common():
        word, tone = look.state(STATE_TONES.get(state, "dim"), state)
        line += [(f"{word} ", tone), (f"{number}  ", "text")]
    lines = [line or [("no peers yet", "dim")]]
    datasets = {view.name: view for view in look.store.views(DatasetView)}
    for dataset in sorted(datasets.values(), key=lambda view: view.name)[:3]:
        lines.append(
            [
                (f"{text.clean(dataset.name)}  ", "data"),
                (f"{dataset.slices:,} slice{'' if dataset.slices == 1 else 's'}", "text"),
            ]
        )
    jobs = look.store.views(JobView)
    running = [job for job in jobs if job.state not in FINISHED]
    up = sum(job.bytes_up for job in jobs)
    down = sum(job.bytes_down for job in jobs)
    speed = sum(job.samples_per_s or 0.0 for job in running)
    sent = f"{look.glyphs.up}{text.size(up)} {look.glyphs.down}{text.size(down)}"
    lines.append([("updates ", "dim"), (sent, "text")])
    plural = "" if len(running) == 1 else "s"
    lines.append([(f"{text.number(speed, 1)} samples/s in {len(running)} job{plural}", "text")])
    return lines
