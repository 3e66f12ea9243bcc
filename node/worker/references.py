"""What an executor asks its bridge for, in both dialects: the documented one, and what upstream's executor sends."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

ARTIFACTS = "artifacts"


class BridgeError(Exception):
    """A request of an executor that cannot be served: HTTP status, a stable code, and what and where."""

    def __init__(self, status: int, code: str, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail


@dataclass(frozen=True, slots=True)
class HubFiles:
    """Files of a Hugging Face repository."""

    repository: str
    revision: str
    filenames: list[str]
    token: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Uri:
    """One file behind an http(s) address."""

    value: str


@dataclass(frozen=True, slots=True)
class NextSliceOf:
    """The task's next slice of a dataset, as the scheduler hands them out."""

    dataset: str


@dataclass(frozen=True, slots=True)
class JobFiles:
    """Files of the job's own folder; no names means all."""

    filenames: list[str]


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights that the group has agreed on last."""


@dataclass(frozen=True, slots=True)
class Validation:
    """All slices of the validation dataset."""


@dataclass(frozen=True, slots=True)
class Peers:
    """Peers of the job, and how many of them: `All`, `One` or `Random`. No peers means any of the job."""

    peers: list[str]
    strategy: str


Reference = HubFiles | Uri | NextSliceOf | JobFiles | Weights | Validation


def parse_fetch(body: Any) -> tuple[Reference, str]:
    """The reference of a `/resources/fetch` body, and the folder its files go to."""
    table = _table(body, "body")
    out_dir = _text(table, "out_dir", ARTIFACTS)
    return _reference(_table(table["fetch"], "fetch") if "fetch" in table else table), out_dir


def parse_send(body: Any) -> tuple[Peers, str]:
    """Receivers and file of a `/resources/send` body."""
    table = _table(body, "body")
    return _peers(table, "send"), _text(table, "path")


def parse_receive(body: Any) -> tuple[Peers, str]:
    """Senders of a `/resources/receive` body, and the folder their files go to."""
    table = _table(body, "body")
    return _peers(table, "receive"), _text(table, "out_dir" if "out_dir" in table else "path", "incoming")


def inside(work_dir: Path, text: str) -> Path:
    """The path `text` names below the work directory, links followed. Raises `BridgeError` where it leaves it."""
    parts = Path(text).parts
    if not parts or "\0" in text or "\\" in text:
        raise BridgeError(400, "invalid_path", f"path {text!r} names no file below the work directory")
    if Path(text).is_absolute():
        raise BridgeError(400, "invalid_path", f"path {text!r} is absolute; paths are relative to the work directory")
    if ".." in parts:
        raise BridgeError(400, "invalid_path", f"path {text!r} contains '..'")
    base = work_dir.resolve()
    try:
        found = (base / text).resolve()
    except (OSError, RuntimeError) as error:
        raise BridgeError(400, "invalid_path", f"path {text!r} cannot be resolved: {error}") from None
    if not found.is_relative_to(base):
        raise BridgeError(400, "invalid_path", f"path {text!r} is a link that leaves the work directory")
    return found


def folder(work_dir: Path, text: str) -> Path:
    """The folder `text` names below the work directory, made if missing."""
    path = inside(work_dir, text)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise BridgeError(400, "invalid_path", f"{text!r} is a file, not a folder") from None
    return path


def _reference(table: dict[str, Any]) -> Reference:
    kind = _text(table, "type").replace("-", "").replace("_", "").lower()
    if kind == "huggingface":
        repository = _text(table, "repository")
        if not all(_is_plain_name(part) for part in repository.split("/")) or repository.count("/") > 1:
            raise BridgeError(400, "invalid_reference", f"repository {repository!r} is not of the form owner/name")
        revision = _text(table, "revision", "main") or "main"
        if not all(_is_plain_name(part) for part in revision.split("/")):
            raise BridgeError(400, "invalid_reference", f"revision {revision!r} is not a branch, tag or commit")
        return HubFiles(repository, revision, _names(table, allow_none=False), _text(table, "token", ""))
    if kind == "uri":
        value = _text(table, "value" if "value" in table else "uri")
        if urlsplit(value).scheme not in ("http", "https") or not urlsplit(value).hostname:
            raise BridgeError(400, "invalid_reference", f"uri {value!r} is not an http or https address")
        return Uri(value)
    if kind == "scheduler":
        return NextSliceOf(_text(table, "dataset"))
    if kind == "job":
        return JobFiles(_names(table, allow_none=True))
    if kind == "weights":
        return Weights()
    if kind == "validation":
        return Validation()
    raise BridgeError(400, "invalid_reference", f"unknown reference type {table['type']!r}")


def _peers(table: dict[str, Any], documented: str) -> Peers:
    inner = _table(table[documented] if documented in table else table.get("resource"), documented)
    if _text(inner, "type").lower() != "peers":
        raise BridgeError(400, "invalid_reference", f"{documented} needs a reference of type peers")
    peers = inner.get("peers") or []
    if not isinstance(peers, list) or not all(isinstance(peer, str) for peer in peers):
        raise BridgeError(400, "invalid_reference", "peers is a list of peer ids")
    strategy = inner.get("strategy") or "All"
    if isinstance(strategy, dict):
        strategy = strategy.get("type", "All")
    if strategy not in ("All", "One", "Random"):
        raise BridgeError(400, "invalid_reference", f"strategy {strategy!r} is not All, One or Random")
    return Peers(peers, strategy)


def _names(table: dict[str, Any], *, allow_none: bool) -> list[str]:
    names = table.get("filenames") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise BridgeError(400, "invalid_reference", "filenames is a list of names")
    if not names and not allow_none:
        raise BridgeError(400, "invalid_reference", "filenames is empty")
    for name in names:
        if not all(_is_plain_name(part) for part in name.split("/")):
            raise BridgeError(400, "invalid_path", f"filename {name!r} is not a relative path without '..'")
    return names


def _is_plain_name(part: str) -> bool:
    return part not in ("", ".", "..") and not any(c in part for c in "\\\0?#%") and part.isprintable()


def _table(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BridgeError(400, "invalid_body", f"{where} is a JSON object")
    return value


def _text(table: dict[str, Any], key: str, default: str | None = None) -> str:
    value = table.get(key)
    if value is None and default is not None:
        return default
    if not isinstance(value, str) or (not value and default is None):
        raise BridgeError(400, "invalid_reference", f"{key} is missing or empty")
    return value
