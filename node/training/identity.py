"""What a version is known by: with one fragment the SHA-256 of its file, with several that of their digests in order.

A fragment's digest is that of a file with its tensors alone. A commit changes one fragment, so that it costs one
fragment to know the next version; the digests of the others are kept beside the files, or reckoned where they are not.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from node.training.files import CHUNK, header_of, pieces, row, write_order
from node.training.folder import FileMade, Held, Model
from node.training.fragments import fragments_of

KINDS = ("momentum", "weights")
"""In the order in which a commit gives them their names."""

Digests = dict[str, list[str]]
"""By kind, of each fragment."""


def identity_of(digests: Sequence[str]) -> str:
    """What fragments with these digests are known by together."""
    return digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()


def next_identities(folder: Path, model: Model, fragments: int, changed: Mapping[str, FileMade]) -> dict[str, FileMade]:
    """What the version after `model`'s is known by, in weights and momentum, with these new files of one fragment."""
    if fragments == 1:
        return dict(changed)
    digests = _kept(folder, model.version) or {kind: _reckoned(folder, model, kind, fragments) for kind in KINDS}
    for kind, made in changed.items():
        digests[kind][model.version % fragments] = made.sha256
    _keep(folder, model.version + 1, digests)
    return {kind: FileMade(identity_of(digests[kind]), model.size_of(kind)) for kind in KINDS}


def identities(folder: Path, version: int, fragments: int, whole: Mapping[str, FileMade]) -> dict[str, FileMade]:
    """What a version is known by whose whole files lie here."""
    if fragments == 1:
        return dict(whole)
    model = Model(folder, version, fragments)
    digests = {kind: _reckoned(folder, model, kind, fragments) for kind in KINDS}
    _keep(folder, version, digests)
    return {kind: FileMade(identity_of(digests[kind]), made.size_bytes) for kind, made in whole.items()}


def _keep(folder: Path, version: int, digests: Digests) -> None:
    path = _path(folder, version)
    part = path.with_name(f"{path.name}.part")
    part.write_text(json.dumps(digests))
    part.replace(path)


def _kept(folder: Path, version: int) -> Digests | None:
    path = _path(folder, version)
    found: Digests | None = json.loads(path.read_text()) if path.exists() else None
    return found


def _path(folder: Path, version: int) -> Path:
    return folder / f"digests-{version}.json"


def _reckoned(folder: Path, model: Model, kind: str, fragments: int) -> list[str]:
    found = []
    piece = row(CHUNK)
    with ExitStack() as stack:
        held = Held(stack, folder, kind, model.version, fragments)
        for names in fragments_of(model.layout, fragments):
            layout = {name: model.layout[name] for name in names}
            digest = hashlib.sha256(header_of(layout, model.metadata_of(kind)))
            for name in write_order(layout):
                for start, length in pieces(math.prod(layout[name][1])):
                    held.read_into(name, start, piece[:length])
                    digest.update(piece[:length])
            found.append(digest.hexdigest())
    return found
