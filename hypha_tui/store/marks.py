"""Marked rows: by id, so that sorting and filtering do not change them; and a range that is being drawn."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence


class Marks:
    """The marked ids of a table. A range runs from its anchor to the cursor until it is taken over."""

    def __init__(self) -> None:
        self._ids: set[str] = set()
        self.anchor: str | None = None

    def __len__(self) -> int:
        return len(self._ids)

    def __contains__(self, id_: str) -> bool:
        return id_ in self._ids

    def toggle(self, id_: str) -> None:
        """Mark or unmark one."""
        self._ids ^= {id_}

    def add(self, ids: Iterable[str]) -> None:
        """Mark all of these."""
        self._ids.update(ids)

    def clear(self) -> None:
        """None is marked."""
        self._ids.clear()
        self.anchor = None

    def keep(self, here: Collection[str]) -> None:
        """Objects that are gone lose their mark."""
        self._ids = {id_ for id_ in self._ids if id_ in here}
        if self.anchor is not None and self.anchor not in here:
            self.anchor = None

    def reached(self, order: Sequence[str], row_of: dict[str, int], cursor_id: str | None) -> Sequence[str]:
        """The rows between the anchor and the cursor."""
        if self.anchor is None or cursor_id is None:
            return ()
        ends = sorted((row_of.get(self.anchor, -1), row_of.get(cursor_id, -1)))
        return order[ends[0] : ends[1] + 1] if ends[0] >= 0 else ()

    def of(self, order: Sequence[str]) -> list[str]:
        """The marked ids: those in the table in its order, then those that a filter hides."""
        shown = [id_ for id_ in order if id_ in self._ids]
        return shown + sorted(self._ids.difference(shown))
