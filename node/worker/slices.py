"""A task's slices: one to train on, the next one on its way. The file of a used one is removed.

A grant may be a row range of a slice. The whole slice is fetched, for only that has a digest, and the range is cut out,
so that an executor sees nothing but a smaller slice.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote

from node.errors import DiskFull, HyphaError, PeerError, Refused
from node.network import bulk
from node.telemetry import metrics
from node.tensorfile import cut_rows
from node.wire import NextSlice, SliceGrant, Span
from node.worker.beneath import new_name, put
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
    size_bytes: int
    sha256: str


class Hand(Protocol):
    """Who is to know which rows the executor has in its hands."""

    def take(self, span: Span) -> None:
        """It has been given these."""

    def finish(self) -> None:
        """It has used them all."""


def manifest_path(dataset: str) -> str:
    """Where a data node serves a dataset's manifest."""
    return f"/bulk/datasets/{quote(dataset, safe='')}/manifest"


def slice_path(dataset: str, index: int) -> str:
    """Where a data node serves a slice."""
    return f"/bulk/datasets/{quote(dataset, safe='')}/slices/{index}"


class SliceFeed:
    """The slices of one dataset, for one task. `tasks` owns the fetch that runs ahead."""

    def __init__(
        self,
        context: TaskContext,
        overlay: Overlay,
        transfers: Transfers,
        dataset: str,
        hand: Hand,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self.dataset = dataset
        self._context = context
        self._overlay = overlay
        self._transfers = transfers
        self._hand = hand
        self._tasks = tasks
        self._lock = asyncio.Lock()
        self._number = 1
        self._current: Slice | None = None
        self._granted: SliceGrant | None = None
        self._has_failed = False
        self._ahead: asyncio.Task[Slice | BridgeError] | None = None

    async def next(self) -> Slice:
        """The next slice; asking for it says that the one before is used. Raises `BridgeError`."""
        async with self._lock:
            self._hand.finish()
            if self._current is not None:
                used, self._current = self._current, None
                await asyncio.to_thread(used.path.unlink, missing_ok=True)
            # Whoever asked may go away; the slice on its way stays for the next one who asks.
            found = await asyncio.shield(self._fetch_ahead())
            self._ahead = None
            self._has_failed = isinstance(found, BridgeError)
            if isinstance(found, BridgeError):
                raise found
            self._current = found
            grant = found.grant
            self._hand.take(Span(grant.pass_, grant.index, grant.start, grant.end))
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
            found = await self._obtain_rows(self._granted)
        except BridgeError as error:
            return error
        except DiskFull as error:
            return BridgeError(507, "full", error.message)
        except Refused as error:
            return BridgeError(502, error.code, f"slice of {self.dataset}: {error}")
        except (HyphaError, OSError) as error:
            return BridgeError(502, "source_failed", f"slice of {self.dataset}: {error}")
        self._granted = None
        metrics().data_fetched(time.monotonic() - began)
        return found

    async def _obtain_rows(self, grant: SliceGrant) -> Slice:
        # The number keeps a later grant of the same slice from the file that is being read.
        name = f"{self._number:06d}-{grant.index:06d}.safetensors"
        work_dir = self._context.work_dir
        target = folder(work_dir, FOLDER) / name
        if (grant.start, grant.end) == (0, grant.rows):
            await self._download(grant, target)
            return Slice(grant, target, grant.size_bytes, grant.sha256)
        whole, part = await asyncio.to_thread(_two_names, work_dir)
        try:
            await self._download(grant, whole)
            size, sha256 = await asyncio.to_thread(cut_rows, whole, part, grant.start, grant.end)
            await asyncio.to_thread(put, part, work_dir, target)
        finally:
            await asyncio.to_thread(_remove, whole, part)
        return Slice(grant, target, size, sha256)

    async def _ask(self) -> SliceGrant:
        request = NextSlice(task_id=self._context.task_id, dataset=self.dataset, number=self._number)
        backoff = new_backoff()
        while True:
            try:
                grant = await self._overlay.call(self._context.scheduler, request, timeout_s=CALL_S)
            except (PeerError, TimeoutError) as error:
                if isinstance(error, Refused) and error.code not in ("busy", "unknown"):
                    raise
                # The lease tells how long a silent scheduler is waited for; one that has just started may not know us.
                await asyncio.sleep(backoff.failed())
                continue
            backoff.succeeded()
            if grant.index >= 0:
                self._number += 1
                return grant
            await asyncio.sleep(min(MAX_WAIT_S, max(0.05, grant.wait_s)))

    async def _providers(self, grant: SliceGrant) -> list[str]:
        """The providers granted, and after a failure everybody else who is known by now: the digest decides."""
        if not self._has_failed:
            return list(grant.providers)
        try:
            records = await self._overlay.providers(self.dataset)
        except PeerError:
            records = []
        return list(dict.fromkeys([*grant.providers, *(record.peer_id for record in records)]))

    async def _download(self, grant: SliceGrant, target: Path) -> None:
        peers = await self._providers(grant)
        with self._transfers.show(
            "slice",
            f"{self.dataset}/{grant.name}",
            self._context.job_id,
            peers[0] if peers else "",
            self._context.peer_id,
            grant.size_bytes,
        ) as transfer:
            await bulk.download(
                self._overlay,
                peers,
                slice_path(self.dataset, grant.index),
                target,
                sha256=grant.sha256,
                size_bytes=grant.size_bytes,
                on_progress=transfer.progress,
                durable=False,
            )


def _two_names(work_dir: Path) -> tuple[Path, Path]:
    return new_name(work_dir), new_name(work_dir)


def _remove(*paths: Path) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
