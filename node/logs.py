"""The log: one line an event on stderr, `time level logger event key=value ..`.

A module logs by `log = logging.getLogger(__name__)` and `log.info("lease.renewed lease=%s peer=%s", lease_id, peer)`.
"""

from __future__ import annotations

import logging
import time

LEVELS = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "off": logging.CRITICAL + 10,
}
QUIET = {
    "aiosqlite": logging.WARNING,
    "aiohttp.access": logging.WARNING,
    "asyncio": logging.WARNING,
    "opentelemetry": logging.ERROR,
    "requests": logging.ERROR,
    "urllib3": logging.ERROR,
    "zeroconf": logging.ERROR,
}


class LineFormatter(logging.Formatter):
    """One line for each record; what a peer sent cannot begin a second one. Tracebacks follow, indented."""

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        message = record.getMessage().replace("\r", "\\r").replace("\n", "\\n")
        line = f"{seconds}.{int(record.msecs):03d}Z {record.levelname.lower()} {record.name} {message}"
        if record.exc_info:
            line += "\n    " + self.formatException(record.exc_info).replace("\n", "\n    ")
        return line


def setup(directives: str = "") -> None:
    """Send the log to stderr. `directives` is a level, or several: `info,node.network=debug`, as in `RUST_LOG`."""
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    logging.raiseExceptions = False  # a closed stderr must not stop the node
    for name, level in QUIET.items():
        logging.getLogger(name).setLevel(level)
    for name, level in parse(directives):
        logging.getLogger(name).setLevel(level)


def parse(directives: str) -> list[tuple[str, int]]:
    """(logger, level) for each directive; upstream's names (`hypha`, `hypha_network`) mean ours. Others are skipped."""
    found: list[tuple[str, int]] = []
    for directive in directives.split(","):
        name, _, level = directive.strip().rpartition("=")
        if level.lower() not in LEVELS:
            continue
        if name == "hypha" or name.startswith("hypha_"):
            name = "node" + name.removeprefix("hypha").replace("_", ".", 1)
        found.append((name.replace("::", "."), LEVELS[level.lower()]))
    return found
