from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from node.data.datasets import encode_manifest, make_manifest, write_file
from node.errors import DatasetError, TensorFileError
from node.manifest import MANIFEST, manifest_in
from node.streaming import FolderSource
from node.wire import Manifest, SliceInfo
from tests.unit import streaming_data
from tests.unit.hostile_bytes import mutated

GOOD = "0" * 64


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        ('{"name":"../a","size_bytes":1,"rows":1,"sha256":"GOOD"}', "bad entry"),
        ('{"name":".a","size_bytes":1,"rows":1,"sha256":"GOOD"}', "bad entry"),
        ('{"name":"","size_bytes":1,"rows":1,"sha256":"GOOD"}', "bad entry"),
        ('{"name":"a\\u0000","size_bytes":1,"rows":1,"sha256":"GOOD"}', "bad entry"),
        ('{"name":"a","size_bytes":-1,"rows":1,"sha256":"GOOD"}', "bad entry"),
        ('{"name":"a","size_bytes":1,"rows":-1,"sha256":"GOOD"}', "bad entry"),
        ('{"name":"a","size_bytes":1,"rows":1,"sha256":"../GOOD"}', "bad entry"),
        ('{"name":"a","size_bytes":1,"rows":1}', "not a manifest"),
        (",".join(['{"name":"a","size_bytes":1,"rows":1,"sha256":"GOOD"}'] * 2), "name order, each once"),
        ("", "lists no slices"),
    ],
)
def test_a_manifest_that_cannot_be_true_is_refused_by_every_reader(entries: str, problem: str, tmp_path: Path) -> None:
    content = b'{"name":"d","slices":[' + entries.replace("GOOD", GOOD).encode() + b"]}"
    with pytest.raises(DatasetError, match=problem) as raised:
        manifest_in(content, "here")
    assert raised.value.message.startswith("here ")
    write_file(tmp_path / MANIFEST, content)
    with pytest.raises(DatasetError, match=problem):
        FolderSource(tmp_path)


def test_a_slice_of_a_folder_is_verified_once_for_each_state_of_its_file(tmp_path: Path) -> None:
    streaming_data.dataset(tmp_path, slices=2)
    write_file(tmp_path / MANIFEST, make_manifest(tmp_path, "d"))
    source = FolderSource(tmp_path)
    path = source.open(1)
    good, when = path.read_bytes(), path.stat()
    bad = good[:-1] + bytes([good[-1] ^ 1])

    path.write_bytes(bad)
    os.utime(path, ns=(when.st_atime_ns, when.st_mtime_ns))
    assert source.open(1) == path  # size, time and inode say that it is the file of before: it is not read again

    os.utime(path, ns=(when.st_atime_ns, when.st_mtime_ns + 1))
    with pytest.raises(DatasetError, match=f"slice {path} is not what manifest.json says"):
        source.open(1)
    with pytest.raises(DatasetError):
        source.open(1)
    path.write_bytes(good)
    assert source.open(1) == path
    path.write_bytes(good[:-1])
    with pytest.raises(TensorFileError, match=f"expected were {len(good)}"):
        source.open(1)


def test_a_hostile_manifest_is_refused_or_names_files_of_one_folder_alone() -> None:
    slices = [SliceInfo(name=f"s{n}", size_bytes=9, rows=2, sha256=GOOD, labels={0: 2}) for n in range(3)]
    sound, rng, taken = encode_manifest(Manifest(name="d", slices=slices)), random.Random(3), 0
    for _ in range(3_000):
        try:
            manifest = manifest_in(mutated(rng, sound), "here")
        except DatasetError as error:
            assert len(error.message) < 2_000
            continue
        taken += 1
        for info in manifest.slices:
            assert Path("/folder", info.name).parent == Path("/folder") and info.name not in (".", "..")
            assert info.rows >= 0 and info.size_bytes >= 0 and len(info.sha256) == 64
    assert 100 < taken < 2_900
