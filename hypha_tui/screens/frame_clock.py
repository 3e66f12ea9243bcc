"""The clock that draws: it stands still while nothing changes, and ticks once a second for ages and remaining times."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Final

from hypha_tui.process.pace import Pace

if TYPE_CHECKING:
    from textual.timer import Timer

    from hypha_tui.screens.app import HyphaApp

TICK_S: Final = 1.0


class FrameClock:
    """Calls `draw_frame` of an app while its store is dirty, at the pace that the terminal keeps up with."""

    def __init__(self, app: HyphaApp, hz: float) -> None:
        self.pace = Pace(hz)
        self.is_running = False
        self._app = app
        self._timer: Timer | None = None
        self._timer_hz = 0.0
        self._last = -1e9

    @property
    def hz(self) -> float:
        """Frames a second, now."""
        return self.pace.hz

    def start(self) -> None:
        """From here on there are frames."""
        self._app.set_interval(TICK_S, self._app._tick)
        self._set_timer()

    def wake(self) -> None:
        """Something changed: the next frame shows it, at once where the last one was long ago."""
        if self._timer is None or self.is_running:
            return
        self.is_running = True
        self._timer.resume()
        if self._app.clock() - self._last >= 1 / self._timer_hz:
            self._app.call_later(self._app.draw_frame)

    def rest(self) -> None:
        """Nothing changed: no frames until `wake`."""
        self.is_running = False
        if self._timer is not None:
            self._timer.pause()

    def drawing(self) -> None:
        """A frame is being drawn: note how long it takes until it is on its way to the terminal."""
        self._last = self._app.clock()
        began = perf_counter()
        self._app.call_after_refresh(lambda: self._drew(perf_counter() - began))

    def set_hz(self, hz: float) -> None:
        """So many frames a second; 0: only when `r` is pressed."""
        self.pace.wanted = hz
        self._set_timer()

    def set_blurred(self, is_blurred: bool) -> None:
        """Whether nobody looks: then one frame a second will do."""
        self.pace.is_blurred = is_blurred
        self._set_timer()

    def _drew(self, took_s: float) -> None:
        self.pace.drew(took_s, self._app.clock())
        self._set_timer()

    def _set_timer(self) -> None:
        hz = self.pace.hz
        if hz == self._timer_hz:
            return
        if self._timer is not None:
            self._timer.stop()
        self._timer_hz = hz
        self.is_running = bool(hz) and self._app.store.is_dirty
        self._timer = self._app.set_interval(1 / hz, self._app.draw_frame, pause=not self.is_running) if hz else None
