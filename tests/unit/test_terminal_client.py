"""The terminal's client: where to connect, what is sent, what errors become, and staying connected."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import tarfile
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import BytesIO
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from hypha_tui.client import jobfields, jobfile, tomledit
from hypha_tui.client.api import ApiClient, connected
from hypha_tui.client.commands import HEADER as COMMAND_HEADER
from hypha_tui.client.endpoint import Connection, Endpoint, resolve
from hypha_tui.client.follow import follow
from hypha_tui.client.link import LONGEST_WAIT_S, Backoff, LinkState
from hypha_tui.client.sse import SseParser
from node.addresses import parse
from node.errors import ConfigError, HyphaError, PeerUnreachable, PeerUntrusted, Refused
from node.identity.trust import Trust
from node.views import Delta, Frame, JobView, Problem, SchedulerChoice, Snapshot, SubmitResult
from node.wire import RunCommand, Submit
from tests.support import MakeIdentity
from tests.terminal.feed import job

JOB = '# mine\nname = "tiny"\n[rounds]\nupdate_rounds = 3\n[resources]\nnum_workers = 2\n[dataset]\ndataset = "bytes"\n'


# ---- endpoints ------------------------------------------------------------------------------------


def operator_file(folder: Path, pid: int) -> Path:
    folder.mkdir(parents=True)
    file = folder / "operator.json"
    file.write_text(json.dumps({"socket": str(folder / "operator.sock"), "pid": pid, "peer_id": "x", "addresses": []}))
    return file


def test_without_options_the_newest_living_node_of_this_user_is_found(tmp_path: Path) -> None:
    old = operator_file(tmp_path / "hypha" / "old", os.getpid())
    operator_file(tmp_path / "hypha" / "dead", 2**22 + 5)
    new = operator_file(tmp_path / "hypha" / "new", os.getpid())
    os.utime(old, (1, 1))
    assert resolve(Connection(), {"XDG_STATE_HOME": str(tmp_path)}).socket == new.with_name("operator.sock")


def test_without_a_node_it_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(PeerUnreachable, match=r"none runs on this machine.*--node ADDRESS"):
        resolve(Connection(), {"XDG_STATE_HOME": str(tmp_path)})


def test_flags_beat_the_environment_and_files_beside_the_certificate_are_found() -> None:
    environment = {"HYPHA_TUI_NODE": "/ip4/10.0.0.1/tcp/1", "HYPHA_TUI_CERT": "/c/ada-cert.pem"}
    found = resolve(Connection(node="https://example.org:4001"), environment)
    assert str(found.address) == "/dns/example.org/tcp/4001"
    assert (found.key, found.trust) == (Path("/c/ada-key.pem"), Path("/c/ada-trust.pem"))


def test_a_node_or_a_state_folder_that_is_named_beats_both_of_the_environment(tmp_path: Path) -> None:
    file = operator_file(tmp_path / "a", os.getpid())
    environment = {"HYPHA_TUI_NODE": "unix:/other", "HYPHA_TUI_STATE_DIR": str(tmp_path / "none")}
    assert resolve(Connection(state_dir=tmp_path / "a"), environment).socket == file.with_name("operator.sock")
    assert resolve(Connection(node="unix:/named"), environment).socket == Path("/named")
    assert resolve(Connection(), environment).socket == Path("/other")


def test_an_address_without_a_certificate_says_what_is_missing() -> None:
    with pytest.raises(ConfigError, match="operator's certificate"):
        resolve(Connection(node="/ip4/10.0.0.1/tcp/1"), {})


# ---- server-sent events ---------------------------------------------------------------------------


def test_events_are_found_however_the_bytes_are_cut() -> None:
    stream = b': ping\n\nevent: snapshot\nid: 1\ndata: {"a":\ndata: 1}\n\ndata: two\r\n\r\n'
    for size in range(1, len(stream) + 1):
        parser = SseParser()
        found = [event for at in range(0, len(stream), size) for event in parser.feed(stream[at : at + size])]
        assert [(event.type, event.data) for event in found] == [("snapshot", b'{"a":\n1}'), ("message", b"two")]


def test_an_endless_event_is_refused() -> None:
    with pytest.raises(ValueError, match="larger"):
        SseParser(limit=10).feed(b"data: 0123456789")


# ---- job files ------------------------------------------------------------------------------------


def test_fields_are_read_and_changed_and_an_unchanged_text_keeps_its_comments() -> None:
    fields = jobfields.fields_of(JOB)
    assert (fields.name, fields.dataset, fields.workers, fields.rounds) == ("tiny", "bytes", 2, 3)
    assert jobfields.with_fields(JOB, fields) == JOB
    changed = jobfields.with_fields(JOB, jobfields.JobFields("big", "words", 5, 9))
    assert jobfields.fields_of(changed) == jobfields.JobFields("big", "words", 5, 9)


def test_fields_of_a_node_configuration_are_those_of_its_scheduler_job() -> None:
    text = '[scheduler.job]\ndataset_name = "bytes"\n[scheduler.job.rounds]\nupdate_rounds = 3\n'
    changed = jobfields.with_fields(text, jobfields.JobFields("n", "bytes", 4, 3))
    assert tomllib.loads(changed)["scheduler"]["job"]["resources"] == {"num_workers": 4}


def test_what_is_dumped_reads_back_the_same() -> None:
    document = {
        "a": 'quote " back \\ line\n',
        "odd key": [1, 2.5, True, ["x"]],
        "t": {"u": {"v": 1}, "w": -3},
        "many": [{"type": "GPU", "min": 10}, {"kind": "x", "deep": {"y": 1}}],
        "mixed": [{"a": 1}, 2],
    }
    assert tomllib.loads(tomledit.dump(document)) == document


def test_a_folder_is_packed_without_what_is_not_of_the_job(tmp_path: Path) -> None:
    """Links are not followed, caches and .git stay at home, job.toml is at the root."""
    (tmp_path / "job.toml").write_text(JOB)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "net.py").write_text("x = 1")
    for name in (".git", "__pycache__"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "junk").write_text("junk")
    (tmp_path / "link").symlink_to("/etc/passwd")
    body = jobfile.pack(jobfile.read_draft(tmp_path))
    with tarfile.open(fileobj=BytesIO(body.data)) as archive:
        assert sorted(archive.getnames()) == ["job.toml", "lib/net.py"]
    assert body.job_id.startswith("tiny-")
    assert jobfile.pack(jobfile.read_draft(tmp_path)).sha256 == body.sha256


def test_a_folder_that_is_too_big_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobfile, "MAX_BODY_BYTES", 4_096)
    (tmp_path / "job.toml").write_text(JOB)
    (tmp_path / "weights.bin").write_bytes(bytes(5_000))
    with pytest.raises(ConfigError, match=r"weights\.bin"):
        jobfile.pack(jobfile.read_draft(tmp_path))


@pytest.mark.parametrize(("name", "content"), [("missing.toml", None), ("bad.toml", "a = "), ("latin.toml", "é")])
def test_a_job_file_that_cannot_be_read_is_one_clear_line(tmp_path: Path, name: str, content: str | None) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content.encode("latin-1"))
    with pytest.raises(ConfigError) as caught:
        jobfile.read_job(tmp_path / name)
    assert name in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_wrong_key_is_named_with_its_line_and_the_nearest_one(tmp_path: Path) -> None:
    """Nothing is sent: the file is judged as a scheduler will judge it."""
    (tmp_path / "job.toml").write_text("[rounds]\nupdate_round = 3\n")
    with pytest.raises(ConfigError, match=r"job.toml: line 2: rounds.update_round: .*did you mean update_rounds"):
        jobfile.read_job(tmp_path)


# ---- staying connected ----------------------------------------------------------------------------


def test_waits_grow_are_spread_and_bounded() -> None:
    """T50, T51: no reconnect storm."""
    waits = Backoff()
    found = [waits.next_wait_s() for _ in range(12)]
    assert found[0] <= 0.5
    assert all(wait <= LONGEST_WAIT_S for wait in found)
    assert found[-1] >= LONGEST_WAIT_S / 2
    waits.reset()
    assert waits.next_wait_s() <= 0.5


class Script:
    """Connections, each a list of frames and the error it ends with."""

    def __init__(self, *connections: list[Frame | HyphaError]) -> None:
        self.connections = list(connections)
        self.opened = 0

    async def frames(self) -> AsyncIterator[Frame]:
        self.opened += 1
        for frame in self.connections.pop(0):
            if isinstance(frame, HyphaError):
                raise frame
            yield frame


class NoWait(Backoff):
    def next_wait_s(self) -> float:
        super().next_wait_s()
        return 0.0


@pytest.mark.asyncio
async def test_a_broken_link_is_tried_again_and_a_refusal_ends_it() -> None:
    """T51: a refused certificate is not tried again."""
    script = Script(
        [Snapshot(seq=1, items=[]), PeerUnreachable("broke")],
        [PeerUnreachable("still")],
        [Snapshot(seq=1, items=[]), PeerUntrusted("revoked", hint="get another")],
    )
    links: list[LinkState] = []
    frames: list[Frame] = []

    def on_frame(frame: Frame) -> bool:
        frames.append(frame)
        return True

    async with asyncio.timeout(5):
        await follow(script, on_frame, links.append, backoff=NoWait())
    assert [link.state for link in links] == ["connecting", "live", "stale", "stale", "live", "refused"]
    assert links[-1].hint == "get another"
    assert len(frames) == 2


@pytest.mark.asyncio
async def test_a_gap_opens_a_new_stream_at_once() -> None:
    script = Script([Snapshot(seq=1, items=[]), Delta(seq=3)], [Snapshot(seq=9, items=[]), PeerUntrusted("end")])
    async with asyncio.timeout(5):
        await follow(script, lambda frame: not isinstance(frame, Delta), lambda link: None, backoff=NoWait())
    assert script.opened == 2


# ---- the API over a real socket -------------------------------------------------------------------


class Node:
    """A little operator API."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        self.problem: Problem | None = None
        self.app = web.Application()
        self.app.router.add_route("*", "/{path:.*}", self.answer)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.requests.append((request.method, request.path_qs, dict(request.headers), body))
        if self.problem is not None:
            return web.Response(status=self.problem.status, body=msgspec.json.encode(self.problem))
        if request.path == "/events":
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            await response.write(b"id: 1\ndata: " + msgspec.json.encode(Snapshot(seq=1, items=[job()])) + b"\n\n")
            await response.write(b": ping\n\nid: 2\ndata: " + msgspec.json.encode(Delta(seq=2)) + b"\n\n")
            return response
        if request.method == "POST":
            return web.Response(status=201, body=msgspec.json.encode(SubmitResult(job_id="tiny-1", scheduler="s")))
        if request.path.endswith("/scheduler"):
            return web.Response(body=msgspec.json.encode(SchedulerChoice(job_id="tiny-1", scheduler="s1")))
        return web.Response(body=msgspec.json.encode([job()]))


@asynccontextmanager
async def served(tmp_path: Path) -> AsyncIterator[tuple[Node, ApiClient]]:
    """A node on a Unix socket, and a client of it."""
    node = Node()
    runner = web.AppRunner(node.app, shutdown_timeout=0.1)
    await runner.setup()
    socket = tmp_path / "s"
    await web.UnixSite(runner, str(socket)).start()
    try:
        async with connected(Endpoint(socket=socket)) as client:
            yield node, client
    finally:
        await runner.cleanup()


@pytest.mark.asyncio
async def test_objects_and_frames_come_over_the_unix_socket(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, client):
        assert [view.id for view in await client.objects(JobView)] == ["diloco-7"]
        frames: list[Frame] = []
        with pytest.raises(PeerUnreachable, match="ended the stream"):
            async for frame in client.frames():
                frames.append(frame)
        assert [frame.seq for frame in frames] == [1, 2]


@pytest.mark.asyncio
async def test_over_the_local_socket_the_node_signs_and_learns_the_id(tmp_path: Path) -> None:
    async with served(tmp_path) as (node, client):
        body = jobfile.pack(jobfile.JobDraft(JOB))
        assert (await client.submit(body)).job_id == "tiny-1"
    method, path, headers, sent = node.requests[-1]
    assert (method, sent) == ("POST", JOB.encode())
    assert path == f"/api/v1/jobs?job_id={body.job_id}&name=tiny"
    assert headers["Content-Type"] == "application/toml"
    assert COMMAND_HEADER not in headers


@pytest.mark.asyncio
async def test_a_problem_becomes_the_error_of_its_kind(tmp_path: Path) -> None:
    async with served(tmp_path) as (node, client):
        node.problem = Problem(status=422, code="invalid", title="x", detail="unknown key rounds.x", hint="rounds.y?")
        with pytest.raises(Refused, match=r"unknown key rounds\.x; rounds\.y\?"):
            await client.objects(JobView)
        node.problem = Problem(status=403, code="denied", title="operators only")
        with pytest.raises(PeerUntrusted, match="operators only"):
            await client.objects(JobView)
        node.problem = Problem(status=502, code="unreachable", title="x", detail="no scheduler is up")
        with pytest.raises(PeerUnreachable, match="no scheduler is up"):
            await client.objects(JobView)


@pytest.mark.asyncio
async def test_nothing_at_the_address_is_an_error_that_may_pass(tmp_path: Path) -> None:
    async with connected(Endpoint(socket=tmp_path / "none")) as client:
        with pytest.raises(PeerUnreachable, match="cannot reach"):
            await client.cluster()


@pytest.mark.asyncio
async def test_over_tls_commands_are_signed_and_the_pinned_key_is_checked_before_anything_is_sent(
    make_identity: MakeIdentity,
) -> None:
    """Another node of the same cluster at the address is not spoken to when the address pins a peer."""
    node = Node()
    server = make_identity("gateway")
    operator = make_identity("ada", role="operator")
    runner = web.AppRunner(node.app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=server.load().server_context())
    await site.start()
    port = runner.addresses[0][1]
    files = {"cert": operator.cert, "key": operator.key, "trust": operator.trust}
    try:
        right = parse(f"/ip4/127.0.0.1/tcp/{port}/p2p/{server.load().peer_id}")
        async with connected(Endpoint(address=right, **files)) as client:
            body = jobfile.pack(jobfile.JobDraft(JOB))
            await client.submit(body)
        run = msgspec.msgpack.decode(base64.b64decode(node.requests[-1][2][COMMAND_HEADER]), type=RunCommand)
        command = msgspec.msgpack.decode(run.signed.payload, type=Submit)
        assert (command.job_id, command.body_sha256) == (body.job_id, body.sha256)
        assert command.scheduler == "s1", "signed for the scheduler that the node named, and for no other"
        trust: Trust = server.load().trust
        caller, _ = trust.open(run.signed)
        assert caller.role == "operator"
        seen = len(node.requests)
        wrong = parse(f"/ip4/127.0.0.1/tcp/{port}").pinned(operator.load().peer_id)
        async with connected(Endpoint(address=wrong, **files)) as client:
            with pytest.raises(PeerUntrusted, match=f"gateway .* answers at 127.0.0.1:{port}, not 12D3"):
                await client.cluster()
        assert len(node.requests) == seen
    finally:
        await runner.cleanup()


@pytest.mark.asyncio
async def test_a_node_that_is_revoked_or_no_node_is_not_spoken_to_even_without_a_pin(
    make_identity: MakeIdentity,
) -> None:
    """TLS checks the chain; who it is, and whether it still may, is checked on every connection."""
    operator = make_identity("ada", role="operator")
    impostor = make_identity("bob", role="operator")
    node = Node()
    runner = web.AppRunner(node.app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=impostor.load().server_context()).start()
    address = parse(f"/ip4/127.0.0.1/tcp/{runner.addresses[0][1]}")
    try:
        endpoint = Endpoint(address=address, cert=operator.cert, key=operator.key, trust=operator.trust)
        async with connected(endpoint) as client:
            with pytest.raises(PeerUntrusted, match=r"bob at .* is an operator, not a node"):
                await client.cluster()
        assert node.requests == []
    finally:
        await runner.cleanup()
