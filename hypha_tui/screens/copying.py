"""Copying and writing what is shown: ids, JSON, selected text, and a whole view as a file."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING

from hypha_tui.process.clipboard import Clipboard

if TYPE_CHECKING:
    from hypha_tui.screens.app import HyphaApp
    from hypha_tui.screens.main import MainScreen


class Copying:
    """Copies from the present view of a main screen, and tells which way it went."""

    def __init__(self, app: HyphaApp, main: MainScreen) -> None:
        self._app = app
        self._main = main

    def ids(self) -> None:
        """The ids of marked rows, else of the row under the cursor, one a line."""
        self._copy(self._main.view.copy_text(), "id", len(self._main.view.marked))

    def as_json(self) -> None:
        """The same as JSON: an array where rows are marked."""
        self._copy(self._main.view.copy_json(), "object", len(self._main.view.marked))

    def text(self, text: str) -> None:
        """Text that was selected with the mouse."""
        self._copy(text, "line", text.count("\n") + 1)

    def export(self, path: str) -> None:
        """Write the view to a .csv or .json file; one that exists is only replaced when that is confirmed."""
        file = Path(path).expanduser()
        if file.suffix not in (".csv", ".json"):
            self._main.say("name a .csv or .json file")
            return
        header, rows = self._main.view.export_rows()
        if not rows:
            self._main.say("nothing is shown, and nothing was written")
            return
        content = as_csv(header, rows) if file.suffix == ".csv" else as_json(header, rows)

        def answered(yes: bool | None) -> None:
            if yes:
                self._write(file, content, len(rows))

        if file.exists():
            from hypha_tui.screens.dialogs import ConfirmScreen

            details = [f"file  {file}", f"It would have {len(rows):,} rows of {self._main.current}."]
            ask = ConfirmScreen(self._app.drawing, f"Replace {file.name}?", details, "Replace it")
            self._app.push_screen(ask, answered)
        else:
            answered(True)

    def _write(self, file: Path, content: str, rows: int) -> None:
        try:
            file.write_text(content, encoding="utf-8")
        except OSError as error:
            self._main.say(f"{file} cannot be written: {error.strerror}")
        else:
            self._main.say(f"{rows:,} row{'' if rows == 1 else 's'} written to {file}")

    def _copy(self, text: str, what: str, count: int) -> None:
        if not text:
            self._main.say("nothing is under the cursor to copy")
            return
        app = self._app

        async def copy() -> None:
            clipboard = Clipboard(app.environment, app.write_to_terminal, in_browser=app.is_web)
            way = await clipboard.copy(text)
            app.main.say(f"copied {count:,} {what}{'' if count == 1 else 's'} {way}")

        app.start(copy, "copy")


def as_csv(header: list[str], rows: list[list[str]]) -> str:
    """Rows with a heading."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return out.getvalue()


def as_json(header: list[str], rows: list[list[str]]) -> str:
    """An array with an object for each row."""
    return json.dumps([dict(zip(header, row, strict=True)) for row in rows], indent=2, ensure_ascii=False) + "\n"
