"""A few threads that share the pieces of a model between them. NumPy, hashing and files work outside Python's lock."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import numpy as np

T = TypeVar("T")
S = TypeVar("S")

MOST = 4
"""Two or three saturate a machine's memory."""


class Stopped(Exception):
    """Another lane has failed."""


class Turns:
    """Lets numbered pieces pass one at a time, from 0 on."""

    def __init__(self) -> None:
        self._turn = threading.Condition()
        self._next = 0
        self._stopped = False

    @contextmanager
    def at(self, number: int) -> Iterator[None]:
        """Waits for the turn of this number; the next one's comes at the end of the block."""
        with self._turn:
            self._turn.wait_for(lambda: self._stopped or self._next == number)
            if self._stopped:
                raise Stopped
        yield
        with self._turn:
            self._next += 1
            self._turn.notify_all()

    def stop(self) -> None:
        """Ends every wait, by `Stopped`."""
        with self._turn:
            self._stopped = True
            self._turn.notify_all()


def lane_count() -> int:
    """As many as there are cores for us, within reason."""
    return max(1, min(MOST, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1))


def in_lanes(
    pieces: Sequence[T], own: Callable[[], S], work: Callable[[S, T], None], turns: Sequence[Turns] = ()
) -> None:
    """Does `work(own, piece)` for every piece, begun in their order; `own()` makes what a lane has for itself.

    The first failure stops all lanes, and the waits for `turns`, and is raised.
    """
    left = iter(pieces)
    lock = threading.Lock()
    failures: list[BaseException] = []

    def lane() -> None:
        try:
            mine = own()
            with np.errstate(all="ignore"):  # what is not finite is found by looking for it
                while not failures:
                    with lock:
                        piece = next(left, None)
                    if piece is None:
                        return
                    work(mine, piece)
        except Stopped:
            pass
        except BaseException as error:
            failures.append(error)
            for turn in turns:
                turn.stop()

    threads = [threading.Thread(target=lane, name=f"lane-{number}") for number in range(1, lane_count())]
    for thread in threads:
        thread.start()
    lane()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
