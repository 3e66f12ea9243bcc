"""Keys on their way to the focused widget: rows of keys, numbers before a key, and the letter of jump mode."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.widgets import Input

from hypha_tui.keys.pending import Held, Pending, Typed

if TYPE_CHECKING:
    from textual.timer import Timer

    from hypha_tui.screens.app import HyphaApp


class Keystrokes:
    """Stands before the bindings of an app."""

    def __init__(self, app: HyphaApp) -> None:
        self._app = app
        self._pending = Pending()
        self._began: tuple[str, ...] = ()
        self._timer: Timer | None = None

    @property
    def text(self) -> str:
        """What was typed and waits for more."""
        return self._pending.text

    async def take(self, key: str) -> bool:
        """One key; False where it goes on to the bindings and the focused widget."""
        app, main = self._app, self._app.main
        if main.jump is not None and app.screen is main:
            main.end_jump(key)
            return True
        scopes: tuple[str, ...] = getattr(app.screen, "scopes", ())
        if not scopes or isinstance(app.focused, Input):
            self._pending.clear()
            return False
        had_text = bool(self.text)
        step = self._pending.feed(key, app.keymap.live(scopes), app.clock(), app.keymap.counted(self._began))
        if self._pending.has_begun:
            self._began = scopes
            main.places.mark()
        if had_text or self.text:
            self._wait_anew()
        if step.undo_screens:
            main.places.undo_to_mark()
        match step:
            case Held():
                return True
            case Typed(undo_screens=True):
                app.call_later(self._run, step)  # behind the focus, which goes back in the same way
                return True
            case Typed(count=0, is_row=False) if not step.key.isdigit():
                return False
            case Typed():
                return await self._run(step)

    async def _run(self, typed: Typed) -> bool:
        """What a row of keys is bound to, nearest the focus first; with the number before it, where it takes one.

        A digit is run here and now as well: the next one may take it back.
        """
        active = self._app.screen.active_bindings.get(typed.key)
        if active is None:
            return typed.is_row
        key = self._app.keymap.by_id.get(active.binding.id or "")
        action = active.binding.action
        if typed.count and key is not None and key.counted:
            action = key.counted.format(n=typed.count)
        elif not typed.is_row and not typed.key.isdigit():
            return False
        await self._app.run_action(action, active.node)
        return True

    def _wait_anew(self) -> None:
        """Show what waits, and forget it after a while."""
        if self._timer is not None:
            self._timer.stop()
            self._timer = None
        if self.text:
            self._timer = self._app.set_timer(self._pending.waits_s, self.forget)
        self._app.main.show_status()

    def forget(self) -> None:
        """Wait for no more."""
        self._pending.clear()
        self._wait_anew()
