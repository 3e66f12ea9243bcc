"""The lines around the body: header, tabs, banner, status and keys. Text only; `Lines` widgets show it."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from hypha_tui.keys.keymap import SCREENS, TITLES, Key
from hypha_tui.store import text
from hypha_tui.store.advance import advance
from hypha_tui.store.cluster import FINISHED
from hypha_tui.store.columns import Look
from hypha_tui.widgets.drawing import Line, spread
from node.views import JobView

ROLES: Final = ("gateway", "scheduler", "worker", "data")
_SHORT: Final = {"gateway": "gw", "scheduler": "sched", "worker": "work", "data": "data"}


def header(look: Look, label: str, wall: float, width: int, *, hz: float, marks: Line) -> list[Line]:
    """One line up to 110 cells, two beyond: the cluster, `marks` of its context, the link, the busiest job."""
    store = look.store
    divider = (f" {look.glyphs.vertical} ", "line")
    name = store.cluster.name if store.cluster is not None else ""
    left: Line = [(" hypha ", "title"), (text.clean(name or label), "text"), *marks, divider, link_word(look)]
    roles = store.roles()
    for number, role in enumerate(ROLES):
        up, known = roles.get(role, (0, 0))
        left.append(divider if number == 0 else ("  ", "text"))
        left.append((_SHORT[role] + " " if width < 110 else f"{role} ", role))
        left.append((f"{up}/{known}", "text" if up == known else "late"))
    clock = datetime.fromtimestamp(wall).strftime("%H:%M:%S")
    if width < 110:
        return [spread(left, [(clock + " ", "dim")], width)]
    age = store.data_age_s(look.now)
    seen = "-" if age is None else f"{age:.1f}s ago" if age < 10 else f"{text.age(age)} ago"
    right: Line = [(f"data {seen}", "dim"), divider, (f"{hz:g} Hz", "dim"), divider, (f"{clock} ", "text")]
    return [spread(left, right, width), _jobs_line(look, label, width)]


def link_word(look: Look) -> tuple[str, str]:
    """The state of the link as a sign and a word."""
    words = {"connecting": ("busy", "connecting"), "live": ("ok", "live"), "stale": ("late", "stale")}
    tone, word = words.get(look.store.link.state, ("lost", "refused"))
    if look.store.link.state == "live" and look.store.is_stale:
        tone, word = "busy", "catching up"
    return look.state(tone, word)


def _jobs_line(look: Look, label: str, width: int) -> Line:
    running = [job for job in look.store.jobs_by_activity() if job.state not in FINISHED]
    total = len(look.store.views(JobView))
    line: Line = [(f" via {text.clean(label)}", "dim"), (f"   jobs {len(running)} active of {total}", "text")]
    if not running:
        return line
    job = running[0]
    line.append((f"   {text.clean(job.name or job.id)}", "title"))
    unit, done, whole = advance(job)
    line.append((f"  {unit} {done}/{whole}", "text"))
    if unit == "round":
        line.append((f"  loss {text.number(job.loss)}  validation {text.number(job.eval_loss)}", "text"))
    series = look.store.series_of(job.id, "eval_loss").get("")
    room = min(width - sum(text.width(words) for words, _ in line) - 3, 24)
    if series is not None and room >= 8:
        values = [value for _, value in series.points()[-room:]]
        line.append(("  " + look.glyphs.spark(values, min(room, len(values))), "c1"))
    return line


def tabs(current: str, width: int, right: str) -> Line:
    """The screens with their numbers; the present one in brackets, not by colour alone."""
    line: Line = []
    for number, name in enumerate(SCREENS, 1):
        title = "" if width < 80 else f" {TITLES[name][:4] if name == 'overview' and width < 100 else TITLES[name]}"
        if name == current:
            line.append((f"[{number}{title}]", "title"))
        else:
            line += [(f" {number}", "key"), (f"{title} ", "dim")]
    return spread(line, [(f"{right} ", "dim")], width)


def banner(look: Look) -> Line:
    """What is wrong with the link and what happens next; empty when it is live."""
    link = look.store.link
    if link.state == "live":
        return []
    if link.state == "connecting":
        return [(" connecting...", "busy")]
    # What to do comes first: the reason may be longer than the line.
    if link.state == "refused":
        hint = f"; {link.hint}" if link.hint else ""
        return [(f" not tried again (r tries once); refused: {text.clean(link.detail + hint)}", "lost")]
    age = look.store.data_age_s(look.now)
    old = f"this is {text.age(age)} old, " if age is not None else ""
    again = f"trying again within {max(link.retry_s, 1):.0f}s"
    return [(f" {look.glyphs.state['late']} {old}{again}: {text.clean(link.detail)}", "late")]


def status(state: str, message: str, filter_text: str, width: int, *, stale_for: str, whole_id: str) -> Line:
    """The line above the keys: filter, counts, what just happened; at its end the age of data that may be old, else the
    id under the cursor in full, where there is room for all of it."""
    left: Line = [(" ", "text")]
    if filter_text:
        left += [(f"/{filter_text}", "key"), ("   ", "text")]
    left.append((state, "dim"))
    if message:
        left.append((f"   {message}" if state else message, "title"))
    taken = sum(text.width(words) for words, _ in left)
    if whole_id and not stale_for and taken + text.width(whole_id) + 4 <= width:
        return spread(left, [(f"{whole_id} ", "dim")], width)
    return spread(left, [(f"{stale_for} ", "late")] if stale_for else [], width)


def tab_at(line: Line, x: int) -> str:
    """The screen whose tab is at a cell of the line that `tabs` made; empty where there is none."""
    name, at = "", 0
    for part, _ in line:
        digit = part.strip(" [")[:1]
        if digit.isdigit() and 1 <= int(digit) <= len(SCREENS):
            name = SCREENS[int(digit) - 1]
        elif not part.strip():
            name = ""
        at += len(part)
        if x < at:
            return name
    return ""


def keys(shown: list[Key], width: int, *, readonly: bool) -> Line:
    """The keys that matter here, as many as fit; dim those that are refused in a terminal that only reads."""
    line: Line = [(" ", "text")]
    room = width - 1
    for key in shown:
        label = key.hint
        taken = len(key.text) + len(label) + 3
        if taken > room:
            continue
        room -= taken
        line += [(key.text, "dim" if readonly and key.danger else "key"), (f" {label}  ", "dim")]
    return line
