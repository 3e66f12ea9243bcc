"""Panels of a view: one alone on the screen (zoom), and those that an operator does not need taken off."""

from __future__ import annotations

from collections.abc import Iterable

from textual.containers import Container
from textual.widget import Widget

ZOOMED, AWAY, OFF = "-zoomed", "-away", "-off"


def panels_of(view: Widget) -> dict[str, Widget]:
    """The panels of a view that can be taken off, by name: the end of their id, or what they are."""
    found: dict[str, Widget] = {}
    for panel in view.query(".panel").results(Widget):
        name = panel.id.split("-", 1)[-1] if panel.id else "detail" if panel.has_class("detail") else ""
        if name:
            found[name] = panel
    return found


def take_off(view: Widget, names: Iterable[str]) -> None:
    """Hide exactly these panels; a row of panels that are all hidden gives its room away."""
    hidden = set(names)
    panels = panels_of(view)
    for name, panel in panels.items():
        panel.set_class(name in hidden, OFF)
    for row in {panel.parent for panel in panels.values()}:
        if isinstance(row, Container) and row is not view:
            row.set_class(all(child.has_class(OFF) for child in row.children), OFF)


def zoom(view: Widget, pane: Widget) -> None:
    """Show this pane, in its frame if it has one, and nothing else of the view."""
    frames = [one for one in (pane, *pane.ancestors) if isinstance(one, Widget) and one.has_class("panel")]
    shown = frames[0] if frames else pane
    if shown is view:
        return
    view.add_class(ZOOMED)
    one = shown
    while one is not view and isinstance(one.parent, Widget):
        one.add_class(ZOOMED)
        for sibling in one.parent.children:
            if sibling is not one:
                sibling.add_class(AWAY)
        one = one.parent


def unzoom(view: Widget) -> bool:
    """Show everything again; whether anything was zoomed."""
    if not view.has_class(ZOOMED):
        return False
    for widget in (view, *view.query(f".{ZOOMED}, .{AWAY}").results(Widget)):
        widget.remove_class(ZOOMED, AWAY)
    return True
