"""Job files: reading one from a file or folder, packing it for submission."""

from __future__ import annotations

import hashlib
import io
import re
import secrets
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hypha_tui.client.jobfields import fields_of
from hypha_tui.client.jobfolder import JOB_FILE as JOB_FILE
from hypha_tui.client.jobfolder import files_of, too_large
from node.errors import ConfigError
from node.jobspec import JobSpec, parse_job

MAX_BODY_BYTES: Final = 96 << 20


@dataclass(frozen=True, slots=True)
class JobDraft:
    """A job that is about to be submitted: its TOML, and the folder whose files go with it."""

    text: str
    folder: Path | None = None


@dataclass(frozen=True, slots=True)
class Body:
    """What is uploaded."""

    data: bytes
    content_type: str
    sha256: str
    job_id: str
    name: str


def read_draft(path: Path) -> JobDraft:
    """The draft in a TOML file, or in the `job.toml` of a folder, right or wrong: `check` tells."""
    folder = path if path.is_dir() else None
    file = path / JOB_FILE if folder is not None else path
    try:
        return JobDraft(file.read_text(encoding="utf-8"), folder)
    except FileNotFoundError:
        what = f"the folder {path} has no {JOB_FILE}" if folder is not None else f"{path} does not exist"
        raise ConfigError(what, hint="name a job's TOML file, or a folder with a job.toml in it") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}", hint="a job is a TOML file in UTF-8") from error


def read_job(path: Path) -> JobDraft:
    """The draft in a file or folder; ConfigError with key and line where no scheduler would take it."""
    draft = read_draft(path)
    check(draft.text, str(path if draft.folder is None else path / JOB_FILE))
    return draft


def check(text: str, where: str = JOB_FILE) -> JobSpec:
    """What a scheduler will make of the text; ConfigError names the key, its line and the nearest known key."""
    return parse_job(text, where)


def pack(draft: JobDraft) -> Body:
    """The body to upload: the TOML alone, or a tar of the folder with the draft's text as its `job.toml`.

    The same draft gives the same bytes, but a job id of its own each time: keep the body to send it again.
    """
    name = fields_of(draft.text).name or (draft.folder.resolve().name if draft.folder is not None else "job")
    if draft.folder is None:
        data, content_type = draft.text.encode(), "application/toml"
    else:
        data, content_type = _tar(draft.folder, draft.text), "application/x-tar"
    if len(data) > MAX_BODY_BYTES:
        raise ConfigError(
            f"the job is {len(data) / 1e6:.0f} MB and at most {MAX_BODY_BYTES >> 20} MiB can be submitted",
            hint="leave data and weights out of the folder: datasets come from data nodes",
        )
    return Body(data, content_type, hashlib.sha256(data).hexdigest(), _new_id(name), name)


def _tar(folder: Path, job_text: str) -> bytes:
    files = [(path, path.relative_to(folder).as_posix(), path.stat().st_size) for path in files_of(folder)]
    sizes = [(name, size) for _, name, size in files]
    total = sum(size for _, size in sizes)
    if total > MAX_BODY_BYTES:
        hint = "leave out what the job does not read, by .hyphaignore; datasets come from data nodes"
        raise ConfigError(f"the folder {folder}: {too_large(total, MAX_BODY_BYTES, sizes)}", hint=hint)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        data = job_text.encode()
        entry = tarfile.TarInfo(JOB_FILE)
        entry.size = len(data)
        archive.addfile(entry, io.BytesIO(data))
        for path, name, size in files:
            entry = tarfile.TarInfo(name)
            entry.size = size
            entry.mode = 0o644
            with path.open("rb") as file:
                archive.addfile(entry, file)
    return buffer.getvalue()


def _new_id(name: str) -> str:
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:24].strip("-") or "job"
    return f"{slug}-{secrets.token_hex(3)}"
