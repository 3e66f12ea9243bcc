"""The operator API over HTTP and its Unix socket: one cluster, seen through any of its nodes."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import re
import stat
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
import pytest_asyncio
from aiohttp import web

from node.api import commands, local, outlet
from node.api.routes import ROUTES
from node.api.service import ApiService
from node.board import Board
from node.config import NodeConfig
from node.errors import Refused
from node.identity.credentials import Identity
from node.telemetry import Telemetry
from node.views import DatasetView, JobView, LeaseView, LogChunk, PeerView, Point, SubmitResult, TaskView
from node.wire import Accepted, Cancel, Command, Resources, RunCommand, Submit
from tests.support import MakeIdentity
from tests.unit.fake_overlay import CALLER, FakeOverlay, Network

TOML = "application/toml"
JOB = b'name = "x"\n'


class Node:
    """A node with an operator API, and what its scheduler was told."""

    def __init__(self, overlay: FakeOverlay, board: Board, config: NodeConfig, service: ApiService) -> None:
        self.overlay = overlay
        self.board = board
        self.config = config
        self.service = service
        self.submissions: list[tuple[Submit, str, bytes]] = []
        self.cancelled: list[str] = []

    @property
    def url(self) -> str:
        assert self.overlay.server is not None
        return str(self.overlay.server.make_url("")).rstrip("/")

    def be_a_scheduler(self) -> None:
        """Take submissions and cancellations."""

        async def submission(_: Any, request: web.Request) -> web.StreamResponse:
            run = msgspec.msgpack.decode(base64.b64decode(request.headers["Hypha-Command"]), type=RunCommand)
            _, payload = self.overlay.identity.trust.open(run.signed)
            command = msgspec.msgpack.decode(payload, type=Command)
            assert isinstance(command, Submit)
            self.submissions.append((command, request.content_type, await request.read()))
            answer = SubmitResult(job_id=command.job_id, scheduler=self.overlay.peer_id)
            return web.Response(body=msgspec.json.encode(answer))

        async def command(run: RunCommand) -> Accepted:
            _, payload = self.overlay.identity.trust.open(run.signed)
            cancel = msgspec.msgpack.decode(payload, type=Command)
            assert isinstance(cancel, Cancel)
            if cancel.job_id == "nowhere":
                raise Refused("unknown", "no such job")
            self.cancelled.append(cancel.job_id)
            return Accepted(job_id=cancel.job_id, scheduler=self.overlay.peer_id)

        self.overlay.bulk_route("PUT", "/bulk/submissions/{job}", submission, operator=None)
        self.overlay.handlers[RunCommand] = command


Start = Callable[..., Any]


@pytest_asyncio.fixture
async def cluster(make_identity: MakeIdentity, tmp_path: Path) -> AsyncIterator[Start]:
    """Starts nodes: `await cluster("a", "scheduler")`. All end with the test."""
    network = Network()
    async with contextlib.AsyncExitStack() as stack:
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        running: list[asyncio.Task[None]] = []

        async def start(name: str, *roles: str) -> Node:
            overlay = FakeOverlay(network, make_identity(name).load(), name, list(roles))
            config = NodeConfig(name=name, roles=list(roles), state_dir=tmp_path / name)
            config.state_dir.mkdir()
            board = Board(overlay.peer_id)
            board.put(PeerView(id=overlay.peer_id, name=name, roles=list(roles), addresses=[], state="up", version="1"))
            service = ApiService(config, overlay, board, None, Telemetry(config))  # type: ignore[arg-type]
            node = Node(overlay, board, config, service)
            if "scheduler" in roles:
                node.be_a_scheduler()
            await stack.enter_async_context(overlay.running())
            running.append(tasks.create_task(service.run()))
            await _until((config.state_dir / local.FILE_NAME).exists)
            return node

        yield start
        await _end(running)


async def _end(running: list[asyncio.Task[None]]) -> None:
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


@pytest_asyncio.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    """An operator's client."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session:
        yield session


async def _until(claim: Callable[[], bool], within_s: float = 5.0) -> None:
    async with asyncio.timeout(within_s):
        while not claim():
            await asyncio.sleep(0.01)


def unix(node: Node) -> aiohttp.ClientSession:
    """A client of the node's Unix socket, found through operator.json."""
    content = json.loads((node.config.state_dir / local.FILE_NAME).read_text())
    return aiohttp.ClientSession("http://node", connector=aiohttp.UnixConnector(content["socket"]))


def lease(lease_id: str, worker: str) -> LeaseView:
    return LeaseView(
        id=lease_id,
        worker=worker,
        scheduler="s",
        job_id="j",
        state="held",
        executor="train",
        resources=Resources(cpu=1),
        price=1.0,
        duration_s=10.0,
        remaining_s=10.0,
        renewals=1,
        age_s=0.0,
    )


def job(job_id: str, scheduler: str, tasks: list[TaskView]) -> JobView:
    return JobView(
        id=job_id,
        name="demo",
        scheduler=scheduler,
        state="running",
        reason="",
        dataset="text",
        round=1,
        rounds=5,
        workers=1,
        workers_wanted=1,
        samples=10,
        tasks=tasks,
    )


def signed(identity: Identity, command: Command) -> dict[str, str]:
    run = RunCommand(signed=identity.sign(msgspec.msgpack.encode(command)))
    return {"Hypha-Command": base64.b64encode(msgspec.msgpack.encode(run)).decode(), "Content-Type": TOML}


async def get(http: aiohttp.ClientSession, url: str) -> Any:
    async with http.get(url) as answer:
        assert answer.status == 200, await answer.text()
        return await answer.json()


@pytest.mark.asyncio
async def test_any_node_answers_for_the_whole_cluster(cluster: Start, http: aiohttp.ClientSession) -> None:
    a, b, c = await cluster("a", "gateway"), await cluster("b", "worker"), await cluster("c", "data")
    b.board.put(lease("l1", b.overlay.peer_id))
    b.board.happened("lease.renewed", "l1 renewed", lease="l1")
    c.board.put(
        DatasetView(id="c/text", name="text", peer_id=c.overlay.peer_id, slices=3, rows=9, size_bytes=99, digest="d")
    )
    for node in (a, b, c):
        peers = await get(http, node.url + "/api/v1/peers")
        assert {(peer["name"], peer["state"], peer["version"]) for peer in peers} == {
            ("a", "up", "1"),
            ("b", "up", "1"),
            ("c", "up", "1"),
        }
        assert [one["id"] for one in await get(http, node.url + "/api/v1/leases")] == ["l1"]
        assert [one["id"] for one in await get(http, node.url + "/api/v1/datasets")] == ["c/text"]
        assert [one["name"] for one in await get(http, node.url + "/api/v1/events")] == ["lease.renewed"]
    whole = await get(http, a.url + "/api/v1/cluster")
    assert (whole["peers"], whole["up"], whole["leases"]) == (3, 3, 1)
    assert whole["roles"] == {"gateway": 1, "worker": 1, "data": 1}
    assert (await get(http, a.url + "/api/v1/peers/b"))["id"] == b.overlay.peer_id
    assert (await get(http, a.url + f"/api/v1/peers/{b.overlay.peer_id}"))["name"] == "b"


@pytest.mark.asyncio
async def test_a_node_that_cannot_be_reached_is_listed_as_such(cluster: Start, http: aiohttp.ClientSession) -> None:
    a, b = await cluster("a", "gateway"), await cluster("b", "worker")
    b.board.put(lease("l1", b.overlay.peer_id))
    a.overlay.network.down.add(b.overlay.peer_id)
    began = time.monotonic()
    peers = {peer["name"]: peer for peer in await get(http, a.url + "/api/v1/peers")}
    assert time.monotonic() - began < 2.5
    assert peers["b"]["state"] == "unreachable"
    assert await get(http, a.url + "/api/v1/leases") == []


async def _frames(answer: aiohttp.ClientResponse) -> AsyncIterator[tuple[str, int, Any]]:
    event: dict[str, str] = {}
    async for raw in answer.content:
        line = raw.decode().rstrip("\n")
        if not line and event:
            yield event["event"], int(event["id"]), json.loads(event["data"])
            event = {}
        elif ": " in line and not line.startswith(":"):
            name, _, text = line.partition(": ")
            event[name] = text


@pytest.mark.asyncio
async def test_the_stream_begins_with_a_snapshot_and_goes_on_with_numbered_deltas(
    cluster: Start, http: aiohttp.ClientSession
) -> None:
    a, b = await cluster("a", "gateway"), await cluster("b", "worker")
    async with asyncio.timeout(10), http.get(a.url + "/events", headers={"Last-Event-ID": "77"}) as answer:
        assert answer.content_type == "text/event-stream"
        frames = _frames(answer)
        kind, seq, data = await anext(frames)
        assert (kind, seq, data["type"]) == ("snapshot", 1, "snapshot")
        seen: dict[str, Any] = {}
        numbers = [seq]
        b.board.put(lease("l1", b.overlay.peer_id))
        b.board.measured(Point(job_id="j", name="loss", round=1, value=2.5, t_s=1.0))
        while "l1" not in seen:
            kind, seq, data = await anext(frames)
            assert kind == "delta"
            numbers.append(seq)
            seen |= {item["id"]: item for item in data["items"]}
        assert seen["l1"]["kind"] == "lease"
        b.board.measured(Point(job_id="j", name="loss", round=2, value=2.0, t_s=2.0))
        b.board.drop("lease", "l1")
        points: list[Any] = []
        dropped: list[Any] = []
        while not (points and dropped):
            _, seq, data = await anext(frames)
            numbers.append(seq)
            points += data["points"]
            dropped += data["dropped"]
        assert dropped == [["lease", "l1"]]
        assert points[-1]["round"] == 2
        assert numbers == list(range(1, len(numbers) + 1))


@pytest.mark.asyncio
async def test_clients_that_leave_leave_nothing_behind(
    cluster: Start, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U66: a server-sent events client that disconnects must not leak its handler, its queue or its observer."""
    monkeypatch.setattr(outlet, "LOOK_EVERY_S", 0.05)
    a = await cluster("a", "gateway")
    await get(http, a.url + "/healthz")
    watch = a.service._watch
    async with http.get(a.url + "/events") as answer:
        await answer.content.readline()
    await _until(lambda: not watch.cluster._feeds)
    before = len(asyncio.all_tasks())
    for _ in range(8):
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(25):
                answer = await stack.enter_async_context(http.get(a.url + "/events"))
                await answer.content.readline()
                stack.callback(answer.close)
            assert len(watch.cluster._feeds) <= 64
        await _until(lambda: not watch.cluster._feeds)
    await _until(lambda: len(asyncio.all_tasks()) <= before)
    assert watch._feeds == 0


@pytest.mark.asyncio
async def test_a_client_that_does_not_keep_up_is_cut_off(cluster: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlet, "WRITE_WITHIN_S", 0.1)
    a = await cluster("a", "gateway")
    reader, writer = await asyncio.open_connection(a.overlay.server.host, a.overlay.server.port)
    writer.write(b"GET /events HTTP/1.1\r\nHost: a\r\n\r\n")
    await _until(lambda: bool(a.service._watch._feeds))
    reader._transport.pause_reading()  # type: ignore[attr-defined]
    for number in range(8):
        a.board.put(job(f"j{number}", a.overlay.peer_id, [TaskView(task_id="t", role="r", state="x" * 2_000_000)]))
    await _until(lambda: not a.service._watch._feeds)
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


@pytest.mark.asyncio
async def test_a_silent_stream_is_kept_alive_with_comments(
    cluster: Start, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.api.endpoints.PING_S", 0.3)
    a = await cluster("a", "gateway")
    async with asyncio.timeout(5), http.get(a.url + "/events") as answer:
        async for line in answer.content:
            if line == b": ping\n":
                return
    raise AssertionError("the stream ended")


@pytest.mark.asyncio
async def test_more_watchers_than_there_is_room_for_are_turned_away(
    cluster: Start, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = await cluster("a", "gateway")
    monkeypatch.setattr(a.service._endpoints._outlets, "_limit", 1)
    async with http.get(a.url + "/events") as first:
        assert first.status == 200
        async with http.get(a.url + "/events") as second:
            assert second.status == 503
            assert (await second.json())["code"] == "busy"


@pytest.mark.asyncio
async def test_observing_stops_when_nobody_looks_any_more(
    cluster: Start, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.api.watch.LINGER_S", 0.1)
    monkeypatch.setattr("node.api.watch.TICK_S", 0.05)
    monkeypatch.setattr(outlet, "LOOK_EVERY_S", 0.05)
    a, b = await cluster("a", "gateway"), await cluster("b", "worker")
    assert not b.board._observers
    assert len(await get(http, a.url + "/api/v1/peers")) == 2
    assert b.board._observers
    await _until(lambda: not b.board._observers and not a.board._observers)
    b.board.put(lease("l9", b.overlay.peer_id))
    assert [one["id"] for one in await get(http, a.url + "/api/v1/leases")] == ["l9"]


@pytest.mark.asyncio
async def test_who_may_ask_for_what(cluster: Start, http: aiohttp.ClientSession) -> None:
    """U77: a certificate of the cluster alone lists and steers nothing."""
    a = await cluster("a", "gateway")
    for route in ROUTES:
        url = a.url + route.path.replace("{id}", "x").replace("{name}", "y")
        async with http.request(route.method, url, headers={CALLER: "node"}) as answer:
            if route.callers == "member":
                assert answer.status == 200, route.path
            else:
                problem = await answer.json(content_type="application/problem+json")
                assert (answer.status, problem["code"]) == (403, "denied"), route.path
                assert "operator" in problem["detail"]
    async with http.get(a.url + "/observe") as answer:
        assert answer.status == 403
    async with unix(a) as local_client, local_client.get("/api/v1/peers") as answer:
        assert answer.status == 200


@pytest.mark.asyncio
async def test_every_failure_is_a_problem_with_the_right_status(cluster: Start, http: aiohttp.ClientSession) -> None:
    a = await cluster("a", "gateway")
    async with unix(a) as local_client:
        for client, base in ((http, a.url), (local_client, "")):
            for method, path, status, code in (
                ("GET", "/api/v1/nonsense", 404, "unknown"),
                ("GET", "/api/v1/jobs/none", 404, "unknown"),
                ("GET", "/api/v1/jobs/none/metrics", 404, "unknown"),
                ("GET", "/api/v1/peers/none", 404, "unknown"),
                ("DELETE", "/api/v1/jobs", 405, "invalid"),
                ("POST", "/healthz", 405, "invalid"),
                ("POST", "/api/v1/jobs", 415, "invalid"),
            ):
                async with client.request(method, base + path) as answer:
                    problem = await answer.json(content_type="application/problem+json")
                    assert (answer.status, problem["status"], problem["code"]) == (status, status, code), path
                    assert problem["title"]
        async with local_client.get("/nonsense") as answer:
            assert answer.status == 404
            assert answer.content_type == "application/problem+json"


@pytest.mark.asyncio
async def test_health_and_metrics_are_served(cluster: Start, http: aiohttp.ClientSession) -> None:
    a = await cluster("a", "gateway")
    health = await get(http, a.url + "/healthz")
    assert health["status"] == "ok"
    assert health["loop_lag_ms"] >= 0
    async with http.get(a.url + "/metrics") as answer:
        text = await answer.text()
        assert answer.content_type == "text/plain"
    assert 'hypha_requests_total{method="GET /healthz"}' in text


@pytest.mark.asyncio
async def test_the_description_names_every_route_and_every_reference_resolves(
    cluster: Start, http: aiohttp.ClientSession
) -> None:
    a = await cluster("a", "gateway")
    described = await get(http, a.url + "/openapi.json")
    assert described["openapi"].startswith("3.1")
    operations = {(method.upper(), path) for path, item in described["paths"].items() for method in item}
    assert operations == {(route.method, route.path) for route in ROUTES}
    served = {
        (one.method, one.resource.canonical)
        for one in a.overlay.app.router.routes()
        if one.resource is not None and one.method != "*"
    }
    assert operations <= served
    names = [item[method]["operationId"] for item in described["paths"].values() for method in item]
    assert len(names) == len(set(names))
    schemas = described["components"]["schemas"]
    assert "Problem" in schemas
    for reference in _references(described):
        assert reference.removeprefix("#/components/schemas/") in schemas
    for path, item in described["paths"].items():
        for operation in item.values():
            in_path = {one["name"] for one in operation.get("parameters", []) if one["in"] == "path"}
            assert in_path == set(re.findall(r"{(\w+)}", path))
            assert "default" in operation["responses"]


def _references(value: Any) -> list[str]:
    if isinstance(value, dict):
        found = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return found + [one for inner in value.values() for one in _references(inner)]
    return [one for inner in value for one in _references(inner)] if isinstance(value, list) else []


@pytest.mark.asyncio
async def test_a_signed_job_reaches_a_scheduler_through_any_node(
    cluster: Start, http: aiohttp.ClientSession, operator_identity: Identity
) -> None:
    a, s = await cluster("a", "gateway"), await cluster("s", "scheduler")
    command = Submit(job_id="job-1", body_sha256=hashlib.sha256(JOB).hexdigest(), name="x")
    async with http.post(a.url + "/api/v1/jobs", data=JOB, headers=signed(operator_identity, command)) as answer:
        assert answer.status == 201
        assert await answer.json() == {"job_id": "job-1", "scheduler": s.overlay.peer_id}
    assert s.submissions == [(command, TOML, JOB)]
    assert list((a.config.state_dir / "uploads").iterdir()) == []


@pytest.mark.asyncio
async def test_a_job_goes_to_the_scheduler_it_is_signed_for_and_to_no_other(
    cluster: Start, http: aiohttp.ClientSession, operator_identity: Identity
) -> None:
    """A node that passes a job on cannot give it to two."""
    a, s1, s2 = await cluster("a"), await cluster("s1", "scheduler"), await cluster("s2", "scheduler")
    sha256 = hashlib.sha256(JOB).hexdigest()
    chosen = (await get(http, a.url + "/api/v1/jobs/j/scheduler"))["scheduler"]
    assert chosen in (s1.overlay.peer_id, s2.overlay.peer_id)
    for scheduler in (s1, s2):
        command = Submit(job_id="j", body_sha256=sha256, scheduler=scheduler.overlay.peer_id)
        async with http.post(a.url + "/api/v1/jobs", data=JOB, headers=signed(operator_identity, command)) as answer:
            assert (await answer.json())["scheduler"] == scheduler.overlay.peer_id
        assert scheduler.submissions == [(command, TOML, JOB)]
    gone = signed(operator_identity, Submit(job_id="j", body_sha256=sha256, scheduler="12D3gone"))
    async with http.post(a.url + "/api/v1/jobs", data=JOB, headers=gone) as answer:
        problem = await answer.json(content_type="application/problem+json")
    assert (problem["status"], problem["hint"]) == (503, "submit it again")


@pytest.mark.asyncio
async def test_over_the_unix_socket_the_node_signs(cluster: Start) -> None:
    s = await cluster("s", "scheduler")
    async with unix(s) as client:
        for _ in range(2):
            headers = {"Content-Type": "application/x-tar"}
            async with client.post("/api/v1/jobs?job_id=j7&name=seven", data=b"tar", headers=headers) as answer:
                assert (await answer.json())["job_id"] == "j7"
        async with client.post("/api/v1/jobs/j7/cancel") as answer:
            assert answer.status == 202
            assert (await answer.json())["scheduler"] == s.overlay.peer_id
        async with client.post("/api/v1/jobs/nowhere/cancel") as answer:
            assert answer.status == 404
    assert [one[0].job_id for one in s.submissions] == ["j7", "j7"]
    assert s.submissions[0][0].scheduler == s.overlay.peer_id
    assert (s.submissions[0][0].name, s.submissions[0][1:]) == ("seven", ("application/x-tar", b"tar"))
    assert s.cancelled == ["j7"]


@pytest.mark.asyncio
async def test_a_command_that_is_not_an_operators_or_not_about_this_is_refused(
    cluster: Start, http: aiohttp.ClientSession, identity: Identity, operator_identity: Identity
) -> None:
    s = await cluster("s", "scheduler")
    sha256 = hashlib.sha256(JOB).hexdigest()
    honest = signed(operator_identity, Submit(job_id="j", body_sha256=sha256))
    url = s.url + "/api/v1/jobs"
    for headers, path, status in (
        ({"Content-Type": TOML}, "", 403),
        (signed(identity, Submit(job_id="j", body_sha256=sha256)), "", 403),
        (signed(operator_identity, Submit(job_id="j", body_sha256="0" * 64)), "", 422),
        (signed(operator_identity, Submit(job_id="../j", body_sha256=sha256)), "", 422),
        (signed(operator_identity, Cancel(job_id="j")), "", 422),
        ({**honest, "Hypha-Command": "bm9uc2Vuc2U="}, "", 422),
        ({**honest, "Hypha-Command": "?"}, "", 422),
        (honest, "/j/cancel", 422),
        (signed(operator_identity, Cancel(job_id="other")), "/j/cancel", 422),
    ):
        async with http.post(url + path, data=JOB, headers=headers) as answer:
            problem = await answer.json(content_type="application/problem+json")
            assert answer.status == status, problem
    assert s.submissions == []
    assert s.cancelled == []


@pytest.mark.asyncio
async def test_without_a_scheduler_a_job_is_declined_with_what_to_do(
    cluster: Start, http: aiohttp.ClientSession, operator_identity: Identity
) -> None:
    a = await cluster("a", "gateway")
    headers = signed(operator_identity, Submit(job_id="j", body_sha256=hashlib.sha256(JOB).hexdigest()))
    async with http.post(a.url + "/api/v1/jobs", data=JOB, headers=headers) as answer:
        problem = await answer.json(content_type="application/problem+json")
    assert (problem["status"], problem["detail"]) == (503, "no scheduler in the cluster")
    assert "--role scheduler" in problem["hint"]


@pytest.mark.asyncio
async def test_a_job_that_is_too_large_is_declined_and_leaves_nothing(
    cluster: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "MAX_BODY_BYTES", 1000)

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(30):
            yield b"x" * 100

    s = await cluster("s", "scheduler")
    headers = {"Content-Type": "application/x-tar"}
    async with unix(s) as client:
        for body in (b"x" * 3000, pieces()):
            async with client.post("/api/v1/jobs", data=body, headers=headers) as answer:
                problem = await answer.json(content_type="application/problem+json")
                assert problem["status"] == 413
        async with client.post("/api/v1/jobs", data=b"", headers=headers) as answer:
            assert answer.status == 422
    assert s.submissions == []
    assert list((s.config.state_dir / "uploads").iterdir()) == []


@pytest.mark.asyncio
async def test_a_job_that_is_known_goes_back_to_its_scheduler(
    cluster: Start, http: aiohttp.ClientSession, operator_identity: Identity
) -> None:
    """The same job submitted twice, through different nodes, is one job."""
    a, s1, s2 = await cluster("a"), await cluster("s1", "scheduler"), await cluster("s2", "scheduler")
    headers = signed(operator_identity, Submit(job_id="j", body_sha256=hashlib.sha256(JOB).hexdigest()))
    async with http.post(a.url + "/api/v1/jobs", data=JOB, headers=headers) as answer:
        first = (await answer.json())["scheduler"]
    owner, other = (s1, s2) if first == s1.overlay.peer_id else (s2, s1)
    owner.board.put(job("j", first, []))
    async with http.post(other.url + "/api/v1/jobs", data=JOB, headers=headers) as answer:
        assert (await answer.json())["scheduler"] == first
    assert other.submissions == []
    async with http.post(
        other.url + "/api/v1/jobs/j/cancel", headers=signed(operator_identity, Cancel(job_id="j"))
    ) as answer:
        assert answer.status == 202
    assert (owner.cancelled, other.cancelled) == (["j"], [])


@pytest.mark.asyncio
async def test_metrics_and_logs_of_a_job_come_from_the_nodes_that_have_them(
    cluster: Start, http: aiohttp.ClientSession
) -> None:
    """H31: the last lines of a task are one request away, whichever node is asked."""
    a, w = await cluster("a", "gateway"), await cluster("w", "worker", "scheduler")
    gone = "12D3KooWgone"
    points = [Point(job_id="j", name="loss", round=1, value=2.0, t_s=3.0, worker="w")]

    async def metrics(_: Any, __: web.Request) -> web.StreamResponse:
        return web.Response(body=msgspec.json.encode(points), content_type="application/json")

    async def log(_: Any, request: web.Request) -> web.StreamResponse:
        chunk = LogChunk(
            task_id=request.match_info["task"], peer_id=w.overlay.peer_id, lines=["last"] * int(request.query["lines"])
        )
        return web.Response(body=msgspec.json.encode(chunk), content_type="application/json")

    async def spec(_: Any, __: web.Request) -> web.StreamResponse:
        return web.Response(body=b'{"name": "j"}', content_type="application/json")

    w.overlay.app._router._frozen = False
    w.overlay.bulk_route("GET", "/bulk/jobs/{job}/spec", spec)
    w.overlay.bulk_route("GET", "/bulk/jobs/{job}/metrics", metrics)
    w.overlay.bulk_route("GET", "/bulk/tasks/{task}/log", log)
    tasks = [
        TaskView(task_id="t1", role="train", state="running", peer_id=w.overlay.peer_id),
        TaskView(task_id="t2", role="train", state="lost", peer_id=gone),
        TaskView(task_id="t3", role="train", state="waiting"),
    ]
    w.board.put(job("j", w.overlay.peer_id, tasks))
    assert await get(http, a.url + "/api/v1/jobs/j/spec") == {"name": "j"}
    assert await get(http, a.url + "/api/v1/jobs/j/metrics") == msgspec.to_builtins(points)
    logs = {one["task_id"]: one for one in await get(http, a.url + "/api/v1/jobs/j/logs?lines=2")}
    assert (logs["t1"]["lines"], logs["t1"]["error"]) == (["last", "last"], "")
    assert gone in logs["t2"]["error"]
    assert "not started" in logs["t3"]["error"]
    assert [one["task_id"] for one in await get(http, a.url + "/api/v1/jobs/j/logs?task=t1")] == ["t1"]
    for query, status in (("task=t9", 404), ("lines=0", 422), ("lines=x", 422), ("lines=99999", 422)):
        async with http.get(a.url + f"/api/v1/jobs/j/logs?{query}") as answer:
            assert answer.status == status


@pytest.mark.asyncio
async def test_the_socket_is_private_replaces_a_stale_one_and_goes_with_the_node(
    cluster: Start, tmp_path: Path
) -> None:
    a = await cluster("a", "gateway")
    file = a.config.state_dir / local.FILE_NAME
    content = json.loads(file.read_text())
    path = Path(content["socket"])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert content["peer_id"] == a.overlay.peer_id
    stale = tmp_path / "stale.sock"
    for _ in range(2):
        async with local.serve(web.Application(), stale):
            leftover = stale.stat().st_ino
            assert stale.is_socket()
        assert not stale.exists()
        local._bind(stale).close()
        assert stale.is_socket()
    assert leftover


def test_a_path_too_long_for_a_socket_gets_a_short_private_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """U65."""
    deep = tmp_path / ("x" * 120)
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        monkeypatch.setenv("XDG_RUNTIME_DIR", short)
        path = local.socket_path(deep)
        assert path.parent.parent == Path(short)
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert local.socket_path(deep) == path
        assert local.socket_path(tmp_path / ("y" * 120)) != path
        path.parent.chmod(0o755)
        assert local.socket_path(deep).parent != path.parent, "a folder that others may enter is not used"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / ("t" * 90)))
    elsewhere = local.socket_path(deep)
    assert elsewhere.parent.parent == Path("/tmp"), "a long runtime folder is of no use either"
    elsewhere.parent.rmdir()
