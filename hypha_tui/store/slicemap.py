"""The state of every slice, as cells: one for each slice, or for as many as must share one. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from hypha_tui.store import text
from hypha_tui.store.columns import Cell, Look
from hypha_tui.store.glyphs import Glyphs
from node.views import SLICE_ASSIGNED, SLICE_AVAILABLE, SLICE_PARTLY, SLICE_USED, JobView, SliceMap

Line = list[Cell]
WORDS: Final = {
    SLICE_USED: "used",
    SLICE_PARTLY: "partly used",
    SLICE_ASSIGNED: "assigned",
    SLICE_AVAILABLE: "available",
}
TONES: Final = {SLICE_USED: "done", SLICE_PARTLY: "offer", SLICE_ASSIGNED: "busy", SLICE_AVAILABLE: "dim"}


@dataclass(frozen=True, slots=True)
class Grid:
    """How slices lie in a field of cells: `share` slices a cell, `width` cells a row."""

    slices: int
    width: int
    share: int

    @classmethod
    def fitting(cls, slices: int, width: int, height: int) -> Grid:
        """The finest grid that shows all of them."""
        room = max(width * height, 1)
        return cls(slices, max(width, 1), max(-(-slices // room), 1))

    @property
    def cells(self) -> int:
        """Cells that are filled."""
        return -(-self.slices // self.share)

    @property
    def rows(self) -> int:
        """Rows that are filled."""
        return -(-self.cells // self.width)

    def of_cell(self, cell: int) -> range:
        """The slices of a cell."""
        return range(cell * self.share, min((cell + 1) * self.share, self.slices))


def whole_states(found: SliceMap, slices: int) -> str:
    """A letter for each of `slices`: of a job that runs no more, those behind the last one were not used."""
    missing = max(slices - len(found.states), 0) if not found.is_whole else 0
    return found.states + SLICE_AVAILABLE * missing


def counts(states: str) -> Counter[str]:
    """How many slices are in each state."""
    return Counter({letter: states.count(letter) for letter in WORDS})


def cell_of(states: str, slices: range, glyphs: Glyphs) -> Cell:
    """The sign of a cell. Assigned shows through; of a mixed cell the height says how much is used."""
    shown = states[slices.start : slices.stop]
    if SLICE_ASSIGNED in shown:
        return glyphs.state[TONES[SLICE_ASSIGNED]], TONES[SLICE_ASSIGNED]
    used = shown.count(SLICE_USED)
    if used == len(shown):
        return glyphs.sparks[-1], TONES[SLICE_USED]
    if used == 0 and SLICE_PARTLY not in shown:
        return glyphs.dot, TONES[SLICE_AVAILABLE]
    part = (used + 0.5 * shown.count(SLICE_PARTLY)) / len(shown)
    top = len(glyphs.sparks) - 1
    return glyphs.sparks[min(max(int(part * top + 0.5), 0), top - 1)], TONES[SLICE_PARTLY]


def row_of(states: str, grid: Grid, row: int, glyphs: Glyphs) -> Line:
    """One row of cells; equal ones are joined."""
    line: Line = []
    for cell in range(row * grid.width, min((row + 1) * grid.width, grid.cells)):
        sign, tone = cell_of(states, grid.of_cell(cell), glyphs)
        if line and line[-1][1] == tone:
            line[-1] = (line[-1][0] + sign, tone)
        else:
            line.append((sign, tone))
    return line


def legend(states: str, grid: Grid, glyphs: Glyphs) -> Line:
    """What the signs mean, each with its count."""
    number = counts(states)
    signs = {
        SLICE_USED: glyphs.sparks[-1],
        SLICE_PARTLY: glyphs.sparks[len(glyphs.sparks) // 2],
        SLICE_ASSIGNED: glyphs.state[TONES[SLICE_ASSIGNED]],
        SLICE_AVAILABLE: glyphs.dot,
    }
    line: Line = []
    for letter, word in WORDS.items():
        line += [(f"{signs[letter]} {word} ", TONES[letter]), (f"{number[letter]:,}  ", "text")]
    return [*line, (f"{grid.share:,} a cell" if grid.share > 1 else "", "dim")]


def read_out(found: SliceMap, states: str, slices: range, look: Look) -> Line:
    """What a cell stands for: its slices, their state, whose they are."""
    if len(slices) == 1:
        index = slices.start
        words: Line = [(f"slice {index:,}  ", "title"), (WORDS[states[index]], TONES[states[index]])]
    else:
        number = counts(states[slices.start : slices.stop])
        words = [(f"slices {slices.start:,} to {slices.stop - 1:,}  ", "title")]
        for letter, word in WORDS.items():
            words += [(f"{word} {number[letter]:,}  ", TONES[letter])] if number[letter] else []
    told = 0
    for part in found.parts:
        if part.slice not in slices:
            continue
        told += 1
        if told > 3:
            return [*words, (" ..", "dim")]
        name = f"{part.slice:,}: " if len(slices) > 1 else ""
        if part.holder >= 0:
            holder = found.holders[part.holder]
            who = look.store.name_of(holder.peer_id) if holder.peer_id else holder.task_id
            words.append((f"  {name}{part.assigned:,} of {part.rows:,} rows at {text.clean(who)}", "busy"))
        if part.used:
            words.append((f"  {name}{part.used:,} of {part.rows:,} rows used", "offer"))
    return words


def holder_of(found: SliceMap, slices: range) -> str:
    """The peer that has a slice of this cell, if one has."""
    parts = (part for part in found.parts if part.holder >= 0 and part.slice in slices)
    part = next(parts, None)
    return "" if part is None else found.holders[part.holder].peer_id


_ROWS: Final = {"used": "done", "assigned": "busy", "available": "ok"}


def pass_line(job: JobView, look: Look, width: int) -> Line:
    """How far a job is through its pass, in full numbers and a bar of what room they leave."""
    total = sum(job.slices.values())
    name = "rows" if job.rounds else "slices"
    counted: Line = []
    for state, tone in _ROWS.items():
        counted += [(f"  {state} ", "dim"), (f"{job.slices.get(state, 0):,}", tone)]
    room = max(width - len(name) - 1 - sum(len(part) for part, _ in counted), 0)
    bar: Line = [
        (glyph * round(job.slices.get(state, 0) / max(total, 1) * room), _ROWS[state])
        for state, glyph in (("used", look.glyphs.bar_full), ("assigned", look.glyphs.sparks[4]))
    ]
    filled = sum(len(part) for part, _ in bar)
    rest = (look.glyphs.bar_empty * max(room - filled, 0), _ROWS["available"])
    return [(f"{name} ", "dim"), *bar, rest, *counted]
