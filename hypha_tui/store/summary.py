"""An object told in full: the lines of its inspector."""

from __future__ import annotations

from typing import Final

import msgspec

from hypha_tui.store import text
from hypha_tui.store.advance import advance
from hypha_tui.store.cluster import FINISHED, SeenEvent
from hypha_tui.store.columns import STATE_TONES, Cell, Look, eta_s, lease_tone, resources, shown_state, uptime_s
from node.views import AnyView, DatasetView, JobView, LeaseView, PeerView, TaskView, TransferView

Line = list[Cell]
LABEL_WIDTH: Final = 13
RENEW_AT: Final = 1 / 3
"""When a scheduler renews a lease at the latest; one whose worker is silent, sooner."""
ENDED: Final = frozenset({"finished", "failed", "cancelled", "lost"})
REASON_WIDTH: Final = 62
DETAIL_WIDTH: Final = 58
"""What is left beside the labels on the smallest screen."""


def summary(view: AnyView, look: Look) -> list[Line]:
    """What there is to know about an object."""
    match view:
        case PeerView():
            return _peer(view, look)
        case LeaseView():
            return _lease(view, look)
        case TransferView():
            return _transfer(view, look)
        case JobView():
            return _job(view, look)
        case DatasetView():
            return _dataset(view, look)


def event_summary(seen: SeenEvent, look: Look, when: str) -> list[Line]:
    """What there is to know about an event."""
    event = seen.event
    tone = {"warning": "late", "error": "lost"}.get(event.level, "ok")
    lines = [
        _row("level", look.state(tone, event.level)),
        _row("what", (event.name, "title")),
        _row("when", (when, "text"), (f"   {text.long_age(look.now - seen.at)} ago", "dim")),
        _row("told by", look.name(event.node)),
    ]
    words = text.wrap(look.store.with_names(event.text), REASON_WIDTH, 40)
    lines += [_row("" if number else "words", (part, "text")) for number, part in enumerate(words)]
    return lines + [_row(name, (look.store.with_names(value), "text")) for name, value in event.fields.items()]


def event_json(seen: SeenEvent) -> list[Line]:
    """The event as the API gives it."""
    pretty = msgspec.json.format(msgspec.json.encode(seen.event), indent=2).decode()
    return [[(text.clean(line), "text")] for line in pretty.splitlines()]


def json_lines(view: AnyView) -> list[Line]:
    """The object as the API gives it."""
    pretty = msgspec.json.format(msgspec.json.encode(view), indent=2).decode()
    return [[(text.clean(line), "text")] for line in pretty.splitlines()]


def title(view: AnyView, look: Look) -> str:
    """The object's kind and name, without markup."""
    name = getattr(view, "name", "") or view.id
    if isinstance(view, LeaseView):
        name = f"{view.id} of {look.store.name_of(view.worker)}"
    return text.clean(f"{view.kind} {name}")


def _row(label: str, *cells: Cell) -> Line:
    return [(label.ljust(LABEL_WIDTH), "dim"), *((text.clean(value), tone) for value, tone in cells)]


def _state(state: str, look: Look) -> Cell:
    return look.state(STATE_TONES.get(state, "dim"), state)


def _peer(peer: PeerView, look: Look) -> list[Line]:
    leases = [lease for lease in look.store.views(LeaseView) if lease.worker == peer.id]
    held = sum(lease.state == "held" for lease in leases)
    certificate = "-" if peer.certificate_days is None else f"{peer.certificate_days:.0f} days left"
    free = f"{resources(peer.free)} free of " if peer.free is not None else ""
    lines = [
        _row("state", _state(shown_state(peer), look), (f"  {look.store.with_names(peer.reason)}", "late")),
        _row("roles", (", ".join(peer.roles), "text")),
        _row("id", (peer.id, "text")),
        _row("round trip", (f"{text.number(peer.rtt_ms, 1)} ms", "text")),
        _row("up", (text.long_age(uptime_s(peer, look)), "text"), (f"   version {peer.version or '-'}", "dim")),
        _row("certificate", (certificate, "text")),
        _row("resources", (f"{free}{resources(peer.total)}", "text")),
    ]
    if peer.executors:
        lines.append(_row("executors", (", ".join(peer.executors), "text")))
    if peer.price is not None:
        floor = f"   not below {peer.floor:.2f}" if peer.floor else ""
        lines.append(_row("price", (f"{peer.price:.2f} an hour", "text"), (floor, "dim")))
    if peer.gpu_name:
        lines.append(_row("gpu", (peer.gpu_name, "text")))
    if peer.mounts:
        shown = [mount.path if mount.read_only else f"{mount.path} (writable)" for mount in peer.mounts]
        lines.append(_row("mounts", (", ".join(shown), "text")))
    if peer.stores:
        lines.append(_row("stores", (", ".join(peer.stores), "text")))
    if "worker" in peer.roles:
        lines.append(_row("leases", (f"{held} held, {len(leases)} in all", "text")))
    return lines + [_row("address" if number == 0 else "", (a, "text")) for number, a in enumerate(peer.addresses)]


def _lease(lease: LeaseView, look: Look) -> list[Line]:
    left = look.store.remaining_s(lease.id, look.now)
    tone, word = lease_tone(lease, left)
    part = left / lease.duration_s if lease.duration_s else 0.0
    renewal = lease.duration_s * RENEW_AT - (lease.duration_s - left)
    when = f"in {renewal:.1f}s" if renewal >= 0 else f"{-renewal:.1f}s ago"
    lines = [
        _row("state", look.state(tone, word)),
        _row("remaining", (f"{look.glyphs.bar(part, 24)} {left:.1f}s of {lease.duration_s:.0f}s", tone)),
        _row("renewed", (f"{lease.renewals} times", "text"), (f"   next is due {when}", "dim")),
        _row("worker", look.name(lease.worker)),
        _row("scheduler", look.name(lease.scheduler)),
        _row("job", look.job(lease.job_id), (f"   {lease.job_id}", "dim")),
        _row("task", (lease.task_id or "-", "text")),
        _row("executor", (lease.executor, "text")),
        _row("resources", (resources(lease.resources), "text")),
        _row("price", (f"{lease.price:.2f} an hour", "text")),
        _row("age", (text.long_age(look.store.age_s("lease", lease.id, look.now)), "text")),
    ]
    reason = text.wrap(look.store.with_names(lease.reason), REASON_WIDTH)
    lines[1:1] = [_row("" if number else "because", (part, "late")) for number, part in enumerate(reason)]
    if lease.state not in ("held", "offered"):
        del lines[1 + len(reason) : 3 + len(reason)]
    return lines


def _transfer(transfer: TransferView, look: Look) -> list[Line]:
    part = transfer.done_bytes / transfer.size_bytes if transfer.size_bytes else 0.0
    tone = STATE_TONES.get(transfer.state, "dim")
    done = f"{text.size(transfer.done_bytes)} of {text.size(transfer.size_bytes)}"
    return [
        _row("state", _state(transfer.state, look), (f"  {look.store.with_names(transfer.reason)}", "late")),
        _row("progress", (f"{look.glyphs.bar(part, 24)} {part * 100:.0f} %  {done}", tone)),
        _row("speed", (text.rate(transfer.bytes_per_s), "text")),
        _row("what", (transfer.what, "text")),
        _row("name", (transfer.name, "text")),
        _row("from", look.name(transfer.source)),
        _row("to", look.name(transfer.target)),
        _row("job", look.job(transfer.job_id)),
        _row("age", (text.long_age(look.store.age_s("transfer", transfer.id, look.now)), "text")),
    ]


def _dataset(dataset: DatasetView, look: Look) -> list[Line]:
    return [
        _row("provider", look.name(dataset.peer_id)),
        _row("slices", (text.count(dataset.slices), "text")),
        _row("rows", (text.count(dataset.rows), "text")),
        _row("size", (text.size(dataset.size_bytes), "text")),
        _row("digest", (dataset.digest, "dim")),
    ]


def _job(job: JobView, look: Look) -> list[Line]:
    age = look.store.age_s("job", job.id, look.now)
    far = advance(job)
    tone = STATE_TONES.get(job.state, "dim")
    reason_tone = "lost" if job.state == "failed" else "late"
    reason = text.wrap(look.store.with_names(job.reason), REASON_WIDTH)
    speed = f" at {text.number(job.samples_per_s, 1)}/s" if job.samples_per_s is not None else ""
    lines = [
        _row("state", _state(job.state, look)),
        *(_row("" if number else "because", (part, reason_tone)) for number, part in enumerate(reason)),
        _row(
            f"{far.unit}s",
            (f"{look.glyphs.bar(far.part, 24)} {far.done} of {far.whole}", tone),
            (_time(job, age), "dim"),
        ),
        _row(
            "samples",
            (f"{text.count(job.samples)}{speed}", "text"),
            (f"   epoch {job.epoch}", "dim"),
        ),
        _row("rows" if job.rounds else "slices", (slice_counts(job), "text")),
        _row(
            "data",
            (f"{job.dataset}   up {text.size(job.bytes_up)}   down {text.size(job.bytes_down)}", "text"),
            (f"   {look.store.name_of(job.scheduler)}", "dim"),
        ),
    ]
    if job.rounds:
        loss = _row("loss", (text.number(job.loss), "text"), ("   validation ", "dim"), _fall(job, look))
        lines.insert(len(lines) - 3, loss)
    if job.model_dir:
        lines.append(_row("model" if job.rounds else "results", (job.model_dir, "ok")))
    lines.append([])
    lines += tasks(job, look)
    return lines


def brief(job: JobView, look: Look, width: int) -> list[Line]:
    """A job in a few lines: what it waits for or how far it is, and what each of its tasks does."""
    lines: list[Line] = []
    if job.reason:
        tone = "lost" if job.state == "failed" else "late"
        lines += [[(part, tone)] for part in text.wrap(look.store.with_names(job.reason), width)]
    age = look.store.age_s("job", job.id, look.now)
    part = advance(job).part
    bar = look.glyphs.bar(part, 12)
    lines.append([(f"{bar} {part * 100:.0f}%", STATE_TONES.get(job.state, "dim")), (_time(job, age), "dim")])
    for task in in_order(job.tasks):
        tone = STATE_TONES.get(task.state, "dim")
        where = look.store.name_of(task.peer_id) if task.peer_id else "nowhere yet"
        line = [(f"{look.glyphs.state.get(tone, ' ')} ", tone), (f"{task.role:<9} ", "dim"), (f"{where}  ", "text")]
        if task.exit_code:
            line.append((f"exit code {task.exit_code}  {text.clean(look.store.with_names(task.detail))}", "lost"))
        elif task.batch_s and task.state not in ENDED:
            line.append((f"{task.batches} batches of {task.batch_s:.2f} s", "dim"))
        else:
            line.append((task.state, "dim"))
        lines.append(line)
    return lines


def slice_counts(job: JobView) -> str:
    """`assigned 2 used 5 available 9`."""
    return "  ".join(f"{state} {number}" for state, number in sorted(job.slices.items()))


def _time(job: JobView, age_s: float) -> str:
    if job.state in FINISHED:
        return f"   took {text.long_age(job.took_s)}" if job.took_s is not None else ""
    left = eta_s(job, age_s)
    return f"   {text.long_age(age_s)} so far" + (f", {text.long_age(left)} to go" if left is not None else "")


def _fall(job: JobView, look: Look) -> Cell:
    if job.eval_loss is None:
        return "-", "dim"
    if job.first_eval_loss is None or job.first_eval_loss == job.eval_loss:
        return f"{job.eval_loss:.3f}", "text"
    change = (job.eval_loss / job.first_eval_loss - 1) * 100 if job.first_eval_loss else 0.0
    arrow = look.glyphs.arrow
    return f"{job.first_eval_loss:.3f} {arrow} {job.eval_loss:.3f}  {change:+.0f} %", "ok" if change < 0 else "late"


def in_order(tasks: list[TaskView]) -> list[TaskView]:
    """Tasks in the order they were made, those that are over behind those that go on."""
    return sorted(tasks, key=lambda task: task.state in ENDED)


def tasks(job: JobView, look: Look) -> list[Line]:
    """The tasks of a job, each with what went wrong: its exit code and the last lines it wrote."""
    mark = look.glyphs.cut
    lines: list[Line] = []
    if job.tasks:
        lines.append([("  STATE         TASK      WORKER          ROUND  BATCHES  SAMPLES  s/BATCH  TASK ID", "dim")])
    for task in in_order(job.tasks):
        word, tone = _state(task.state, look)
        worker = look.store.name_of(task.peer_id) if task.peer_id else "-"
        lines.append(
            [
                ("  ", "text"),
                (text.fit(word, 14, mark=mark), tone),
                (text.fit(task.role, 10, mark=mark), "text"),
                (text.fit(worker, 16, mark=mark), "title"),
                (f"{task.round:>5}  {task.batches:>7}  {task.samples:>7}  ", "text"),
                (f"{task.batch_s:>7.3f}  " if task.batch_s else "      -  ", "text"),
                (text.clean(task.task_id), "dim"),
            ]
        )
        lines += _trouble(task, look)
    return lines


def _trouble(task: TaskView, look: Look) -> list[Line]:
    lines: list[Line] = []
    if task.exit_code not in (None, 0):
        lines.append([(" " * 16, "text"), (f"exit code {task.exit_code}", "lost")])
    if task.detail and task.state in ("failed", "lost", "waiting"):
        detail = look.store.with_names(task.detail)
        lines += [[(" " * 16, "text"), (part, "late")] for part in text.wrap(detail, DETAIL_WIDTH)]
    if task.state == "failed":
        lines += [[(" " * 16 + "| ", "line"), (text.clean(line), "text")] for line in task.tail[-8:]]
    return lines
