"""Who could take over what workers run, if they handed it over now. Pure; a worker decides when it is asked."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from hypha_tui.store.cluster import ClusterStore
from hypha_tui.store.matching import Need, objection
from node.jobspec import Price
from node.views import JobView, LeaseView, PeerView
from node.wire import Resources

ANY_PRICE: Final = Price(bid=math.inf, max=math.inf)
"""What a job would pay stays with its scheduler, so no price is held against a worker here."""
MOST_LINES: Final = 4


def replacement_lines(leaving: Sequence[PeerView], store: ClusterStore) -> list[str]:
    """What these workers run, and who is free to take it now; each worker's room is given away once."""
    away = {peer.id for peer in leaving}
    held = [lease for lease in store.views(LeaseView) if lease.worker in away and lease.state == "held"]
    if not held:
        return ["It runs nothing now." if len(leaving) == 1 else "They run nothing now."]
    others = {peer.id: peer for peer in store.views(PeerView) if "worker" in peer.roles and peer.id not in away}
    lines: list[str] = []
    waiting = 0
    for lease in sorted(held, key=lambda lease: (lease.job_id, lease.task_id, lease.id)):
        job = store.get(JobView, lease.job_id)
        of = job.name if job is not None and job.name else lease.job_id or "no job"
        what = f"{lease.executor.split('/', 1)[0] or 'task'} of {of}"
        need = Need("worker", lease.executor, lease.resources, ANY_PRICE, 1)
        objections = {peer.id: objection(need, peer) for peer in others.values()}
        fitting = [peer for peer in others.values() if not objections[peer.id]]
        if fitting:
            taker = min(fitting, key=lambda peer: (peer.price or 0.0, peer.name, peer.id))
            if taker.free is not None:
                others[taker.id] = replace(taker, free=_less(taker.free, lease.resources))
            lines.append(f"{what}: {store.name_of(taker.id)} is free for it")
        else:
            waiting += 1
            reasons = [reason for reason, _ in Counter(objections.values()).most_common(2)]
            why = f"others {' or '.join(reasons)}" if reasons else "there is no other worker"
            lines.append(f"{what}: stays, {why}")
    if len(lines) > MOST_LINES:
        return [f"{len(held) - waiting:,} of {len(held):,} tasks have a free worker to move to; the others stay."]
    return lines


def _less(free: Resources, taken: Resources) -> Resources:
    names = ("cpu", "memory", "storage", "gpu")
    return replace(free, **{name: getattr(free, name) - getattr(taken, name) for name in names})
