"""The operator API on this machine: a Unix socket that only the node's user can open, and the file that names it."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
from aiohttp import web

from node.errors import ConfigError
from node.socketfolder import socket_folder, socket_path_fits

SOCKET_NAME = "operator.sock"
FILE_NAME = "operator.json"
SHUTDOWN_S = 0.3


class OperatorFile(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach this node's operator API."""

    socket: str
    addresses: list[str]
    peer_id: str
    name: str
    pid: int


@contextlib.asynccontextmanager
async def serve(app: web.Application, path: Path) -> AsyncIterator[None]:
    """Serve `app` on a Unix socket with mode 0600 for the length of the block; a stale one is replaced."""
    listener = _bind(path)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_S)
    try:
        await runner.setup()
        await web.SockSite(runner, listener).start()
        yield
    finally:
        path.unlink(missing_ok=True)
        await runner.cleanup()
        listener.close()
        with contextlib.suppress(OSError):  # a state directory is never empty; the short path's folder is
            path.parent.rmdir()


def socket_path(state_dir: Path) -> Path:
    """Where the socket of a node with this state directory is: in it, or at a short path where that is too long."""
    path = state_dir.absolute() / SOCKET_NAME
    return path if socket_path_fits(path) else socket_folder(f"operator:{path}", SOCKET_NAME) / SOCKET_NAME


def write_file(state_dir: Path, content: OperatorFile) -> None:
    """Write `operator.json`, whole or not at all, readable by this user alone."""
    target = state_dir / FILE_NAME
    part = state_dir / f".{FILE_NAME}.{os.getpid()}"
    part.unlink(missing_ok=True)
    file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(file, msgspec.json.format(msgspec.json.encode(content)) + b"\n")
        os.fsync(file)
    finally:
        os.close(file)
    part.replace(target)


def remove_file(state_dir: Path) -> None:
    """Take `operator.json` away: nobody is there to connect to."""
    (state_dir / FILE_NAME).unlink(missing_ok=True)


def _bind(path: Path) -> socket.socket:
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise ConfigError(f"{path} is in the way: the operator's socket belongs there", hint="move it elsewhere")
        path.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(os.fspath(path))
        path.chmod(0o600)  # before it listens, so that nobody can have connected
    except OSError as error:
        listener.close()
        raise ConfigError(f"no socket at {path}: {error.strerror}") from error
    return listener
