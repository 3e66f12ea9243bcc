"""Job files: reading one from a file or folder, changing its main settings, packing it for submission."""

from __future__ import annotations

import hashlib
import io
import re
import secrets
import tarfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, time
from pathlib import Path
from typing import Any, Final

from node.errors import ConfigError
from node.jobspec import JobSpec, parse_job

JOB_FILE: Final = "job.toml"
MAX_BODY_BYTES: Final = 96 << 20
IGNORED: Final = frozenset({".git", "__pycache__", ".venv", ".mypy_cache", ".ruff_cache", ".DS_Store"})
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class JobDraft:
    """A job that is about to be submitted: its TOML, and the folder whose files go with it."""

    text: str
    folder: Path | None = None


@dataclass(frozen=True, slots=True)
class JobFields:
    """The settings of a job that are changed from one run to the next."""

    name: str = ""
    dataset: str = ""
    workers: int | None = None
    rounds: int | None = None


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


def parse_text(text: str, where: str = JOB_FILE) -> dict[str, Any]:
    """The job's table: the file itself, or its `[scheduler.job]`."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where} is not TOML: {error}", hint="mend the line it names") from None
    return _job_table(document)


def fields_of(text: str) -> JobFields:
    """The main settings as the text has them; what is missing or of another type is empty."""
    job = parse_text(text)
    dataset = job.get("dataset_name", "")
    if not dataset:
        dataset = (
            _table(job, "dataset").get("dataset", "") if isinstance(job.get("dataset"), dict) else job.get("dataset")
        )
    return JobFields(
        name=_text(job.get("name")),
        dataset=_text(dataset),
        workers=_whole(_table(job, "resources").get("num_workers")),
        rounds=_whole(_table(job, "rounds").get("update_rounds")),
    )


def with_fields(text: str, fields: JobFields) -> str:
    """The text with these settings. It is left as it is, comments too, when it has them already."""
    if fields_of(text) == fields:
        return text
    document = tomllib.loads(text)
    job = _job_table(document)
    if fields.name:
        job["name"] = fields.name
    if fields.dataset:
        if isinstance(job.get("dataset"), dict):
            job["dataset"]["dataset"] = fields.dataset
            job.pop("dataset_name", None)
        else:
            job.pop("dataset", None)
            job["dataset_name"] = fields.dataset
    if fields.workers is not None:
        job.setdefault("resources", {})["num_workers"] = fields.workers
    if fields.rounds is not None:
        job.setdefault("rounds", {})["update_rounds"] = fields.rounds
    return dump(document)


def pack(draft: JobDraft) -> Body:
    """The body to upload: the TOML alone, or a tar of the folder with the draft's text as its `job.toml`."""
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


def dump(document: dict[str, Any]) -> str:
    """A TOML document with the given content."""
    return "\n".join(_lines(document, "")) + "\n"


def _lines(table: dict[str, Any], prefix: str) -> Iterator[str]:
    tables = {key: value for key, value in table.items() if isinstance(value, dict)}
    lists = {key: value for key, value in table.items() if _is_list_of_tables(value)}
    for key, value in table.items():
        if key not in tables and key not in lists:
            yield f"{_key(key)} = {_value(value)}"
    for key, value in tables.items():
        name = f"{prefix}{_key(key)}"
        if not value or any(not isinstance(inner, dict) for inner in value.values()):
            yield f"\n[{name}]"
        yield from _lines(value, f"{name}.")
    for key, values in lists.items():
        for value in values:
            yield f"\n[[{prefix}{_key(key)}]]"
            yield from _lines(value, f"{prefix}{_key(key)}.")


def _is_list_of_tables(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _value(key)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, list):
        return f"[{', '.join(_value(item) for item in value)}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(key)} = {_value(item)}" for key, item in value.items()) + "}"
    escaped = "".join(
        f"\\u{ord(character):04x}" if ord(character) < 32 or ord(character) == 127 else character
        for character in str(value).replace("\\", "\\\\").replace('"', '\\"')
    )
    return f'"{escaped}"'


def _tar(folder: Path, job_text: str) -> bytes:
    buffer = io.BytesIO()
    size = 0
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        data = job_text.encode()
        entry = tarfile.TarInfo(JOB_FILE)
        entry.size = len(data)
        archive.addfile(entry, io.BytesIO(data))
        for path in _files(folder):
            name = path.relative_to(folder).as_posix()
            size += path.stat().st_size
            if name == JOB_FILE:
                continue
            if size > MAX_BODY_BYTES:
                raise ConfigError(
                    f"the folder {folder} holds more than {MAX_BODY_BYTES >> 20} MiB (at {name})",
                    hint="leave data and weights out of it: datasets come from data nodes",
                )
            entry = tarfile.TarInfo(name)
            entry.size = path.stat().st_size
            entry.mode = 0o644
            with path.open("rb") as file:
                archive.addfile(entry, file)
    return buffer.getvalue()


def _files(folder: Path) -> Iterator[Path]:
    """Plain files below `folder` in name order; links are not followed."""
    for path in sorted(folder.iterdir()):
        if path.name in IGNORED or path.is_symlink():
            continue
        if path.is_dir():
            yield from _files(path)
        elif path.is_file():
            yield path


def _new_id(name: str) -> str:
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:24].strip("-") or "job"
    return f"{slug}-{secrets.token_hex(3)}"


def _job_table(document: dict[str, Any]) -> dict[str, Any]:
    return _table(_table(document, "scheduler"), "job") or document


def _table(document: dict[str, Any], key: str) -> dict[str, Any]:
    found = document.get(key)
    return found if isinstance(found, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
