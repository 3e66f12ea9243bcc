"""Object storage for tests: moto's server on loopback, a bucket for each test, a proxy that cuts connections, and a
stand-in for what of Azure's and Google's interfaces reading needs."""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import obstore
import pytest
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from obstore.store import S3Store
from werkzeug.serving import WSGIRequestHandler, make_server

SECRET = "a-very-secret-key"


class _Quiet(WSGIRequestHandler):
    def log(self, type: str, message: str, *args: Any) -> None:
        """Nothing is printed."""


class Storage:
    """One bucket on a server, and what is needed to reach it."""

    def __init__(self, address: str, bucket: str) -> None:
        self.address = address
        self.bucket = bucket
        keys = {"access_key_id": "me", "secret_access_key": SECRET, "region": "us-east-1"}
        self.store = S3Store(bucket, endpoint=address, client_options={"allow_http": True}, **keys)

    def url(self, name: str) -> str:
        """The address of what is put under a name."""
        return f"s3://{self.bucket}/sets/{name}"

    def put(self, key: str, content: bytes) -> None:
        """An object."""
        obstore.put(self.store, f"sets/{key}", content)

    def upload(self, folder: Path, name: str) -> str:
        """A folder's files; their address."""
        for path in folder.iterdir():
            self.put(f"{name}/{path.name}", path.read_bytes())
        return self.url(name)

    def get(self, key: str) -> bytes:
        """An object's content."""
        return bytes(obstore.get(self.store, f"sets/{key}").bytes())

    def keys(self, prefix: str) -> list[str]:
        """What lies below a prefix."""
        return sorted(str(one["path"]) for several in obstore.list(self.store, f"sets/{prefix}") for one in several)

    def delete(self, key: str) -> None:
        """Remove an object."""
        obstore.delete(self.store, f"sets/{key}")


@pytest.fixture(scope="module")
def storage_server() -> Iterator[str]:
    """The address of a server that lasts for the tests of a module."""
    server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), True, request_handler=_Quiet)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def storage(storage_server: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Storage:
    """A bucket of the test's own, and the environment of a process that may use it."""
    import urllib.request

    bucket = f"b{abs(hash(request.node.name)):x}"
    with urllib.request.urlopen(urllib.request.Request(f"{storage_server}/{bucket}", method="PUT")):
        pass
    reach(monkeypatch, storage_server)
    return Storage(storage_server, bucket)


def reach(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """Credentials and endpoint as an operator would give them."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", address)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "me")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@contextlib.contextmanager
def plain_storage(folder: Path, seen: list[str], refuse: threading.Event) -> Iterator[str]:
    """A server that gives the files of a folder, by the last part of the path, to HEAD and GET with a range.

    `seen` are the headers `Authorization` that came; while `refuse` is set, nobody is let in.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            seen.append(self.headers.get("Authorization", ""))
            path = folder / unquote(self.path.partition("?")[0]).rpartition("/")[2]
            status = 403 if refuse.is_set() else 200 if path.is_file() else 404
            content = path.read_bytes() if status == 200 else b""
            span = self.headers.get("Range", "")
            if span and status == 200:
                first, _, last = span.removeprefix("bytes=").partition("-")
                status, whole = 206, len(content)
                content = content[int(first) : int(last) + 1 if last else whole]
            self.send_response(status)
            if status == 206:
                self.send_header("Content-Range", f"bytes {first}-{int(first) + len(content) - 1}/{whole}")
            self.send_header("Content-Length", str(len(content)))
            self.send_header("ETag", '"1"')
            self.send_header("Last-Modified", email.utils.formatdate(0, usegmt=True))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        do_HEAD = do_GET

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing is printed."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Cutting:
    """What a proxy has let through, and after how many bytes it cuts the next connections."""

    def __init__(self, cuts: list[int]) -> None:
        self.cuts = cuts
        self.passed = 0
        self.address = ""


@contextlib.asynccontextmanager
async def cutting_proxy(upstream: str, cuts: list[int]) -> AsyncIterator[Cutting]:
    """A proxy whose first connections end after so many bytes of answers; the later ones do not."""
    state = Cutting(cuts)
    there = urlsplit(upstream)
    ours: set[asyncio.Task[None]] = set()

    async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while piece := await source.read(1 << 16):
            target.write(piece)
            await target.drain()

    async def answers(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        left = state.cuts.pop(0) if state.cuts else None
        while piece := await source.read(1 << 16):
            piece = piece if left is None else piece[:left]
            target.write(piece)
            await target.drain()
            state.passed += len(piece)
            left = None if left is None else left - len(piece)
            if left == 0:
                return

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection(there.hostname, there.port)
        both = [asyncio.ensure_future(pump(reader, up_writer)), asyncio.ensure_future(answers(up_reader, writer))]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in both:
                one.cancel()
            await asyncio.gather(*both, return_exceptions=True)
            for end in (writer, up_writer):
                end.close()

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(serve(reader, writer))
        ours.add(task)
        task.add_done_callback(ours.discard)

    server = await asyncio.start_server(begin, "127.0.0.1", 0)
    state.address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield state
    finally:
        server.close()
        for task in list(ours):
            task.cancel()
        await asyncio.gather(*ours, return_exceptions=True)
