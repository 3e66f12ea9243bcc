"""Work shared out among processes that end with the one that started them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait as wait_for
from typing import Any, TypeVar

from node.errors import DatasetError, HyphaError

C = TypeVar("C")
T = TypeVar("T")
R = TypeVar("R")

AHEAD = 2
"""Tasks that wait for each process."""

_given: tuple[Callable[[Any, Any], Any], Any] | None = None


def each(work: Callable[[C, T], R], context: C, items: Sequence[T], workers: int) -> Iterator[tuple[T, R]]:
    """`work(context, item)` for all items, as they end; `context` travels to each process once.

    With one worker it all happens here. Raises what `work` raises, if that is an error of ours.
    """
    if workers < 2 or len(items) < 2:
        for item in items:
            yield item, work(context, item)
        return
    spawn = multiprocessing.get_context("spawn")
    count = min(workers, len(items))
    pool = ProcessPoolExecutor(count, mp_context=spawn, initializer=_begin, initargs=(work, context))
    running: dict[Future[Any], T] = {}
    try:
        for item in items:
            if len(running) >= AHEAD * count:
                yield from _ended(running)
            running[pool.submit(_do, item)] = item
        while running:
            yield from _ended(running)
    except BrokenProcessPool as error:
        raise DatasetError("a process of the build was killed", hint="out of memory? try --workers 1") from error
    finally:
        pool.shutdown(cancel_futures=True)


def _ended(running: dict[Future[Any], T]) -> Iterator[tuple[T, Any]]:
    for future in wait(running, return_when=FIRST_COMPLETED).done:
        item = running.pop(future)
        result, problem = future.result()
        if problem is not None:
            raise DatasetError(problem[0], hint=problem[1])
        yield item, result


def _begin(work: Callable[[Any, Any], Any], context: Any) -> None:
    global _given
    _given = work, context
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that we work for
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    wait_for([sentinel])
    os._exit(1)


def _do(item: Any) -> tuple[Any, tuple[str, str] | None]:
    assert _given is not None
    work, context = _given
    try:
        return work(context, item), None
    except HyphaError as error:  # not all of ours travel between processes
        return None, (error.message, error.hint)
