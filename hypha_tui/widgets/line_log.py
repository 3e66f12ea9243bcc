"""Lines that keep coming, newest at the foot. Scrolling up stops following; nothing moves until `G`.

Bounded by whoever feeds it. A filter narrows to the lines that match; `n` and `N` go from match to match among all.
"""

from __future__ import annotations

import bisect
from abc import abstractmethod
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final, Generic, Protocol, TypeVar

from rich.cells import cell_len, set_cell_size
from textual.binding import Binding
from textual.events import Click, Resize
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.selection import Selection
from textual.strip import Strip

from hypha_tui.keys.keymap import keys_of
from hypha_tui.widgets.drawing import Drawing, Line
from hypha_tui.widgets.selection import Extract, extract, selectable

STEP: Final = 8
"""Cells that a key scrolls sideways."""
LEVELS: Final = ("info", "warning", "error")
CUT: Final = 1_000
"""Longer lines are cut on screen; `enter` shows them whole."""


class Record(Protocol):
    """A line's number, which only grows."""

    @property
    def number(self) -> int: ...


R = TypeVar("R", bound=Record)


class LineLog(ScrollView, Generic[R], can_focus=True):
    """The scrolling, filtering and finding that all lists of lines share."""

    BINDINGS = [Binding(key.keys, key.action, key.label, id=key.id, show=False) for key in keys_of("lines", "log")]
    DEFAULT_CSS = "LineLog { scrollbar-size: 0 0; overflow-x: hidden; }"

    class Changed(Message):
        """What the status line says of it has changed."""

    class Opened(Message):
        """Enter on a line."""

        def __init__(self, log: LineLog[Any], number: int) -> None:
            super().__init__()
            self.log = log
            self.number = number

        @property
        def control(self) -> LineLog[Any]:
            """Which log."""
            return self.log

    def __init__(self, drawing: Drawing, *, empty: str, noun: str, id: str | None = None) -> None:
        super().__init__(id=id)
        self._drawing = drawing
        self._empty = empty
        self._noun = noun
        self._records: Sequence[R] = ()
        self._last = -1
        self._shown: list[R] = []
        self._ends: list[int] = []
        """With wrapping: where each record's rows end."""
        self._needle = ""
        self._finding = False
        self._level = 0
        self._cursor = 0
        self._x = 0
        self.follows = True
        self.wraps = False
        self.has_times = True

    # ---- what a kind of lines says ----------------------------------------------------------------------------

    @abstractmethod
    def line_of(self, record: R) -> Line:
        """A record as cells, however wide."""

    @abstractmethod
    def hay_of(self, record: R) -> str:
        """What a filter looks in."""

    def level_of(self, record: R) -> str:
        """`info`, `warning` or `error`."""
        return "info"

    # ---- what others ask --------------------------------------------------------------------------------------

    @property
    def filter_text(self) -> str:
        """The filter, also while `n` goes through its matches."""
        return self._needle

    @property
    def state_line(self) -> str:
        """For the status line."""
        total, shown = len(self._records), len(self._shown)
        number = f"{shown:,} of {total:,}" if shown != total else f"{total:,}"
        parts = [f"{number} {self._noun}{'' if number == '1' else 's'}"]
        parts += [f"{LEVELS[self._level]}s{' and errors' if self._level == 1 else ''} only"] if self._level else []
        parts += ["all lines, n and N find"] if self._finding else []
        parts += ["wrapped"] if self.wraps else []
        parts.append("following" if self.follows else "held (G follows)")
        return "  ".join(parts)

    @property
    def copy_line(self) -> str:
        """The line under the cursor."""
        found = self._record_under_cursor()
        return "" if found is None else "".join(part for part, _ in self.line_of(found)).rstrip()

    def feed(self, records: Sequence[R]) -> None:
        """All lines there are now. Numbers grow; old ones may be gone at the front."""
        if records is not self._records:
            self.anew()
        self._records = records
        had, self._last = self._last, records[-1].number if records else -1
        new: list[R] = []
        for record in reversed(records):
            if record.number <= had:
                break
            new.append(record)
        oldest = records[0].number if records else 0
        gone = bisect.bisect_left(self._shown, oldest, key=lambda record: record.number)
        if not new and not gone:
            return
        moved = self._rows_before(gone)
        del self._shown[:gone]
        self._shown += [record for record in reversed(new) if self._fits(record)]
        self._settle(-moved)

    def anew(self) -> None:
        """Forget all lines; those of another thing come."""
        self._records, self._shown, self._ends = (), [], []
        self._last, self._cursor, self._x, self.follows = -1, 0, 0, True
        self._settle(0)

    def set_filter(self, words: str) -> None:
        """Show only lines that have every word in them; `!word` for lines without it."""
        self._needle, self._finding = words.strip(), False
        self._narrow()

    # ---- drawing ----------------------------------------------------------------------------------------------

    def render_line(self, y: int) -> Strip:
        """One row of the viewport."""
        row = self.scroll_offset.y + y
        width = self.size.width
        at, part = self._record_at(row)
        if at is None:
            line: Line = [(self._empty, "dim")] if row == 0 else []
            return self._drawing.strip(line, width, self.rich_style)
        record = self._shown[at]
        has_cursor = self.has_focus and record.number == self._cursor and not self.follows
        cells = self.line_of(record)
        room = min(max(sum(cell_len(words) for words, _ in cells), width), CUT)
        strip = self._drawing.strip(cells, max(room, self._x + width), self.rich_style, cursor=has_cursor)
        start = part * width if self.wraps else self._x
        return selectable(self, strip.crop(start, start + width).adjust_cell_length(width), row)

    def get_selection(self, selection: Selection) -> Extract:
        """The text that the mouse selected, as it lies on the screen."""
        return extract((self._text_of_row(row) for row in range(self.virtual_size.height)), selection)

    def _text_of_row(self, row: int) -> str:
        at, part = self._record_at(row)
        if at is None:
            return ""
        words = "".join(words for words, _ in self.line_of(self._shown[at]))
        start = part * self.size.width if self.wraps else self._x
        return set_cell_size(words[start:], self.size.width) if words.isascii() else words[start:]

    # ---- keys -------------------------------------------------------------------------------------------------

    def action_scroll_up(self) -> None:
        """One line up; stops following."""
        self._move(-1)

    def action_scroll_down(self) -> None:
        """One line down."""
        self._move(1)

    def action_move(self, by: int) -> None:
        """So many lines."""
        self._move(by)

    def action_scroll_home(self) -> None:
        """The oldest line."""
        self._move(-len(self._shown))

    def action_half_page(self, by: int) -> None:
        """Half a page."""
        self._move(by * max(self.size.height // 2, 1))

    def action_page(self, by: int) -> None:
        """A page."""
        self._move(by * max(self.size.height - 1, 1))

    def action_follow(self) -> None:
        """The newest line, and those that come."""
        self._follow(True)

    def action_pause(self) -> None:
        """Stop following, or follow again."""
        self._follow(not self.follows)

    def action_sideways(self, by: int) -> None:
        """Scroll sideways; stays as it is when lines come."""
        self._to_x(self._x + by * STEP)

    def action_line_start(self) -> None:
        """The start of the lines."""
        self._to_x(0)

    def action_line_end(self) -> None:
        """The end of the longest line that is on screen."""
        top = self.scroll_offset.y
        ats = [self._record_at(row)[0] for row in range(top, top + self.size.height)]
        widths = [sum(cell_len(words) for words, _ in self.line_of(self._shown[at])) for at in ats if at is not None]
        self._to_x(max(widths, default=0) - self.size.width)

    def action_wrap(self) -> None:
        """Wrap long lines, or let them run out of sight."""
        self.wraps, self._x = not self.wraps, 0
        self._settle(0)

    def action_times(self) -> None:
        """Times off or on."""
        self.has_times = not self.has_times
        self._settle(0)

    def action_level(self) -> None:
        """All levels, then warnings and errors, then errors alone."""
        self._level = (self._level + 1) % len(LEVELS)
        self._narrow()

    def action_find(self, by: int) -> None:
        """The next or previous line that matches the filter, among all lines."""
        if not self._needle:
            return
        if not self._finding:
            self._finding = True
            self._narrow(keep=True)
        numbers = [record.number for record in self._shown if self._matches(record)]
        if not numbers:
            return
        at = bisect.bisect_right(numbers, self._cursor) if by > 0 else bisect.bisect_left(numbers, self._cursor) - 1
        self.follows = False
        self._to_cursor(numbers[at % len(numbers)])

    def action_open(self) -> None:
        """The line under the cursor in full."""
        record = self._record_under_cursor()
        if record is not None:
            self.post_message(self.Opened(self, record.number))

    def on_resize(self, event: Resize) -> None:
        """Keep the foot in view."""
        self._settle(0)

    def on_focus(self) -> None:
        """The cursor is drawn with the focus alone."""
        self.refresh()

    def on_blur(self) -> None:
        """And not without it."""
        self.refresh()

    def on_click(self, event: Click) -> None:
        """A double click opens a line."""
        at, _ = self._record_at(self.scroll_offset.y + event.y)
        if event.chain == 2 and at is not None:
            self.post_message(self.Opened(self, self._shown[at].number))

    def on_mouse_scroll_up(self) -> None:
        """The wheel stops following as well."""
        self._scroll(self.scroll_offset.y - 3)

    def on_mouse_scroll_down(self) -> None:
        """The wheel, downwards."""
        self._scroll(self.scroll_offset.y + 3)

    # ---- inside -----------------------------------------------------------------------------------------------

    def _fits(self, record: R) -> bool:
        if LEVELS.index(self.level_of(record)) < self._level:
            return False
        return self._finding or self._matches(record)

    def _matches(self, record: R) -> bool:
        hay = self.hay_of(record).lower()
        for word in self._needle.lower().split():
            if (word[1:] in hay) if word.startswith("!") and len(word) > 1 else (word not in hay):
                return False
        return True

    def _narrow(self, *, keep: bool = False) -> None:
        cursor = self._record_under_cursor()
        self._shown = [record for record in self._records if self._fits(record)]
        if not keep:
            self.follows = True
        self._settle(0)
        if keep and cursor is not None:
            self._to_cursor(cursor.number)
        self.post_message(self.Changed())

    def _rows_before(self, at: int) -> int:
        return self._ends[at - 1] if self.wraps and 0 < at <= len(self._ends) else at

    def _record_at(self, row: int) -> tuple[int | None, int]:
        """Which record a row belongs to, and which of its rows it is."""
        at = bisect.bisect_right(self._ends, row) if self.wraps else row
        if not 0 <= at < len(self._shown):
            return None, 0
        return at, row - self._rows_before(at) if self.wraps else 0

    def _index_of_cursor(self) -> int:
        if self.follows or not self._shown:
            return len(self._shown) - 1
        at = bisect.bisect_left(self._shown, self._cursor, key=lambda record: record.number)
        return min(at, len(self._shown) - 1)

    def _record_under_cursor(self) -> R | None:
        at = self._index_of_cursor()
        return self._shown[at] if 0 <= at < len(self._shown) else None

    def _move(self, by: int) -> None:
        if not self._shown:
            return
        at = min(max(self._index_of_cursor() + by, 0), len(self._shown) - 1)
        self.follows = by > 0 and at == len(self._shown) - 1
        self._to_cursor(self._shown[at].number)

    def _to_cursor(self, number: int) -> None:
        self._cursor = number
        at = self._index_of_cursor()
        first, last = self._rows_before(at), self._rows_before(at + 1) - 1
        top, height = self.scroll_offset.y, max(self.size.height, 1)
        if first < top:
            self.scroll_to(y=first, animate=False, force=True)
        elif last >= top + height:
            self.scroll_to(y=max(last - height + 1, 0), animate=False, force=True)
        self.refresh()
        self.post_message(self.Changed())

    def _scroll(self, to: int) -> None:
        top = max(self.virtual_size.height - self.size.height, 0)
        to = min(max(to, 0), top)
        if self.follows and to < top:
            self._cursor = self._shown[-1].number if self._shown else 0
        self.follows = to == top and to > self.scroll_offset.y
        self.scroll_to(y=to, animate=False, force=True)
        self.post_message(self.Changed())

    def _follow(self, follows: bool) -> None:
        record = self._record_under_cursor()
        self._cursor = record.number if record is not None else 0
        self.follows = follows
        self._settle(0)
        self.post_message(self.Changed())

    def _to_x(self, x: int) -> None:
        self._x = 0 if self.wraps else min(max(x, 0), CUT)
        self.refresh(Region(0, 0, self.size.width, self.size.height))

    def _settle(self, moved: int) -> None:
        """The lines are others, or of another width; `moved`: rows that went away at the top."""
        width = max(self.size.width, 1)
        if self.wraps:
            widths = (min(sum(cell_len(words) for words, _ in self.line_of(one)), CUT) for one in self._shown)
            self._ends = list(accumulate(max(-(-one // width), 1) for one in widths))
        height = self._ends[-1] if self.wraps and self._ends else len(self._shown)
        self.virtual_size = Size(width, height)
        if self.follows:
            self.scroll_to(y=max(height - self.size.height, 0), animate=False, force=True)
        elif moved:
            self.scroll_to(y=max(self.scroll_offset.y + moved, 0), animate=False, force=True)
        self.refresh()
