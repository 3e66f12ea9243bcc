"""Dataset folders: what is taken, the manifest, and files that change."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from node.data.checked import Checked, is_intact
from node.data.datasets import find_slices, load_manifest, make_manifest, name_of, parse_manifest, write_file
from node.errors import DatasetError, TensorFileError
from node.manifest import MANIFEST
from node.tensorfile import write_tensors
from node.wire import Manifest


def write_slice(path: Path, rows: int = 3, fill: bytes = b"x", width: int = 4) -> None:
    write_tensors(path, {"input_ids": ("U8", (rows, width), fill * (rows * width))})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "texts"
    made.mkdir()
    for name in ("b", "a", "c"):
        write_slice(made / f"{name}.safetensors", fill=name.encode())
    return made


def test_slices_are_the_visible_files_in_name_order(folder: Path) -> None:
    """H41: no hidden files, no sub-directories, no links that leave the folder."""
    write_slice(folder / ".hidden.safetensors")
    (folder / "dir.safetensors").mkdir()
    (folder / "readme.txt").touch()
    (folder / "link.safetensors").symlink_to("/etc/passwd")
    slices, skipped = find_slices(folder)
    assert [path.name for path in slices] == ["a.safetensors", "b.safetensors", "c.safetensors"]
    assert skipped == ["dir.safetensors", "link.safetensors"]


def test_a_manifest_depends_on_the_slices_alone(folder: Path) -> None:
    told: list[tuple[str, int, int]] = []
    first = make_manifest(folder, "texts", report=lambda *args: told.append(args))
    assert make_manifest(folder, "texts") == first
    manifest = msgspec.json.decode(first, type=Manifest)
    assert [info.rows for info in manifest.slices] == [3, 3, 3]
    assert manifest.schema == {"input_ids": "U8[4]"}
    assert [name for name, _, _ in told] == [info.name for info in manifest.slices]
    assert told[-1][1] == told[-1][2] == sum(info.size_bytes for info in manifest.slices)


def test_a_slice_unlike_the_others_is_named(folder: Path) -> None:
    write_slice(folder / "d.safetensors", width=5)
    with pytest.raises(DatasetError, match=r"d\.safetensors has other tensors than a\.safetensors"):
        make_manifest(folder, "texts")
    write_tensors(folder / "d.safetensors", {"x": ("U8", (2,), b"12"), "y": ("U8", (3,), b"123")})
    with pytest.raises(DatasetError, match=r"d\.safetensors has no rows"):
        make_manifest(folder, "texts")
    (folder / "d.safetensors").write_bytes(b"\xff" * 100)
    with pytest.raises(TensorFileError, match=r"d\.safetensors is not a sound safetensors file"):
        make_manifest(folder, "texts")


def test_an_empty_folder_is_no_dataset(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="no slices"):
        make_manifest(tmp_path, "x")
    assert load_manifest(tmp_path) is None


def test_a_loaded_dataset_is_checked_against_its_files(folder: Path) -> None:
    write_file(folder / MANIFEST, make_manifest(folder, "texts"))
    dataset = load_manifest(folder)
    assert dataset is not None
    assert (dataset.name, dataset.rows, len(dataset.digest)) == ("texts", 9, 64)
    write_slice(folder / "b.safetensors", rows=4)
    with pytest.raises(DatasetError, match=r"b\.safetensors has .* 4 rows, the manifest says .* 3; restore it"):
        load_manifest(folder)
    (folder / "b.safetensors").unlink()
    with pytest.raises(DatasetError, match=r"b\.safetensors cannot be read"):
        load_manifest(folder)


@pytest.mark.parametrize("name", ["../a.safetensors", ".a.safetensors", "x/y"])
def test_a_manifest_cannot_name_files_elsewhere(folder: Path, name: str) -> None:
    entry = f'{{"name":"{name}","size_bytes":1,"rows":1,"sha256":"{"0" * 64}"}}'
    with pytest.raises(DatasetError, match="bad entry"):
        parse_manifest(folder, f'{{"name":"texts","slices":[{entry}]}}'.encode())
    for content in (b"{", b'{"name":"x","slices":[]}', b'{"name":"x","slices":3}'):
        with pytest.raises(DatasetError, match=r"manifest\.json"):
            parse_manifest(folder, content)


def test_a_folder_needs_a_name_that_travels(tmp_path: Path) -> None:
    for name in ("a b", "ä", ".x", "a" * 129):
        with pytest.raises(DatasetError, match="cannot be a dataset's name"):
            name_of(tmp_path / name)
    assert name_of(tmp_path / "wiki-103_v1.2") == "wiki-103_v1.2"


def test_a_slice_is_read_again_only_when_its_file_has_changed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = parse_manifest(folder, make_manifest(folder, "texts"))
    info = dataset.manifest.slices[0]
    path = dataset.path_of(info)
    cache = folder / ".checked"
    checked = Checked(cache)
    assert is_intact(dataset, info, checked)
    checked.save()
    reads = []
    from node.data import checked as module

    original = module.hash_file
    monkeypatch.setattr(module, "hash_file", lambda path: reads.append(path) or original(path))
    again = Checked(cache)
    assert is_intact(dataset, info, again)
    assert reads == []
    os.utime(path, (1, 1))
    assert is_intact(dataset, info, again)
    assert len(reads) == 1
    body = bytearray(path.read_bytes())
    body[-1] ^= 1
    path.write_bytes(body)
    assert not is_intact(dataset, info, again)
    assert not is_intact(dataset, info, again)
    assert len(reads) == 2
    path.unlink()
    assert not is_intact(dataset, info, again)
