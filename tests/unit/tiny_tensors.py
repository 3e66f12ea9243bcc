"""One float32 tensor `w` in a safetensors file, with nothing but the standard library."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path


def write(path: Path, values: list[float]) -> None:
    """Write the file, whole or not at all."""
    data = struct.pack(f"<{len(values)}f", *values)
    table = {"w": {"dtype": "F32", "shape": [len(values)], "data_offsets": [0, len(data)]}}
    header = json.dumps(table).encode()
    header += b" " * (-len(header) % 8)
    part = path.with_name(f".{path.name}.part")
    part.write_bytes(struct.pack("<Q", len(header)) + header + data)
    os.replace(part, path)  # noqa: PTH105


def read(path: Path) -> list[float]:
    """The values in the file; ValueError for anything else."""
    raw = path.read_bytes()
    try:
        (size,) = struct.unpack_from("<Q", raw)
        data = raw[8 + size :]
        if json.loads(raw[8 : 8 + size])["w"]["data_offsets"] != [0, len(data)]:
            raise ValueError("offsets")
        return list(struct.unpack(f"<{len(data) // 4}f", data))
    except (struct.error, KeyError, IndexError, UnicodeDecodeError) as error:
        raise ValueError(f"not a tensor file: {error}") from error
