"""A source whose slices come from elsewhere into a cache: the part that all such sources have in common."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final, TypeVar

from node.errors import DatasetError
from node.network.cache import ContentCache
from node.wire import SliceInfo

CACHE_BYTES: Final = 20 * 10**9
KEEP_FREE_BYTES: Final = 10**9

T = TypeVar("T")


class LoopThread:
    """An event loop in a thread of its own, for whoever may block."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether it has not been closed."""
        return self._thread.is_alive()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` comes to; blocks."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Start `work`, and wait for nothing."""
        try:
            asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            work.close()

    def close(self) -> None:
        """Break off what is under way."""
        if self.is_running:
            self.run(_cancel_others())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


class CachedSource:
    """Slices that `_fetch` brings into a cache of limited size, which processes may share."""

    digest: str
    rows: Sequence[int]

    def __init__(self, cache: Path, cache_bytes: int, thread_name: str) -> None:
        _make_usable(cache)
        self._cache = ContentCache(cache, cache_bytes, KEEP_FREE_BYTES)
        self._pins: dict[int, list[AsyncExitStack]] = {}
        self._infos: Sequence[SliceInfo] = ()
        self._loop = LoopThread(thread_name)

    def open(self, index: int) -> Path:
        """The slice's file, which stays until it is released as often as it was opened."""
        return self._loop.run(self._open(index))

    def is_here(self, index: int) -> bool:
        """Whether the slice is in the cache."""
        return self._cache.has(self._infos[index].sha256)

    def release(self, index: int) -> None:
        """The slice may leave the cache."""
        self._loop.begin(self._release(index))

    def close(self) -> None:
        """Break off what is under way and let go of the cache."""
        if self._loop.is_running:
            self._loop.run(self._end())
            self._loop.close()

    async def _fetch(self, index: int, path: Path) -> None:
        raise NotImplementedError

    async def _open(self, index: int) -> Path:
        info = self._infos[index]
        async with AsyncExitStack() as stack:
            pinned = self._cache.pinned(info.sha256, info.size_bytes, lambda path: self._fetch(index, path))
            path = await stack.enter_async_context(pinned)
            self._pins.setdefault(index, []).append(stack.pop_all())
        return path

    async def _release(self, index: int) -> None:
        if self._pins.get(index):
            await self._pins[index].pop().aclose()

    async def _end(self) -> None:
        await _cancel_others()
        for stack in (stack for pins in self._pins.values() for stack in pins):
            await stack.aclose()
        self._pins.clear()


def _make_usable(cache: Path) -> None:
    """Raise `DatasetError` unless files can be kept in this folder, which is made where it is missing."""
    hint = "give each user of the machine a cache folder of their own"
    try:
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise DatasetError(f"the cache {cache} cannot be used: {error.strerror}", hint=hint) from error
    if not os.access(cache, os.R_OK | os.W_OK | os.X_OK):
        raise DatasetError(f"the cache {cache} cannot be used: it is another user's", hint=hint)


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
