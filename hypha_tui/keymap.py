"""Every key and command of the terminal, in one table: bindings, help, footer, command line and docs come from it.

`python -m hypha_tui.keymap > docs/keys.md` writes the page anew.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Final

SCREENS: Final = ("overview", "peers", "leases", "slices", "jobs", "curves", "events", "node")
TITLES: Final = {name: name.capitalize() for name in SCREENS}


@dataclass(frozen=True, slots=True)
class Key:
    """A key of a scope. `footer`: shown at the foot of the screen, the smaller the earlier; 0 is not shown."""

    id: str
    keys: str
    action: str
    label: str
    scope: str
    group: str = "Here"
    shown: str = ""
    footer: int = 0
    short: str = ""

    @property
    def text(self) -> str:
        """The key as a person reads it."""
        return self.shown or self.keys.split(",")[0]

    @property
    def hint(self) -> str:
        """The label in the footer."""
        return self.short or self.label


@dataclass(frozen=True, slots=True)
class Command:
    """A word for the `:` line."""

    name: str
    usage: str
    label: str


# Scopes: main (everywhere on the main screen), table (a live table has the focus), jobs, curves, log (event lines).
KEYS: Final[tuple[Key, ...]] = (
    *(
        Key(f"screen.{name}", str(number), f"show('{name}')", f"{TITLES[name]} screen", "main", "Screens")
        for number, name in enumerate(SCREENS, 1)
    ),
    Key("pane.next", "tab", "next_pane", "next pane", "main", "Screens"),
    Key("pane.previous", "shift+tab", "previous_pane", "previous pane", "main", "Screens"),
    Key("command", "colon", "command_line", "command line", "main", "Everywhere", ":", 2, short="command"),
    Key("filter", "slash", "filter", "filter the table", "main", "Everywhere", "/", 3, short="filter"),
    Key("help", "question_mark", "help", "keys for this place", "main", "Everywhere", "?", 1, short="keys"),
    Key("palette", "ctrl+p", "command_palette", "palette", "main", "Everywhere"),
    Key("back", "escape", "back", "close, clear the filter, go back", "main", "Everywhere", "esc"),
    Key("leave", "q", "leave", "back; twice on the first screen quits", "main", "Everywhere", footer=9, short="back"),
    Key("quit", "ctrl+q", "quit", "quit", "main", "Everywhere"),
    Key("header", "ctrl+e", "toggle_header", "header off or on", "main", "Everywhere"),
    Key("theme", "t", "next_theme", "next theme", "main", "Everywhere", footer=8, short="theme"),
    Key("refresh", "r", "refresh_now", "ask for everything anew", "main", "Everywhere"),
    Key("act", "x", "act", "act on the marked row", "main", "Everywhere", footer=6, short="act"),
    Key("table.down", "j,down", "cursor(1)", "down", "table", "Move", "j"),
    Key("table.up", "k,up", "cursor(-1)", "up", "table", "Move", "k"),
    Key("table.top", "g,home", "edge(-1)", "first row", "table", "Move", "g"),
    Key("table.bottom", "G,end", "edge(1)", "last row", "table", "Move", "G"),
    Key("table.half_down", "ctrl+d", "half_page(1)", "half a page down", "table", "Move"),
    Key("table.half_up", "ctrl+u", "half_page(-1)", "half a page up", "table", "Move"),
    Key("table.page_down", "pagedown", "page(1)", "a page down", "table", "Move"),
    Key("table.page_up", "pageup", "page(-1)", "a page up", "table", "Move"),
    Key("table.open", "enter", "inspect", "inspect", "table", "Here", footer=4),
    Key("table.sort", "s", "sort", "sort by the next column", "table", "Here", footer=5, short="sort"),
    Key("table.reverse", "S", "reverse", "reverse the order", "table", "Here"),
    Key("table.freeze", "f", "freeze", "freeze or thaw what is shown", "table", "Here"),
    Key("log.down", "j,down", "scroll_down", "down", "log", "Move", "j"),
    Key("log.up", "k,up", "scroll_up", "up", "log", "Move", "k"),
    Key("log.top", "g,home", "scroll_home", "first line", "log", "Move", "g"),
    Key("log.bottom", "G,end", "follow", "last line, and follow", "log", "Move", "G"),
    Key("log.half_down", "ctrl+d", "half_page(1)", "half a page down", "log", "Move"),
    Key("log.half_up", "ctrl+u", "half_page(-1)", "half a page up", "log", "Move"),
    Key("jobs.new", "a", "new_job", "new job", "jobs", "Here", footer=7, short="new job"),
    Key("jobs.curves", "c", "job_curves", "curves of this job", "jobs", "Here"),
    Key("jobs.log", "L", "log_axis", "what this job's tasks wrote", "jobs", "Here"),
    Key("curves.metric", "m", "next_metric", "next metric", "curves", "Here", footer=4, short="metric"),
    Key("curves.job", "J", "next_job", "next job", "curves", "Here", footer=5, short="job"),
    Key("curves.log", "L", "log_axis", "logarithmic axis", "curves", "Here", footer=6, short="log axis"),
)

COMMANDS: Final[tuple[Command, ...]] = (
    *(Command(name, f"{name} [FILTER]", f"{TITLES[name]} screen") for name in SCREENS),
    Command("job", "job ID", "inspect a job"),
    Command("submit", "submit [FILE]", "new job, from a file or folder"),
    Command("cancel", "cancel ID", "cancel a job (asks first)"),
    Command("resume", "resume ID", "go on with a job that failed or was cancelled"),
    Command("theme", "theme NAME", "change the theme"),
    Command("help", "help", "keys for this place"),
    Command("q", "q", "quit"),
)


def keys_of(*scopes: str) -> list[Key]:
    """The keys of these scopes, in the table's order."""
    return [key for key in KEYS if key.scope in scopes]


def footer_of(*scopes: str) -> list[Key]:
    """The keys that the footer shows for these scopes, most important first."""
    return sorted((key for key in keys_of(*scopes) if key.footer), key=lambda key: key.footer)


def find_command(word: str) -> tuple[Command | None, list[Command]]:
    """The command a word stands for: its name, or a beginning that only one has; else all that begin with it."""
    for command in COMMANDS:
        if command.name == word:
            return command, [command]
    matching = [command for command in COMMANDS if word and command.name.startswith(word)]
    return (matching[0] if len(matching) == 1 else None), matching


def clashes() -> list[str]:
    """Keys that mean two things in one place."""
    found: list[str] = []
    for scope in {key.scope for key in KEYS}:
        seen: dict[str, str] = {}
        for key in keys_of(*({scope, "main"})):
            for single in key.keys.split(","):
                if single in seen and seen[single] != key.id:
                    found.append(f"{single}: {seen[single]} and {key.id} ({scope})")
                seen[single] = key.id
    return found


PLACES: Final = {
    "main": "Everywhere on the main screen",
    "table": "In a table",
    "jobs": "On Jobs",
    "curves": "On Curves",
    "log": "In a list of events",
}


def page() -> str:
    """`docs/keys.md`."""
    lines = [
        "# Keys",
        "",
        "Made from `hypha_tui/keymap.py` by `python -m hypha_tui.keymap > docs/keys.md`. In the terminal, `?` shows",
        "the keys of the place you are in.",
    ]
    for scope, place in PLACES.items():
        lines += ["", f"## {place}", "", "| key | what it does |", "|---|---|"]
        for key in keys_of(scope):
            names = [key.shown, *key.keys.split(",")[1:]] if key.shown else key.keys.split(",")
            lines.append(f"| {' '.join(f'`{name}`' for name in names)} | {key.label} |")
    lines += ["", "## Commands, after `:`", "", "| command | what it does |", "|---|---|"]
    lines += [f"| `:{command.usage}` | {command.label} |" for command in COMMANDS]
    lines += [
        "",
        "A beginning that only one command has is enough; `tab` completes it, `up` and `down` recall earlier ones.",
    ]
    lines += [
        "",
        "## Filters, after `/`",
        "",
        "Words narrow a table to the rows that have all of them; `!word` keeps those",
    ]
    lines += ["without it. `esc` clears the filter. The cursor stays on its row, and an action names its target."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
