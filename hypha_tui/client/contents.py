"""What would be uploaded with a job, and what its folder lacks: read, never changed or sent."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from hypha_tui.client.jobfile import MAX_BODY_BYTES, JobDraft
from hypha_tui.client.jobfolder import JOB_FILE, files_of, too_large
from node.errors import ConfigError
from node.jobspec import JobSpec, ModelSpec

FILES_ALLOWED: Final = 2_000
MODULE: Final = "model.py"
CONFIG: Final = "config.json"


@dataclass(frozen=True, slots=True)
class Contents:
    """The files that go along, with their sizes, and what is wrong with them."""

    files: tuple[tuple[str, int], ...]
    problems: tuple[str, ...]

    @property
    def size_bytes(self) -> int:
        """Of all files together."""
        return sum(size for _, size in self.files)


def contents_of(draft: JobDraft, spec: JobSpec) -> Contents:
    """What goes with a draft. Reads the folder's names and sizes, not its files."""
    files = {JOB_FILE: len(draft.text.encode())}
    problems: list[str] = []
    if draft.folder is not None:
        try:
            for path in files_of(draft.folder):
                name = path.relative_to(draft.folder).as_posix()
                files[name] = path.stat().st_size
        except ConfigError as error:
            problems.append(error.message)
        except OSError as error:
            problems.append(f"the folder {draft.folder} cannot be read: {error.strerror}")
    found = Contents(tuple(sorted(files.items())), ())
    if len(files) > FILES_ALLOWED:
        problems.append(
            f"{len(files):,} files; at most {FILES_ALLOWED:,} can be submitted; leave some out by .hyphaignore"
        )
    if found.size_bytes > MAX_BODY_BYTES:
        problems.append(too_large(found.size_bytes, MAX_BODY_BYTES, found.files))
    if not spec.model_job:
        problems += _lacking("model", spec.model, set(files), draft.folder)
    if spec.preprocessor is not None:
        problems += _lacking("preprocessor", spec.preprocessor, set(files), draft.folder)
    return Contents(found.files, tuple(problems))


def _lacking(table: str, model: ModelSpec, files: set[str], folder: Path | None) -> list[str]:
    """What a model without a repository needs of the folder and does not find."""
    if model.repository:
        return []
    if folder is None:
        return [f"{table}: it has no repository, and a file alone brings no other files; submit a folder"]
    names = model.source().filenames
    missing = [name for name in names if not _below(name, files)]
    if missing:
        return [f"{table}: the folder has no {name}" for name in missing]
    given = {one for name in names for one in _below(name, files)} if names else files
    needed = MODULE if model.type == "torch" else model.config or CONFIG
    if table == "model" and PurePosixPath(needed).name not in {PurePosixPath(name).name for name in given}:
        where = f"its folder {model.path}" if model.path else "the folder"
        return [f"{table}: {where} has no {needed}"]
    return []


def _below(name: str, files: set[str]) -> set[str]:
    """The file of this name, or all in the folder of this name."""
    return {file for file in files if file == name or file.startswith(f"{name.rstrip('/')}/")}
