"""A task's slices: one to train on, the next one on its way. A used slice is reported and its file removed."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from node.errors import DiskFull, HyphaError, PeerError, Refused
from node.network import bulk
from node.telemetry import metrics
from node.wire import NextSlice, SliceGrant
from node.worker.context import TaskContext
from node.worker.references import ARTIFACTS, BridgeError, folder
from node.worker.retrying import new_backoff
from node.worker.transfers import Transfers

if TYPE_CHECKING:
    from node.network.overlay import Overlay

FOLDER = f"{ARTIFACTS}/slices"
MAX_WAIT_S = 5.0
CALL_S = 10.0


@dataclass(frozen=True, slots=True)
class Slice:
    """A whole, verified slice in the work directory."""

    grant: SliceGrant
    path: Path


def manifest_path(dataset: str) -> str:
    """Where a data node serves a dataset's manifest."""
    return f"/bulk/datasets/{quote(dataset, safe='')}/manifest"


def slice_path(dataset: str, index: int) -> str:
    """Where a data node serves a slice."""
    return f"/bulk/datasets/{quote(dataset, safe='')}/slices/{index}"


class SliceFeed:
    """The slices of one dataset, for one task. `tasks` owns the fetch that runs ahead."""

    def __init__(
        self, context: TaskContext, overlay: Overlay, transfers: Transfers, dataset: str, tasks: asyncio.TaskGroup
    ) -> None:
        self._context = context
        self._overlay = overlay
        self._transfers = transfers
        self._dataset = dataset
        self._tasks = tasks
        self._lock = asyncio.Lock()
        self._has_used = asyncio.Event()
        self._used: list[tuple[int, int]] = []
        self._current: Slice | None = None
        self._granted: SliceGrant | None = None
        self._has_failed = False
        self._ahead: asyncio.Task[Slice | BridgeError] | None = None

    async def next(self) -> Slice:
        """The next slice; asking for it says that the one before is used. Raises `BridgeError`."""
        async with self._lock:
            if self._current is not None:
                self._used.append((self._current.grant.epoch, self._current.grant.index))
                self._has_used.set()
                used, self._current = self._current, None
                await asyncio.to_thread(used.path.unlink, missing_ok=True)
            # Whoever asked may go away; the slice on its way stays for the next one who asks.
            found = await asyncio.shield(self._fetch_ahead())
            self._ahead = None
            self._has_failed = isinstance(found, BridgeError)
            if isinstance(found, BridgeError):
                raise found
            self._current = found
            self._fetch_ahead()
            return found

    def close(self) -> None:
        """Fetch nothing ahead any more."""
        if self._ahead is not None:
            self._ahead.cancel()

    def _fetch_ahead(self) -> asyncio.Task[Slice | BridgeError]:
        if self._ahead is None:
            self._ahead = self._tasks.create_task(self._obtain(), name=f"slice:{self._context.task_id}")
        return self._ahead

    async def _obtain(self) -> Slice | BridgeError:
        began = time.monotonic()
        try:
            if self._granted is None:
                self._granted = await self._ask()
            grant = self._granted
            path = await self._download(grant)
        except BridgeError as error:
            return error
        except DiskFull as error:
            return BridgeError(507, "full", error.message)
        except Refused as error:
            return BridgeError(502, error.code, f"slice of {self._dataset}: {error}")
        except (HyphaError, OSError) as error:
            return BridgeError(502, "source_failed", f"slice of {self._dataset}: {error}")
        self._granted = None
        metrics().data_fetched(time.monotonic() - began)
        return Slice(grant, path)

    async def _ask(self) -> SliceGrant:
        backoff = new_backoff()
        while True:
            self._has_used.clear()
            used = list(self._used)
            request = NextSlice(task_id=self._context.task_id, dataset=self._dataset, used=used)
            try:
                grant = await self._overlay.call(self._context.scheduler, request, timeout_s=CALL_S)
            except (PeerError, TimeoutError) as error:
                if isinstance(error, Refused) and error.code != "busy":
                    raise
                # The lease tells how long a silent scheduler is waited for.
                await asyncio.sleep(backoff.failed())
                continue
            backoff.succeeded()
            self._used = [item for item in self._used if item not in used]
            if grant.index >= 0:
                return grant
            # The scheduler may be waiting to hear that the present slice is used: then ask at once.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(MAX_WAIT_S, max(0.05, grant.wait_s))):
                    await self._has_used.wait()

    async def _providers(self, grant: SliceGrant) -> list[str]:
        """The providers granted, and after a failure everybody else who is known by now: the digest decides."""
        if not self._has_failed:
            return list(grant.providers)
        try:
            records = await self._overlay.providers(self._dataset)
        except PeerError:
            records = []
        return list(dict.fromkeys([*grant.providers, *(record.peer_id for record in records)]))

    async def _download(self, grant: SliceGrant) -> Path:
        target = folder(self._context.work_dir, FOLDER) / f"{grant.epoch:04d}-{grant.index:06d}.safetensors"
        peers = await self._providers(grant)
        with self._transfers.show(
            "slice",
            f"{self._dataset}/{grant.name}",
            self._context.job_id,
            peers[0] if peers else "",
            self._context.peer_id,
            grant.size_bytes,
        ) as transfer:
            await bulk.download(
                self._overlay,
                peers,
                slice_path(self._dataset, grant.index),
                target,
                sha256=grant.sha256,
                size_bytes=grant.size_bytes,
                on_progress=transfer.progress,
                durable=False,
            )
        return target
