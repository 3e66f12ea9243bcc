"""Where a scheduler keeps what is not in its database."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from pathlib import Path
from typing import Any


class SchedulerFiles:
    """The files of all jobs, under the node's state directory."""

    def __init__(self, state_dir: Path) -> None:
        self._root = state_dir / "scheduler"
        self._models = state_dir / "models"
        self._results = state_dir / "results"

    def prepare(self) -> None:
        """Make the folders, and clear what a killed process left half done."""
        shutil.rmtree(self._root / "incoming", ignore_errors=True)
        for name in ("incoming", "folders", "secrets", "jobs"):
            (self._root / name).mkdir(parents=True, exist_ok=True, mode=0o700)
        self._models.mkdir(parents=True, exist_ok=True)
        for left in self._models.glob(".*"):
            shutil.rmtree(left, ignore_errors=True)

    def incoming(self, job_id: str) -> Path:
        """A new name for an upload."""
        return self._root / "incoming" / f"{job_id}.{secrets.token_hex(4)}"

    def folder(self, job_id: str) -> Path:
        """The tar of a job's folder."""
        return self._root / "folders" / f"{job_id}.tar"

    def model(self, job_id: str) -> Path:
        """Where the final model goes."""
        return self._models / job_id

    def model_part(self, job_id: str) -> Path:
        """A new, empty folder for a model on its way here."""
        part = self._models / f".{job_id}.{secrets.token_hex(4)}"
        part.mkdir()
        return part

    def results(self, job_id: str) -> Path:
        """Where the results of an inference job go, unless its description says otherwise."""
        return self._results / job_id

    def journal(self, job_id: str) -> Path:
        """Where the versions of a job's journal lie."""
        return self._root / "jobs" / job_id / "journal"

    def checkpoints(self, job_id: str) -> Path:
        """Where whole copies of a job's versions go, unless its description says otherwise."""
        return self._root / "jobs" / job_id / "checkpoints"

    def staging(self, job_id: str) -> Path:
        """Where files are put together that go elsewhere."""
        return self._root / "jobs" / job_id / "staging"

    def copies(self) -> Path:
        """Where copies of checkpoints lie that are kept elsewhere."""
        return self._root / "copies"

    def write_token(self, job_id: str, token: str) -> None:
        """Keep a job's secret where only this user can read it."""
        if not token:
            return
        path = self._root / "secrets" / job_id
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(token)
            file.flush()
            os.fsync(handle)

    def read_token(self, job_id: str) -> str:
        """A job's secret; empty when it has none."""
        try:
            return (self._root / "secrets" / job_id).read_text()
        except FileNotFoundError:
            return ""

    def forget(self, job_id: str) -> None:
        """The job cannot go on any more: its secret, its folder and its journal are not needed."""
        (self._root / "secrets" / job_id).unlink(missing_ok=True)
        self.folder(job_id).unlink(missing_ok=True)
        shutil.rmtree(self.journal(job_id), ignore_errors=True)
        shutil.rmtree(self.staging(job_id), ignore_errors=True)


def place_model(part: Path, target: Path) -> None:
    """Show a model that is whole under its name, in place of an earlier one."""
    _sync(part)
    if target.exists():
        old = part.with_name(f"{part.name}.old")
        target.replace(old)
        part.replace(target)
        shutil.rmtree(old, ignore_errors=True)
    else:
        part.replace(target)
    _sync(target.parent)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a file that is either the old one or the new one, never a part."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with part.open("x") as file:
            json.dump(content, file, indent=2)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
