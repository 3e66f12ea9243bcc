"""Every key and command of the terminal, in one table: bindings, help, footer, palette, command line and docs.

`python -m hypha_tui.keys.keymap > docs/keys.md` writes the page anew. Presets and the user's own keys: `presets.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from hypha_tui.keys.names import NONE, shown

SCREENS: Final[tuple[str, ...]] = ("overview", "peers", "leases", "slices", "jobs", "curves", "events", "node")
TITLES: Final = {name: name.capitalize() for name in SCREENS}


@dataclass(frozen=True, slots=True)
class Key:
    """A key of a scope.

    `keys`: alternatives apart by commas, each a key or keys in a row (`g g`). `footer`: shown at the foot of the
    screen, the smaller the earlier; 0 is not shown. `danger`: what it leads to changes the cluster. `counted`: the
    action with a number before the key, `{n}` in it (`10j`); without it the number is dropped. `shadows`: ids of keys
    of wider scopes that mean something else here, on purpose.
    """

    id: str
    keys: str
    action: str
    label: str
    scope: str
    group: str = "Here"
    shown: str = ""
    footer: int = 0
    short: str = ""
    danger: bool = False
    counted: str = ""
    shadows: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The key as a person reads it."""
        return self.shown or shown(self.keys.split(",")[0])

    @property
    def names(self) -> list[str]:
        """Every alternative as a person reads it."""
        return [shown(key) for key in self.keys.split(",") if key != NONE]

    @property
    def hint(self) -> str:
        """The label in the footer."""
        return self.short or self.label


@dataclass(frozen=True, slots=True)
class Command:
    """A word for the `:` line. `completes`: what its argument is, for Tab; `danger`: it changes the cluster."""

    name: str
    usage: str
    label: str
    aliases: tuple[str, ...] = ()
    completes: str = ""
    danger: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """Where the keys of a scope are live: its title, and the wider scopes that are live with it."""

    title: str
    within: tuple[str, ...] = ()


PLACES: Final = {
    "main": Place("Everywhere on the main screen"),
    "table": Place("In a table", ("main",)),
    "jobs": Place("On Jobs", ("table", "main")),
    "curves": Place("On Curves", ("main",)),
    "lines": Place("In lines", ("main",)),
    "log": Place("In a list of events, or of what tasks wrote", ("lines", "main")),
    "replay": Place("While a recording is shown", ("main",)),
    "slices": Place("On the map of slices", ("main",)),
    "inspector": Place("In the inspector", ("lines",)),
    "form": Place("In the form for a job"),
}
"""Every scope. A view names its own in `scopes`."""

KEYS: Final[tuple[Key, ...]] = (
    *(
        Key(f"screen.{name}", str(number), f"show('{name}')", f"{TITLES[name]} screen", "main", "Screens")
        for number, name in enumerate(SCREENS, 1)
    ),
    Key("pane.next", "tab", "next_pane", "next pane", "main", "Screens"),
    Key("pane.previous", "shift+tab", "previous_pane", "previous pane", "main", "Screens"),
    Key("command", "colon", "command_line", "command line", "main", "Everywhere", footer=2, short="command"),
    Key("filter", "slash", "filter", "filter the table", "main", "Everywhere", footer=3, short="filter"),
    Key("help", "question_mark", "help", "keys for this place", "main", "Everywhere", footer=1, short="keys"),
    Key("palette", "ctrl+p", "command_palette", "every key and command by name", "main", "Everywhere"),
    Key("back", "escape", "back", "close, clear the filter, go back", "main", "Everywhere"),
    Key("history.back", "left_square_bracket", "history(-1)", "back to the place before", "main", "Screens"),
    Key("history.on", "right_square_bracket", "history(1)", "on again", "main", "Screens"),
    Key("history.last", "minus", "last_place", "the last place, and back", "main", "Screens"),
    Key("pane.jump", "apostrophe", "jump", "a letter on every pane; it takes you there", "main", "Screens"),
    Key("pane.zoom", "z", "zoom", "this pane alone, and back", "main", "Screens"),
    Key("leave", "q", "leave", "back; twice on the first screen quits", "main", "Everywhere", footer=9, short="back"),
    Key("quit", "ctrl+q", "quit", "quit", "main", "Everywhere"),
    Key("header", "ctrl+e", "toggle_header", "header off or on", "main", "Everywhere"),
    Key("theme", "t", "next_theme", "next theme", "main", "Everywhere", footer=8, short="theme"),
    Key("refresh", "r", "refresh_now", "ask for everything anew", "main", "Everywhere"),
    Key("copy.id", "y", "copy_ids", "copy the id, or the ids of marked rows", "main", "Everywhere"),
    Key("copy.json", "Y", "copy_json", "copy it as JSON", "main", "Everywhere"),
    Key("export", "e", "export", "write what is shown to a file", "main", "Everywhere"),
    Key("act", "x", "act", "act on the row or the marks", "main", "Everywhere", footer=6, short="act", danger=True),
    Key("table.down", "j,down", "cursor(1)", "down", "table", "Move", counted="cursor({n})"),
    Key("table.up", "k,up", "cursor(-1)", "up", "table", "Move", counted="cursor(-{n})"),
    Key("table.top", "g g,home", "edge(-1)", "first row", "table", "Move", counted="row({n})"),
    Key("table.bottom", "G,end", "edge(1)", "last row; with a number, that row", "table", "Move", counted="row({n})"),
    Key("table.half_down", "ctrl+d", "half_page(1)", "half a page down", "table", "Move", counted="half_page({n})"),
    Key("table.half_up", "ctrl+u", "half_page(-1)", "half a page up", "table", "Move", counted="half_page(-{n})"),
    Key("table.page_down", "pagedown", "page(1)", "a page down", "table", "Move", counted="page({n})"),
    Key("table.page_up", "pageup", "page(-1)", "a page up", "table", "Move", counted="page(-{n})"),
    Key("table.open", "enter", "inspect", "inspect", "table", "Here", footer=4),
    Key("table.left", "h,left", "sideways(-1)", "columns to the left", "table", "Move", counted="sideways(-{n})"),
    Key("table.right", "l,right", "sideways(1)", "columns to the right", "table", "Move", counted="sideways({n})"),
    Key("table.first_column", "0", "side(-1)", "first columns", "table", "Move"),
    Key("table.last_column", "dollar_sign", "side(1)", "last columns", "table", "Move"),
    Key("table.sort", "s", "ask('sort')", "choose the column to sort by", "table", "Here", footer=5, short="sort"),
    Key("table.reverse", "S", "reverse", "reverse the order", "table", "Here"),
    Key("table.sort_left", "less_than_sign", "sort_beside(-1)", "sort by the column before", "table", "Here"),
    Key("table.sort_right", "greater_than_sign", "sort_beside(1)", "sort by the next column", "table", "Here"),
    Key("table.wide", "w", "wide", "all columns, or those that fit", "table", "Here"),
    Key("table.columns", "W", "ask('columns')", "choose the columns", "table", "Here"),
    Key("table.mark", "space", "mark", "mark or unmark this row", "table", "Here", footer=6, short="mark"),
    Key("table.mark_range", "v", "mark_range", "begin a range; again: mark it", "table", "Here"),
    Key("table.mark_all", "asterisk", "mark_all", "mark all that the filter shows", "table", "Here"),
    Key("table.unmark", "u", "unmark", "unmark everything", "table", "Here"),
    Key("table.follow", "F", "follow", "keep this row in its place on the screen", "table", "Here"),
    Key("table.related", "o", "screen.related", "related objects", "table", "Here"),
    Key("table.json", "d", "screen.inspect_tab('JSON')", "inspect it as JSON", "table", "Here"),
    Key("table.log", "L", "screen.object_log", "what its tasks wrote", "table", "Here"),
    Key("table.curves", "c", "screen.job_curves", "curves of this job, or of the job that it is for", "table", "Here"),
    Key("table.tab", "i", "screen.next_tab", "next tab of the inspector beside", "table", "Here"),
    Key("table.freeze", "f", "freeze", "freeze or thaw what is shown", "table", "Here"),
    Key("log.down", "j,down", "scroll_down", "down", "lines", "Move", counted="move({n})"),
    Key("log.up", "k,up", "scroll_up", "up", "lines", "Move", counted="move(-{n})"),
    Key("log.top", "g g,home", "scroll_home", "first line", "lines", "Move"),
    Key("log.bottom", "G,end", "follow", "last line, and follow", "lines", "Move"),
    Key("log.half_down", "ctrl+d", "half_page(1)", "half a page down", "lines", "Move"),
    Key("log.half_up", "ctrl+u", "half_page(-1)", "half a page up", "lines", "Move"),
    Key("log.page_down", "pagedown", "page(1)", "a page down", "lines", "Move"),
    Key("log.page_up", "pageup", "page(-1)", "a page up", "lines", "Move"),
    Key("log.left", "h,left", "sideways(-1)", "sideways to the left", "lines", "Move", counted="sideways(-{n})"),
    Key("log.right", "l,right", "sideways(1)", "sideways to the right", "lines", "Move", counted="sideways({n})"),
    Key("log.start", "0", "line_start", "start of the lines", "lines", "Move"),
    Key("log.end", "dollar_sign", "line_end", "end of the lines", "log", "Move"),
    Key("log.open", "enter", "open", "the whole line or event", "lines", "Here", footer=4, short="open"),
    Key("log.pause", "p", "pause", "stop following, or follow again", "log", "Here", footer=5, short="pause"),
    Key("log.level", "s", "level", "all, warnings and errors, errors", "log", "Here", footer=6, short="level"),
    Key("log.wrap", "w", "wrap", "wrap long lines", "log", "Here", footer=7, short="wrap"),
    Key("log.times", "T", "times", "times off or on", "log", "Here"),
    Key("log.next", "n", "find(1)", "next match of the filter, among all lines", "log", "Here"),
    Key("log.previous", "N", "find(-1)", "previous match of the filter", "log", "Here"),
    Key("slices.left", "h,left", "cell(-1, 0)", "left", "slices", "Move", counted="cell(-{n}, 0)"),
    Key("slices.right", "l,right", "cell(1, 0)", "right", "slices", "Move", counted="cell({n}, 0)"),
    Key("slices.down", "j,down", "cell(0, 1)", "down", "slices", "Move", counted="cell(0, {n})"),
    Key("slices.up", "k,up", "cell(0, -1)", "up", "slices", "Move", counted="cell(0, -{n})"),
    Key("slices.first", "g g,home", "cell_edge(-1)", "first slice", "slices", "Move"),
    Key("slices.last", "G,end", "cell_edge(1)", "last slice", "slices", "Move"),
    Key("slices.open", "enter", "open", "the worker that has this slice", "slices", "Here"),
    Key("slices.job", "J", "screen.next_slices", "slices of the next job", "slices", "Here", footer=5, short="job"),
    Key("inspector.next", "tab,i", "next_tab(1)", "next tab", "inspector", "Here", footer=1),
    Key("inspector.previous", "shift+tab", "next_tab(-1)", "previous tab", "inspector", "Here"),
    Key("inspector.json", "d", "show_tab('JSON')", "as JSON", "inspector", "Here", footer=4, short="JSON"),
    Key("inspector.log", "L", "show_tab('Log')", "what its tasks wrote", "inspector", "Here", footer=5, short="log"),
    Key("inspector.related", "o", "related", "related objects", "inspector", "Here", footer=2, short="related"),
    Key(
        "inspector.find",
        "slash",
        "find_words",
        "show lines with these words",
        "inspector",
        "Here",
        footer=7,
        short="filter",
    ),
    Key(
        "inspector.back",
        "left_square_bracket",
        "history(-1)",
        "the place before",
        "inspector",
        "Here",
        footer=3,
        short="back",
    ),
    Key("inspector.on", "right_square_bracket", "history(1)", "on again", "inspector", "Here"),
    Key("inspector.last", "minus", "last_place", "the last place, and back", "inspector", "Here"),
    Key("inspector.act", "x", "act", "act on it", "inspector", "Here", footer=6, short="act", danger=True),
    Key("inspector.copy", "y", "copy_id", "copy its id", "inspector", "Here"),
    Key("inspector.copy_json", "Y", "copy_json", "copy it as JSON", "inspector", "Here"),
    Key("inspector.help", "question_mark", "help", "keys for this place", "inspector", "Here", footer=8, short="keys"),
    Key("jobs.new", "a", "new_job", "new job", "jobs", "Here", footer=7, short="new job", danger=True),
    Key("form.edit", "ctrl+e", "edit", "the text in $VISUAL or $EDITOR", "form", short="editor"),
    Key("form.dry_run", "ctrl+t", "dry_run", "what would be sent, and who would take it", "form", short="dry run"),
    Key("form.compare", "ctrl+g", "compare", "what differs from an earlier job or a file", "form", short="diff"),
    Key("form.from_job", "ctrl+f", "from_job", "begin with an earlier job", "form", short="from job"),
    Key("form.submit", "ctrl+r", "submit", "submit", "form", danger=True),
    Key("form.close", "escape", "close", "close, the draft is kept", "form", short="close"),
    Key("curves.metric", "m", "next_metric", "next metric", "curves", "Here", footer=4, short="metric"),
    Key("curves.job", "J", "next_job", "next job", "curves", "Here", footer=5, short="job"),
    Key("curves.log", "L", "log_axis", "logarithmic axis", "curves", "Here", footer=6, short="log axis"),
    Key("curves.average", "a", "average", "averaging: off, some, more", "curves", "Here", footer=7, short="average"),
    Key("curves.axis", "X", "x_axis", "along the axis: rounds, time, samples", "curves", "Here"),
    Key("curves.runs", "R", "runs", "runs to draw over each other", "curves", "Here", footer=5, short="runs"),
    Key("curves.baseline", "b", "baseline", "this run is the baseline, or no longer", "curves", "Here"),
    Key("curves.zoom_in", "plus,equals_sign", "zoom(1)", "zoom in, around the cursor", "curves", "Move"),
    Key("curves.zoom_out", "minus", "zoom(-1)", "zoom out", "curves", "Move", shadows=("history.last",)),
    Key("curves.reset", "0", "reset", "everything, without a cursor", "curves", "Move"),
    Key("curves.left", "h,left", "cursor(-1)", "cursor to the left", "curves", "Move", counted="cursor(-{n})"),
    Key("curves.right", "l,right", "cursor(1)", "cursor to the right", "curves", "Move", counted="cursor({n})"),
    Key("replay.back", "comma", "replay_step(-1)", "a step back", "replay", "Here"),
    Key("replay.on", "full_stop", "replay_step(1)", "a step on", "replay", "Here"),
    Key("replay.play", "P", "replay_play", "play or pause", "replay", "Here"),
)

COMMANDS: Final[tuple[Command, ...]] = (
    *(Command(name, f"{name} [FILTER]", f"{TITLES[name]} screen") for name in SCREENS),
    Command("job", "job ID", "inspect a job", completes="job"),
    Command("inspect", "inspect ID", "inspect anything, by id or name", ("i",), completes="object"),
    Command("submit", "submit [FILE]", "new job, from a file or folder", ("new",), completes="file", danger=True),
    Command("diff", "diff FILE", "what a file would change of the job under the cursor", completes="file"),
    Command("cancel", "cancel ID", "cancel a job (asks first)", completes="job", danger=True),
    Command("pause", "pause ID", "let a job stop at its next commit", completes="job", danger=True),
    Command("resume", "resume ID", "go on with a job that is paused or has ended", completes="job", danger=True),
    Command("release", "release ID", "let a lease go (asks first)", completes="lease", danger=True),
    Command("cordon", "cordon NAME", "have a worker offer nothing any more", completes="peer", danger=True),
    Command("uncordon", "uncordon NAME", "have a worker offer again", completes="peer", danger=True),
    Command("drain", "drain NAME", "move a worker's tasks elsewhere (asks first)", completes="peer", danger=True),
    Command("ctx", "ctx [NAME]", "another cluster of the configuration", ("context",), completes="context"),
    Command("theme", "theme NAME", "change the theme", completes="theme"),
    Command("set", "set hz|wide|glyphs|mouse VALUE", "change how this terminal draws", completes="setting"),
    Command("panel", "panel NAME", "take a panel of this screen off, or put it back", completes="panel"),
    Command("save", "save FILE", "write what is shown to a .csv or .json file", ("w",), completes="file"),
    Command("record", "record FILE|off", "keep what comes in, in a file", completes="file"),
    Command("replay", "replay FILE|off", "show a recording; off: back to the cluster", completes="file"),
    Command("seek", "seek TIME", "go to a moment of the recording: 12:30, 1:02:00, 90s, +30s, -30s"),
    Command("speed", "speed N", "how fast the recording runs, 1 to 60"),
    Command("readonly", "readonly on", "refuse to change anything from here on", ("ro",), completes="on"),
    Command("help", "help", "keys for this place", ("h",)),
    Command("q", "q", "quit", ("quit", "q!")),
)


def keys_of(*scopes: str, among: Sequence[Key] = KEYS) -> list[Key]:
    """The keys of these scopes, in the table's order."""
    return [key for key in among if key.scope in scopes]


def find_command(word: str) -> tuple[Command | None, list[Command]]:
    """The command a word stands for: its name or alias, or a beginning that only one has; else all that begin so."""
    for command in COMMANDS:
        if word == command.name or word in command.aliases:
            return command, [command]
    matching = [command for command in COMMANDS if word and command.name.startswith(word)]
    return (matching[0] if len(matching) == 1 else None), matching


def clashes(keys: Sequence[Key] = KEYS) -> list[str]:
    """Keys that mean two things in one place, and keys that only begin others (`g` beside `g g`)."""
    found: list[str] = []
    for scope, place in PLACES.items():
        seen: dict[str, Key] = {}
        for key in keys_of(scope, *place.within, among=keys):
            for single in key.keys.split(","):
                for other in [known for one, known in seen.items() if _collide(one, single)]:
                    if other.id != key.id and other.id not in key.shadows and key.id not in other.shadows:
                        found.append(f"{shown(single)} is both {other.id} and {key.id}")
                if single != NONE:
                    seen[single] = key
    return sorted(set(found))


def _collide(one: str, other: str) -> bool:
    return one == other or one.startswith(f"{other} ") or other.startswith(f"{one} ")


if __name__ == "__main__":
    from hypha_tui.keys.page import page

    sys.stdout.write(page())
