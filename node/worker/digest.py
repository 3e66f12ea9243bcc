"""The SHA-256 of a file; for a thread, not for the loop."""

from __future__ import annotations

import hashlib
from pathlib import Path


def sha256_of(path: Path) -> tuple[int, str]:
    """Size and hexadecimal digest."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return file.tell(), digest.hexdigest()
