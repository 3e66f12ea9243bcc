"""The composition root: reads a configuration, builds the parts, owns their lifetime.

Parts end in the reverse order of their start: the roles first, while the network is still there to release leases
over; then the operator API; then the network, which says goodbye; the store last.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Protocol

from node import logs, resources
from node.api.service import ApiService
from node.board import Board
from node.config import NodeConfig
from node.errors import HyphaError
from node.identity.credentials import Identity
from node.network.overlay import Overlay
from node.store import Store
from node.telemetry import Telemetry

log = logging.getLogger(__name__)

STOP_WITHIN_S = 4.8
RELOAD_EVERY_S = 30.0
EXPIRY_WARNING_DAYS = 30


class Part(Protocol):
    """A part of the node: runs until it is cancelled, and cleans up after itself."""

    async def run(self) -> None: ...


def run(config: NodeConfig, identity: Identity) -> int:
    """Run a node in the foreground until SIGTERM or SIGINT; the exit code. Errors of the user's are raised."""
    logs.setup(os.environ.get("HYPHA_LOG") or os.environ.get("RUST_LOG", ""))
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        try:
            runner.run(_serve(config, identity))
        except BaseExceptionGroup as group:
            raise _told(group) from group
    return 0


async def _serve(config: NodeConfig, identity: Identity) -> None:
    stopping = asyncio.Event()
    _stop_on_signals(stopping)
    config.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    async with Store.open(config.state_dir / "state.db") as store, _telemetry(config) as telemetry:
        board = Board(identity.peer_id)
        overlay = Overlay(config, identity, board, store)
        await _describe(config, overlay)
        roles = list(_roles(config, overlay, board, store))
        api = ApiService(config, overlay, board, store, telemetry)
        async with _running(overlay.run()):
            await _listening(overlay)
            async with _running(api.run(), _reload(identity, board)), _running(*[role.run() for role in roles]):
                log.info("node.ready name=%s peer=%s addresses=%s", config.name, identity.peer_id, overlay.addresses)
                board.happened("node.ready", f"{config.name} is ready ({', '.join(config.roles)})")
                await stopping.wait()
                log.info("node.stopping name=%s", config.name)
    log.info("node.stopped name=%s", config.name)


async def _describe(config: NodeConfig, overlay: Overlay) -> None:
    """Tell what the machine has. The GPU driver may take its time to answer."""
    found = await asyncio.to_thread(resources.discover, config.jobs_dir)
    for line in resources.overstated(config.resources, found):
        log.warning("resources.overstated %s", line)
    overlay.describe(resources.total(config.resources, config.jobs_dir, found), None)


def _roles(config: NodeConfig, overlay: Overlay, board: Board, store: Store) -> Iterator[Part]:
    """The services of the roles; each is imported only where it is wanted. What a gateway does is in the overlay."""
    if "scheduler" in config.roles:
        from node.scheduler.service import SchedulerService

        yield SchedulerService(config, overlay, board, store)
    if "worker" in config.roles:
        from node.worker.service import WorkerService

        yield WorkerService(config, overlay, board, store)
    if "data" in config.roles:
        from node.data.service import DataService

        yield DataService(config, overlay, board, store)


@contextlib.asynccontextmanager
async def _running(*parts: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """Run the parts beside the block; when it ends, end them and wait for their clean-up."""
    async with asyncio.TaskGroup() as tasks:
        started = [tasks.create_task(part) for part in parts]
        yield
        for task in started:
            task.cancel()


async def _listening(overlay: Overlay) -> None:
    async with asyncio.timeout(30):
        await overlay.listening.wait()


@contextlib.asynccontextmanager
async def _telemetry(config: NodeConfig) -> AsyncIterator[Telemetry]:
    telemetry = Telemetry(config)
    telemetry.start()
    try:
        yield telemetry
    finally:
        await telemetry.stop()


async def _reload(identity: Identity, board: Board) -> None:
    """Pick up renewed certificates and revocation lists, and warn while there is time."""
    warned = False
    while True:
        if identity.days_left < EXPIRY_WARNING_DAYS and not warned:
            warned = True
            text = f"this node's certificate ends in {identity.days_left:.0f} days"
            log.warning("certificate.expiring days=%.1f", identity.days_left)
            board.happened("certificate.expiring", text, level="warning")
        await asyncio.sleep(RELOAD_EVERY_S)
        try:
            await asyncio.to_thread(identity.reload)
        except HyphaError as error:
            log.error("certificate.not_reloaded reason=%s", error)
            board.happened("certificate.not_reloaded", str(error), level="error")


def _stop_on_signals(stopping: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()

    def stop() -> None:
        if stopping.is_set():
            return
        stopping.set()
        # A part that hangs in native code must not keep the promise from being held.
        deadline = threading.Timer(STOP_WITHIN_S, _give_up)
        deadline.daemon = True
        deadline.start()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)


def _give_up() -> None:
    log.error("node.stop_overdue after_s=%s", STOP_WITHIN_S)
    logging.shutdown()
    os._exit(1)


def _told(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The one error of a group that is worth telling: the user's, else the first."""
    told, _ = group.split(HyphaError)
    error: BaseException = told or group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    fast: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return fast
