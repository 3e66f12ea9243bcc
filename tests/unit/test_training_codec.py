"""Codecs: small, exact in what they promise, and safe against what comes from elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

from node.errors import TensorFileError  # noqa: E402
from node.training.codec import NAMES, codec_named, codec_of, widened  # noqa: E402
from node.training.files import FLOAT32, Layout, TensorReader, TensorWriter, sha256_of  # noqa: E402
from node.training.traits import Traits  # noqa: E402
from node.training.updates import check_update, layout_of, write_update  # noqa: E402

LOSSY = [name for name in NAMES if name != "none"]
NO_BUFFERS: frozenset[str] = frozenset()


def noise(seed: int, elements: int, scale: float = 1.0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(elements).astype(np.float32) * np.float32(scale)


def there_and_back(name: str, values: np.ndarray, density: float = 0.02) -> tuple[list[np.ndarray], np.ndarray]:
    codec = codec_named(name, density)
    parts = [part.copy() for part in codec.encode(values)]
    out = np.empty_like(values)
    codec.decode(parts, out)
    return parts, out


def scales_of(name: str, parts: list[np.ndarray]) -> np.ndarray:
    return parts[-1] if name == "int8" else widened(parts[-1])


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), elements=st.integers(1, 9000), exponent=st.integers(-44, 37))
def test_no_value_is_off_by_more_than_half_a_step(name: str, seed: int, elements: int, exponent: int) -> None:
    """Over all magnitudes, denormal ones included: what is too small for a scale comes back as zero."""
    values = noise(seed, elements, 10.0**exponent)
    parts, out = there_and_back(name, values)
    error = np.abs(values.astype(np.float64) - out)
    if name == "none":
        assert (out == values).all()
    elif name == "bf16":
        assert (error <= np.abs(values) / 256 + 1e-40).all()
    else:
        block, largest = {"int8": (256, 127), "int4": (64, 7), "topk": (4096, 2)}[name]
        scales = np.repeat(scales_of(name, parts), block)[:elements]
        picked = out != 0 if name == "topk" else np.ones(elements, bool)
        too_small = np.full(elements, 2.0**-126 * (largest + 1)) * (scales == 0)
        assert (error <= scales * (0.51 if name == "topk" else 0.501) + too_small)[picked].all()
    counts = codec_named(name).counts(elements)
    assert [len(part) for part in parts] == list(counts)


@pytest.mark.parametrize("name", LOSSY)
def test_nothing_comes_back_as_nothing_and_encoding_what_was_decoded_changes_little(name: str) -> None:
    _, out = there_and_back(name, np.zeros(5000, np.float32))
    assert not out.any()


@pytest.mark.parametrize(("name", "most"), [("bf16", 0.5), ("int8", 0.26), ("int4", 0.134), ("topk", 0.0091)])
def test_a_file_is_as_small_as_its_codec_promises(tmp_path: Path, name: str, most: float) -> None:
    base = {"w": torch.zeros(1000, 300)}
    write_update(tmp_path / "u", base, {"w": torch.from_numpy(noise(1, 300_000).reshape(1000, 300))}, codec=name)
    assert (tmp_path / "u").stat().st_size <= most * 1_200_000 + 300


GOLDEN = {
    "none": "7abd5fa645d7",
    "bf16": "44b760b17171",
    "int8": "8ed098c1fcc2",
    "int4": "91176fadf2f2",
    "topk": "5da8259fd20b",
}


@pytest.mark.parametrize("name", NAMES)
def test_the_same_values_give_these_very_bytes_on_every_machine(tmp_path: Path, name: str) -> None:
    places = np.arange(5001)
    values = (places * 7919 % 10007 - 5003) * 2.0 ** -(places % 13)
    tensors = {"a": torch.from_numpy(values.astype(np.float32).reshape(3, 1667)), "b": torch.ones(7)}
    base = {name: torch.zeros_like(value) for name, value in tensors.items()}
    write_update(tmp_path / "u", base, tensors, codec=name, buffers=frozenset({"b"}))
    assert sha256_of(tmp_path / "u")[:12] == GOLDEN[name]


def test_the_safetensors_library_reads_an_encoded_file(tmp_path: Path) -> None:
    base = {"w": torch.zeros(3, 5), "norm": torch.zeros(2)}
    write_update(tmp_path / "u", base, {"w": torch.ones(3, 5), "norm": torch.ones(2)}, codec="int8", buffers={"norm"})
    loaded = load_file(tmp_path / "u")
    assert loaded["w"].dtype == torch.int8 and loaded["w"].shape == (3, 5)
    assert loaded["w@scale"].shape == (1,) and torch.equal(loaded["norm"], torch.ones(2))


@pytest.mark.parametrize("name", ["int4", "topk"])
def test_what_is_left_out_is_sent_later_and_nothing_is_sent_twice(tmp_path: Path, name: str) -> None:
    """The sum of what was sent is the sum of what was learned, but for the last residual."""
    base = {"w": torch.zeros(70, 70)}
    residual: dict[str, torch.Tensor] = {}
    wanted, sent = np.zeros(4900), np.zeros(4900)
    plain = np.zeros(4900)
    out = np.empty(4900, np.float32)
    for number in range(60):
        learned = noise(number, 4900) + noise(99, 4900)
        written = write_update(
            tmp_path / "u", base, {"w": torch.from_numpy(learned.reshape(70, 70))}, codec=name, residual=residual
        )
        kept = {key: value.clone() for key, value in residual.items()}
        assert all(torch.equal(kept[key], residual[key]) for key in kept)
        residual = written.residual
        with TensorReader(tmp_path / "u") as reader:
            codec_of(reader.metadata).read(reader, "w", 0, out)
        wanted += learned
        sent += out
        plain += there_and_back(name, learned)[1]
    left = residual["w"].numpy().reshape(-1)
    assert np.allclose(sent + left, wanted, atol=1e-3)
    assert np.linalg.norm(sent - wanted) < 0.7 * np.linalg.norm(plain - wanted)


@pytest.mark.parametrize("name", ["none", "bf16"])
def test_a_codec_that_loses_next_to_nothing_keeps_nothing(tmp_path: Path, name: str) -> None:
    written = write_update(tmp_path / "u", {"w": torch.zeros(300)}, {"w": torch.ones(300)}, codec=name)
    assert not written.residual
    assert written.norm == pytest.approx(300**0.5)


@pytest.mark.parametrize("name", NAMES)
def test_the_check_takes_what_a_worker_writes_and_finds_its_norm(tmp_path: Path, name: str) -> None:
    tensors = {"a": torch.from_numpy(noise(1, 9001)), "b": torch.from_numpy(noise(2, 5)), "c": torch.zeros(())}
    base = {name: torch.zeros_like(value) for name, value in tensors.items()}
    buffers = frozenset({"b"})
    norm = write_update(tmp_path / "u", base, tensors, codec=name, density=0.9, buffers=buffers).norm
    with TensorReader(tmp_path / "u") as reader:
        found = check_update(reader, layout_of(base), Traits(buffers))
    assert codec_of(reader.metadata).name == name
    assert found == pytest.approx(norm, rel={"int4": 0.05, "topk": 0.15}.get(name, 0.01))


def written_by_hand(path: Path, metadata: dict[str, str], **tensors: torch.Tensor) -> Path:
    save_file(tensors, path, metadata)
    return path


HOSTILE = {
    "an unknown codec": ({"hypha.codec": "zip"}, {"w": torch.ones(8)}),
    "a density of nothing": ({"hypha.codec": "topk", "hypha.density": "0"}, {"w": torch.ones(8)}),
    "a density that is no number": ({"hypha.codec": "topk", "hypha.density": "nan"}, {"w": torch.ones(8)}),
    "a density that is text": ({"hypha.codec": "topk", "hypha.density": "x"}, {"w": torch.ones(8)}),
    "no scales": ({"hypha.codec": "int8"}, {"w": torch.ones(8, dtype=torch.int8)}),
    "too few codes": ({"hypha.codec": "int8"}, {"w": torch.ones(7, dtype=torch.int8), "w@scale": torch.ones(1)}),
    "too many scales": ({"hypha.codec": "int8"}, {"w": torch.ones(8, dtype=torch.int8), "w@scale": torch.ones(9)}),
    "an endless scale": (
        {"hypha.codec": "int8"},
        {"w": torch.ones(8, dtype=torch.int8), "w@scale": torch.tensor([float("inf")])},
    ),
    "a scale that overflows": (
        {"hypha.codec": "int8"},
        {"w": torch.full((8,), 127, dtype=torch.int8), "w@scale": torch.tensor([3e38])},
    ),
    "bf16 that is not a number": ({"hypha.codec": "bf16"}, {"w": torch.full((8,), float("nan"), dtype=torch.bfloat16)}),
    "places outside": (
        {"hypha.codec": "topk", "hypha.density": "0.25"},
        {
            "w@index": torch.tensor([8, 0, 0], dtype=torch.uint8),
            "w": torch.zeros(1, dtype=torch.uint8),
            "w@scale": torch.ones(1, dtype=torch.bfloat16),
        },
    ),
    "a place twice": (
        {"hypha.codec": "topk", "hypha.density": "0.25"},
        {
            "w@index": torch.tensor([1, 16, 0], dtype=torch.uint8),
            "w": torch.zeros(1, dtype=torch.uint8),
            "w@scale": torch.ones(1, dtype=torch.bfloat16),
        },
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_file_that_says_one_thing_and_holds_another_is_refused(tmp_path: Path, case: str) -> None:
    """H9, H10: sizes before anything is decoded, values before anything is used."""
    metadata, tensors = HOSTILE[case]
    path = written_by_hand(tmp_path / "u", metadata, **tensors)
    with TensorReader(path) as reader, pytest.raises(TensorFileError):
        check_update(reader, {"w": (FLOAT32, (8,))}, Traits())


def test_a_name_that_a_codec_needs_for_itself_is_refused() -> None:
    layout: Layout = {"w": (FLOAT32, (4,)), "w@scale": (FLOAT32, (1,))}
    with pytest.raises(TensorFileError, match="w@scale is taken"):
        codec_named("int8").layout(layout, NO_BUFFERS)


@pytest.mark.parametrize("name", LOSSY)
def test_pieces_of_a_large_tensor_fit_together(tmp_path: Path, name: str) -> None:
    """A tensor longer than a piece, and of an odd length."""
    from node.training.files import CHUNK

    values = noise(3, CHUNK + 4099)
    base = {"w": torch.zeros(len(values))}
    write_update(tmp_path / "u", base, {"w": torch.from_numpy(values)}, codec=name)
    first, rest = there_and_back(name, values[:CHUNK])[1], there_and_back(name, values[CHUNK:])[1]
    out = np.empty(4099, np.float32)
    with TensorReader(tmp_path / "u") as reader:
        codec_of(reader.metadata).read(reader, "w", CHUNK, out)
        assert (out == rest).all()
        out = np.empty(CHUNK, np.float32)
        codec_of(reader.metadata).read(reader, "w", 0, out)
    assert (out == first).all()


def test_a_file_with_a_piece_missing_is_not_published(tmp_path: Path) -> None:
    writer = TensorWriter(tmp_path / "u", {"w": (FLOAT32, (4,))})
    writer.write("w", 0, np.zeros(3, np.float32))
    with pytest.raises(TensorFileError, match="4 bytes were not written"):
        writer.publish()
    writer.discard()
    assert not list(tmp_path.iterdir())
