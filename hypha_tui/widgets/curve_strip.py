"""Three curves side by side along the foot of a table: how the run that the cursor is about goes."""

from __future__ import annotations

from typing import Final

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Container

from hypha_tui.store import text
from hypha_tui.store.cluster import Changes
from hypha_tui.store.columns import Look
from hypha_tui.widgets.curve import Curve
from hypha_tui.widgets.drawing import Drawing
from hypha_tui.widgets.overlay import TITLES, name_of

METRICS: Final = ("loss", "eval_loss", "samples_per_s")


class CurveStrip(Container):
    """Training loss, validation loss and speed of one job. It takes no focus, and costs nothing where it is hidden."""

    def __init__(self, drawing: Drawing, *, id: str) -> None:
        super().__init__(id=id, classes="panel strip")
        self._curves = [Curve(drawing, classes="panel") for _ in METRICS]
        self._shown: tuple[str, str] = ("", "")

    def compose(self) -> ComposeResult:
        """In a row."""
        yield from self._curves

    def sync(self, look: Look, job_id: str, changes: Changes | None) -> None:
        """Show this job; its curves are looked at where something about them may be new."""
        if not self.display:
            return
        shown = (job_id, name_of(look.store, job_id) if job_id else "no job")
        is_other = shown != self._shown
        if not is_other and changes is not None and not changes.points:
            return
        self._shown = shown
        for curve, metric in zip(self._curves, METRICS, strict=True):
            if is_other:
                curve.border_title = Text(text.clean(f"{TITLES[metric]}, {shown[1]}"))
            curve.plot(look, job_id, metric)
