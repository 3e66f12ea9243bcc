"""SHA-256 digests as text."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

_DIGEST = re.compile(r"[0-9a-f]{64}")


def is_sha256(text: str) -> bool:
    """Whether this is a digest as we write it."""
    return _DIGEST.fullmatch(text) is not None


def sha256_of(path: Path) -> tuple[int, str]:
    """Size and hexadecimal digest of a file; for a thread, not for the loop."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return file.tell(), digest.hexdigest()
