"""What the tasks of a job wrote, as lines, each behind the name of its node."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Final

from hypha_tui.store import text
from hypha_tui.store.columns import Look
from hypha_tui.store.tasklines import TaskLine
from hypha_tui.widgets.drawing import Drawing, Line
from hypha_tui.widgets.line_log import LineLog

NAME: Final = 12
_TONES: Final = {"info": "text", "warning": "late", "error": "lost"}


class TaskLog(LineLog[TaskLine]):
    """Lines of all tasks, merged."""

    def __init__(
        self, drawing: Drawing, look: Callable[[], Look], wall: Callable[[], float], *, id: str | None = None
    ) -> None:
        super().__init__(drawing, empty="nothing was written yet", noun="line", id=id)
        self._look = look
        self._wall = wall
        self.has_times = False

    def line_of(self, record: TaskLine) -> Line:
        """When it came here, its node, the line."""
        look = self._look()
        at = datetime.fromtimestamp(self._wall() - (look.now - record.at)).strftime("%H:%M:%S")
        name = look.store.name_of(record.peer_id) if record.peer_id else record.task_id
        return [
            (f"{at} " if self.has_times else "", "dim"),
            (text.fit(name, NAME, mark=look.glyphs.cut), "title"),
            (f" {look.glyphs.vertical} ", "line"),
            (text.clean(record.text), _TONES[record.level]),
        ]

    def hay_of(self, record: TaskLine) -> str:
        """The line, its node and its task."""
        return f"{self._look().store.name_of(record.peer_id)} {record.task_id} {record.text}"

    def level_of(self, record: TaskLine) -> str:
        """As its words suggest."""
        return record.level
