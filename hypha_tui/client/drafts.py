"""The job that is being written, kept in a file of the user's until it is submitted. It may hold a token: mode 0600."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from hypha_tui.settings.folders import write_private

DRAFT_FILE: Final = "draft.json"


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """What was left in the form. `sent_id` and `sent_sha256` are of a try whose answer never came."""

    text: str = ""
    folder: str = ""
    path: str = ""
    sent_id: str = ""
    sent_sha256: str = ""


class DraftFile:
    """One draft in a folder; without a folder it lives as long as this object."""

    def __init__(self, folder: Path | None) -> None:
        self._file = folder / DRAFT_FILE if folder is not None else None
        self._kept: Draft | None = None
        self.problem = ""
        """Why the draft could not be read or kept; one line, for the user."""

    def load(self) -> Draft:
        """The draft; an empty one if there is none, or none that can be read."""
        if self._kept is None:
            self._kept = self._read()
        return self._kept

    def save(self, draft: Draft) -> None:
        """Keep it. A failure is in `problem`: the terminal goes on."""
        if draft == self._kept and not self.problem:
            return
        self._kept, self.problem = draft, ""
        if self._file is None:
            return
        try:
            write_private(self._file, msgspec.json.encode(draft).decode())
        except OSError as error:
            self.problem = f"the draft cannot be kept in {self._file}: {error.strerror}"

    def remove(self) -> None:
        """It was submitted."""
        self._kept = Draft()
        if self._file is not None:
            self._file.unlink(missing_ok=True)

    def _read(self) -> Draft:
        if self._file is None:
            return Draft()
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=Draft)
        except FileNotFoundError:
            return Draft()
        except (OSError, msgspec.MsgspecError) as error:
            self.problem = f"the draft in {self._file} cannot be read: {error}"
            return Draft()
