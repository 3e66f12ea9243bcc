"""A task's slices: one to train on, the next ones on their way. The file of a used one is removed.

A grant may be a row range of a slice. The whole slice is fetched, for only that has a digest, and the range is cut out,
so that an executor sees nothing but a smaller slice. Whole slices come from the node's cache, where every job finds
what another has fetched; an executor gets a copy, which it may do with as it likes.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote

from node.errors import HyphaError, ObjectStoreError, PeerError, Refused
from node.network import bulk
from node.network.cache import copy_file
from node.storeurl import is_store_url
from node.telemetry import metrics
from node.tensorfile import cut_rows
from node.wire import NextSlice, SliceGrant, Span
from node.worker.beneath import new_name, put
from node.worker.context import TaskContext
from node.worker.references import ARTIFACTS, BridgeError, folder
from node.worker.retrying import new_backoff
from node.worker.room import when_there_is_room
from node.worker.transfers import Transfers

if TYPE_CHECKING:
    from node.network.overlay import Overlay

FOLDER = f"{ARTIFACTS}/slices"
MAX_WAIT_S = 5.0
CALL_S = 10.0
MOST_AHEAD = 4
SMOOTHING = 0.3


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


@dataclass(slots=True)
class _Coming:
    """A slice that is asked for and not handed out yet. What has failed keeps its grant and is tried again."""

    grant: SliceGrant | None = None
    task: asyncio.Task[Slice | BridgeError] | None = None


def depth(fetch_s: float, use_s: float) -> int:
    """How many slices to have under way, where fetching one takes so long and using one so long."""
    if use_s <= 0:
        return MOST_AHEAD if fetch_s > 0 else 1
    return min(MOST_AHEAD, max(1, math.ceil(fetch_s / use_s)))


class SliceFeed:
    """The slices of one dataset, for one task. `tasks` owns the fetches that run ahead: as many as measured times make
    worth while."""

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
        self._asking = asyncio.Lock()
        self._number = 1
        self._current: Slice | None = None
        self._has_failed = False
        self._coming: deque[_Coming] = deque()
        self._fetch_s = 0.0
        self._use_s = math.inf
        self._given_at: float | None = None
        self._number_of_file = 0

    async def next(self) -> Slice:
        """The next slice; asking for it says that the one before is used. Raises `BridgeError`."""
        async with self._lock:
            self._hand.finish()
            if self._current is not None:
                used, self._current = self._current, None
                await asyncio.to_thread(used.path.unlink, missing_ok=True)
            if self._given_at is not None:
                self._use_s = _smoothed(self._use_s, time.monotonic() - self._given_at)
                self._given_at = None
            self._fetch_ahead(1)
            first = self._coming[0]
            assert first.task is not None
            # Whoever asked may go away; the slice on its way stays for the next one who asks.
            found = await asyncio.shield(first.task)
            self._has_failed = isinstance(found, BridgeError)
            if isinstance(found, BridgeError):
                first.task = None
                raise found
            self._coming.popleft()
            self._current = found
            grant = found.grant
            self._hand.take(Span(grant.pass_, grant.index, grant.start, grant.end))
            self._given_at = time.monotonic()
            self._fetch_ahead(depth(self._fetch_s, self._use_s))
            return found

    def close(self) -> None:
        """Fetch nothing ahead any more."""
        for coming in self._coming:
            if coming.task is not None:
                coming.task.cancel()

    def _fetch_ahead(self, count: int) -> None:
        while len(self._coming) < count:
            self._coming.append(_Coming())
        for coming in self._coming:
            if coming.task is None:
                name = f"slice:{self._context.task_id}"
                coming.task = self._tasks.create_task(self._obtain(coming), name=name)

    async def _obtain(self, coming: _Coming) -> Slice | BridgeError:
        began = time.monotonic()
        try:
            if coming.grant is None:
                async with self._asking:
                    coming.grant = await self._ask()
            found = await when_there_is_room(self._context, self._transfers, self._obtain_rows, coming.grant)
        except BridgeError as error:
            return error
        except Refused as error:
            status = 403 if error.code == "denied" else 502
            return BridgeError(status, error.code, f"slice of {self.dataset}: {error}")
        except ObjectStoreError as error:
            status, code = (404, "unknown") if error.is_final else (502, "source_failed")
            return BridgeError(status, code, f"slice of {self.dataset}: {error}")
        except (HyphaError, OSError) as error:
            return BridgeError(502, "source_failed", f"slice of {self.dataset}: {error}")
        self._fetch_s = _smoothed(self._fetch_s or math.inf, time.monotonic() - began)
        metrics().data_fetched(time.monotonic() - began)
        return found

    async def _obtain_rows(self, grant: SliceGrant) -> Slice:
        # The number keeps a later grant of the same slice from the file that is being read.
        self._number_of_file += 1
        name = f"{self._number_of_file:06d}-{grant.index:06d}.safetensors"
        work_dir = self._context.work_dir
        target = folder(work_dir, FOLDER) / name
        part = await asyncio.to_thread(new_name, work_dir)
        cache = self._context.cache
        try:
            async with cache.pinned(grant.sha256, grant.size_bytes, lambda path: self._download(grant, path)) as whole:
                if (grant.start, grant.end) == (0, grant.rows):
                    await asyncio.to_thread(copy_file, whole, part)
                    size, sha256 = grant.size_bytes, grant.sha256
                else:
                    size, sha256 = await asyncio.to_thread(cut_rows, whole, part, grant.start, grant.end)
            await asyncio.to_thread(put, part, work_dir, target)
        finally:
            await asyncio.to_thread(part.unlink, missing_ok=True)
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
        if is_store_url(self.dataset):
            await self._context.stores.download(
                self.dataset, grant.name, target, grant.sha256, grant.size_bytes, self._context, self._transfers
            )
            return
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


def _smoothed(before: float, value: float) -> float:
    return value if math.isinf(before) else before + SMOOTHING * (value - before)
