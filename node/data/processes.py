"""Work shared out among processes that end with the one that started them."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait as wait_for
from types import TracebackType
from typing import Any, Self, TypeVar

from node.errors import DatasetError, HyphaError

C = TypeVar("C")
T = TypeVar("T")
R = TypeVar("R")

AHEAD = 2
"""Tasks that wait for each process."""

_known: tuple[int, Any] = (0, None)
"""In a process of ours: the context that it has last unpacked, and its number."""


class Processes:
    """Runs tasks in so many processes, which are started when they are first needed and end with the block.

    With one all happens here.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._pool: ProcessPoolExecutor | None = None
        self._contexts = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def each(self, work: Callable[[C, T], R], context: C, items: Sequence[T]) -> Iterator[tuple[T, R]]:
        """`work(context, item)` for all items, as they end. Raises what `work` raises, if that is an error of ours."""
        if self._count < 2 or len(items) < 2:
            for item in items:
                yield item, work(context, item)
            return
        if self._pool is None:
            spawn = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self._count, mp_context=spawn, initializer=_begin)
        self._contexts += 1
        # It may be large, and travels with every task: packed once here, and unpacked once in each process.
        packed = self._contexts, pickle.dumps((work, context))
        running: dict[Future[Any], T] = {}
        try:
            for item in items:
                if len(running) >= AHEAD * self._count:
                    yield from _ended(running)
                running[self._pool.submit(_do, packed, item)] = item
            while running:
                yield from _ended(running)
        except BrokenProcessPool as error:
            raise DatasetError("a process of the build was killed", hint="out of memory? try --workers 1") from error
        finally:
            for future in running:
                future.cancel()


def _ended(running: dict[Future[Any], T]) -> Iterator[tuple[T, Any]]:
    for future in wait(running, return_when=FIRST_COMPLETED).done:
        item = running.pop(future)
        result, problem = future.result()
        if problem is not None:
            raise DatasetError(problem[0], hint=problem[1])
        yield item, result


def _begin() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that we work for
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    wait_for([sentinel])
    os._exit(1)


def _do(packed: tuple[int, bytes], item: Any) -> tuple[Any, tuple[str, str] | None]:
    global _known
    number, content = packed
    if _known[0] != number:
        _known = number, pickle.loads(content)
    work, context = _known[1]
    try:
        return work(context, item), None
    except HyphaError as error:  # not all of ours travel between processes
        return None, (error.message, error.hint)
