"""Textual's driver for terminals, with an input thread that sleeps until there is input.

Textual's own looks ten times a second, which is most of what an idle terminal would cost. Imported only where there is
a terminal (not on Windows).
"""

from __future__ import annotations

import os
import selectors
from codecs import getincrementaldecoder

from textual._parser import ParseError
from textual._xterm_parser import XTermParser
from textual.drivers.linux_driver import LinuxDriver

READ_BYTES = 4_096
HALF_KEY_S = 0.02
"""How often it looks whether an Esc was only an Esc."""


class QuietDriver(LinuxDriver):
    """Waits for input and for its end without a timeout."""

    _end: tuple[int, int] | None = None

    def start_application_mode(self) -> None:
        """Take the terminal over."""
        if self._end is None:
            self._end = os.pipe()
        super().start_application_mode()  # type: ignore[no-untyped-call]  # Textual leaves it without types

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
                        data = os.read(self.fileno, READ_BYTES)
                        if not data:
                            selector.unregister(self.fileno)  # the terminal is gone; SIGHUP ends us
                        for event in parser.feed(decode(data)) if data else ():
                            self.process_message(event)
                for event in parser.tick():
                    self.process_message(event)
        try:
            for _ in parser.feed(""):
                pass
        except (EOFError, ParseError):
            pass
