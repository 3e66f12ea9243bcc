"""How an operator arranged each table, kept over restarts: sort order, columns, filter, marks, place."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from hypha_tui.settings.folders import write_private
from node.wire import UNDECODABLE

FILE: Final = "view.json"
MARKS_KEPT: Final = 1_000


class Arrangement(msgspec.Struct, frozen=True, kw_only=True):
    """One table. `sort` is the key of a column, `hidden` are keys of columns. `selected` is the id under the cursor,
    `row` rows below the top of the screen."""

    sort: str = ""
    is_reversed: bool = False
    is_wide: bool = False
    hidden: list[str] = []
    filter: str = ""
    marks: list[str] = []
    selected: str = ""
    row: int = 0


def load(file: Path | None) -> tuple[dict[str, Arrangement], str]:
    """Arrangements by the id of their table, and what is wrong with the file, if anything is."""
    if file is None:
        return {}, ""
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, Arrangement]), ""
    except FileNotFoundError:
        return {}, ""
    except OSError as error:
        return {}, f"{file} cannot be read: {error.strerror}; tables are as at first"
    except UNDECODABLE as error:
        return {}, f"{file} is broken ({error}); tables are as at first"


def save(file: Path, arrangements: Mapping[str, Arrangement]) -> None:
    """Write them; where that fails they are kept until the end only."""
    try:
        write_private(file, msgspec.json.format(msgspec.json.encode(arrangements)).decode() + "\n")
    except OSError:
        return
