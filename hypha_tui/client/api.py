"""The operator API of one node: requests with deadlines, and the stream of frames."""

from __future__ import annotations

import asyncio
import base64
import os
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar
from urllib.parse import quote

import aiohttp
import msgspec
from aiohttp.client_reqrep import ClientRequest, ClientResponse
from aiohttp.connector import Connection
from yarl import URL

from hypha_tui.client.endpoint import Endpoint
from hypha_tui.client.sse import SseParser
from node.errors import HyphaError, PeerProtocol, PeerUnreachable, PeerUntrusted, Refused
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
    Problem,
    SliceMap,
    SubmitResult,
    TransferView,
)
from node.wire import (
    Cancel,
    Command,
    Cordon,
    Drain,
    Export,
    Pause,
    Release,
    Resume,
    RunCommand,
    Submit,
    Uncordon,
    WorkerCommand,
)

if TYPE_CHECKING:
    from hypha_tui.client.jobfile import Body
    from node.identity.credentials import Identity
    from node.identity.trust import Trust

DEADLINE_S: Final = 10.0
UPLOAD_DEADLINE_S: Final = 120.0
LIST_DEADLINE_S: Final = 610.0
"""A scheduler reads a model through, to tell the digests of its files."""
SILENCE_S: Final = 40.0
"""The stream says at least `: ping` every 15 s; a longer silence is a dead link."""
COMMAND_HEADER: Final = "Hypha-Command"
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
    """A node's operator API. One session, one pool; `close()` it."""

    def __init__(self, endpoint: Endpoint, *, readonly: bool = False) -> None:
        self.endpoint = endpoint
        self.readonly = readonly or endpoint.readonly
        self._identity: Identity | None = None
        self._session: aiohttp.ClientSession | None = None
        self._base = "http://node"

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

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
        headers = {"Content-Type": body.content_type}
        self._open()
        headers |= self._signed(Submit(job_id=body.job_id, body_sha256=body.sha256, name=body.name))
        query = {} if COMMAND_HEADER in headers else {"job_id": body.job_id, "name": body.name}
        data = await self._request("POST", "/api/v1/jobs", headers, body.data, UPLOAD_DEADLINE_S, query)
        return _decode(data, SubmitResult)

    async def cancel(self, job_id: str) -> None:
        """End a job."""
        await self._act(f"jobs/{quote(job_id, safe='')}/cancel", Cancel(job_id=job_id))

    async def pause(self, job_id: str) -> None:
        """Let a job go on to its next commit, then let its leases go."""
        await self._act(f"jobs/{quote(job_id, safe='')}/pause", Pause(job_id=job_id))

    async def resume(self, job_id: str) -> None:
        """Go on with a job that is paused, failed or was cancelled."""
        await self._act(f"jobs/{quote(job_id, safe='')}/resume", Resume(job_id=job_id))

    async def release(self, lease_id: str) -> None:
        """Let a lease go; its job looks for another worker."""
        await self._act(f"leases/{quote(lease_id, safe='')}/release", Release(lease_id=lease_id))

    async def cordon(self, peer_id: str) -> None:
        """Have a worker offer nothing any more."""
        await self._act(f"peers/{quote(peer_id, safe='')}/cordon", Cordon(peer_id=peer_id))

    async def uncordon(self, peer_id: str) -> None:
        """Have a worker offer again."""
        await self._act(f"peers/{quote(peer_id, safe='')}/uncordon", Uncordon(peer_id=peer_id))

    async def drain(self, peer_id: str) -> None:
        """Have a worker offer nothing, and hand over what it runs."""
        await self._act(f"peers/{quote(peer_id, safe='')}/drain", Drain(peer_id=peer_id))

    async def model(self, job_id: str, version: str) -> ModelView:
        """What can be exported of a job: `latest`, or the number of a version."""
        self._open()
        headers, path = self._signed(Export(job_id=job_id)), f"/api/v1/jobs/{quote(job_id, safe='')}/model"
        data = await self._request("GET", path, headers, None, LIST_DEADLINE_S, {"version": version})
        return _decode(data, ModelView)

    async def model_bytes(self, model: ModelView, file: ModelFile, start: int) -> AsyncGenerator[bytes, None]:
        """A file of a model from byte `start` on, until its end or a break (PeerUnreachable)."""
        session = self._open()
        name = quote(file.name, safe="")
        url = f"{self._base}/api/v1/jobs/{quote(model.job_id, safe='')}/model/{name}?version={model.version}"
        headers = {**self._signed(Export(job_id=model.job_id)), "If-Match": f'"sha256:{file.sha256}"'}
        headers |= {"Range": f"bytes={start}-"} if start else {}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=DEADLINE_S, sock_read=SILENCE_S)
        with _translated(self.endpoint):
            async with session.get(URL(url, encoded=True), timeout=timeout, headers=headers) as response:
                await _check(response)
                if start and response.status != 206:
                    raise PeerProtocol(f"{self.endpoint} answers with another part of {file.name} than asked for")
                async for piece in response.content.iter_any():
                    yield piece

    async def frames(self) -> AsyncIterator[Frame]:
        """A snapshot, then deltas, until the link breaks or falls silent (PeerUnreachable)."""
        session = self._open()
        parser = SseParser()
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=DEADLINE_S, sock_read=SILENCE_S)
        with _translated(self.endpoint):
            async with session.get(f"{self._base}/events", timeout=timeout, headers=_EVENT_STREAM) as response:
                await _check(response)
                async for piece in response.content.iter_any():
                    for event in parser.feed(piece):
                        yield _decode(event.data, Frame)  # type: ignore[arg-type]
        raise PeerUnreachable(f"{self.endpoint} ended the stream", hint="the node may be restarting")

    async def _get(self, path: str, type_: type[T], query: Mapping[str, str] | None = None) -> T:
        return _decode(await self._request("GET", path, {}, None, DEADLINE_S, query), type_)

    async def _request(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        data: bytes | None,
        deadline_s: float,
        query: Mapping[str, str] | None = None,
    ) -> bytes:
        session = self._open()
        with _translated(self.endpoint):
            async with (
                asyncio.timeout(deadline_s),
                session.request(method, f"{self._base}{path}", headers=headers, data=data, params=query) as response,
            ):
                await _check(response)
                return await response.read()

    async def _act(self, path: str, command: Command | WorkerCommand) -> None:
        self._check_changes()
        self._open()
        await self._request("POST", f"/api/v1/{path}", self._signed(command), None, DEADLINE_S)

    def _check_changes(self) -> None:
        """Raise `Refused` where nothing may be changed through this client."""
        if self.readonly:
            raise Refused("readonly", "read-only: nothing is changed", hint="start without --readonly to change things")

    def _signed(self, command: Command | WorkerCommand | Export) -> dict[str, str]:
        if self._identity is None:
            return {}
        from node.commanding import payload_of

        signed = self._identity.sign(payload_of(command))
        run = msgspec.msgpack.encode(RunCommand(signed=signed))
        return {COMMAND_HEADER: base64.b64encode(run).decode()}

    def _open(self) -> aiohttp.ClientSession:
        if self._session is not None:
            return self._session
        endpoint = self.endpoint
        if endpoint.socket is not None:
            self._session = aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(endpoint.socket)))
        elif endpoint.address is not None and endpoint.cert and endpoint.key and endpoint.trust:
            from node.identity.credentials import load_identity  # cryptography costs start-up time

            self._identity = load_identity(endpoint.cert, endpoint.key, endpoint.trust, endpoint.crls)
            self._base = f"https://{endpoint.address.netloc}"
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=self._identity.client_context()),
                request_class=_checked(self._identity.trust, endpoint.address.peer_id),
            )
        else:
            raise PeerUnreachable("no node to connect to", hint="name one with --node")
        return self._session


_EVENT_STREAM: Final = {"Accept": "text/event-stream"}


def _checked(trust: Trust, peer_id: str | None) -> type[ClientRequest]:
    """Requests that are sent only once we know who answers: a node of the cluster, and this peer if one is named."""

    class CheckedRequest(ClientRequest):
        async def send(self, conn: Connection) -> ClientResponse:
            try:
                _check_peer(conn, trust, peer_id, self.url)
            except PeerUntrusted:
                conn.close()
                raise
            return await super().send(conn)

    return CheckedRequest


def _check_peer(conn: Connection, trust: Trust, peer_id: str | None, url: URL) -> None:
    tls = conn.transport.get_extra_info("ssl_object") if conn.transport is not None else None
    certificate = tls.getpeercert(binary_form=True) if tls is not None else None
    if certificate is None:
        raise PeerUntrusted(f"who answers at {url.host}:{url.port} shows no certificate")
    caller = trust.caller_of(certificate)
    if caller.role != "node":
        raise PeerUntrusted(f"{caller.name} at {url.host}:{url.port} is an operator, not a node")
    if peer_id is not None and caller.peer_id != peer_id:
        raise PeerUntrusted(
            f"{caller.name} ({caller.peer_id}) answers at {url.host}:{url.port}, not {peer_id}",
            hint="check the address; leave /p2p/.. out to accept any node of the cluster",
        )


class _translated:
    """Errors of aiohttp and TLS as ours, once, at this edge."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None or isinstance(error, HyphaError | asyncio.CancelledError | GeneratorExit):
            return
        ours = _ours(error, self._endpoint)
        if ours is not None:
            raise ours from error


def _ours(error: BaseException, endpoint: Endpoint) -> HyphaError | None:
    if isinstance(error, aiohttp.ClientConnectorCertificateError | ssl.SSLCertVerificationError):
        return PeerUntrusted(
            f"the certificate of {endpoint} is refused: {error.__cause__ or error}",
            hint="--trust must name the cluster's authority",
        )
    text = str(error).lower()
    is_tls = isinstance(error, ssl.SSLError | aiohttp.ClientSSLError) or "alert" in text
    if is_tls and "eof" not in text:  # an end in mid-handshake is a node that goes down, not a refusal
        return PeerUntrusted(
            f"{endpoint} refuses our certificate: {error}",
            hint="use an operator's certificate of this cluster that is neither expired nor revoked",
        )
    if isinstance(error, TimeoutError):
        return PeerUnreachable(f"{endpoint} does not answer", hint="is the node up, and the link to it?")
    if isinstance(error, aiohttp.ClientConnectorError | OSError):
        number = getattr(error, "errno", None)
        reason = os.strerror(number) if isinstance(number, int) and number > 0 else str(error) or type(error).__name__
        return PeerUnreachable(f"cannot reach {endpoint}: {reason}", hint="is the node running?")
    if isinstance(error, aiohttp.ClientError):
        return PeerUnreachable(f"the link to {endpoint} broke: {error or error.__class__.__name__}", hint="try again")
    if isinstance(error, ValueError):
        return PeerProtocol(f"{endpoint} answers something that is not the operator API: {error}")
    return None


async def _check(response: aiohttp.ClientResponse) -> None:
    if response.status < 400:
        return
    data = await response.read()
    try:
        problem = msgspec.json.decode(data, type=Problem)
    except msgspec.DecodeError:
        problem = Problem(status=response.status, code="", title=response.reason or "", detail="")
    if response.status in (401, 403):
        raise PeerUntrusted(
            problem.detail or problem.title or "the node does not take our certificate",
            hint=problem.hint or "use an operator's certificate (`hypha-node cert operator`)",
        )
    message = problem.detail or problem.title or f"HTTP {response.status}"
    if response.status in (502, 503, 504) and problem.code in ("", "unreachable", "busy", "peer"):
        raise PeerUnreachable(message, hint=problem.hint)
    raise Refused(problem.code or str(response.status), message, hint=problem.hint)


def _decode(data: bytes, type_: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=type_)
    except msgspec.DecodeError as error:
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
