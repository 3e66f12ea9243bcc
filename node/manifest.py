"""The manifest of a dataset, as everybody reads it who gets one: from a folder, from a peer, or from object storage."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from node.errors import DatasetError
from node.wire import UNDECODABLE, Manifest

MANIFEST: Final = "manifest.json"
MAX_MANIFEST_BYTES: Final = 64 << 20
"""Whoever reads one bounds it by this before it is decoded."""

_SHA256: Final = re.compile(r"[0-9a-f]{64}")


def manifest_in(content: bytes | bytearray, where: str) -> Manifest:
    """What a manifest's bytes say, if it can be true; `where` they are from is for the `DatasetError` that it raises.

    Slices are listed in name order, each once, and each name is that of a visible file in one folder.
    """
    try:
        manifest = msgspec.json.decode(content, type=Manifest)
    except UNDECODABLE as error:
        raise DatasetError(f"{where} is not a manifest: {error}") from error
    before = ""
    for info in manifest.slices:
        is_plain = info.name.isprintable() and "/" not in info.name and not info.name.startswith(".")
        if not is_plain or not info.name or min(info.size_bytes, info.rows) < 0 or not _SHA256.fullmatch(info.sha256):
            raise DatasetError(f"{where} has a bad entry: {info.name[:100]!r}")
        if info.name <= before:
            raise DatasetError(f"{where} does not list slices in name order, each once")
        before = info.name
    if not manifest.slices:
        raise DatasetError(f"{where} lists no slices")
    return manifest
