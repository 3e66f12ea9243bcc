"""The twin commands that steer: jobs, leases, workers. Each acts on one object, named in full or by its beginning."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal, cast

from hypha_tui.client.api import ApiClient, connected
from hypha_tui.client.endpoint import Endpoint
from hypha_tui.store.cluster import FINISHED
from hypha_tui.twin import output
from hypha_tui.twin.naming import job_id_of, lease_id_of, worker_of
from node.errors import Refused
from node.views import JobView

JobAct = Literal["cancel", "pause", "resume"]
WorkerAct = Literal["cordon", "uncordon", "drain"]
_JOB_TOLD = {
    "cancel": ("cancelled", "is being cancelled"),
    "pause": ("paused", "pauses after its next commit"),
    "resume": ("resumed", "goes on"),
}
_WORKER_TOLD = {
    "cordon": ("cordoned", "offers nothing any more"),
    "uncordon": ("uncordoned", "offers again"),
    "drain": ("draining", "hands over what it runs at the next commits"),
}


async def steer_job(endpoint: Endpoint, name: JobAct, word: str, *, as_json: bool) -> int:
    """Cancel, pause or resume a job."""
    async with connected(endpoint) as client:
        job_id = await job_id_of(client, word)
        if name == "cancel":
            await _check_running(client, job_id)
        calls: dict[JobAct, Callable[[str], Awaitable[None]]] = {
            "cancel": client.cancel,
            "pause": client.pause,
            "resume": client.resume,
        }
        await calls[name](job_id)
    key, told = _JOB_TOLD[name]
    return _say({"job_id": job_id, key: True}, f"{job_id} {told}", as_json=as_json)


async def release(endpoint: Endpoint, word: str, *, as_json: bool) -> int:
    """Let a lease go."""
    async with connected(endpoint) as client:
        lease_id = await lease_id_of(client, word)
        await client.release(lease_id)
    return _say({"lease_id": lease_id, "released": True}, f"{lease_id} is released", as_json=as_json)


async def steer_worker(endpoint: Endpoint, name: WorkerAct, word: str, *, as_json: bool) -> int:
    """Cordon, uncordon or drain a worker."""
    async with connected(endpoint) as client:
        peer = await worker_of(client, word)
        calls: dict[WorkerAct, Callable[[str], Awaitable[None]]] = {
            "cordon": client.cordon,
            "uncordon": client.uncordon,
            "drain": client.drain,
        }
        await calls[name](peer.id)
    key, told = _WORKER_TOLD[name]
    return _say({"peer_id": peer.id, "name": peer.name, key: True}, f"{peer.name} {told}", as_json=as_json)


async def _check_running(client: ApiClient, job_id: str) -> None:
    jobs = cast("list[JobView]", await client.objects(JobView))
    ended = next((job for job in jobs if job.id == job_id and job.state in FINISHED), None)
    if ended is not None:
        raise Refused("conflict", f"{job_id} is {ended.state}", hint="nothing is left to cancel")


def _say(document: dict[str, str | bool], text: str, *, as_json: bool) -> int:
    if as_json:
        output.data(document)
    else:
        output.line(text)
    return 0
