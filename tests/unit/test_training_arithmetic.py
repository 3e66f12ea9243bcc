"""The outer step over files: exact, in any order, all or nothing."""

from __future__ import annotations

import itertools
import json
import random
import re
import shutil
import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

from safetensors.torch import load_file, save_file  # noqa: E402

from node.errors import TensorFileError  # noqa: E402
from node.training.aggregate import Prepared, Update  # noqa: E402
from node.training.aggregate import commit as prepare  # noqa: E402
from node.training.files import TensorReader, TensorWriter, check_layout, flat_float32, write_tensors  # noqa: E402
from node.training.folder import path_of  # noqa: E402
from node.training.outer import move, velocity_after  # noqa: E402
from node.training.replay import replay  # noqa: E402
from node.training.traits import Traits  # noqa: E402
from node.training.updates import check_values, write_update  # noqa: E402
from node.training.versions import Outer  # noqa: E402
from node.wire import Sync  # noqa: E402
from tests.unit import oracle_diloco  # noqa: E402

OUTER = Outer(0.7, 0.9)
SHAPES = {"a.weight": (5, 7), "b.weight": (3,), "c.scale": ()}


def weights_path(folder: Path, version: int) -> Path:
    return path_of(folder, "weights", version)


def momentum_path(folder: Path, version: int) -> Path:
    return path_of(folder, "momentum", version)


def step_path(folder: Path, version: int) -> Path:
    return path_of(folder, "delta", version)


def commit(folder: Path, round_: int, updates: Sequence[Update], *, learning_rate: float, momentum: float) -> Prepared:
    return prepare(folder, round_, updates, outer=Outer(learning_rate, momentum))


def random_state(seed: int, scale: float = 1.0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) * scale for name, shape in SHAPES.items()}


def start(folder: Path, buffers: frozenset[str] = frozenset()) -> dict[str, torch.Tensor]:
    state = random_state(1)
    write_tensors(weights_path(folder, 0), state, Traits(buffers).metadata)
    return state


def update(folder: Path, name: str, tensors: dict[str, torch.Tensor], weight: float) -> Update:
    path = folder / f"{name}.safetensors"
    write_tensors(path, tensors)
    return Update(path, weight)


@pytest.mark.parametrize("count", [*range(1, 9), 19])
def test_the_step_is_the_exact_weighted_mean_whatever_the_order_of_arrival(tmp_path: Path, count: int) -> None:
    """H1."""
    theta = start(tmp_path)
    weights = [7 + 13 * k for k in range(count)]
    deltas = [random_state(100 + k) for k in range(count)]
    updates = [update(tmp_path, f"u{k}", deltas[k], weights[k]) for k in range(count)]
    digests = set()
    for order in itertools.islice(itertools.permutations(updates), 12):
        digests.add(commit(tmp_path, 0, order, learning_rate=1.0, momentum=0.0).weights.sha256)
    assert len(digests) == 1
    step, made = load_file(step_path(tmp_path, 1)), load_file(weights_path(tmp_path, 1))
    for name in SHAPES:
        mean = sum(w * d[name].double() for w, d in zip(weights, deltas, strict=True)) / sum(weights)
        largest = max(float(d[name].abs().max()) for d in deltas)
        assert (step[name].double() - mean).abs().max() <= 1e-6 * largest
        assert torch.equal(made[name], theta[name] + step[name])


def test_the_mean_of_many_int8_updates_is_that_of_what_they_say(tmp_path: Path) -> None:
    theta = start(tmp_path)
    deltas, updates = [random_state(100 + k) for k in range(19)], []
    for k, delta in enumerate(deltas):
        path = tmp_path / f"u{k}.safetensors"
        write_update(path, theta, {name: theta[name] + delta[name] for name in SHAPES}, codec="int8")
        updates.append(Update(path, 1.0 + k))
    prepare(tmp_path, 0, updates, outer=Outer(1.0, 0.0), sync=Sync(codec="int8"))
    made = load_file(weights_path(tmp_path, 1))
    for name in SHAPES:
        mean = sum((1.0 + k) * d[name].double() for k, d in enumerate(deltas)) / sum(1.0 + k for k in range(19))
        assert (made[name].double() - theta[name] - mean).abs().max() <= 0.02


def test_one_update_with_an_outer_rate_of_one_is_the_update_itself(tmp_path: Path) -> None:
    """U36."""
    start(tmp_path)
    delta = random_state(2)
    commit(tmp_path, 0, [update(tmp_path, "u", delta, 12345)], learning_rate=1.0, momentum=0.0)
    step = load_file(step_path(tmp_path, 1))
    assert all(torch.equal(step[name], delta[name]) for name in SHAPES)


def test_nesterov_momentum_follows_the_recursion_over_rounds(tmp_path: Path) -> None:
    """U39: the pseudo-gradient points downhill already and is added."""
    theta = start(tmp_path)
    gradients = [0.5, -0.25, 1.0, 0.125]
    for round_number, gradient in enumerate(gradients):
        tensors = {name: torch.full(shape, gradient) for name, shape in SHAPES.items()}
        commit(tmp_path, round_number, [update(tmp_path, "u", tensors, 3)], learning_rate=0.7, momentum=0.9)
    moved = oracle_diloco.nesterov(gradients, 0.7, 0.9)
    made = load_file(weights_path(tmp_path, 4))
    for name in SHAPES:
        assert torch.allclose(made[name], theta[name] + moved, atol=1e-5)


def test_the_outer_step_agrees_with_the_sgd_of_torch_and_its_momentum_follows_from_the_step() -> None:
    weight = torch.zeros(10, dtype=torch.float64)
    sgd = torch.optim.SGD([weight], lr=0.3, momentum=0.8, nesterov=True)
    velocity, theta, scratch = (np.zeros(10, np.float32) for _ in range(3))
    rates = {"learning_rate": 0.3, "momentum": 0.8}
    for seed in range(5):
        gradient = torch.randn(10, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        weight.grad = -gradient
        sgd.step()
        before, step = velocity.copy(), flat_float32(gradient).copy()
        move(step, velocity, scratch, **rates)
        velocity_after(step, before, scratch, **rates)
        assert np.allclose(before, velocity, atol=1e-6)
        theta += step
    assert np.allclose(theta, weight.numpy(), atol=1e-5)


@pytest.mark.parametrize("codec", ["none", "bf16"])
def test_the_momentum_of_what_moves_no_more_comes_to_nothing_for_everybody(tmp_path: Path, codec: str) -> None:
    """It would stay at the smallest numbers there are, with which arithmetic takes thirty times as long."""
    start(tmp_path)
    (tmp_path / "again").mkdir()
    files = [("weights", 0, Path(shutil.copy(weights_path(tmp_path, 0), tmp_path / "again" / "base")))]
    moved = {name: torch.full(shape, 1.0 if name == "a.weight" else 1e-33) for name, shape in SHAPES.items()}
    for round_number in range(130):
        prepare(tmp_path, round_number, [update(tmp_path, "u", moved, 3)], outer=OUTER, sync=Sync(codec=codec))
        files.append(("delta", round_number + 1, path_of(tmp_path, "delta", round_number + 1)))
        moved = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    made = load_file(momentum_path(tmp_path, 130))
    assert made["a.weight"].all() and not made["b.weight"].any() and not made["c.scale"].any()
    replay(tmp_path / "again", files, OUTER)
    assert momentum_path(tmp_path / "again", 130).read_bytes() == momentum_path(tmp_path, 130).read_bytes()


def test_buffers_are_averaged_without_momentum(tmp_path: Path) -> None:
    """H49: running statistics must not overshoot."""
    theta = start(tmp_path, frozenset({"b.weight"}))
    for round_number in range(2):
        tensors = {name: torch.ones(shape) for name, shape in SHAPES.items()}
        commit(tmp_path, round_number, [update(tmp_path, "u", tensors, 1)], learning_rate=0.5, momentum=0.9)
    made = load_file(weights_path(tmp_path, 2))
    assert torch.allclose(made["b.weight"], theta["b.weight"] + 2)
    assert torch.allclose(made["a.weight"], theta["a.weight"] + oracle_diloco.nesterov([1, 1], 0.5, 0.9))


@pytest.mark.parametrize("weights", [[], [0, 0]])
def test_a_round_without_samples_leaves_weights_and_velocity_as_they_are(tmp_path: Path, weights: list[int]) -> None:
    """U35."""
    start(tmp_path)
    commit(tmp_path, 0, [update(tmp_path, "u", random_state(5), 4)], learning_rate=0.7, momentum=0.9)
    updates = [update(tmp_path, f"z{k}", random_state(k), weight) for k, weight in enumerate(weights)]
    commit(tmp_path, 1, updates, learning_rate=0.7, momentum=0.9)
    assert all(not value.any() for value in load_file(step_path(tmp_path, 2)).values())
    for place in (weights_path, momentum_path):
        before, after = load_file(place(tmp_path, 1)), load_file(place(tmp_path, 2))
        assert all(torch.equal(before[name], after[name]) for name in SHAPES)


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_an_impossible_number_of_samples_is_refused(tmp_path: Path, weight: float) -> None:
    start(tmp_path)
    with pytest.raises(TensorFileError, match="number of samples"):
        commit(tmp_path, 0, [update(tmp_path, "u", random_state(5), weight)], learning_rate=1.0, momentum=0.0)


@pytest.mark.parametrize("broken_at", [0, 1, 2])
def test_a_commit_cut_off_between_its_files_can_be_made_again_and_gives_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken_at: int
) -> None:
    """H6, H11."""
    start(tmp_path)
    updates = [update(tmp_path, "u", random_state(5), 4)]
    published: list[Path] = []
    publish = TensorWriter.publish

    def cut(self: TensorWriter) -> None:
        if len(published) == broken_at:
            raise OSError(28, "No space left on device")
        published.append(self.path)
        publish(self)

    monkeypatch.setattr(TensorWriter, "publish", cut)
    with pytest.raises(OSError, match="No space"):
        commit(tmp_path, 0, updates, learning_rate=0.7, momentum=0.9)
    assert not weights_path(tmp_path, 1).exists()
    assert not list(tmp_path.glob("*.part"))
    monkeypatch.undo()
    again = commit(tmp_path, 0, updates, learning_rate=0.7, momentum=0.9)
    other = tmp_path / "other"
    other.mkdir()
    start(other)
    assert again == commit(other, 0, updates, learning_rate=0.7, momentum=0.9)


def test_a_result_that_is_not_finite_makes_the_round_void(tmp_path: Path) -> None:
    """H10: finite updates can still overflow."""
    theta = start(tmp_path)
    huge = {name: torch.full(shape, 3e38) for name, shape in SHAPES.items()}
    made = commit(tmp_path, 0, [update(tmp_path, "u", huge, 1)], learning_rate=10.0, momentum=0.0)
    assert "leaves values that are not finite in" in made.left_out[""]
    kept = load_file(weights_path(tmp_path, 1))
    assert all(torch.equal(kept[name], theta[name]) for name in SHAPES)
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_an_update_with_a_value_that_is_not_finite_is_named(tmp_path: Path, bad: float) -> None:
    """H10."""
    tensors = random_state(3)
    tensors["b.weight"][1] = bad
    made = update(tmp_path, "u", tensors, 1)
    with TensorReader(made.path) as reader, pytest.raises(TensorFileError, match=r"b\.weight"):
        check_values(reader)


def test_the_norm_of_an_update_is_the_norm_over_all_tensors(tmp_path: Path) -> None:
    tensors = random_state(3)
    made = update(tmp_path, "u", tensors, 1)
    everything = torch.cat([value.reshape(-1) for value in tensors.values()])
    with TensorReader(made.path) as reader:
        assert check_values(reader) == pytest.approx(everything.norm().item(), rel=1e-6)


def test_an_update_of_another_model_is_refused_by_name(tmp_path: Path) -> None:
    """H9."""
    start(tmp_path)
    for change, message in (
        (lambda t: t.pop("b.weight"), "b.weight is missing"),
        (lambda t: t.update(extra=torch.ones(1)), "extra is not part of the model"),
        (lambda t: t.update({"a.weight": torch.ones(7, 5)}), r"a.weight is F32 \[7, 5\], expected F32 \[5, 7\]"),
    ):
        tensors = random_state(3)
        change(tensors)
        made = update(tmp_path, "u", tensors, 1)
        with TensorReader(weights_path(tmp_path, 0)) as base:
            layout = base.layout
        with TensorReader(made.path) as reader, pytest.raises(TensorFileError, match=message):
            check_layout(reader, layout)
        good = update(tmp_path, "good", random_state(4), 1)
        mixed = commit(tmp_path, 0, [replace(made, task_id="bad"), good], learning_rate=1.0, momentum=0.0)
        assert re.search(message, mixed.left_out["bad"])
        alone = commit(tmp_path, 0, [good], learning_rate=1.0, momentum=0.0)
        assert alone.weights == mixed.weights


def test_large_tensors_are_handled_in_chunks_without_seams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start(tmp_path)
    updates = [update(tmp_path, f"u{k}", random_state(k), k + 1) for k in range(3)]
    whole = commit(tmp_path, 0, updates, learning_rate=0.7, momentum=0.9).weights.sha256
    monkeypatch.setattr("node.training.files.CHUNK", 4)
    assert commit(tmp_path, 0, updates, learning_rate=0.7, momentum=0.9).weights.sha256 == whole


def test_our_files_are_what_the_safetensors_library_reads_and_the_other_way_round(tmp_path: Path) -> None:
    tensors = {
        "z": torch.arange(6, dtype=torch.int64).reshape(2, 3),
        "half": torch.randn(3, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16),
        "flag": torch.tensor([True, False, True]),
        "empty": torch.zeros(0, 4),
    }
    layout = {"z": ("I64", (2, 3)), "half": ("BF16", (3,)), "flag": ("BOOL", (3,)), "empty": ("F32", (0, 4))}
    writer = TensorWriter(tmp_path / "ours.safetensors", layout, {"k": "v"})
    for name in reversed(writer.names):
        writer.write(name, 0, tensors[name].reshape(-1).view(torch.uint8).numpy())
    assert not writer.path.exists()
    writer.publish()
    loaded = load_file(writer.path)
    assert all(torch.equal(loaded[name], tensors[name]) for name in tensors)
    save_file(tensors, tmp_path / "theirs.safetensors")
    with TensorReader(tmp_path / "theirs.safetensors") as reader:
        assert all(torch.equal(reader.tensor(name), tensors[name]) for name in tensors)


def test_the_same_tensors_give_the_same_bytes(tmp_path: Path) -> None:
    state = random_state(1)
    shuffled = dict(random.Random(3).sample(sorted(state.items()), len(state)))
    assert write_tensors(tmp_path / "a", state) == write_tensors(tmp_path / "b", shuffled)


def file_of(path: Path, header: object, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def tensor_of(begin: int, end: int, shape: object = None, dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": [(end - begin) // 4] if shape is None else shape, "data_offsets": [begin, end]}


HOSTILE = {
    "empty": (b"", b""),
    "not json": (b"{nonsense", b""),
    "deep": (b"[" * 200_000, b""),
    "list": ([], b""),
    "overlap": ({"a": tensor_of(0, 8), "b": tensor_of(4, 8)}, bytes(8)),
    "gap": ({"a": tensor_of(0, 4), "b": tensor_of(8, 12)}, bytes(12)),
    "trailing": ({"a": tensor_of(0, 4)}, bytes(8)),
    "short": ({"a": tensor_of(0, 8)}, bytes(4)),
    "duplicate": (b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],'
                  b'"data_offsets":[0,4]}}', bytes(4)),
    "dtype": ({"a": tensor_of(0, 4, dtype="F4")}, bytes(4)),
    "negative": ({"a": tensor_of(0, 4, shape=[-1])}, bytes(4)),
    "bool": ({"a": tensor_of(0, 4, shape=[True])}, bytes(4)),
    "overflow": ({"a": tensor_of(0, 4, shape=[1 << 40, 1 << 40])}, bytes(4)),
    "rank": ({"a": tensor_of(0, 4, shape=[1] * 9)}, bytes(4)),
    "disagree": ({"a": tensor_of(0, 4, shape=[2])}, bytes(4)),
    "name": ({"a\x1b[2J": tensor_of(0, 4)}, bytes(4)),
    "metadata": ({"__metadata__": {"k": 1}, "a": tensor_of(0, 4)}, bytes(4)),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_file_is_refused(tmp_path: Path, case: str) -> None:
    header, data = HOSTILE[case]
    with pytest.raises(TensorFileError):
        TensorReader(file_of(tmp_path / "x.safetensors", header, data))


def test_a_huge_header_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", 1 << 62) + b"{}")
    with pytest.raises(TensorFileError, match="header claims"):
        TensorReader(path)


def test_a_file_cut_while_it_is_read_is_an_error_not_a_crash(tmp_path: Path) -> None:
    made = update(tmp_path, "u", random_state(1), 1)
    with TensorReader(made.path) as reader:
        with made.path.open("r+b") as file:
            file.truncate(made.path.stat().st_size - 8)
        with pytest.raises(TensorFileError, match="ends inside"):
            check_values(reader)


def test_every_truncation_of_a_good_file_is_refused(tmp_path: Path) -> None:
    made = update(tmp_path, "u", random_state(1), 1)
    whole = made.path.read_bytes()
    for size in range(0, len(whole), 3):
        made.path.write_bytes(whole[:size])
        with pytest.raises(TensorFileError):
            TensorReader(made.path)


def test_an_update_is_what_was_learned_and_training_gone_wrong_is_not_written(tmp_path: Path) -> None:
    """U39, H10."""
    base, after = random_state(1), random_state(2)
    norm = write_update(tmp_path / "u.safetensors", base, after).norm
    made = load_file(tmp_path / "u.safetensors")
    assert all(torch.equal(made[name], after[name] - base[name]) for name in SHAPES)
    assert norm == pytest.approx(torch.cat([v.reshape(-1) for v in made.values()]).norm().item(), rel=1e-6)
    after["a.weight"][0, 0] = float("nan")
    with pytest.raises(TensorFileError, match=r"a\.weight"):
        write_update(tmp_path / "bad.safetensors", base, after)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["u.safetensors"]


def test_memory_and_open_files_stay_flat_over_many_rounds(tmp_path: Path) -> None:
    """U82, H8."""
    psutil = pytest.importorskip("psutil")
    start(tmp_path)
    updates = [update(tmp_path, f"u{k}", random_state(k, 1e-3), k + 1) for k in range(4)]
    process = psutil.Process()

    def rounds(first: int, last: int) -> int:
        for round_number in range(first, last):
            commit(tmp_path, round_number, updates, learning_rate=0.7, momentum=0.9)
            for place in (weights_path, step_path, momentum_path):
                if round_number:
                    place(tmp_path, round_number).unlink()
        return int(process.memory_info().rss)

    before, descriptors = rounds(0, 50), process.num_fds()
    after = rounds(50, 300)
    assert after - before < 0.05 * before
    assert process.num_fds() == descriptors
    assert len(list(tmp_path.iterdir())) == len(updates) + 4
