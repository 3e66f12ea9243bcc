"""Server-sent events out of a byte stream (WHATWG HTML, section 9.2). No I/O."""

from __future__ import annotations

from dataclasses import dataclass

MAX_EVENT_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One event: its type (`message` unless named), data, and id."""

    type: str
    data: bytes
    id: str = ""


class SseParser:
    """Feed it bytes in any pieces; it gives back the events that are whole."""

    def __init__(self, limit: int = MAX_EVENT_BYTES) -> None:
        self._limit = limit
        self._rest = bytearray()
        self._type = ""
        self._id = ""
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, piece: bytes) -> list[ServerEvent]:
        """Events completed by `piece`; ValueError when one grows over the limit."""
        self._rest += piece
        if len(self._rest) + self._size > self._limit:
            raise ValueError(f"an event is larger than {self._limit} bytes")
        *lines, rest = self._rest.split(b"\n")
        self._rest = bytearray(rest)
        found: list[ServerEvent] = []
        for line in lines:
            event = self._line(bytes(line.removesuffix(b"\r")))
            if event is not None:
                found.append(event)
        return found

    def _line(self, line: bytes) -> ServerEvent | None:
        if not line:
            return self._flush()
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
            self._size += len(value)
        elif name == b"event":
            self._type = value.decode("utf-8", "replace")
        elif name == b"id":
            self._id = value.decode("utf-8", "replace")
        return None

    def _flush(self) -> ServerEvent | None:
        event = ServerEvent(self._type or "message", b"\n".join(self._data), self._id) if self._data else None
        self._type, self._data, self._size = "", [], 0
        return event
