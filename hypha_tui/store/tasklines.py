"""What the tasks of a job wrote, merged into one list of lines that grows. Pure.

A node is asked for the last lines again and again; what is new in an answer is what does not overlap the one before.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from typing import Final

from node.views import LogChunk

KEPT: Final = 5_000
_TIME: Final = re.compile(r"\W?(?:\d{4}-\d\d-\d\d[T ])?(\d\d:\d\d:\d\d(?:[.,]\d+)?)")
_ERROR: Final = re.compile(r"error|exception|traceback|fatal|critical", re.IGNORECASE)
_WARNING: Final = re.compile(r"warn", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class TaskLine:
    """A line of a task's log. `at`: when it was first seen here; `level` is guessed from its words."""

    number: int
    task_id: str
    peer_id: str
    text: str
    at: float
    level: str = "info"


class TaskLines:
    """The merged lines of one job's tasks, the newest last."""

    def __init__(self) -> None:
        self.lines: deque[TaskLine] = deque(maxlen=KEPT)
        self.problems: dict[str, str] = {}
        self._tails: dict[str, list[str]] = {}
        self._number = 0

    def take(self, chunks: list[LogChunk], now: float) -> bool:
        """An answer of the node. Whether there was anything new in it."""
        new: list[tuple[str, LogChunk, str]] = []
        for chunk in chunks:
            if chunk.error:
                self.problems[chunk.task_id] = chunk.error
                continue
            self.problems.pop(chunk.task_id, None)
            known = self._tails.get(chunk.task_id, [])
            fresh = chunk.lines[overlap(known, chunk.lines) :]
            self._tails[chunk.task_id] = chunk.lines
            new += zip(_times(fresh), [chunk] * len(fresh), fresh, strict=True)
        # Lines with a time of day are merged by it; those without stay behind the one before them in their log.
        new.sort(key=lambda one: one[0])
        for _, chunk, line in new:
            self._number += 1
            self.lines.append(TaskLine(self._number, chunk.task_id, chunk.peer_id, line, now, level_of(line)))
        return bool(new)


def overlap(known: list[str], found: list[str]) -> int:
    """How many lines at the start of `found` end `known` too."""
    for skip in range(max(len(known) - len(found), 0), len(known)):
        if known[skip:] == found[: len(known) - skip]:
            return len(known) - skip
    return 0


def level_of(line: str) -> str:
    """The level that a line's words suggest."""
    if _ERROR.search(line):
        return "error"
    return "warning" if _WARNING.search(line) else "info"


def _times(lines: list[str]) -> list[str]:
    times: list[str] = []
    last = ""
    for line in lines:
        found = _TIME.match(line)
        last = found[1] if found else last
        times.append(last)
    return times
