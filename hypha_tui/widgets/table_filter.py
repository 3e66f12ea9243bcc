"""Filtering a table: parsing what is written, and passes over many rows that let the keyboard through."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from hypha_tui.store.columns import Look
from hypha_tui.store.filters import Filter, FilterError, parse
from hypha_tui.store.rows import SLICE
from hypha_tui.widgets.work import start

if TYPE_CHECKING:
    from hypha_tui.widgets.live_table import LiveTable


class TableFilter:
    """The filter of one table. `problem`: what is wrong with what was written last; the one before is in force."""

    def __init__(self, table: LiveTable, on_done: Callable[[], None]) -> None:
        self.problem = ""
        self._table = table
        self._on_done = on_done

    def set(self, words: str, look: Look, otherwise: str | None = None) -> None:
        """Put another filter in force, at once or after a pass in slices. One that cannot be understood is told of,
        and puts `otherwise` in force, or leaves the present one."""
        before, self.problem = self.problem, ""
        try:
            chosen = parse(words, self._table.columns)
        except FilterError as error:
            self.problem = str(error)
            if otherwise is not None and otherwise != self._table.filter_text:
                self._pass(look, parse(otherwise, self._table.columns))
            self._table.post_message(self._table.Arranged())
            return
        if chosen.words != self._table.filter_text:
            self._pass(look, chosen)
        elif before:
            self._table.post_message(self._table.Arranged())

    def apply(self, look: Look) -> None:
        """Put everything through the filter in force once more."""
        self._pass(look, None)

    def _pass(self, look: Look, chosen: Filter | None) -> None:
        rows = self._table.rows
        words = rows.filter_text if chosen is None else chosen.words
        is_long = bool(words) and len(look.store.items(rows.kind)) > SLICE and self._table.is_attached
        if is_long:
            start(self._table, partial(self._slowly, chosen), "filter")
            return
        if self._table.is_attached:
            self._table.workers.cancel_group(self._table, "filter")
        rows.filter_all(look, chosen)
        if chosen is not None:
            self._on_done()

    async def _slowly(self, chosen: Filter | None) -> None:
        for _ in self._table.rows.passes(self._table.look(), chosen):
            await asyncio.sleep(0)
        self._on_done()
