"""The user's own editor on a text: the terminal steps aside for it, and is back when it ends."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import signal
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from textual.app import App, SuspendNotSupported

from node.errors import HyphaError

FALLBACK: Final = "vi"


async def edited(app: App[None], text: str, name: str, environment: Mapping[str, str]) -> str:
    """`text` as the user left it in `$VISUAL`, `$EDITOR` or vi. HyphaError: why it is as it was."""
    command = _command(environment)
    folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="hypha-"))  # for its owner alone: mode 0700
    file = folder / name
    try:
        file.write_text(text, encoding="utf-8")
        # The editor has the terminal: nothing of ours may be painted, while the stream is followed as ever.
        with app.suspend(), app.batch_update(), _deaf():
            code = await _run([*command, str(file)])
        if code:
            how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
            raise HyphaError(f"{Path(command[0]).name} {how}; the text is as it was")
        return file.read_text(encoding="utf-8")
    except SuspendNotSupported:
        raise HyphaError("an editor cannot be opened here", hint="edit the text in the form") from None
    except (OSError, UnicodeDecodeError) as error:
        raise HyphaError(f"{command[0]}: {error}; the text is as it was", hint="set EDITOR to your editor") from error
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        app.refresh(layout=True)


@contextmanager
def _deaf() -> Iterator[None]:
    """ctrl+c is the editor's, though we hear it too. A handler, unlike ignoring, is not inherited by it."""
    kept = [(number, signal.signal(number, lambda *_: None)) for number in (signal.SIGINT, signal.SIGQUIT)]
    try:
        yield
    finally:
        for number, handler in kept:
            signal.signal(number, handler)


def _command(environment: Mapping[str, str]) -> list[str]:
    written = environment.get("VISUAL") or environment.get("EDITOR") or FALLBACK
    try:
        words = shlex.split(written)
    except ValueError as error:
        raise HyphaError(f"EDITOR={written!r} cannot be read: {error}", hint="mend it") from None
    if not words or shutil.which(words[0], path=environment.get("PATH", os.defpath)) is None:
        raise HyphaError(f"there is no editor {written!r}", hint="set VISUAL or EDITOR to one that is installed")
    return words


async def _run(command: list[str]) -> int:
    process = await asyncio.create_subprocess_exec(*command)
    try:
        return await process.wait()
    finally:
        if process.returncode is None:  # we are being closed: the terminal must not be left to two programs
            process.terminate()
            await process.wait()
