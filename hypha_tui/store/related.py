"""What an object has to do with: the jumps from its inspector. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from hypha_tui.store import text
from hypha_tui.store.cluster import KINDS, ClusterStore
from hypha_tui.store.mentions import EVENT, find_event
from node.views import DatasetView, JobView, LeaseView, PeerView, TransferView

MOST: Final = 60
_OF_FIELDS: Final = {"lease": "lease", "job": "job", "peer": "peer"}


class Related(NamedTuple):
    """One jump. `label` says how it is related, `name` what it is."""

    label: str
    kind: str
    id: str
    name: str


def related(store: ClusterStore, kind: str, id_: str) -> list[Related]:
    """What there is to jump to, the nearest first; only what the cluster shows now, and each once."""
    if kind == EVENT:
        found = _of_event(store, id_)
    else:
        item = store.items(kind).get(id_) if kind in KINDS else None
        if item is None:
            return []
        match item.view:
            case LeaseView() as view:
                found = _of_lease(store, view)
            case TransferView() as view:
                found = _of_transfer(store, view)
            case JobView() as view:
                found = _of_job(store, view)
            case DatasetView() as view:
                found = _of_dataset(store, view)
            case PeerView() as view:
                found = _of_peer(store, view)
    once: dict[tuple[str, str], Related] = {}
    for label, to, to_id in found:
        if (to, to_id) != (kind, id_) and to_id in store.items(to):
            once.setdefault((to, to_id), Related(label, to, to_id, _name(store, to, to_id)))
    return list(once.values())[:MOST]


_Found = Iterator[tuple[str, str, str]]


def _name(store: ClusterStore, kind: str, id_: str) -> str:
    view = store.items(kind)[id_].view
    match view:
        case LeaseView():
            return f"{text.short_id(id_)} of {store.name_of(view.worker)}"
        case TransferView():
            return f"{view.what} {view.name}"
        case DatasetView():
            return f"{view.name} at {store.name_of(view.peer_id)}"
        case PeerView():
            return view.name or id_
        case JobView():
            return view.name or id_


def _of_lease(store: ClusterStore, lease: LeaseView) -> _Found:
    yield "job", "job", lease.job_id
    yield "worker", "peer", lease.worker
    yield "scheduler", "peer", lease.scheduler
    for transfer in store.views(TransferView):
        if transfer.job_id == lease.job_id and lease.worker in (transfer.target, transfer.source):
            yield ("receives" if transfer.target == lease.worker else "sends"), "transfer", transfer.id
            yield "data from", "peer", transfer.source
    job = store.get(JobView, lease.job_id)
    if job is not None:
        yield from _datasets(store, job)


def _of_transfer(store: ClusterStore, transfer: TransferView) -> _Found:
    yield "from", "peer", transfer.source
    yield "to", "peer", transfer.target
    yield "job", "job", transfer.job_id
    for lease in store.views(LeaseView):
        if lease.worker == transfer.target and lease.job_id == transfer.job_id:
            yield "under lease", "lease", lease.id
    job = store.get(JobView, transfer.job_id)
    for dataset in store.views(DatasetView):
        if dataset.peer_id == transfer.source and job is not None and dataset.name == job.dataset:
            yield "dataset", "dataset", dataset.id


def _of_job(store: ClusterStore, job: JobView) -> _Found:
    yield "scheduler", "peer", job.scheduler
    for task in job.tasks:
        yield f"{task.role} at", "peer", task.peer_id
    for lease in store.views(LeaseView):
        if lease.job_id == job.id:
            yield "holds lease", "lease", lease.id
    yield from _datasets(store, job)
    for transfer in store.views(TransferView):
        if transfer.job_id == job.id:
            yield "transfer", "transfer", transfer.id


def _datasets(store: ClusterStore, job: JobView) -> _Found:
    for dataset in store.views(DatasetView):
        if dataset.name == job.dataset:
            yield "dataset", "dataset", dataset.id
            yield "data node", "peer", dataset.peer_id


def _of_dataset(store: ClusterStore, dataset: DatasetView) -> _Found:
    yield "provider", "peer", dataset.peer_id
    for job in store.views(JobView):
        if job.dataset == dataset.name:
            yield "read by job", "job", job.id
    for other in store.views(DatasetView):
        if other.name == dataset.name:
            yield ("also at" if other.digest == dataset.digest else "another version at"), "dataset", other.id
    for transfer in store.views(TransferView):
        if transfer.source == dataset.peer_id and transfer.what == "slice":
            yield "slice to", "transfer", transfer.id


def _of_peer(store: ClusterStore, peer: PeerView) -> _Found:
    for dataset in store.views(DatasetView):
        if dataset.peer_id == peer.id:
            yield "serves", "dataset", dataset.id
    for job in store.views(JobView):
        if job.scheduler == peer.id:
            yield "schedules", "job", job.id
        elif any(task.peer_id == peer.id for task in job.tasks):
            yield "works for", "job", job.id
    for lease in store.views(LeaseView):
        if lease.worker == peer.id:
            yield "leased out", "lease", lease.id
        elif lease.scheduler == peer.id:
            yield "holds lease", "lease", lease.id
    for transfer in store.views(TransferView):
        if peer.id in (transfer.source, transfer.target):
            yield ("receives" if transfer.target == peer.id else "sends"), "transfer", transfer.id


def _of_event(store: ClusterStore, number: str) -> _Found:
    seen = find_event(store, number)
    if seen is None:
        return
    yield "told by", "peer", seen.event.node
    for field, value in seen.event.fields.items():
        if field in _OF_FIELDS:
            yield field, _OF_FIELDS[field], value
        elif field == "task":
            yield "of job", "job", value.partition(".")[0]
        elif field == "dataset":
            yield "dataset", "dataset", f"{seen.event.node}/{value}"
