"""A pilot that looks whether anything is left to be done, where Textual's sleeps until the process seems idle.

Which takes 20 ms at least for every key, and on a busy machine takes a process that must wait its turn for an idle one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from unicodedata import lookup

from textual import events
from textual.app import App
from textual.dom import DOMNode
from textual.keys import REPLACED_KEYS, _character_to_key, _get_unicode_name_from_key
from textual.message_pump import MessagePump
from textual.pilot import Pilot
from textual.worker import WorkerState

LASTING = ("stream",)
"""Work that goes on for as long as the app does."""
PATIENCE_S = 0.15
"""For other work that goes on: it may be meant to."""


class SurePilot(Pilot[None]):
    """Returns from a key and from `pause` when every message was taken, and what it asked for is drawn."""

    async def press(self, *keys: str) -> None:
        """Keys, one after the other."""
        driver = self.app._driver
        assert driver is not None
        for key in keys:
            event = _key(key)
            event.set_sender(self.app)
            driver.send_message(event)
            await self._settle()

    async def pause(self, delay: float | None = None) -> None:
        """Until nothing is left to do, or so long."""
        if delay is not None:
            await asyncio.sleep(delay)
        await self._settle()

    async def _settle(self) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + PATIENCE_S
        while self.app._exception is None and self.app.screen_stack:
            await self._wait_for_screen()
            self.app.screen._on_timer_update()
            if self._is_quiet and (loop.time() >= until or not _is_moving(self.app)):
                for _ in range(3):  # a task may still be on its way to a queue
                    await asyncio.sleep(0)
                if self._is_quiet:
                    return
            elif self._is_quiet:
                await asyncio.sleep(0.001)

    @property
    def _is_quiet(self) -> bool:
        return not any(_is_busy(pump) for pump in _pumps(self.app))


def _pumps(app: App[None]) -> Iterable[MessagePump]:
    return (app, *app.screen.walk_children(DOMNode, with_self=True))


def _is_busy(pump: MessagePump) -> bool:
    waits = pump._message_queue is not None and not pump._message_queue.empty()
    after_drawing = bool(getattr(pump, "_callbacks", None) or getattr(pump, "_resize_timer", None))
    return waits or bool(pump._next_callbacks) or after_drawing


def _is_moving(app: App[None]) -> bool:
    """Whether something scrolls, or a thread works for it."""
    going = (WorkerState.PENDING, WorkerState.RUNNING)
    works = any(worker.state in going and worker.group not in LASTING for worker in app.workers)
    return works or bool(app.animator._animations or app.animator._scheduled)


def _key(name: str) -> events.Key:
    if len(name) == 1 and not name.isalnum():
        name = _character_to_key(name)
    try:
        character: str | None = lookup(_get_unicode_name_from_key(REPLACED_KEYS.get(name, name)))
    except KeyError:
        character = name if len(name) == 1 else None
    return events.Key(name, character)
