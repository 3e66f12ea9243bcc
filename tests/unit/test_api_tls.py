"""The operator API over mutual TLS, with the real overlay under it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
import pytest_asyncio
from aiohttp import web

from hypha_tui.client.api import connected
from hypha_tui.client.endpoint import Endpoint
from hypha_tui.client.jobfile import Body
from node import addresses
from node.api import local
from node.api.service import ApiService
from node.board import Board
from node.config import NodeConfig
from node.errors import Refused
from node.identity.caller import Caller
from node.identity.credentials import Identity
from node.network.overlay import Overlay
from node.store import Store
from node.telemetry import Telemetry
from node.views import DatasetView, PeerView, Snapshot, SubmitResult
from node.wire import RunCommand, Submit
from tests.support import MakeIdentity


class Node:
    """A running node with nothing but the network and the operator API."""

    def __init__(self, overlay: Overlay, board: Board, state_dir: Path, submissions: list[bytes]) -> None:
        self.overlay = overlay
        self.board = board
        self.state_dir = state_dir
        self.submissions = submissions
        self.tasks: list[asyncio.Task[None]] = []

    async def stop(self) -> None:
        """End the API, then the network."""
        for task in self.tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    @property
    def url(self) -> str:
        address = addresses.parse(self.overlay.addresses[0])
        return f"https://{address.host}:{address.port}"


Start = Callable[..., Any]


@pytest_asyncio.fixture
async def cluster(make_identity: MakeIdentity, tmp_path: Path) -> AsyncIterator[Start]:
    """Starts nodes that join each other."""
    started: list[Node] = []
    async with asyncio.TaskGroup() as tasks, contextlib.AsyncExitStack() as stack:

        async def start(name: str, *roles: str) -> Node:
            config = NodeConfig(
                name=name,
                roles=list(roles),
                state_dir=tmp_path / name,
                listen_addresses=["/ip4/127.0.0.1/tcp/0"],
                gateway_addresses=[started[0].overlay.addresses[0]] if started else [],
                mdns=False,
            )
            config.state_dir.mkdir()
            store = await stack.enter_async_context(Store.open(config.state_dir / "state.db"))
            identity = make_identity(name).load()
            board = Board(identity.peer_id)
            overlay = Overlay(config, identity, board, store)
            submissions: list[bytes] = []

            async def submission(_: Caller, request: web.Request) -> web.StreamResponse:
                submissions.append(await request.read())
                run = msgspec.msgpack.decode(base64.b64decode(request.headers["Hypha-Command"]), type=RunCommand)
                signer, _ = identity.trust.open(run.signed)
                assert signer.is_operator or signer.peer_id == identity.peer_id
                answer = SubmitResult(job_id=request.match_info["job"], scheduler=identity.peer_id)
                return web.Response(body=msgspec.json.encode(answer))

            overlay.bulk_route("PUT", "/bulk/submissions/{job}", submission)
            api = ApiService(config, overlay, board, store, Telemetry(config))
            node = Node(overlay, board, config.state_dir, submissions)
            stack.push_async_callback(node.stop)
            node.tasks.append(tasks.create_task(overlay.run()))
            async with asyncio.timeout(5):
                await overlay.listening.wait()
            node.tasks.insert(0, tasks.create_task(api.run()))
            started.append(node)
            return node

        yield start


async def _until(claim: Callable[[], bool], within_s: float = 5.0) -> None:
    async with asyncio.timeout(within_s):
        while not claim():
            await asyncio.sleep(0.02)


def client(identity: Identity) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=identity.client_context()), timeout=aiohttp.ClientTimeout(total=10)
    )


@pytest.mark.asyncio
async def test_an_operator_sees_all_nodes_through_any_and_submits_through_one_to_another(
    cluster: Start, operator_identity: Identity
) -> None:
    a, b = await cluster("a", "gateway"), await cluster("b", "scheduler")
    await _until(lambda: len(a.overlay.peers()) == 2 and len(b.overlay.peers()) == 2)
    for node in (a, b):
        view = PeerView(id=node.overlay.peer_id, name="x", roles=[], addresses=[], state="up", version="9")
        node.board.put(view)
    async with client(operator_identity) as http:
        for node in (a, b):
            async with http.get(node.url + "/api/v1/peers") as answer:
                peers = await answer.json()
            assert {(peer["id"], peer["state"], peer["version"]) for peer in peers} == {
                (a.overlay.peer_id, "up", "9"),
                (b.overlay.peer_id, "up", "9"),
            }
        async with http.get(a.url + "/events") as answer:
            assert (await answer.content.readline()) == b"event: snapshot\n"
        body = b"job"
        command = Submit(job_id="j1", body_sha256=hashlib.sha256(body).hexdigest())
        run = RunCommand(signed=operator_identity.sign(msgspec.msgpack.encode(command)))
        headers = {
            "Hypha-Command": base64.b64encode(msgspec.msgpack.encode(run)).decode(),
            "Content-Type": "application/toml",
        }
        async with http.post(a.url + "/api/v1/jobs", data=body, headers=headers) as answer:
            assert await answer.json() == {"job_id": "j1", "scheduler": b.overlay.peer_id}
        assert b.submissions == [body]


@pytest.mark.asyncio
async def test_a_nodes_certificate_reads_health_and_metrics_and_nothing_else(
    cluster: Start, identity: Identity, operator_identity: Identity
) -> None:
    """U77: being in the cluster is not the right to look at it or to steer it."""
    a = await cluster("a", "gateway")
    async with client(identity) as http:
        for path, status in (("/healthz", 200), ("/metrics", 200), ("/api/v1/peers", 403), ("/events", 403)):
            async with http.get(a.url + path) as answer:
                assert answer.status == status, path
        async with http.post(a.url + "/api/v1/jobs/x/cancel") as answer:
            problem = await answer.json(content_type="application/problem+json")
            assert (problem["status"], problem["code"]) == (403, "denied")
    async with client(operator_identity) as http:
        for path, status in (("/observe", 403), ("/api/nonsense", 404), ("/api/v1/peers", 200)):
            async with http.get(a.url + path) as answer:
                assert answer.status == status, path


@pytest.mark.asyncio
async def test_without_a_certificate_there_is_no_answer_at_all(cluster: Start) -> None:
    a = await cluster("a", "gateway")
    async with aiohttp.ClientSession() as http:
        with pytest.raises(aiohttp.ClientError):
            await http.get(a.url + "/healthz", ssl=False)


@pytest.mark.asyncio
async def test_a_node_that_stops_takes_its_objects_along_and_is_shown_as_gone(
    cluster: Start, operator_identity: Identity
) -> None:
    a, b = await cluster("a", "gateway"), await cluster("b", "data")
    await _until(lambda: len(a.overlay.peers()) == 2)
    b.board.put(DatasetView(id="b/d", name="d", peer_id=b.overlay.peer_id, slices=1, rows=1, size_bytes=1, digest="x"))
    async with client(operator_identity) as http:

        async def shown(what: str) -> list[dict[str, Any]]:
            async with http.get(f"{a.url}/api/v1/{what}") as answer:
                found: list[dict[str, Any]] = await answer.json()
                return found

        assert [one["id"] for one in await shown("datasets")] == ["b/d"]
        began = time.monotonic()
        await b.stop()
        assert time.monotonic() - began < 3
        async with asyncio.timeout(5):
            while await shown("datasets"):
                await asyncio.sleep(0.05)
            while {one["name"]: one["state"] for one in await shown("peers")}.get("b") == "up":
                await asyncio.sleep(0.05)
        assert not (b.state_dir / local.FILE_NAME).exists()


@pytest.mark.asyncio
async def test_the_file_in_the_state_folder_leads_to_the_node(cluster: Start) -> None:
    a = await cluster("a", "gateway")
    await _until((a.state_dir / local.FILE_NAME).exists)
    content = json.loads((a.state_dir / local.FILE_NAME).read_text())
    assert content["addresses"] == a.overlay.addresses
    connector = aiohttp.UnixConnector(content["socket"])
    async with aiohttp.ClientSession("http://node", connector=connector) as http, http.get("/api/v1/cluster") as answer:
        whole = await answer.json()
    assert (whole["peer_id"], whole["peers"]) == (a.overlay.peer_id, 1)
    assert whole["authority"] == a.overlay.identity.trust.authority


@pytest.mark.asyncio
async def test_the_terminals_own_client_speaks_this_api(cluster: Start, make_identity: MakeIdentity) -> None:
    a, b = await cluster("a", "gateway"), await cluster("b", "scheduler")
    await _until(lambda: len(a.overlay.peers()) == 2)
    await _until((b.state_dir / local.FILE_NAME).exists)
    files = make_identity("ada", role="operator")
    remote = Endpoint(
        address=addresses.parse(a.overlay.addresses[0]), cert=files.cert, key=files.key, trust=files.trust
    )
    socket = Path(json.loads((b.state_dir / local.FILE_NAME).read_text())["socket"])
    data = b"name = 'x'"
    for endpoint in (remote, Endpoint(socket=socket)):
        async with connected(endpoint) as api, asyncio.timeout(10):
            assert {peer.id for peer in await api.objects(PeerView)} == {a.overlay.peer_id, b.overlay.peer_id}
            assert (await api.cluster()).up == 2
            frames = api.frames()
            assert isinstance(await anext(frames), Snapshot)
            await frames.aclose()  # type: ignore[attr-defined]
            body = Body(data, "application/toml", hashlib.sha256(data).hexdigest(), "j1", "x")
            assert (await api.submit(body)).scheduler == b.overlay.peer_id
            with pytest.raises(Refused, match="no job nowhere"):
                await api.job("nowhere")
    assert b.submissions == [data, data]
