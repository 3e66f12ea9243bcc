"""Textual's driver for terminals, with threads that sleep: one until there is input, one while the terminal keeps up.

Textual's own input thread looks ten times a second, and its output thread is woken for every frame, which is most of
what an idle terminal would cost. Imported only where there is a terminal (not on Windows).
"""

from __future__ import annotations

import asyncio
import os
import select
import selectors
import signal
from codecs import getincrementaldecoder
from contextlib import suppress
from typing import Any, Final, TextIO, cast

from textual._parser import ParseError
from textual._xterm_parser import XTermParser
from textual.drivers.linux_driver import LinuxDriver
from textual.events import Resize
from textual.geometry import Size

READ_BYTES = 4_096
HALF_KEY_S = 0.02
"""How often it looks whether an Esc was only an Esc."""
AT_ONCE: Final = 8_192
"""What a terminal that reads takes without a wait, in characters: less than half of a pseudo-terminal's buffer."""


class Output:
    """A terminal to write to, at once or through the output thread; counts what is still on its way there."""

    def __init__(self, file: TextIO) -> None:
        self.handed_on = 0
        self.written = 0
        self._file = file

    def takes(self, text: str) -> bool:
        """Whether the terminal has room for this, and nothing is to be written before it."""
        return (
            self.handed_on == self.written and len(text) <= AT_ONCE and bool(select.select([], [self._file], [], 0)[1])
        )

    def write(self, text: str) -> None:
        """All of it, to the terminal. That it is gone shows at its input, which ends us."""
        left = text.encode(self._file.encoding, self._file.errors or "replace")
        with suppress(OSError):
            while left:
                try:
                    left = left[os.write(self._file.fileno(), left) :]
                except BlockingIOError:  # whoever else has this terminal open has made it so
                    select.select([], [self._file], [])
        self.written += 1

    def flush(self) -> None:
        """Nothing is left behind."""

    def fileno(self) -> int:
        """Of the terminal."""
        return self._file.fileno()


class QuietDriver(LinuxDriver):
    """Waits for input and for its end without a timeout; writes at once what the terminal takes at once."""

    _end: tuple[int, int] | None = None
    _output: Output | None = None

    def write(self, data: str) -> None:
        """To the terminal, or to the thread that waits for it while it does not keep up."""
        if self._output is None or self._writer_thread is None:
            super().write(data)
            return
        at_once = self._output.takes(data)
        self._output.handed_on += 1
        if at_once:
            self._output.write(data)
        else:
            super().write(data)

    def start_application_mode(self) -> None:
        """Take the terminal over."""
        if self._end is None:
            self._end = os.pipe()
        if self._output is None and self._file is not None:
            self._output = Output(self._file)
            self._file = cast("Any", self._output)
        super().start_application_mode()  # type: ignore[no-untyped-call]  # Textual leaves it without types
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGWINCH, self._tell_size)
        loop.call_soon_threadsafe(self._tell_size)  # after `ctrl+z` this runs in the handler of a signal

    def _tell_size(self) -> None:
        """Tell the app the size of the terminal, as it is now. Textual reads it in the handler of the signal, where
        the next signal may come in between: then the older size is told last, and stays.

        Back at the size that the app knows, the terminal may still have lost what was drawn on the way.
        """
        if self._in_band_window_resize:
            return
        size = Size(*self._get_terminal_size())
        self._app.post_message(Resize(size, size))
        if size == self._app.size and self._app.screen_stack:
            self._app.screen.refresh()

    def _sigcont_application(self, *_: object) -> None:
        """Take the terminal again after `ctrl+z`. One that goes away sends SIGCONT too, and is not to be taken."""
        if self._must_signal_resume:
            super()._sigcont_application()

    def disable_input(self) -> None:
        """End the input thread."""
        if self._end is None:
            super().disable_input()
            return
        os.write(self._end[1], b"x")  # it stays readable: the thread cannot miss it, whenever it looks
        try:
            super().disable_input()
        finally:
            for descriptor in self._end:
                os.close(descriptor)
            self._end = None

    def run_input_thread(self) -> None:
        """Hand on what is typed. Only while a key is half there is there a timeout."""
        if self._end is None:
            super().run_input_thread()
            return
        parser = XTermParser(self._debug)
        decode = getincrementaldecoder("utf-8")().decode
        with selectors.DefaultSelector() as selector:
            selector.register(self.fileno, selectors.EVENT_READ)
            selector.register(self._end[0], selectors.EVENT_READ)
            while not self.exit_event.is_set():
                is_half = parser._timeout_time is not None
                for key, _mask in selector.select(HALF_KEY_S if is_half else None):
                    if key.fd == self.fileno:
                        try:
                            data = os.read(self.fileno, READ_BYTES)
                        except BlockingIOError:  # another reader of this terminal was there before
                            continue
                        except OSError:  # in the moment in which it goes away
                            data = b""
                        if not data:
                            # the kernel tells the first process of the session alone, which may be one that
                            # waits for us, as make does
                            selector.unregister(self.fileno)
                            os.kill(os.getpid(), signal.SIGHUP)
                        for event in parser.feed(decode(data)) if data else ():
                            self.process_message(event)
                for event in parser.tick():
                    self.process_message(event)
        try:
            for _ in parser.feed(""):
                pass
        except (EOFError, ParseError):
            pass
