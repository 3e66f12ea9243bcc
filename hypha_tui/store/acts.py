"""What can be done to an object in the state it is in. Pure; `screens/acting.py` and the twin commands do it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from hypha_tui.store.advance import advance
from hypha_tui.store.cluster import FINISHED, LIVE_LEASES, ClusterStore
from hypha_tui.store.replacements import replacement_lines
from hypha_tui.store.text import short_id
from node.views import AnyView, JobView, LeaseView, PeerView


@dataclass(frozen=True, slots=True)
class Act:
    """`name` is also the client's method. `danger`: something runs less than before. `destroys`: what runs now ends or
    moves, so it is confirmed first. `done` and `past` tell what came of it."""

    name: str
    kind: str
    key: str
    label: str
    done: str
    past: str
    danger: bool = True
    destroys: bool = False


ACTS: Final[tuple[Act, ...]] = (
    Act("cancel", "job", "c", "cancel the job", "is being cancelled", "cancelled", destroys=True),
    Act("pause", "job", "p", "pause the job", "pauses after its next commit", "paused"),
    Act("resume", "job", "r", "resume the job", "goes on", "resumed", danger=False),
    Act("release", "lease", "r", "release the lease", "is released", "released", destroys=True),
    Act("cordon", "peer", "o", "cordon the worker", "offers nothing any more", "cordoned"),
    Act("uncordon", "peer", "u", "uncordon the worker", "offers again", "uncordoned", danger=False),
    Act("drain", "peer", "d", "drain the worker", "hands over what it runs", "drained", destroys=True),
)


def act_named(name: str) -> Act:
    """The act of that name."""
    return next(act for act in ACTS if act.name == name)


def acts_for(kind: str, view: AnyView) -> list[Act]:
    """What can be done to this object now, the one that is asked about first."""
    return [act for act in ACTS if act.kind == kind and _fits(act.name, view)]


def why_not(act: Act, view: AnyView) -> str:
    """Why this cannot be done to this object now; empty where it can."""
    if act.kind != view.kind:
        return f"is no {act.kind}"
    if _fits(act.name, view):
        return ""
    if isinstance(view, PeerView):
        if "worker" not in view.roles:
            return "is no worker"
        return "is not cordoned" if act.name == "uncordon" else "is so already"
    return f"is {view.state}" if isinstance(view, JobView | LeaseView) else "cannot be acted on"


def _fits(name: str, view: AnyView) -> bool:
    if isinstance(view, JobView):
        is_over = view.state in FINISHED
        if name == "resume":
            return view.state == "paused" or (is_over and view.state != "done")
        if name == "pause":
            return not is_over and view.state not in ("paused", "pausing", "exporting")
        return name == "cancel" and not is_over
    if isinstance(view, LeaseView):
        return name == "release" and view.state in LIVE_LEASES
    if isinstance(view, PeerView) and "worker" in view.roles:
        if name == "cordon":
            return not view.cordoned
        return name == "drain" if not view.cordoned else name == "uncordon" or (name == "drain" and not view.draining)
    return False


def called(view: AnyView) -> str:
    """What an operator calls an object."""
    return short_id(view.id) if isinstance(view, LeaseView) else getattr(view, "name", "") or view.id


def details(act: Act, views: Sequence[AnyView], store: ClusterStore) -> list[str]:
    """What a confirmation says: every target by name and id, and what becomes of it."""
    lines: list[str] = []
    if len(views) == 1 and isinstance(views[0], JobView):
        job = views[0]
        unit, done, whole = advance(job)
        lines = [
            f"job      {called(job)}  ({job.id})",
            f"state    {job.state}, {unit} {done} of {whole}",
            f"workers  {job.workers} of {job.workers_wanted} will be released",
        ]
    elif len(views) == 1 and isinstance(views[0], PeerView):
        lines = [f"{called(views[0])}, {_held(views[0], store)}", views[0].id]
    else:
        lines = [_line(view, store) for view in views]
    if act.name == "drain":
        lines += replacement_lines([view for view in views if isinstance(view, PeerView)], store)
    then = [_WHAT_THEN[act.name]] if act.name in _WHAT_THEN else []
    return [*then, *lines] if len(views) > 1 else [*lines, *then]


def _line(view: AnyView, store: ClusterStore) -> str:
    if isinstance(view, LeaseView):
        return f"{view.id}  {view.state} of {store.name_of(view.worker)} for {view.job_id or 'no job'}"
    if isinstance(view, JobView):
        return f"{called(view)}  ({view.id})  {view.state}"
    return f"{called(view)}  {short_id(view.id)}  {_held(view, store)}"


def _held(worker: AnyView, store: ClusterStore) -> str:
    held = sum(lease.worker == worker.id and lease.state == "held" for lease in store.views(LeaseView))
    return f"{held} lease{'' if held == 1 else 's'} held"


_WHAT_THEN: Final = {
    "cancel": "It can be resumed later, from its last committed round.",
    "pause": "Its leases go back after the next commit; resume goes on.",
    "release": "What runs under it ends; the job looks for another worker.",
    "cordon": "It offers nothing any more. What it runs goes on.",
    "drain": "It offers nothing; what can move does at the next commits.",
}


def outcome(act: Act, results: Sequence[tuple[AnyView, str]]) -> str:
    """One line about what came of an act; each result is an object and why nothing was done, or an empty text."""
    if len(results) == 1:
        view, problem = results[0]
        name = f"{view.kind} {called(view)}"
        return f"{name} is not {act.past}: {problem}" if problem else f"{name} {act.done}"
    done = sum(not problem for _, problem in results)
    problems = [f"{called(view)}: {problem}" for view, problem in results if problem]
    return "; ".join([f"{done} of {len(results)} {act.past}", *problems])
