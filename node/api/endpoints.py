"""What each route of the operator API answers, but for commands. Views come from the whole cluster."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any, TypeVar
from urllib.parse import quote

import aiohttp
import msgspec
from aiohttp import web

from node.api.openapi import document
from node.api.outlet import Outlet, Outlets
from node.api.problems import Failure, problem_of
from node.api.routes import JSON, LOG_LINES, LOG_LINES_MOST, Health
from node.api.watch import Watch
from node.config import NodeConfig
from node.errors import HyphaError, PeerProtocol
from node.network.overlay import Overlay
from node.telemetry import Telemetry
from node.version import __version__
from node.views import (
    ClusterView,
    DatasetView,
    Delta,
    Frame,
    JobView,
    LeaseHistory,
    LeaseView,
    LogChunk,
    PeerView,
    Point,
    SliceMap,
    Snapshot,
    TransferView,
    View,
)
from node.wire import UNDECODABLE

V = TypeVar("V", bound=View)

FILL_WITHIN_S = 2.0
PEER_WITHIN_S = 10.0
PING_S = 15.0
STREAMS = 64
ANSWER_BYTES_MOST = 32 << 20


class Endpoints:
    """The handlers, named as in the route table."""

    def __init__(self, config: NodeConfig, overlay: Overlay, watch: Watch, telemetry: Telemetry) -> None:
        self._config = config
        self._overlay = overlay
        self._watch = watch
        self._telemetry = telemetry
        self._outlets = Outlets(STREAMS)
        self._began = time.monotonic()
        self._document = b""

    def close(self) -> None:
        """End all event streams."""
        self._outlets.close()

    async def cluster(self, _: web.Request) -> web.StreamResponse:
        """The cluster in numbers."""
        peers = await self._all(PeerView)
        leases = await self._all(LeaseView)
        jobs = await self._all(JobView)
        view = ClusterView(
            peer_id=self._overlay.peer_id,
            name=self._config.name,
            version=__version__,
            authority=self._overlay.identity.trust.authority,
            peers=len(peers),
            up=sum(peer.state == "up" for peer in peers),
            roles=dict(Counter(role for peer in peers for role in peer.roles)),
            leases=sum(lease.state == "held" for lease in leases),
            jobs=dict(Counter(job.state for job in jobs)),
            age_s=time.monotonic() - self._began,
        )
        return to_json(view)

    async def peers(self, _: web.Request) -> web.StreamResponse:
        """All nodes."""
        return to_json(await self._all(PeerView))

    async def peer(self, request: web.Request) -> web.StreamResponse:
        """One node."""
        asked = request.match_info["id"]
        peers = {peer.id: peer for peer in await self._all(PeerView)}
        found = peers.get(asked) or peers.get(self._overlay.find_name(asked) or "")
        if found is None:
            raise Failure(404, "unknown", f"no node {asked}", hint="`peers` lists them all")
        return to_json(found)

    async def datasets(self, _: web.Request) -> web.StreamResponse:
        """All datasets, at each provider."""
        return to_json(await self._all(DatasetView))

    async def leases(self, _: web.Request) -> web.StreamResponse:
        """All leases."""
        return to_json(await self._all(LeaseView))

    async def lease_history(self, request: web.Request) -> web.StreamResponse:
        """The life of a lease: its worker's word, and what its scheduler adds to that."""
        lease_id = request.match_info["id"]
        lease = next((view for view in await self._all(LeaseView) if view.id == lease_id), None)
        if lease is None:
            raise Failure(404, "unknown", f"no lease {lease_id}", hint="`leases` lists them all")
        path = quote(lease_id, safe="")
        async with asyncio.TaskGroup() as group:
            given = group.create_task(self._life(lease.worker, f"/bulk/leases/{path}"))
            held = group.create_task(self._life(lease.scheduler, f"/bulk/jobs/{quote(lease.job_id)}/leases/{path}"))
        return to_json(joined(lease_id, given.result(), held.result()))

    async def transfers(self, _: web.Request) -> web.StreamResponse:
        """All transfers."""
        return to_json(await self._all(TransferView))

    async def jobs(self, _: web.Request) -> web.StreamResponse:
        """All jobs."""
        return to_json(await self._all(JobView))

    async def job(self, request: web.Request) -> web.StreamResponse:
        """One job."""
        return to_json(await self._job(request))

    async def job_metrics(self, request: web.Request) -> web.StreamResponse:
        """The history that the job's scheduler keeps."""
        job = await self._job(request)
        body, _ = await self._ask(job.scheduler, f"/bulk/jobs/{job.id}/metrics")
        try:
            return to_json(msgspec.json.decode(body, type=list[Point]))
        except UNDECODABLE as error:
            raise PeerProtocol(f"metrics from {job.scheduler} that cannot be read: {error}") from error

    async def job_slices(self, request: web.Request) -> web.StreamResponse:
        """Every slice of a job's present pass, as its scheduler counts them."""
        job = await self._job(request)
        body, _ = await self._ask(job.scheduler, f"/bulk/jobs/{job.id}/slices")
        try:
            return to_json(msgspec.json.decode(body, type=SliceMap))
        except UNDECODABLE as error:
            raise PeerProtocol(f"slices from {job.scheduler} that cannot be read: {error}") from error

    async def job_spec(self, request: web.Request) -> web.StreamResponse:
        """The job's file, as its scheduler has it."""
        job = await self._job(request)
        body, _ = await self._ask(job.scheduler, f"/bulk/jobs/{job.id}/spec")
        try:
            return to_json(msgspec.json.decode(body, type=dict[str, Any]))
        except UNDECODABLE as error:
            raise PeerProtocol(f"a job from {job.scheduler} that cannot be read: {error}") from error

    async def job_logs(self, request: web.Request) -> web.StreamResponse:
        """The last lines of a job's tasks, each asked of the worker that runs it."""
        job = await self._job(request)
        lines = _whole_number(request, "lines", LOG_LINES, LOG_LINES_MOST)
        wanted = request.query.get("task")
        tasks = [task for task in job.tasks if wanted in (None, task.task_id)]
        if wanted is not None and not tasks:
            raise Failure(404, "unknown", f"job {job.id} has no task {wanted}")
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(self._log(task.task_id, task.peer_id, lines)) for task in tasks]
        return to_json([task.result() for task in asked])

    async def events(self, _: web.Request) -> web.StreamResponse:
        """The last events of all nodes."""
        cluster = await self._watch.fill(FILL_WITHIN_S)
        return to_json(cluster.events(self._watch.now()))

    async def healthz(self, _: web.Request) -> web.StreamResponse:
        """That this node is alive, and how late its loop is."""
        loop = asyncio.get_running_loop()
        asked_at = loop.time()
        await asyncio.sleep(0)
        return to_json(Health(status="ok", loop_lag_ms=round((loop.time() - asked_at) * 1e3, 3)))

    async def metrics(self, _: web.Request) -> web.StreamResponse:
        """This node's metrics for Prometheus."""
        headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=await self._telemetry.render(), headers=headers)

    async def openapi(self, _: web.Request) -> web.StreamResponse:
        """The API's own description."""
        if not self._document:
            self._document = msgspec.json.encode(document())
        return web.Response(body=self._document, content_type=JSON)

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Everything as it changes, as server-sent events, until the client leaves or lags."""
        if self._outlets.is_full:
            raise Failure(503, "busy", f"{STREAMS} clients watch through this node already")
        return await self._outlets.serve(request, "text/event-stream", self._send_events)

    async def _send_events(self, outlet: Outlet) -> None:
        with self._watch.feed(outlet.notify) as feed:
            frame: Frame | None = feed.snapshot(self._watch.now())
            while outlet.is_open:
                await outlet.send(b": ping\n\n" if frame is None else server_sent(frame))
                await outlet.wait(PING_S)
                frame = feed.take(self._watch.now())

    async def _all(self, kind: type[V]) -> list[V]:
        cluster = await self._watch.fill(FILL_WITHIN_S)
        return [item for item in cluster.items(self._watch.now()) if isinstance(item, kind)]

    async def _job(self, request: web.Request) -> JobView:
        job_id = request.match_info["id"]
        cluster = await self._watch.fill(FILL_WITHIN_S)
        job = cluster.job(job_id, self._watch.now())
        if job is None:
            raise Failure(404, "unknown", f"no job {job_id}", hint="`jobs` lists them all")
        return job

    async def _ask(self, peer_id: str, path: str) -> tuple[bytes, str]:
        """The body of a peer's answer, and its type."""
        body = bytearray()
        try:
            async with asyncio.timeout(PEER_WITHIN_S), self._overlay.open(peer_id, "GET", path) as answer:
                async for piece in answer.content.iter_any():
                    body += piece
                    if len(body) > ANSWER_BYTES_MOST:
                        raise PeerProtocol(f"{path} at {peer_id} is over {ANSWER_BYTES_MOST >> 20} MiB")
                return bytes(body), answer.content_type
        except aiohttp.ClientError as error:
            raise PeerProtocol(f"{path} at {peer_id} broke off: {error}") from error

    async def _life(self, peer_id: str, path: str) -> LeaseHistory | str:
        """What one end of a lease knows of it, or why it does not tell."""
        try:
            body, _ = await self._ask(peer_id, path)
            return msgspec.json.decode(body, type=LeaseHistory)
        except (HyphaError, TimeoutError, *UNDECODABLE) as error:
            return problem_of(error).detail or str(error)

    async def _log(self, task_id: str, peer_id: str, lines: int) -> LogChunk:
        if not peer_id:
            return LogChunk(task_id=task_id, peer_id="", lines=[], error="not started on any node")
        try:
            body, content_type = await self._ask(peer_id, f"/bulk/tasks/{task_id}/log?lines={lines}")
            if content_type == JSON:
                return msgspec.json.decode(body, type=LogChunk)
            return LogChunk(task_id=task_id, peer_id=peer_id, lines=body.decode(errors="replace").splitlines())
        except (HyphaError, TimeoutError, *UNDECODABLE) as error:
            return LogChunk(task_id=task_id, peer_id=peer_id, lines=[], error=problem_of(error).detail)


def joined(lease_id: str, worker: LeaseHistory | str, scheduler: LeaseHistory | str) -> LeaseHistory:
    """One life of what the two ends tell. The worker's word goes first; a loss is what the scheduler noticed."""
    problems = []
    if isinstance(worker, str):
        problems.append(f"its worker does not tell: {worker}")
    if isinstance(scheduler, str):
        problems.append(f"its scheduler does not tell: {scheduler}")
    told = [one for one in (worker, scheduler) if isinstance(one, LeaseHistory)]
    if not told:
        raise Failure(502, "unreachable", "; ".join(problems))
    main = told[0]
    lost = [mark for one in told[1:] for mark in one.marks if mark.name == "lost"]
    return LeaseHistory(
        lease_id=lease_id,
        marks=sorted([*main.marks, *lost], key=lambda mark: -mark.age_s),
        earlier_renewals=main.earlier_renewals,
        next_renewal_s=next((one.next_renewal_s for one in told if one.next_renewal_s is not None), None),
        problems=problems,
    )


def to_json(answer: Any, *, status: int = 200) -> web.Response:
    """A response with a view, or a list of them."""
    return web.Response(status=status, body=msgspec.json.encode(answer), content_type=JSON)


def server_sent(frame: Snapshot | Delta) -> bytes:
    """A frame as a server-sent event. JSON has no raw line breaks, so the data is one line."""
    kind = b"snapshot" if isinstance(frame, Snapshot) else b"delta"
    return b"event: %s\nid: %d\ndata: %s\n\n" % (kind, frame.seq, msgspec.json.encode(frame))


def _whole_number(request: web.Request, name: str, default: int, most: int) -> int:
    text = request.query.get(name, str(default))
    if not text.isascii() or not text.isdigit() or not 0 < int(text[:9]) <= most:
        raise Failure(422, "invalid", f"{name}={text[:40]}: a whole number from 1 to {most} is needed")
    return int(text)
