"""HTTP as the terminal speaks it: heads, bodies however they are cut, kept connections, and answers that are none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec
import pytest

from hypha_tui.client import api, faults, head, transport
from hypha_tui.client.api import ApiClient, connected
from hypha_tui.client.endpoint import Endpoint
from hypha_tui.client.jobfile import Body
from node.errors import HyphaError, PeerProtocol, PeerUnreachable, Refused
from node.views import Frame, JobView, Problem, Snapshot
from tests.terminal.feed import job

JOBS = msgspec.json.encode([job()])
PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(JOBS) + JOBS
FRAME = b"data: " + msgspec.json.encode(Snapshot(seq=1, items=[job()])) + b"\n\n"
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x;note=1\r\n" % len(data) + data + b"\r\n"


CHUNKED = STREAM + chunk(JOBS[:7]) + chunk(JOBS[7:]) + b"0\r\nDigest: x\r\n\r\n"

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def answering(folder: Path, talk: Talk) -> AsyncIterator[tuple[ApiClient, list[bytes]]]:
    """A client of a node that talks as told, on each connection; the heads of the requests it got."""
    heads: list[bytes] = []
    talks: set[asyncio.Task[None] | None] = set()

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talks.add(asyncio.current_task())
        read = reader.readuntil

        async def noting(separator: bytes = b"\n") -> bytes:
            found = await read(separator)
            heads.append(found)
            return found

        reader.readuntil = noting  # type: ignore[method-assign]
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                await talk(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_unix_server(connection, folder / "s")
    try:
        async with connected(Endpoint(socket=folder / "s")) as client:
            yield client, heads
    finally:
        server.close()
        for task in talks:
            if task is not None:
                task.cancel()
        await asyncio.gather(*(task for task in talks if task is not None), return_exceptions=True)


def saying(answer: bytes, *, piece: int = 1 << 16, times: int = 1) -> Talk:
    """Answers so many requests of a connection with these bytes, in pieces of this size, then ends it."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(times):
            await reader.readuntil(b"\r\n\r\n")
            for at in range(0, len(answer), piece):
                writer.write(answer[at : at + piece])
                await asyncio.sleep(0)

    return talk


@pytest.mark.asyncio
@pytest.mark.parametrize("answer", [PLAIN, CHUNKED, PLAIN.replace(b"Content-Length", b"X-Other")])
@pytest.mark.parametrize("piece", [1, 7, 1 << 16])
async def test_an_answer_is_whole_however_its_bytes_are_cut_and_its_end_is_told(
    tmp_path: Path, answer: bytes, piece: int
) -> None:
    async with answering(tmp_path, saying(answer, piece=piece)) as (client, heads):
        assert [view.id for view in await client.objects(JobView)] == ["diloco-7"]
    assert heads == [b"GET /api/v1/jobs HTTP/1.1\r\nHost: node\r\n\r\n"]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", PeerProtocol, "not the operator API"),
        (PLAIN.replace(b"1.1 200", b"2.0 200"), PeerProtocol, "not the operator API"),
        (PLAIN.replace(b"Content-Length: ", b"Content-Length: -"), PeerProtocol, "bytes"),
        (PLAIN.replace(b"\r\n\r\n", b"\r\nContent-Length: 4\r\n\r\n", 1), PeerProtocol, "two headers"),
        (PLAIN.replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n", 1), PeerProtocol, "transfer-encoding"),
        (PLAIN.replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: gzip\r\n\r\n", 1), PeerProtocol, "transfer-encoding"),
        (PLAIN.replace(b"OK\r\n", b"OK\r\nno colon\r\n"), PeerProtocol, "a header reads"),
        (PLAIN.replace(b"OK", b"\x1b[2J"), PeerProtocol, "its answer begins"),
        (STREAM + b"zz\r\n", PeerProtocol, "a chunk begins"),
        (STREAM + b"2\r\n[]3\r\n", PeerProtocol, "longer than it says"),
        (STREAM + b"0\r\n" + b"A: b\r\n" * 70, PeerProtocol, "headers after a body"),
        (b"HTTP/1.1 200 OK\r\nA: " + b"x" * transport.HEAD_BYTES, PeerProtocol, "a header of more than"),
        (b"", PeerUnreachable, "broke"),
        (PLAIN[:-1], PeerUnreachable, "mid-answer"),
        (STREAM + b"5\r\n[]", PeerUnreachable, "mid-answer"),
    ],
)
async def test_what_is_no_whole_answer_is_one_line_of_its_kind(
    tmp_path: Path, answer: bytes, kind: type[HyphaError], words: str
) -> None:
    async with answering(tmp_path, saying(answer)) as (client, _):
        with pytest.raises(kind, match=words) as caught:
            await client.objects(JobView)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.asyncio
async def test_a_body_without_an_end_is_not_kept_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "BODY_BYTES", 100_000)
    async with answering(tmp_path, saying(STREAM + chunk(bytes(50_000)) * 3)) as (client, _):
        with pytest.raises(PeerProtocol, match="more than 100,000 bytes"):
            await client.objects(JobView)


@pytest.mark.asyncio
async def test_a_connection_is_kept_for_the_next_question_and_one_that_ended_meanwhile_is_replaced(
    tmp_path: Path,
) -> None:
    connections = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await saying(PLAIN, times=2)(reader, writer)

    async with answering(tmp_path, talk) as (client, heads):
        for expected in (1, 1, 2):
            await client.objects(JobView)
            assert connections == expected
        await client.cancel("j")
    assert connections == 3, "what changes something is not sent over a connection that may have ended"
    assert heads[-1] == b"POST /api/v1/jobs/j/cancel HTTP/1.1\r\nHost: node\r\nContent-Length: 0\r\n\r\n"


@pytest.mark.asyncio
async def test_an_upload_that_is_refused_before_its_end_says_why(tmp_path: Path) -> None:
    problem = msgspec.json.encode(Problem(status=413, code="invalid", title="x", detail="at most 96 MB"))
    answer = b"HTTP/1.1 413 Too Large\r\nContent-Length: %d\r\n\r\n" % len(problem) + problem

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await saying(answer)(reader, writer)
        await asyncio.Event().wait()  # nothing of the body is read

    async with answering(tmp_path, talk) as (client, _):
        with pytest.raises(Refused, match="at most 96 MB"):
            await client.submit(Body(bytes(3_000_000), "application/x-tar", "0" * 64, "j", "n"))


@pytest.mark.asyncio
async def test_a_stream_that_falls_silent_is_a_dead_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "SILENCE_S", 0.05)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(STREAM + chunk(FRAME))
        await reader.read()

    frames: list[Frame] = []
    async with answering(tmp_path, talk) as (client, _):
        with pytest.raises(PeerUnreachable, match="does not answer"):
            async for frame in client.frames():
                frames.append(frame)
    assert [frame.seq for frame in frames] == [1]


@pytest.mark.asyncio
async def test_a_request_that_is_given_up_ends_its_connection(tmp_path: Path) -> None:
    ended, asked = asyncio.Event(), asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.set()
        await reader.read()
        ended.set()

    async with answering(tmp_path, talk) as (client, _):
        question = asyncio.ensure_future(client.cluster())
        async with asyncio.timeout(5):
            await asked.wait()
            question.cancel()
            await ended.wait()
        with pytest.raises(asyncio.CancelledError):
            await question


def test_no_line_break_reaches_a_head() -> None:
    with pytest.raises(ValueError, match="line break"):
        head.request("GET", "/x\r\nHost: other", "node", {}, None)


@pytest.mark.parametrize("body", [b"{", b'[{"id": "\xff"}]', b"[" * 100_000])
def test_an_answer_that_cannot_be_decoded_is_one_line(body: bytes) -> None:
    """Text that is no UTF-8, and depth, raise errors of Python's own. A refusal like this says its status."""
    with pytest.raises(PeerProtocol, match="something unexpected"):
        api._decode(body, list[JobView])
    assert "Bad Gateway" in str(faults.problem_of(502, "Bad Gateway", body))
