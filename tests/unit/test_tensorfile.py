"""The strict safetensors reader and the small writer."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path
from typing import Any

import pytest
import safetensors

from node.errors import TensorFileError
from node.tensorfile import (
    MAX_HEADER_BYTES,
    Header,
    TensorInfo,
    cut_rows,
    parse_header,
    read_header,
    write_tensors,
)

GOOD = {"a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}


def file_of(header: Any, data_bytes: int) -> tuple[bytes, int]:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text, 8 + len(text) + data_bytes


def parse(header: Any, data_bytes: int) -> Header:
    return parse_header(*file_of(header, data_bytes))


def test_a_file_says_what_is_in_it(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write_tensors(path, {"b": ("U8", (3, 2), b"abcdef"), "a": ("F32", (3,), bytes(12))}, metadata={"k": "v"})
    header = read_header(path)
    assert header.tensors == {"a": TensorInfo("F32", (3,), 0, 12), "b": TensorInfo("U8", (3, 2), 12, 18)}
    assert (header.metadata, header.rows, header.size_bytes) == ({"k": "v"}, 3, path.stat().st_size)
    assert path.read_bytes()[header.data_start + 12 :] == b"abcdef"


def test_the_reference_implementation_reads_what_we_write_and_we_read_what_it_writes(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write_tensors(
        path, {"ä": ("I64", (1,), (7).to_bytes(8, "little")), "u": ("U8", (2,), b"hi"), "e": ("F32", (0,), b"")}
    )
    found = {name: bytes(info["data"]) for name, info in safetensors.deserialize(path.read_bytes())}
    assert found == {"ä": (7).to_bytes(8, "little"), "u": b"hi", "e": b""}
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    other = tmp_path / "y.safetensors"
    save_file({"w": torch.zeros(4, 5, dtype=torch.bfloat16), "s": torch.tensor(1.5)}, other, metadata={"format": "pt"})
    header = read_header(other)
    assert {name: (info.dtype, info.shape) for name, info in header.tensors.items()} == {
        "w": ("BF16", (4, 5)),
        "s": ("F32", ()),
    }


def test_the_same_content_gives_the_same_bytes_in_any_order(tmp_path: Path) -> None:
    tensors = {"x": ("U8", (1,), b"1"), "y": ("F32", (1,), b"1234"), "z": ("U8", (1,), bytearray(b"3"))}
    write_tensors(tmp_path / "1", tensors)
    write_tensors(tmp_path / "2", dict(reversed(tensors.items())))
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2"]


def test_nothing_is_written_where_bytes_and_shape_disagree(tmp_path: Path) -> None:
    with pytest.raises(TensorFileError, match=r"x\.safetensors cannot be written.*'a' is F32"):
        write_tensors(tmp_path / "x.safetensors", {"a": ("F32", (2,), b"1234")})
    assert not list(tmp_path.iterdir())


def entry(**changes: Any) -> dict[str, Any]:
    return {"a": GOOD["a"] | changes}


@pytest.mark.parametrize(
    ("header", "data_bytes", "cause"),
    [
        (GOOD, 23, "cut short"),
        (GOOD, 25, "follow its last tensor"),
        (
            b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
            1,
            "twice",
        ),
        (b'{"a":{"dtype":"U8","dtype":"F32","shape":[1],"data_offsets":[0,1]}}', 1, "twice"),
        (b" " + json.dumps(GOOD).encode(), 24, "begin with"),
        (b"{", 0, "not JSON"),
        (b"[]", 0, "begin with"),
        (b"", 0, "begin with"),
        (b'{"a":\xff}', 0, "not JSON"),
        (b'{"a":' * 5000, 0, "not JSON"),
        (entry(dtype="F12"), 24, "unknown dtype"),
        (entry(dtype=7), 24, "unknown dtype"),
        (entry(shape=[2, 4]), 24, "32 bytes, but"),
        (entry(shape=[-2, -3]), 24, "no valid shape"),
        (entry(shape=[2, 3] + [1] * 7), 24, "no valid shape"),
        (entry(shape=[True, 6]), 24, "no valid shape"),
        (entry(shape=[1 << 40, 1 << 40]), 24, "bytes, but"),
        (entry(shape=[1 << 63]), 24, "no valid shape"),
        (entry(shape=None), 24, "no valid shape"),
        (entry(data_offsets=[24, 0]), 24, "data_offsets"),
        (entry(data_offsets=[0, 24, 48]), 24, "data_offsets"),
        (entry(data_offsets=[0.0, 24.0]), 24, "data_offsets"),
        (entry(data_offsets=[8, 32]), 32, "leaves a hole"),
        (entry(extra=1), 24, "just dtype"),
        ({"a": 3}, 24, "just dtype"),
        ({"": GOOD["a"]}, 24, "name"),
        ({"a\nb": GOOD["a"]}, 24, "name"),
        ({"a" * 257: GOOD["a"]}, 24, "name"),
        (GOOD | {"b": {"dtype": "U8", "shape": [4], "data_offsets": [20, 24]}}, 24, "overlaps"),
        (GOOD | {"__metadata__": {"a": 1}}, 24, "__metadata__"),
        (GOOD | {"__metadata__": None}, 24, "__metadata__"),
        ({str(n): {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]} for n in range(100_001)}, 0, "100,001 tensors"),
    ],
)
def test_a_hostile_header_is_refused_with_its_cause(header: Any, data_bytes: int, cause: str) -> None:
    with pytest.raises(TensorFileError, match=cause):
        parse(header, data_bytes)


def test_a_header_longer_than_the_file_or_the_limit_is_refused() -> None:
    for claimed, size, cause in (
        (1 << 62, 1 << 40, "claims"),
        (100, 50, "ends after"),
        (MAX_HEADER_BYTES + 1, 1 << 30, "at most"),
    ):
        with pytest.raises(TensorFileError, match=cause):
            parse_header(claimed.to_bytes(8, "little") + b"{}", size)
    with pytest.raises(TensorFileError, match="too few"):
        parse_header(b"1234", 4)


def test_the_error_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "cut.safetensors"
    path.write_bytes(b"\x10\0\0\0\0\0\0\0{")
    with pytest.raises(TensorFileError, match=r"cut\.safetensors is not a sound safetensors file: .* ends after 9"):
        read_header(path)
    with pytest.raises(TensorFileError, match="cannot be read: No such file"):
        read_header(tmp_path / "none")


def test_thousands_of_mutations_are_either_refused_or_read_as_the_reference_reads_them() -> None:
    """Never another exception, and never a file that the reference implementation would refuse."""
    header, _ = file_of(
        GOOD | {"b": {"dtype": "U8", "shape": [2], "data_offsets": [24, 26]}, "__metadata__": {"k": "v"}}, 26
    )
    whole = header + bytes(26)
    rng = random.Random(hashlib.sha256(b"mutations").digest())
    accepted = 0
    for _ in range(5_000):
        mutant = bytearray(whole)
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(mutant)) if mutant else 0
            kind = rng.randrange(4)
            if kind == 0 and mutant:
                mutant[at] = rng.randrange(256)
            elif kind == 1:
                mutant[at:at] = rng.choice([b"0", b"9", b'"', b"{", b"}", b"[", b",", b"\\", b"\xff", b"-", b"1e9"])
            elif kind == 2:
                del mutant[at : at + rng.randint(1, 4)]
            else:
                del mutant[at:]
        try:
            found = parse_header(bytes(mutant), len(mutant))
        except TensorFileError:
            continue
        accepted += 1
        reference = {name: list(info["shape"]) for name, info in safetensors.deserialize(bytes(mutant))}
        assert {name: list(info.shape) for name, info in found.tensors.items()} == reference
    assert accepted > 20


def test_rows_are_cut_out_as_the_reference_implementation_would(tmp_path: Path) -> None:
    source, target = tmp_path / "whole.safetensors", tmp_path / "part.safetensors"
    rng = random.Random(3)
    tensors = {
        "ids": ("I64", (9, 2, 3), rng.randbytes(9 * 6 * 8)),
        "mask": ("U8", (9, 5), rng.randbytes(45)),
        "weight": ("F32", (9,), rng.randbytes(36)),
    }
    write_tensors(source, tensors, metadata={"k": "v"})
    size, sha256 = cut_rows(source, target, 2, 7)
    content = target.read_bytes()
    assert (size, sha256) == (len(content), hashlib.sha256(content).hexdigest())
    assert read_header(target).metadata == {"k": "v"}
    found = dict(safetensors.deserialize(content))
    for name, (dtype, shape, data) in tensors.items():
        row = len(data) // 9
        assert found[name]["shape"] == [5, *shape[1:]]
        assert (found[name]["dtype"], bytes(found[name]["data"])) == (dtype, data[2 * row : 7 * row])


def test_a_cut_keeps_every_tensor_aligned_whatever_the_order_in_the_file(tmp_path: Path) -> None:
    """torch takes no view of a float that begins at an odd byte."""
    header = {
        "a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]},
        "b": {"dtype": "F32", "shape": [4], "data_offsets": [4, 20]},
    }
    prefix, _ = file_of(header, 20)
    source, target = tmp_path / "whole.safetensors", tmp_path / "part.safetensors"
    source.write_bytes(prefix + bytes(range(20)))
    cut_rows(source, target, 1, 2)
    made = read_header(target)
    assert made.tensors == {"b": TensorInfo("F32", (1,), 0, 4), "a": TensorInfo("U8", (1,), 4, 5)}
    assert target.read_bytes()[made.data_start :] == bytes([8, 9, 10, 11, 1])


@pytest.mark.parametrize(("start", "end"), [(0, 10), (-1, 3), (4, 4), (5, 4), (9, 10)])
def test_rows_that_are_not_there_cannot_be_cut_out(tmp_path: Path, start: int, end: int) -> None:
    source, target = tmp_path / "whole.safetensors", tmp_path / "part.safetensors"
    write_tensors(source, {"a": ("U8", (9,), bytes(9))})
    with pytest.raises(TensorFileError, match="has 9 rows, not"):
        cut_rows(source, target, start, end)
    assert not target.exists()


def test_tensors_without_common_rows_cannot_be_cut(tmp_path: Path) -> None:
    source, target = tmp_path / "whole.safetensors", tmp_path / "part.safetensors"
    write_tensors(source, {"a": ("U8", (9,), bytes(9)), "b": ("U8", (8,), bytes(8))})
    with pytest.raises(TensorFileError, match="has no rows"):
        cut_rows(source, target, 0, 2)
    assert not target.exists()
