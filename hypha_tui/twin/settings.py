"""`hypha-tui config show` and `hypha-tui contexts`: the terminal's own settings, for people and scripts."""

from __future__ import annotations

from collections.abc import Mapping

from hypha_tui.settings.config import FILE, load, rows
from hypha_tui.settings.folders import config_folder
from hypha_tui.twin import output


def show(environment: Mapping[str, str], *, as_json: bool) -> int:
    """Each setting with its value and origin; the exit code."""
    settings = load(environment)
    found = rows(settings)
    if as_json:
        output.data([{"key": key, "value": value, "origin": origin} for key, value, origin in found])
        return 0
    folder = config_folder(environment)
    where = settings.file or (f"{folder / FILE}, which does not exist" if folder is not None else "none: no home")
    output.note(f"file: {where}")
    output.table(["KEY", "VALUE", "FROM"], [list(row) for row in found])
    return 0


def contexts(environment: Mapping[str, str], *, as_json: bool) -> int:
    """The clusters of the configuration; the exit code."""
    settings = load(environment)
    first = settings.config.context
    if as_json:
        known = settings.contexts.items()
        output.data(
            [
                {
                    "name": name,
                    "first": name == first,
                    "node": one.node or str(one.state_dir or ""),
                    "production": one.production,
                    "readonly": one.readonly,
                }
                for name, one in sorted(known)
            ]
        )
        return 0
    if not settings.contexts:
        output.note(f"no contexts: add [contexts.NAME] to {FILE}")
        return 0
    table = []
    for name, one in sorted(settings.contexts.items()):
        marks = [word for word, holds in (("production", one.production), ("read-only", one.readonly)) if holds]
        table.append(["*" if name == first else "", name, one.node or str(one.state_dir or "-"), ", ".join(marks)])
    output.table(["", "NAME", "NODE", ""], table)
    return 0
