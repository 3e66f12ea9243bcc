"""The journal's files on their way from a parameter server."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any, cast

import pytest
import pytest_asyncio

from node.errors import PeerProtocol, Refused
from node.network import bulk
from node.network.overlay import Overlay
from node.scheduler import messages as m
from node.scheduler.journal import Chain
from node.scheduler.keeping import Journal
from node.scheduler.wholes import Wholes
from node.wire import VersionFile, WholeFiles, WholeVersion

pytestmark = pytest.mark.asyncio


def file_of(kind: str, number: int, content: bytes) -> VersionFile:
    digest = hashlib.sha256(content).hexdigest()
    return VersionFile(kind=kind, number=number, sha256=digest, size_bytes=len(content))


class Server:
    """A parameter server: what it serves by path, and what it says of whole versions."""

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}
        self.whole: list[VersionFile] = []
        self.asked: list[int] = []

    async def call(self, peer_id: str, request: WholeVersion, *, timeout_s: float) -> WholeFiles:
        self.asked.append(request.number)
        return WholeFiles(files=self.whole)

    async def download(self, overlay: object, peers: list[str], path: str, target: Path, **more: Any) -> None:
        content = self.content["/".join(path.split("/")[-2:])]
        if hashlib.sha256(content).hexdigest() != more["sha256"]:
            raise PeerProtocol(f"{path} has another SHA-256")
        target.write_bytes(content)


class Rig:
    def __init__(self, folder: Path, tasks: asyncio.TaskGroup) -> None:
        self.server = Server()
        self.chain = Chain(base=[file_of("weights", 0, b"zero")])
        self.taken: list[m.JobEvent] = []
        self.folder = folder
        self.tasks = tasks
        folder.mkdir()
        (folder / "weights-0.safetensors").write_bytes(b"zero")

    def journal(self, fragments: int) -> Journal:
        async def take(event: m.JobEvent) -> None:
            self.taken.append(event)

        def spawn(work: Coroutine[None, None, None]) -> None:
            self.tasks.create_task(work)

        wholes = Wholes(cast(Overlay, self.server), "job", fragments)
        return Journal(
            self.folder,
            cast(Overlay, None),
            "job",
            lambda: self.chain,
            lambda: 0,
            wholes=wholes,
            take=take,
            spawn=spawn,
        )


@pytest_asyncio.fixture
async def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    async with asyncio.TaskGroup() as tasks:
        made = Rig(tmp_path / "journal", tasks)
        monkeypatch.setattr(bulk, "download", made.server.download)
        yield made


async def test_a_delta_that_is_not_the_committed_one_is_not_kept_and_the_commit_not_acknowledged(rig: Rig) -> None:
    """H47: the parameter server says one thing and serves another."""
    journal = rig.journal(1)
    delta = file_of("delta", 1, b"meant")
    rig.server.content["delta/1"] = b"other"
    with pytest.raises(Refused, match="cannot be kept") as told:
        await journal.fetch("ps", delta)
    assert told.value.code == "busy"
    assert [path.name for path in rig.folder.iterdir()] == ["weights-0.safetensors"]
    rig.server.content["delta/1"] = b"meant"
    await journal.fetch("ps", delta)
    assert (rig.folder / "delta-1.safetensors").read_bytes() == b"meant"


async def test_with_fragments_a_new_base_is_the_whole_files_that_the_server_makes(rig: Rig) -> None:
    committed = (file_of("weights", 4, b"known by"), file_of("momentum", 4, b"known by too"))
    whole = [file_of("weights", 4, b"w4"), file_of("momentum", 4, b"m4")]
    rig.server.whole = whole[:1]
    rig.server.content |= {"weights/4": b"w4", "momentum/4": b"m4"}
    journal = rig.journal(3)
    await journal.take_base(m.PullBase(0, "ps", committed))
    assert isinstance(rig.taken[-1], m.BaseFailed) and "other files of version 4" in rig.taken[-1].reason
    rig.server.whole = whole
    await journal.take_base(m.PullBase(0, "ps", committed))
    assert rig.taken[-1] == m.BaseKept(0, tuple(whole))
    assert rig.server.asked == [4, 4]
