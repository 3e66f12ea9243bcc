"""What an operator uploads: a job file alone, or a tar of a folder with `job.toml` at its root. Read as hostile.

Nothing is ever unpacked here. What workers get is a tar of our own making with the regular files alone, in name order,
without `job.toml` (it may hold a token) and without owners, times and modes.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import tarfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from node.errors import ConfigError, JobError, Refused
from node.jobspec import JobSpec, parse_job

BODY_LIMIT_BYTES = 96 << 20
JOB_FILE = "job.toml"
JOB_FILE_LIMIT_BYTES = 1 << 20
FILES_ALLOWED = 2_000
NAME_LIMIT = 240


@dataclass(frozen=True, slots=True)
class Submission:
    """A job as uploaded. `folder_sha256` is empty where it has no files beside its job file."""

    spec: JobSpec
    folder_sha256: str


def read_submission(body: Path, folder_tar: Path) -> Submission:
    """Read an uploaded body; the job's folder, if it has one, becomes the file `folder_tar`.

    Raises `Refused` (`invalid`) for anything that is not a job, in one line.
    """
    try:
        if not tarfile.is_tarfile(body):
            return Submission(_spec(body.read_bytes()[: JOB_FILE_LIMIT_BYTES + 1]), "")
        with tarfile.open(body, "r:") as archive:
            members = _members(archive)
            job_file = members.pop(JOB_FILE, None)
            if job_file is None:
                raise JobError(f"the job's folder has no {JOB_FILE} at its root")
            spec = _spec(_content(archive, job_file, JOB_FILE_LIMIT_BYTES + 1))
            if not members:
                return Submission(spec, "")
            return Submission(spec, _write_folder(archive, members, folder_tar))
    except (ConfigError, JobError) as error:
        raise Refused("invalid", error.message, hint=error.hint) from error
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise Refused("invalid", f"the upload is not a readable tar: {error}") from error


def _spec(content: bytes) -> JobSpec:
    if len(content) > JOB_FILE_LIMIT_BYTES:
        raise JobError(f"{JOB_FILE} is over {JOB_FILE_LIMIT_BYTES:,} bytes")
    try:
        return parse_job(content.decode(), JOB_FILE)
    except UnicodeDecodeError as error:
        raise JobError(f"{JOB_FILE} is not UTF-8 text") from error


def _members(archive: tarfile.TarFile) -> dict[str, tarfile.TarInfo]:
    members: dict[str, tarfile.TarInfo] = {}
    total = 0
    for member in archive:
        if member.isdir():
            continue
        path = PurePosixPath(member.name)
        name = str(path)
        if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
            raise JobError(f"the job's folder has a {name!r} that is not a regular file")
        if path.is_absolute() or ".." in path.parts or not path.parts or not name.isprintable() or "\\" in name:
            raise JobError(f"the job's folder has a file with the name {member.name!r}, which is outside of it")
        if len(name.encode()) > NAME_LIMIT or name in members:
            raise JobError(f"the job's folder has a name that is too long or twice there: {name[:80]!r}")
        total += member.size
        if len(members) >= FILES_ALLOWED or total > BODY_LIMIT_BYTES:
            raise JobError(f"the job's folder is over {FILES_ALLOWED} files or {BODY_LIMIT_BYTES >> 20} MiB")
        members[name] = member
    return members


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo, limit: int) -> bytes:
    source = archive.extractfile(member)
    if source is None:
        raise JobError(f"{member.name!r} cannot be read")
    return source.read(limit)


def _write_folder(archive: tarfile.TarFile, members: dict[str, tarfile.TarInfo], target: Path) -> str:
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        with part.open("xb") as file:
            with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as folder:
                for name, member in sorted(members.items()):
                    entry = tarfile.TarInfo(name)
                    entry.size = member.size
                    folder.addfile(entry, archive.extractfile(member))
            file.flush()
            os.fsync(file.fileno())
        with part.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    return sha256
