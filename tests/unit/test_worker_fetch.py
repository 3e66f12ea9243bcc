"""Files from a hub and from the web: whole and verified, or a clear error and nothing."""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web
from aiohttp.test_utils import TestServer

from node.board import Board
from node.config import FetchConfig
from node.errors import CacheTooSmall
from node.network.cache import ContentCache
from node.worker import web as worker_web
from node.worker.references import (
    BridgeError,
    HubFiles,
    NextSliceOf,
    Peers,
    Uri,
    folder,
    inside,
    parse_fetch,
    parse_receive,
    parse_send,
)
from node.worker.transfers import Transfer
from node.worker.web import Web, is_public

BODY = b"weights" * 100_000
FILES = HubFiles("owner/model", "main", ["model.safetensors"])


class Hub:
    """A small fake of the hub."""

    def __init__(self) -> None:
        self.fail_times = 0
        self.cut_times = 0
        self.tokens: list[str | None] = []
        self.other = ""
        self.body = BODY
        self.cut_after = 1000
        self.ranges: list[str] = []

    async def resolve(self, request: web.Request) -> web.StreamResponse:
        """A file, or trouble."""
        self.tokens.append(request.headers.get("Authorization"))
        name = request.match_info["name"]
        if name == "missing.json":
            raise web.HTTPNotFound
        if name == "gated.json":
            raise web.HTTPUnauthorized
        if name == "moved.safetensors":
            raise web.HTTPFound(f"{self.other}/owner/model/resolve/main/model.safetensors")
        if self.fail_times:
            self.fail_times -= 1
            raise web.HTTPServiceUnavailable
        self.ranges.append(request.headers.get("Range", ""))
        tag = f'"{hashlib.md5(self.body, usedforsecurity=False).hexdigest()}"'
        if request.headers.get("If-None-Match") == tag:
            return web.Response(status=304)
        start = 0
        if request.headers.get("If-Range") == tag:
            start = int(request.headers["Range"].removeprefix("bytes=").removesuffix("-"))
        response = web.StreamResponse(status=206 if start else 200, headers={"ETag": tag})
        if start:
            response.headers["Content-Range"] = f"bytes {start}-{len(self.body) - 1}/{len(self.body)}"
        response.content_length = len(self.body) - start
        await response.prepare(request)
        if self.cut_times:
            self.cut_times -= 1
            await response.write(self.body[start : start + self.cut_after])
            await asyncio.sleep(0.01)
            assert request.transport is not None
            request.transport.abort()
            return response
        await response.write(self.body[start:])
        return response


@pytest_asyncio.fixture
async def hub() -> AsyncIterator[tuple[Hub, str]]:
    """A running hub and its address."""
    made = Hub()
    app = web.Application()
    app.router.add_get("/{owner}/{repo}/resolve/{revision}/{name}", made.resolve)
    async with TestServer(app) as server, TestServer(app) as other:
        made.other = str(other.make_url("")).rstrip("/").replace("127.0.0.1", "localhost")
        yield made, str(server.make_url("")).rstrip("/")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries without waiting."""
    monkeypatch.setattr("node.worker.retrying.FIRST_S", 0.001)


def web_of(folder: Path, endpoint: str | None = None, *, hosts: tuple[str, ...] = ("*",), **more: Any) -> Web:
    """Downloads of a worker with a cache in `folder`."""
    private = more.pop("private", False)
    cache = ContentCache(folder / "cache", more.pop("limit_bytes", 1 << 30))
    return Web(cache, FetchConfig(hosts=list(hosts), private=private), endpoint, **more)


def transfer() -> Transfer:
    return Transfer(Board("me"), "artifact", "x", "job", "hub", "me", 0)


@pytest.mark.asyncio
async def test_a_hub_file_survives_errors_and_cuts(hub: tuple[Hub, str], tmp_path: Path) -> None:
    """U47: a failed download never leaves a file that a retry takes for good."""
    made, address = hub
    made.fail_times, made.cut_times = 1, 2
    target = tmp_path / "model.safetensors"
    got = await web_of(tmp_path, address).hub_file(FILES, "model.safetensors", "tok", target, transfer())
    assert target.read_bytes() == BODY
    assert got == worker_web.Got(len(BODY), hashlib.sha256(BODY).hexdigest())
    assert made.tokens == ["Bearer tok"] * 4


@pytest.mark.asyncio
async def test_a_source_that_keeps_failing_is_502_and_leaves_nothing(hub: tuple[Hub, str], tmp_path: Path) -> None:
    made, address = hub
    made.cut_times, made.cut_after = 100, 0
    with pytest.raises(BridgeError) as told:
        await web_of(tmp_path, address).hub_file(FILES, "model.safetensors", "", tmp_path / "m", transfer())
    assert told.value.status == 502
    assert list(tmp_path.glob("[!c]*")) == []


@pytest.mark.asyncio
async def test_a_download_goes_on_where_it_was_cut_also_after_a_restart(
    hub: tuple[Hub, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, address = hub
    made.cut_times, made.cut_after = 100, 0
    with pytest.raises(BridgeError, match="owner/model"):
        await web_of(tmp_path, address).hub_file(FILES, "model.safetensors", "", tmp_path / "m", transfer())
    made.cut_times, made.cut_after = 1, 300_000
    shown = transfer()
    with monkeypatch.context() as patch, pytest.raises(asyncio.CancelledError):
        patch.setattr("node.worker.retrying.FIRST_S", 60.0)  # the end comes before it goes on by itself
        async with asyncio.TaskGroup() as tasks:
            work = tasks.create_task(
                web_of(tmp_path, address).hub_file(FILES, "model.safetensors", "", tmp_path / "m", shown)
            )
            while shown._done < 300_000:
                await asyncio.sleep(0.001)
            work.cancel()
            await work
    made.ranges.clear()
    got = await web_of(tmp_path, address).hub_file(FILES, "model.safetensors", "", tmp_path / "m", transfer())
    assert made.ranges == ["bytes=300000-"]
    assert (tmp_path / "m").read_bytes() == BODY and got.sha256 == hashlib.sha256(BODY).hexdigest()


@pytest.mark.asyncio
async def test_what_is_here_is_asked_for_by_its_tag_and_what_has_changed_is_fetched_anew(
    hub: tuple[Hub, str], tmp_path: Path
) -> None:
    made, address = hub

    async def fetch(name: str, token: str = "") -> bytes:
        await web_of(tmp_path, address).hub_file(FILES, "model.safetensors", token, tmp_path / name, transfer())
        return (tmp_path / name).read_bytes()

    assert await fetch("a", "tok") == await fetch("b") == BODY
    assert made.tokens == ["Bearer tok", None], "whether a task may have it, the hub decides each time"
    made.body = BODY[:7000]
    assert await fetch("c") == BODY[:7000]
    made.cut_times, made.body = 1, BODY[::-1]
    shown = transfer()
    assert await fetch("d") == BODY[::-1]
    assert shown.ended_at is None


@pytest.mark.asyncio
async def test_a_file_that_the_cache_has_no_room_for_is_told_with_path_need_and_room(
    hub: tuple[Hub, str], tmp_path: Path
) -> None:
    _, address = hub
    small = web_of(tmp_path, address, limit_bytes=1000)
    with pytest.raises(CacheTooSmall, match=r"cache may hold 1,000 bytes, one file needs 700,000"):
        await small.hub_file(FILES, "model.safetensors", "", tmp_path / "m", transfer())


@pytest.mark.asyncio
async def test_only_hosts_that_the_owner_allows_are_asked(hub: tuple[Hub, str], tmp_path: Path) -> None:
    """H55: default deny."""
    made, address = hub
    url = f"{address}/owner/model/resolve/main/x.bin"
    for hosts in ((), ("*.hf.co",), ("127.0.0.2",)):
        with pytest.raises(BridgeError, match=r"nothing from 127.0.0.1; its owner can add it to \[fetch\]"):
            await web_of(tmp_path, hosts=hosts, private=True).uri(url, tmp_path / "x", transfer())
    moved = url.replace("x.bin", "moved.safetensors")
    with pytest.raises(BridgeError, match="fetches nothing from localhost"):
        await web_of(tmp_path, hosts=("127.0.0.1",), private=True).uri(moved, tmp_path / "x", transfer())
    assert len(made.tokens) == 1


@pytest.mark.asyncio
@pytest.mark.parametrize(("name", "status"), [("missing.json", 404), ("gated.json", 403)])
async def test_what_will_not_get_better_is_told_at_once(
    hub: tuple[Hub, str], tmp_path: Path, name: str, status: int
) -> None:
    made, address = hub
    with pytest.raises(BridgeError) as told:
        await web_of(tmp_path, address).hub_file(FILES, name, "", tmp_path / "m", transfer())
    assert told.value.status == status
    assert len(made.tokens) == 1


@pytest.mark.asyncio
async def test_a_token_does_not_follow_a_redirect_to_another_host(hub: tuple[Hub, str], tmp_path: Path) -> None:
    """H32: a secret goes to the owner's hub alone."""
    made, address = hub
    own = web_of(tmp_path, address, private=True)
    await own.hub_file(FILES, "moved.safetensors", "tok", tmp_path / "m", transfer())
    assert made.tokens == ["Bearer tok", None]


@pytest.mark.asyncio
async def test_a_private_address_is_refused_and_a_permitted_one_fetched(hub: tuple[Hub, str], tmp_path: Path) -> None:
    """H55: a worker is no way into its owner's network."""
    made, address = hub
    url = f"{address}/owner/model/resolve/main/x.bin"
    for bad in (url, url.replace("127.0.0.1", "localhost")):
        with pytest.raises(BridgeError) as told:
            await web_of(tmp_path).uri(bad, tmp_path / "x", transfer())
        assert (told.value.status, told.value.code) == (403, "denied")
    assert made.tokens == []
    await web_of(tmp_path, private=True).uri(url, tmp_path / "x", transfer())
    assert (tmp_path / "x").read_bytes() == BODY


@pytest.mark.asyncio
async def test_a_redirect_into_the_private_net_is_refused(hub: tuple[Hub, str], tmp_path: Path) -> None:
    """H55."""
    made, address = hub
    url = f"{address}/owner/model/resolve/main/moved.safetensors"
    seen: list[object] = []

    def only_first(found: object) -> bool:
        seen.append(found)
        return len(seen) == 1

    with pytest.raises(BridgeError, match="not of the public net"):
        await web_of(tmp_path, is_allowed=only_first).uri(url, tmp_path / "x", transfer())
    assert len(made.tokens) == 1


@pytest.mark.parametrize(
    "text",
    [
        *(
            "10.0.0.1",
            "127.0.0.1",
            "169.254.169.254",
            "192.168.1.1",
            "172.16.0.1",
            "100.64.0.1",
            "0.0.0.0",
            "224.0.0.1",
        ),
        *("::1", "fe80::1", "fd00::1", "::ffff:10.0.0.1", "64:ff9b::a00:1", "2002:a00:1::"),
    ],
)
def test_private_ranges_are_not_public(text: str) -> None:
    """H55."""
    assert not is_public(ipaddress.ip_address(text))
    assert is_public(ipaddress.ip_address("93.184.215.14"))


def test_both_dialects_of_a_fetch_mean_the_same() -> None:
    wire = {"type": "huggingface", "repository": "a/b", "revision": "v1", "filenames": ["x.json"]}
    documented = {"fetch": {**wire, "type": "HuggingFace"}, "out_dir": "models"}
    assert parse_fetch(wire) == (HubFiles("a/b", "v1", ["x.json"]), "artifacts")
    assert parse_fetch(documented) == (HubFiles("a/b", "v1", ["x.json"]), "models")
    assert parse_fetch({"fetch": {"type": "Uri", "value": "https://x/y"}}) == (Uri("https://x/y"), "artifacts")
    assert parse_fetch({"type": "scheduler", "peer": "p", "dataset": "d"})[0] == NextSliceOf("d")


def test_both_dialects_of_send_and_receive_mean_the_same() -> None:
    resource = {"type": "peers", "peers": ["p"], "strategy": {"type": "One"}, "resource": None}
    assert parse_send({"resource": resource, "path": "x"}) == (Peers(["p"], "One"), "x")
    documented = {"type": "Peers", "peers": ["p"], "strategy": "One"}
    assert parse_send({"send": documented, "path": "x"}) == (Peers(["p"], "One"), "x")
    assert parse_receive({"resource": resource, "path": "incoming"}) == (Peers(["p"], "One"), "incoming")
    assert parse_receive({"receive": {"type": "Peers", "peers": []}, "out_dir": "in"}) == (Peers([], "All"), "in")


@pytest.mark.parametrize("name", ["/etc/x", "../x", "a/../../x", "a//b", "", "a\\b", "x\0"])
def test_a_file_name_of_a_reference_stays_below_its_folder(name: str) -> None:
    with pytest.raises(BridgeError) as told:
        parse_fetch({"type": "huggingface", "repository": "a/b", "filenames": [name]})
    assert told.value.status == 400


def test_a_link_out_of_the_work_directory_is_refused_and_one_inside_is_not(tmp_path: Path) -> None:
    work_dir = tmp_path / "work"
    (work_dir / "real").mkdir(parents=True)
    (work_dir / "inner").symlink_to(work_dir / "real")
    (work_dir / "outer").symlink_to(tmp_path)
    assert inside(work_dir, "inner/x") == (work_dir / "real" / "x").resolve()
    assert folder(work_dir, "inner/new").is_dir()
    for bad in ("outer", "outer/x", "/", "..", "", "real/../../x"):
        with pytest.raises(BridgeError) as told:
            inside(work_dir, bad)
        assert told.value.status == 400
