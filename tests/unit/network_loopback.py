"""Overlays over real TLS on loopback, for the tests of the network."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from node.board import Board
from node.config import NodeConfig
from node.network.overlay import Overlay
from node.store import Store
from tests.support import IdentityFiles


def config_for(files: IdentityFiles, state_dir: Path, **settings: Any) -> NodeConfig:
    """The configuration of a node on a free loopback port, without mDNS."""
    values: dict[str, Any] = {
        "name": files.cert.name.removesuffix("-cert.pem"),
        "roles": ["worker"],
        "listen_addresses": ["/ip4/127.0.0.1/tcp/0"],
        "mdns": False,
    }
    values.update(settings)
    return NodeConfig(state_dir=state_dir, cert_pem=files.cert, key_pem=files.key, trust_pem=files.trust, **values)


@contextlib.asynccontextmanager
async def overlay_for(
    files: IdentityFiles,
    state_dir: Path,
    *,
    prepare: Callable[[Overlay], None] | None = None,
    crls: Path | None = None,
    **settings: Any,
) -> AsyncIterator[Overlay]:
    """A running overlay that listens; it has ended when the block has."""
    state_dir.mkdir(parents=True, exist_ok=True)
    async with Store.open(state_dir / "state.db") as store:
        overlay = Overlay(config_for(files, state_dir, **settings), files.load(crls), Board(files.peer_id), store)
        if prepare is not None:
            prepare(overlay)
        async with running(overlay):
            yield overlay


@contextlib.asynccontextmanager
async def running(overlay: Overlay) -> AsyncIterator[None]:
    """Run an overlay during the block."""
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(overlay.run())
        async with asyncio.timeout(10):
            await overlay.listening.wait()
        try:
            yield
        finally:
            task.cancel()


async def eventually(holds: Callable[[], object], within_s: float = 10.0) -> float:
    """Wait until something holds; how long that took."""
    started = time.monotonic()
    async with asyncio.timeout(within_s):
        while not holds():
            await asyncio.sleep(0.01)
    return time.monotonic() - started
