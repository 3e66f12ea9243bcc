"""The files of a job's folder: which of them go with the job, and the largest ones where they are too many bytes."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from node.errors import ConfigError

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

JOB_FILE: Final = "job.toml"
IGNORE_FILE: Final = ".hyphaignore"
IGNORED: Final = (".git", "__pycache__", ".venv", ".mypy_cache", ".ruff_cache", ".DS_Store", IGNORE_FILE)
"""Left out unless the ignore file takes them in again (`!.venv`), as if these were its first lines."""
_LARGEST: Final = 3


def files_of(folder: Path) -> Iterator[Path]:
    """The plain files below `folder` that go along with its job file, in name order; links are not followed.

    ConfigError for an ignore file that cannot be read.
    """
    return (path for path in _below(folder, folder, _ignored(folder)) if path != folder / JOB_FILE)


def largest(files: Iterable[tuple[str, int]]) -> str:
    """The files that are most of it, in words: `data.csv 90.1 MB, model.bin 20.0 MB`."""
    found = heapq.nlargest(_LARGEST, files, key=lambda file: file[1])
    return ", ".join(f"{name} {size / 1e6:.1f} MB" for name, size in found)


def too_large(size_bytes: int, limit_bytes: int, files: Sequence[tuple[str, int]]) -> str:
    """Says so of a folder, and which of its files are the largest."""
    allowed = f"{limit_bytes / 1e6:.1f} MB ({limit_bytes >> 20} MiB)"
    return f"{size_bytes / 1e6:.1f} MB; at most {allowed} can be submitted. The largest: {largest(files)}"


def _ignored(folder: Path) -> GitIgnoreSpec:
    from pathspec import GitIgnoreSpec

    path = folder / IGNORE_FILE
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        lines = []
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}", hint="it is a text file in UTF-8") from error
    for number, line in enumerate(lines, start=1):
        try:
            GitIgnoreSpec.from_lines([line])
        except ValueError as error:
            raise ConfigError(f"{path}: line {number}: {line!r} is not a pattern", hint="as in a .gitignore") from error
    return GitIgnoreSpec.from_lines([*IGNORED, *lines])


def _below(root: Path, folder: Path, ignored: GitIgnoreSpec) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.is_symlink():
            continue
        name = path.relative_to(root).as_posix()
        if path.is_dir():
            # as git does: what lies in a folder that is left out cannot be taken in again
            if not ignored.match_file(f"{name}/"):
                yield from _below(root, path, ignored)
        elif path.is_file() and not ignored.match_file(name):
            yield path
