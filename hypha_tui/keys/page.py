"""`docs/keys.md`, made from the table of keys and commands."""

from __future__ import annotations

from hypha_tui.keys.keymap import COMMANDS, PLACES, keys_of
from hypha_tui.keys.presets import PRESETS

_HEAD = """# Keys

Made from `hypha_tui/keys/keymap.py` by `python -m hypha_tui.keys.keymap > docs/keys.md`. In the terminal, `?` shows
the keys of the place you are in, and `ctrl+p` finds a key or command by name.

Keys in a row (`g g`) and numbers wait a second and a half for the next key, and the status line shows them.
A number before a motion repeats it: `25j`, `90G`. Since `1` to `8` are screens, a number here has two digits or more,
which come within 0.3 s of each other and 0.6 s of the motion: `05j` for five. In the `vim` preset every number is one.
"""

_FOOT = """
A beginning that only one command has is enough; `tab` completes names and arguments, `up` and `down` recall earlier
lines, also those of earlier days. An id works though a filter hides its row.

## Filters, after `/`

Words narrow a table to the rows that have all of them; `!word` keeps those
without it. `esc` clears the filter. The cursor stays on its row, and an action names its target.

## Presets and your own keys

`preset = "default"`, `"vim"` or `"plain"` in `config.toml` ([terminal.md](terminal.md#configuration)) chooses a map;
`[keys]` changes single keys by the ids below. Keys that then mean two things in one place are told at the start.

```toml
preset = "vim"
[keys]
table.sort = "o"
quit = "ctrl+q,Z Z"
theme = ""          # no key
```
"""


def page() -> str:
    """The page."""
    lines = [_HEAD.rstrip()]
    for scope, place in PLACES.items():
        found = keys_of(scope)
        if not found:
            continue
        lines += ["", f"## {place.title}", "", "| key | what it does | id |", "|---|---|---|"]
        for key in found:
            names = [_escaped(name) for name in ([key.shown] if key.shown else key.names)]
            lines.append(f"| {' '.join(f'`{name}`' for name in names)} | {key.label} | {key.id} |")
    lines += ["", "## Commands, after `:`", "", "| command | what it does | also |", "|---|---|---|"]
    for command in COMMANDS:
        usage = _escaped(command.usage)
        lines.append(f"| `:{usage}` | {command.label} | {' '.join(f'`:{name}`' for name in command.aliases)} |")
    lines.append(_FOOT.rstrip())
    for name, preset in PRESETS.items():
        if not preset.keys:
            continue
        lines += ["", f"### {name}: {preset.label}", "", "| id | keys |", "|---|---|"]
        lines += [f"| {id_} | {keys.replace(',', ' ') or 'none'} |" for id_, keys in preset.keys.items()]
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")
