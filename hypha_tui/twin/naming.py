"""Which job or other object a word on the command line stands for; never one of several."""

from __future__ import annotations

from typing import cast

from hypha_tui.client.api import ApiClient
from hypha_tui.store.cluster import KINDS, ClusterStore
from hypha_tui.store.lookup import find
from node.errors import ConfigError, Refused
from node.views import AnyView, JobView, LeaseView, PeerView

SHOWN = 5
OTHERWISE = {"job": "name", "lease": "the beginning of it", "worker": "name"}


async def job_id_of(client: ApiClient, word: str, *, else_itself: bool = False) -> str:
    """The id of the job with this id, name, or beginning of an id.

    `else_itself`: a word that stands for none is taken for the id of a job that ended too long ago to be shown."""
    _check(word, "job")
    jobs = cast("list[JobView]", await client.objects(JobView))
    if any(job.id == word for job in jobs):
        return word
    found = [job.id for job in jobs if job.name == word] or [job.id for job in jobs if job.id.startswith(word)]
    if len(found) == 1:
        return found[0]
    if found:
        raise Refused("unknown", f"{len(found)} jobs are called {word!r}", hint=f"name one: {_some(found)}")
    if else_itself:
        return word
    raise Refused("unknown", f"there is no job {word!r}", hint="`hypha-tui jobs` lists them")


async def lease_id_of(client: ApiClient, word: str) -> str:
    """The id of the lease with this id, or beginning of an id."""
    _check(word, "lease")
    ids = [lease.id for lease in cast("list[LeaseView]", await client.objects(LeaseView))]
    found = [word] if word in ids else [id_ for id_ in ids if id_.startswith(word)]
    if len(found) == 1:
        return found[0]
    if found:
        raise Refused("unknown", f"{len(found)} leases begin with {word!r}", hint=f"name one: {_some(found)}")
    raise Refused("unknown", f"there is no lease {word!r}", hint="`hypha-tui leases` lists them")


async def worker_of(client: ApiClient, word: str) -> PeerView:
    """The worker with this id, name, or beginning or end of an id."""
    _check(word, "worker")
    peers = [peer for peer in cast("list[PeerView]", await client.objects(PeerView)) if "worker" in peer.roles]
    found = [peer for peer in peers if peer.id == word] or [peer for peer in peers if peer.name == word]
    found = found or [peer for peer in peers if peer.id.startswith(word) or peer.id.endswith(word)]
    if len(found) == 1:
        return found[0]
    if found:
        names = _some([peer.name for peer in found])
        raise Refused("unknown", f"{len(found)} workers are called {word!r}", hint=f"name one: {names}")
    raise Refused("unknown", f"there is no worker {word!r}", hint="`hypha-tui peers` lists them")


def object_of(store: ClusterStore, kind: str, word: str) -> AnyView:
    """The object of this kind with this id, name, or beginning of an id."""
    if kind not in KINDS:
        raise ConfigError(f"{kind!r} is not a kind of object", hint=f"there are {', '.join(KINDS)}")
    found = find(store, word, (kind,))
    if len(found) == 1:
        return store.items(kind)[found[0][1]].view
    if found:
        ids = [id_ for _, id_ in found]
        raise Refused("unknown", f"{len(found)} {kind}s are called {word!r}", hint=f"name one: {_some(ids)}")
    raise Refused("unknown", f"there is no {kind} {word!r}", hint=f"`hypha-tui {kind}s` lists them")


def _check(word: str, kind: str) -> None:
    """An empty word would be the beginning of every id: of a script, with a variable that is not set."""
    if not word:
        raise ConfigError(f"no {kind} is named: the word for it is empty", hint=f"name its id or {OTHERWISE[kind]}")


def _some(ids: list[str]) -> str:
    return ", ".join(ids[:SHOWN])
