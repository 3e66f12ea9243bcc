"""A dataset on disk: a folder of safetensors slices and a manifest that names them, their sizes and their digests.

The manifest is the dataset's identity: its SHA-256 is the digest that is announced, and slices that it does not list do
not exist. A slice's content is checked against it before the slice is served for the first time, and again whenever the
file's size, time or inode is another than at the last check.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from node.errors import DatasetError, HyphaError
from node.manifest import MANIFEST, MAX_MANIFEST_BYTES, manifest_in
from node.tensorfile import Header, read_header
from node.wire import Manifest, SliceInfo

HASH_PIECE_BYTES = 1 << 20

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")

Report = Callable[[str, int, int], None]
"""Called with a slice's name, the bytes hashed so far and the bytes of all slices."""


@dataclass(frozen=True, slots=True)
class Dataset:
    """A dataset as its manifest describes it; `digest` is the SHA-256 of `manifest_bytes`.

    `folder`: where its slices lie, or of a dataset in object storage, where a node keeps them while they are used.
    """

    name: str
    folder: Path
    manifest: Manifest
    manifest_bytes: bytes
    digest: str

    @property
    def rows(self) -> int:
        """Rows of all slices."""
        return sum(info.rows for info in self.manifest.slices)

    @property
    def size_bytes(self) -> int:
        """Bytes of all slices."""
        return sum(info.size_bytes for info in self.manifest.slices)

    def path_of(self, info: SliceInfo) -> Path:
        """Where a slice lies."""
        return self.folder / info.name


def name_of(folder: Path) -> str:
    """The name under which a folder is announced: its own. Raises `DatasetError` where it cannot be one."""
    name = folder.resolve().name
    if not _NAME.fullmatch(name):
        raise DatasetError(
            f"{folder}: {name!r} cannot be a dataset's name",
            hint="rename the folder: letters, digits, '.', '_' and '-', at most 128 of them",
        )
    return name


def find_slices(folder: Path) -> tuple[list[Path], list[str]]:
    """The slices of a folder in name order, and the names of entries that look like slices but are not taken.

    Not taken are links (they may leave the folder) and whatever is not a file. Hidden entries are never looked at.
    """
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise DatasetError(f"{folder} cannot be read: {error.strerror}") from error
    shown = [entry for entry in entries if entry.name.endswith(".safetensors") and not entry.name.startswith(".")]
    slices = [Path(entry.path) for entry in shown if entry.is_file(follow_symlinks=False)]
    return slices, [entry.name for entry in shown if not entry.is_file(follow_symlinks=False)]


def read_manifest(folder: Path) -> Dataset:
    """The dataset of a folder as its manifest describes it, nothing else looked at; raises `DatasetError`."""
    if not folder.is_dir():
        raise DatasetError(f"{folder} is not a folder")
    content = _content(folder / MANIFEST)
    if content is None:
        raise DatasetError(f"{folder} has no {MANIFEST}", hint="a data node makes one when it first serves the folder")
    return parse_manifest(folder, content)


def verify(folder: Path) -> tuple[Dataset, list[str]]:
    """A dataset, and what of its slices is not as the manifest says. Reads them all; raises `DatasetError`."""
    dataset = read_manifest(folder)
    problems: list[str] = []
    for info in dataset.manifest.slices:
        try:
            check_header(dataset, info)
            if (found := hash_file(dataset.path_of(info))) != info.sha256:
                problems.append(f"{info.name}: its SHA-256 is {found}, the manifest says {info.sha256}")
        except DatasetError as error:
            problems.append(f"{info.name}: {error.message}")
    listed = {info.name for info in dataset.manifest.slices}
    slices, skipped = find_slices(folder)
    others = [path.name for path in slices if path.name not in listed] + skipped
    problems += [f"{name}: not in the manifest, so it is not served" for name in others]
    return dataset, problems


def load_manifest(folder: Path, manifest: Path | None = None) -> Dataset | None:
    """The dataset of a folder that has a manifest, each slice's presence, size, header and schema checked; else None.

    `manifest`: where it is, if not in the folder. Raises `DatasetError`. Contents are not read: `is_intact` does that.
    """
    content = _content(manifest or folder / MANIFEST)
    if content is None:
        return None
    dataset = parse_manifest(folder, content)
    for info in dataset.manifest.slices:
        check_header(dataset, info)
    return dataset


def _content(path: Path) -> bytes | None:
    try:
        if path.stat().st_size > MAX_MANIFEST_BYTES:
            raise DatasetError(f"{path} is larger than {MAX_MANIFEST_BYTES:,} bytes")
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DatasetError(f"{path} cannot be read: {error.strerror}") from error


def parse_manifest(folder: Path, content: bytes) -> Dataset:
    """The dataset that a manifest's bytes describe; raises `DatasetError` where they are not a sound manifest."""
    manifest = manifest_in(content, str(folder / MANIFEST))
    return Dataset(name_of(folder), folder, manifest, content, hashlib.sha256(content).hexdigest())


def check_header(dataset: Dataset, info: SliceInfo) -> None:
    """Raise `DatasetError` unless a slice is there with the size, the rows and the schema that the manifest gives."""
    path = dataset.path_of(info)
    try:
        header = read_header(path)
    except HyphaError as error:
        raise DatasetError(error.message, hint=f"restore it, or remove {MANIFEST} to have it made anew") from error
    if header.size_bytes != info.size_bytes or header.rows != info.rows:
        raise DatasetError(
            f"{path} has {header.size_bytes:,} bytes and {header.rows} rows, "
            f"the manifest says {info.size_bytes:,} and {info.rows}",
            hint=f"restore it, or remove {MANIFEST} to have it made anew",
        )
    if dataset.manifest.schema and schema_of(header) != dataset.manifest.schema:
        raise DatasetError(f"{path} has other tensors than the manifest says: {schema_of(header)}")


def schema_of(header: Header) -> dict[str, str]:
    """Tensor names with dtype and shape of a row, `U8[128]`."""
    return {
        name: f"{info.dtype}[{','.join(map(str, info.shape[1:]))}]" for name, info in sorted(header.tensors.items())
    }


def make_manifest(folder: Path, name: str, *, report: Report | None = None) -> bytes:
    """Read all slices of a folder and return its manifest's bytes; the same slices give the same bytes.

    Raises `DatasetError` or `TensorFileError` naming the slice that is not sound or not like the others.
    """
    slices, _ = find_slices(folder)
    if not slices:
        raise DatasetError(f"{folder} has no slices (*.safetensors)")
    headers = [read_header(path) for path in slices]
    schema = schema_of(headers[0])
    for path, header in zip(slices, headers, strict=True):
        check_alike(str(path), header.rows or 0, schema_of(header), slices[0].name, schema)
    total = sum(header.size_bytes for header in headers)
    done = 0
    infos: list[SliceInfo] = []
    for path, header in zip(slices, headers, strict=True):
        infos.append(
            SliceInfo(name=path.name, size_bytes=header.size_bytes, rows=header.rows or 0, sha256=hash_file(path))
        )
        done += header.size_bytes
        if report is not None:
            report(path.name, done, total)
    return encode_manifest(Manifest(name=name, slices=infos, schema=schema))


def check_alike(where: str, rows: int, schema: dict[str, str], first: str, first_schema: dict[str, str]) -> None:
    """Raise `DatasetError` for a slice that has no rows, or other tensors than the first one."""
    if not rows:
        raise DatasetError(f"{where} has no rows: its tensors need one first dimension in common, of at least 1")
    if schema != first_schema:
        raise DatasetError(f"{where} has other tensors than {first}: {schema} and {first_schema}")


def encode_manifest(manifest: Manifest) -> bytes:
    """A manifest's JSON, legible and always the same for the same content."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"


def hash_file(path: Path) -> str:
    """The SHA-256 of a file; raises `DatasetError` where it cannot be read."""
    digest = hashlib.sha256()
    try:
        with path.open("rb", buffering=0) as file:
            while piece := file.read(HASH_PIECE_BYTES):
                digest.update(piece)
    except OSError as error:
        raise DatasetError(f"{path} cannot be read: {error.strerror}") from error
    return digest.hexdigest()


def write_file(path: Path, content: bytes) -> None:
    """Write a small file whole or not at all, on the disk before this returns."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(6)}.part")
    try:
        with part.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
