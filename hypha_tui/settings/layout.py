"""What an operator took off the screen, kept over restarts: the header, and panels by screen."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from hypha_tui.settings.folders import write_private

FILE: Final = "layout.json"


@dataclass(frozen=True, slots=True)
class Layout:
    """Whether the header is shown, and the names of hidden panels by screen."""

    header: bool = True
    hidden: dict[str, list[str]] = field(default_factory=dict)

    def toggled(self, screen: str, panel: str) -> Layout:
        """With a panel taken off, or put back."""
        before = self.hidden.get(screen, [])
        after = [one for one in before if one != panel] if panel in before else sorted([*before, panel])
        return Layout(self.header, {**self.hidden, screen: after})

    def save(self, file: Path) -> None:
        """Write it; where that fails it is kept until the end only."""
        try:
            write_private(file, json.dumps({"header": self.header, "hidden": self.hidden}, indent=1) + "\n")
        except OSError:
            return


def load(file: Path | None) -> Layout:
    """What the file says; everything is shown where there is none or it is broken."""
    if file is None:
        return Layout()
    try:
        table = json.loads(file.read_text(encoding="utf-8"))
        hidden = {str(name): [str(one) for one in panels] for name, panels in table["hidden"].items()}
        return Layout(bool(table["header"]), hidden)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return Layout()
