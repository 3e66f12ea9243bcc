"""Which objects a table shows and in which order: filtered, sorted, held while somebody reads. Ids only, no rows.

`now` comes with the `Look`. A pass over many rows is a generator: the caller lets others run between its slices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from hypha_tui.store.columns import Column, Look
from hypha_tui.store.filters import Filter, parse
from node.views import AnyView

SLICE: Final = 2_000
"""Rows that are filtered in one go: some 30 ms of text."""


class Rows:
    """The order of a table. `total`: objects of the kind, whether shown or not."""

    def __init__(
        self,
        kind: str,
        columns: list[Column[AnyView]],
        sort_column: Column[AnyView],
        where: Callable[[AnyView], bool] | None = None,
    ) -> None:
        self.kind = kind
        self.columns = columns
        self.sort_column = sort_column
        self.is_reversed = False
        self.order: list[str] = []
        self.row_of: dict[str, int] = {}
        self.total = 0
        self.sorts = 0
        """How often everything was sorted."""
        self._where = where
        self._filter: Filter = parse("", columns)
        self._matching: set[str] = set()
        self._changed: set[str] | None = None
        """What was tested again while a pass goes on."""
        self._hay: dict[str, tuple[int, str]] = {}

    @property
    def filter_text(self) -> str:
        """The filter in force."""
        return self._filter.words

    @property
    def is_live(self) -> bool:
        """Whether time alone changes which rows match or how they are sorted."""
        return (bool(self._filter.words) and self._filter.is_live) or self.sort_column.is_live

    def passes(self, look: Look, chosen: Filter | None = None) -> Iterator[None]:
        """Put every object through a filter (the one in force, if none is given), which is in force at the end.

        Yields between slices. What `retest` is told of meanwhile is tested again at the end.
        """
        chosen = self._filter if chosen is None else chosen
        matching: set[str] = set()
        self._changed = set()
        items = list(look.store.items(self.kind))
        for start in range(0, len(items), SLICE):
            if start:
                yield
            matching.update(id_ for id_ in items[start : start + SLICE] if self._matches(id_, look, chosen))
        changed, self._changed = self._changed, None
        now_here = look.store.items(self.kind)
        self._filter = chosen
        self._matching = matching & now_here.keys()
        self.retest(changed | (now_here.keys() - set(items)), look)
        if not chosen.words:
            self._hay.clear()

    def filter_all(self, look: Look, chosen: Filter | None = None) -> None:
        """The same at once, for few rows."""
        for _ in self.passes(look, chosen):
            pass

    def retest(self, ids: Iterable[str], look: Look) -> None:
        """These came, changed or went."""
        items = look.store.items(self.kind)
        if self._changed is not None:
            ids = list(ids)
            self._changed.update(ids)
        for id_ in ids:
            if id_ not in items:
                self._matching.discard(id_)
                self._hay.pop(id_, None)
            elif self._matches(id_, look, self._filter):
                self._matching.add(id_)
            else:
                self._matching.discard(id_)

    def arrange(self, look: Look, *, hold: bool = False) -> bool:
        """Order what matches; whether that changed anything. `hold`: rows that stay keep their order, new ones follow
        at the foot."""
        items = look.store.items(self.kind)
        self.total = len(items)
        if hold and len(self._matching) == len(self.order) and self.row_of.keys() == self._matching:
            return False
        ids = self._matching if not hold else self._matching - self.row_of.keys()
        views = [items[id_].view for id_ in sorted(ids) if id_ in items]
        views.sort(key=lambda view: self.sort_column.sort_key(view, look), reverse=self.is_reversed)
        order = [view.id for view in views]
        if hold:
            order = [id_ for id_ in self.order if id_ in self._matching] + order
        else:
            self.sorts += 1
        if order == self.order:
            return False
        self.order = order
        self.row_of = {id_: row for row, id_ in enumerate(order)}
        return True

    def _matches(self, id_: str, look: Look, chosen: Filter) -> bool:
        item = look.store.items(self.kind).get(id_)
        if item is None or (self._where is not None and not self._where(item.view)):
            return False
        if not chosen.words:
            return True
        known = self._hay.get(id_)
        if known is None or known[0] != item.version:
            known = self._hay[id_] = (item.version, chosen.hay(item.view, look))
        return chosen.matches(item.view, look, known[1])
