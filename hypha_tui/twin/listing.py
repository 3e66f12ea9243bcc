"""How a list is asked for on the command line, and one list as a table, CSV or JSON: chosen, sorted, in columns."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, is_dataclass
from typing import Any, Final

import msgspec

from hypha_tui.store.columns import Column, Look
from hypha_tui.store.filters import parse
from hypha_tui.store.records import TABLES
from hypha_tui.store.text import clean
from hypha_tui.twin import output
from node.errors import ConfigError
from node.schema import nearest

WIDE_LEVEL: Final = 2
ALWAYS: Final = ("id", "lease", "task")
"""What names an object is shown in the narrow table too."""


@dataclass(frozen=True, slots=True)
class Listing:
    """How a list is wanted. `watch_s`: print again on a change, at most once in so many seconds; None: once."""

    as_json: bool = False
    as_csv: bool = False
    watch_s: float | None = None
    filter: str = ""
    columns: str = ""
    sort: str = ""
    reverse: bool = False
    wide: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether nothing was said about the form of the list."""
        return self == Listing(watch_s=self.watch_s)

    @property
    def is_raw(self) -> bool:
        """Whether objects are printed as they are: then nothing else of the cluster need be known."""
        return self.as_json and not (self.filter or self.columns or self.sort)


class Table:
    """One list of the command line. What is not known is refused (ConfigError) before anything is asked of a node."""

    def __init__(self, what: str, listing: Listing) -> None:
        if listing.as_json and listing.as_csv:
            raise ConfigError("--json and --csv are two forms; name one")
        self._all = TABLES[what]
        self._what = what
        self._listing = listing
        self._columns = self._chosen()
        self._sort = self._column(listing.sort, "--sort") if listing.sort else None
        self._filter = parse(listing.filter, self._all) if listing.filter.strip() else None
        self._has_head = False

    def select(self, items: Iterable[Any], look: Look) -> list[Any]:
        """The items that the filter lets through, in the order asked for."""
        found = [item for item in items if self._filter is None or self._filter.matches(item, look)]
        column = self._sort
        if column is not None:
            found.sort(key=lambda item: _order(column.sort_key(item, look)), reverse=self._listing.reverse)
        elif self._listing.reverse:
            found.reverse()
        return found

    def print(self, items: Sequence[Any], look: Look) -> None:
        """The whole list, once."""
        if self._listing.as_json:
            output.data([self._document(item, look) for item in items])
        elif self._listing.as_csv:
            self.append(items, look)
        else:
            rows = [[column.cell(item, look)[0] for column in self._columns] for item in items]
            output.table([column.title for column in self._columns], rows)

    def append(self, items: Sequence[Any], look: Look) -> None:
        """Items that are new or have changed: a line each, as JSON or CSV or bare cells; the head before the first."""
        if self._listing.as_json:
            for item in items:
                output.json_line(self._document(item, look))
            return
        if self._listing.as_csv:
            if not self._has_head:
                sys.stdout.write(_csv([column.key for column in self._columns]))
            for item in items:
                sys.stdout.write(_csv([value(column, item, look) for column in self._columns]))
        else:
            rows = [[column.cell(item, look)[0] for column in self._columns] for item in items]
            titles, widths = [column.title for column in self._columns], [column.width for column in self._columns]
            output.table(titles, rows, has_head=not self._has_head, least=widths)
        self._has_head = True

    def _document(self, item: Any, look: Look) -> Any:
        """The object as the API has it; with --columns an object of these alone."""
        if self._listing.columns:
            cells = {column.key: value(column, item, look) for column in self._columns}
            return {key: None if cell == "" else cell for key, cell in cells.items()}
        return _builtin(item)

    def _chosen(self) -> list[Column[Any]]:
        if self._listing.columns:
            keys = [key.strip() for key in self._listing.columns.split(",") if key.strip()]
            return [self._column(key, "--columns") for key in keys]
        is_whole = self._listing.wide or self._listing.as_csv
        return [column for column in self._all if is_whole or column.level < WIDE_LEVEL or column.key in ALWAYS]

    def _column(self, key: str, flag: str) -> Column[Any]:
        for column in self._all:
            if key in (column.key, *column.aliases):
                return column
        known = [column.key for column in self._all]
        close = nearest(key, known)
        hint = f"did you mean {close}?" if close else f"there are {', '.join(known)}"
        raise ConfigError(f"{flag}: {self._what} have no column {key!r}", hint=hint)


def value(column: Column[Any], item: Any, look: Look) -> str | int | float:
    """A cell for programs: numbers as they are (seconds, bytes, shares of 1), states without a sign, nothing as ''."""
    shown = clean(column.cell(item, look)[0])
    if column.key == "state":
        return str(getattr(item, "state", shown))
    if shown == "-":
        return ""
    number = column.number(item, look)
    if number is None:
        return shown
    if isinstance(number, int):
        return number
    return int(number) if number.is_integer() else round(number, 3 if column.measure == "s" else 6)


def _order(key: float | str) -> tuple[bool, float, str]:
    """Numbers before words: a column may have both."""
    return (True, 0.0, key) if isinstance(key, str) else (False, key, "")


def _csv(row: Sequence[object]) -> str:
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerow(row)
    return stream.getvalue()


def _builtin(item: Any) -> Any:
    return msgspec.to_builtins(item) if is_dataclass(item) else item
