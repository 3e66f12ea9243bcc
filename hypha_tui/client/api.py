"""The operator API of one node: requests with deadlines, and the stream of frames."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from hypha_tui.client.dialling import over_socket, over_tls
from hypha_tui.client.endpoint import Endpoint
from hypha_tui.client.faults import problem_of, translated
from hypha_tui.client.sse import SseParser
from hypha_tui.client.transport import Answer, Transport
from node.errors import PeerProtocol, PeerUnreachable, Refused
from node.views import (
    AnyView,
    ClusterView,
    DatasetView,
    Event,
    Frame,
    JobView,
    LeaseHistory,
    LeaseView,
    LogChunk,
    ModelFile,
    ModelView,
    PeerView,
    Point,
    SchedulerChoice,
    SliceMap,
    SubmitResult,
    TransferView,
)
from node.wire import UNDECODABLE

if TYPE_CHECKING:
    from hypha_tui.client.jobfile import Body
    from node.identity.credentials import Identity

DEADLINE_S: Final = 10.0
UPLOAD_DEADLINE_S: Final = 120.0
LIST_DEADLINE_S: Final = 610.0
"""A scheduler reads a model through, to tell the digests of its files."""
SILENCE_S: Final = 40.0
"""The stream says at least `: ping` every 15 s; a longer silence is a dead link."""
_PATHS: Final[dict[type, str]] = {
    PeerView: "peers",
    LeaseView: "leases",
    TransferView: "transfers",
    JobView: "jobs",
    DatasetView: "datasets",
}

T = TypeVar("T")
V = TypeVar("V", bound=AnyView)


class Client(Protocol):
    """What screens and commands need of a node. Tests and recordings have their own."""

    def frames(self) -> AsyncIterator[Frame]:
        """A snapshot, then deltas, until the link breaks."""
        ...

    async def cluster(self) -> ClusterView:
        """The cluster in numbers."""
        ...

    async def metrics(self, job_id: str) -> list[Point]:
        """The history of a job's metrics."""
        ...

    async def spec(self, job_id: str) -> dict[str, Any]:
        """A job's file as a table, in one spelling and without secrets."""
        ...

    async def lease_history(self, lease_id: str) -> LeaseHistory:
        """The life of a lease."""
        ...

    async def slice_map(self, job_id: str) -> SliceMap:
        """Every slice of a job's present pass over its data."""
        ...

    async def logs(self, job_id: str, task_id: str = "", lines: int = 200) -> list[LogChunk]:
        """The last lines that a job's tasks wrote."""
        ...

    async def submit(self, body: Body) -> SubmitResult:
        """Run a job."""
        ...

    async def cancel(self, job_id: str) -> None:
        """End a job."""
        ...

    async def pause(self, job_id: str) -> None:
        """Let a job go on to its next commit, then let its leases go."""
        ...

    async def resume(self, job_id: str) -> None:
        """Go on with a job that is paused, failed or was cancelled."""
        ...

    async def release(self, lease_id: str) -> None:
        """Let a lease go; its job looks for another worker."""
        ...

    async def cordon(self, peer_id: str) -> None:
        """Have a worker offer nothing any more."""
        ...

    async def uncordon(self, peer_id: str) -> None:
        """Have a worker offer again."""
        ...

    async def drain(self, peer_id: str) -> None:
        """Have a worker offer nothing, and hand over what it runs."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


class ApiClient:
    """A node's operator API, over a few connections; `close()` it."""

    def __init__(self, endpoint: Endpoint, *, readonly: bool = False) -> None:
        self.endpoint = endpoint
        self.readonly = readonly or endpoint.readonly
        self._identity: Identity | None = None
        self._transport: Transport | None = None

    async def close(self) -> None:
        """Close the connections."""
        if self._transport is not None:
            await self._transport.close()
            self._transport = None

    async def cluster(self) -> ClusterView:
        """The cluster in numbers."""
        return await self._get("/api/v1/cluster", ClusterView)

    async def objects(self, kind: type[V]) -> list[V]:
        """Every object of a kind."""
        return await self._get(f"/api/v1/{_PATHS[kind]}", list[kind])  # type: ignore[valid-type]

    async def job(self, job_id: str) -> JobView:
        """One job."""
        return await self._get(f"/api/v1/jobs/{quote(job_id, safe='')}", JobView)

    async def events(self) -> list[Event]:
        """The last events of all nodes, oldest first."""
        return await self._get("/api/v1/events", list[Event])

    async def metrics(self, job_id: str) -> list[Point]:
        """The history of a job's metrics."""
        return await self._get(f"/api/v1/jobs/{quote(job_id, safe='')}/metrics", list[Point])

    async def spec(self, job_id: str) -> dict[str, Any]:
        """A job's file as a table, in one spelling and without secrets."""
        return await self._get(f"/api/v1/jobs/{quote(job_id, safe='')}/spec", dict[str, Any])

    async def lease_history(self, lease_id: str) -> LeaseHistory:
        """The life of a lease."""
        return await self._get(f"/api/v1/leases/{quote(lease_id, safe='')}/history", LeaseHistory)

    async def slice_map(self, job_id: str) -> SliceMap:
        """Every slice of a job's present pass over its data."""
        return await self._get(f"/api/v1/jobs/{quote(job_id, safe='')}/slices", SliceMap)

    async def logs(self, job_id: str, task_id: str = "", lines: int = 200) -> list[LogChunk]:
        """The last lines that a job's tasks wrote; of one task, if it is named."""
        query = {"lines": str(lines)} | ({"task": task_id} if task_id else {})
        return await self._get(f"/api/v1/jobs/{quote(job_id, safe='')}/logs", list[LogChunk], query)

    async def submit(self, body: Body) -> SubmitResult:
        """Run a job. The operator's key signs what is uploaded; over the local socket the node does."""
        self._check_changes()
        self._open()
        headers, query = {"Content-Type": body.content_type}, {"job_id": body.job_id, "name": body.name}
        if self._identity is not None:
            from hypha_tui.client.commands import submission

            chosen = await self._get(f"/api/v1/jobs/{quote(body.job_id, safe='')}/scheduler", SchedulerChoice)
            headers |= submission(self._identity, body.job_id, body.sha256, body.name, chosen.scheduler)
            query = {}
        data = await self._request("POST", "/api/v1/jobs", query, headers, body.data, deadline_s=UPLOAD_DEADLINE_S)
        return _decode(data, SubmitResult)

    async def cancel(self, job_id: str) -> None:
        """End a job."""
        await self._act("jobs", job_id, "cancel")

    async def pause(self, job_id: str) -> None:
        """Let a job go on to its next commit, then let its leases go."""
        await self._act("jobs", job_id, "pause")

    async def resume(self, job_id: str) -> None:
        """Go on with a job that is paused, failed or was cancelled."""
        await self._act("jobs", job_id, "resume")

    async def release(self, lease_id: str) -> None:
        """Let a lease go; its job looks for another worker."""
        await self._act("leases", lease_id, "release")

    async def cordon(self, peer_id: str) -> None:
        """Have a worker offer nothing any more."""
        await self._act("peers", peer_id, "cordon")

    async def uncordon(self, peer_id: str) -> None:
        """Have a worker offer again."""
        await self._act("peers", peer_id, "uncordon")

    async def drain(self, peer_id: str) -> None:
        """Have a worker offer nothing, and hand over what it runs."""
        await self._act("peers", peer_id, "drain")

    async def model(self, job_id: str, version: str) -> ModelView:
        """What can be exported of a job: `latest`, or the number of a version."""
        path, headers = f"/api/v1/jobs/{quote(job_id, safe='')}/model", self._may_export(job_id)
        data = await self._request("GET", path, {"version": version}, headers, deadline_s=LIST_DEADLINE_S)
        return _decode(data, ModelView)

    async def model_bytes(self, model: ModelView, file: ModelFile, start: int) -> AsyncGenerator[bytes, None]:
        """A file of a model from byte `start` on, until its end or a break (PeerUnreachable)."""
        path = f"/api/v1/jobs/{quote(model.job_id, safe='')}/model/{quote(file.name, safe='')}"
        headers = {**self._may_export(model.job_id), "If-Match": f'"sha256:{file.sha256}"'}
        headers |= {"Range": f"bytes={start}-"} if start else {}
        target = f"{path}?version={model.version}"
        with translated(self.endpoint):
            async with self._open().ask("GET", target, headers, silence_s=SILENCE_S) as answer:
                await _check(answer)
                if start and answer.head.status != 206:
                    raise PeerProtocol(f"{self.endpoint} answers with another part of {file.name} than asked for")
                while piece := await answer.piece():
                    yield piece

    async def frames(self) -> AsyncIterator[Frame]:
        """A snapshot, then deltas, until the link breaks or falls silent (PeerUnreachable)."""
        parser = SseParser()
        with translated(self.endpoint):
            async with self._open().ask("GET", "/events", _EVENT_STREAM, silence_s=SILENCE_S) as answer:
                await _check(answer)
                while piece := await answer.piece():
                    for event in parser.feed(piece):
                        yield _decode(event.data, Frame)  # type: ignore[arg-type]
        raise PeerUnreachable(f"{self.endpoint} ended the stream", hint="the node may be restarting")

    async def _get(self, path: str, type_: type[T], query: Mapping[str, str] | None = None) -> T:
        return _decode(await self._request("GET", path, query or {}, {}), type_)

    async def _act(self, kind: str, id_: str, name: str) -> None:
        self._check_changes()
        self._open()
        headers: dict[str, str] = {}
        if self._identity is not None:
            from hypha_tui.client.commands import act

            headers = act(self._identity, name, id_)
        await self._request("POST", f"/api/v1/{kind}/{quote(id_, safe='')}/{name}", {}, headers)

    async def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        body: bytes | None = None,
        *,
        deadline_s: float = DEADLINE_S,
    ) -> bytes:
        target = f"{path}?{urlencode(query)}" if query else path
        with translated(self.endpoint):
            async with (
                asyncio.timeout(deadline_s),
                self._open().ask(method, target, headers, body) as answer,
            ):
                await _check(answer)
                return await answer.read()

    def _check_changes(self) -> None:
        """Raise `Refused` where nothing may be changed through this client."""
        if self.readonly:
            raise Refused("readonly", "read-only: nothing is changed", hint="start without --readonly to change things")

    def _may_export(self, job_id: str) -> dict[str, str]:
        self._open()
        if self._identity is None:
            return {}
        from hypha_tui.client.commands import export

        return export(self._identity, job_id)

    def _open(self) -> Transport:
        if self._transport is not None:
            return self._transport
        endpoint = self.endpoint
        if endpoint.socket is not None:
            self._transport = Transport("node", over_socket(endpoint.socket))
        elif endpoint.address is not None and endpoint.cert and endpoint.key and endpoint.trust:
            from node.identity.credentials import load_identity  # cryptography costs start-up time

            self._identity = load_identity(endpoint.cert, endpoint.key, endpoint.trust, endpoint.crls)
            self._transport = Transport(endpoint.address.netloc, over_tls(endpoint.address, self._identity))
        else:
            raise PeerUnreachable("no node to connect to", hint="name one with --node")
        return self._transport


_EVENT_STREAM: Final = {"Accept": "text/event-stream"}


async def _check(answer: Answer) -> None:
    if answer.head.status >= 400:
        raise problem_of(answer.head.status, answer.head.reason, await answer.read())


def _decode(data: bytes, type_: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=type_)
    except UNDECODABLE as error:
        raise PeerProtocol(
            f"the node answers something unexpected: {error}", hint="are both of the same version?"
        ) from None


@asynccontextmanager
async def connected(endpoint: Endpoint) -> AsyncIterator[ApiClient]:
    """A client that is closed at the end of the block."""
    client = ApiClient(endpoint)
    try:
        yield client
    finally:
        await client.close()
