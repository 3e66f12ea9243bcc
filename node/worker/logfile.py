"""What an executor prints, in a bounded file that can be read while it runs."""

from __future__ import annotations

import os
from io import FileIO
from pathlib import Path
from types import TracebackType

ROTATE_AT_BYTES = 16 << 20
TAIL_BYTES = 1 << 20
MAX_LINE = 2_000


class LogFile:
    """Appends to `path`; at 16 MiB the file becomes `path.1`, in place of an older one."""

    def __init__(self, path: Path, *, rotate_at_bytes: int = ROTATE_AT_BYTES) -> None:
        self.path = path
        self._rotate_at = rotate_at_bytes
        self._file = _open(path)
        self._size = self._file.tell()

    def __enter__(self) -> LogFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def write(self, data: bytes) -> None:
        """Append; a full disk loses the output, never the task."""
        if self._size + len(data) > self._rotate_at:
            self._file.close()
            self.path.replace(self.path.with_name(f"{self.path.name}.1"))
            self._file = _open(self.path)
            self._size = 0
        try:
            self._file.write(data)
        except OSError:
            return
        self._size += len(data)

    def close(self) -> None:
        """Write no more."""
        self._file.close()


def tail(path: Path, lines: int) -> list[str]:
    """The last lines of a log, of both its files, each cut at 2,000 characters; [] where there is none."""
    data = _end_of(path)
    if data.count(b"\n") < lines:
        data = _end_of(path.with_name(f"{path.name}.1")) + data
    # Progress bars draw over themselves with a bare carriage return: only the last state of such a line is kept.
    text = data.decode("utf-8", "replace").replace("\r\n", "\n")
    found = [line.rsplit("\r", 1)[-1][:MAX_LINE] for line in text.split("\n")]
    while found and not found[-1]:
        found.pop()
    return found[-lines:] if lines > 0 else []


def _open(path: Path) -> FileIO:
    return FileIO(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600), "a")


def _end_of(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL_BYTES))
            return file.read()
    except FileNotFoundError:
        return b""
