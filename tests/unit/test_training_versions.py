"""Everybody who holds a version holds the same bytes of it: parameter server, executors, whoever replays a journal."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

from safetensors.torch import load_file  # noqa: E402

from node.errors import TensorFileError  # noqa: E402
from node.training import robust  # noqa: E402
from node.training.aggregate import Prepared, Update, check, commit  # noqa: E402
from node.training.files import FLOAT32, sha256_of, size_of, write_tensors  # noqa: E402
from node.training.folder import assemble, path_of, whole_path_of  # noqa: E402
from node.training.fragments import fragments_of  # noqa: E402
from node.training.identity import identity_of  # noqa: E402
from node.training.replay import replay  # noqa: E402
from node.training.traits import Traits  # noqa: E402
from node.training.updates import layout_of, write_update  # noqa: E402
from node.training.versions import Outer, advanced, digest_of  # noqa: E402
from node.wire import Aggregation, Sync  # noqa: E402

SHAPES = {"a": (70, 33), "b": (5,), "c": (), "d": (129,), "running": (7,)}
BUFFERS = frozenset({"running"})
TRAITS = Traits(BUFFERS)
OUTER = Outer(0.7, 0.9)
MEAN = Aggregation()

Tensors = dict[str, torch.Tensor]


def state(seed: int, scale: float = 1.0) -> Tensors:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) * scale for name, shape in SHAPES.items()}


class Group:
    """A parameter server's folder, and an executor that follows it by deltas alone."""

    def __init__(self, folder: Path, sync: Sync, rules: Aggregation = MEAN) -> None:
        self.folder, self.sync, self.rules = folder, sync, rules
        self.base = state(0)
        self.momentum: Tensors = {}
        self.round = 0
        self.residuals: dict[int, Tensors] = {}
        write_tensors(path_of(folder, "weights", 0), self.base, TRAITS.metadata)

    @property
    def names(self) -> list[str]:
        return fragments_of(layout_of(self.base), self.sync.fragments)[self.round % self.sync.fragments]

    def updates(self, scale: float = 1e-2, workers: int = 3) -> list[Update]:
        made = []
        for worker in range(workers):
            learned = state(1000 * self.round + worker, scale)
            path = self.folder / f"update-{worker}.safetensors"
            zeros = {name: torch.zeros_like(value) for name, value in learned.items()}
            write_update(path, zeros, learned, names=self.names, buffers=BUFFERS, codec=self.sync.codec)
            norm = check(self.folder, path, self.round, self.sync)
            made.append(Update(path, 10.0 + worker, f"t{worker}", norm))
        return made

    def close(self, updates: list[Update]) -> Prepared:
        made = commit(self.folder, self.round, updates, outer=OUTER, sync=self.sync, rules=self.rules)
        delta = path_of(self.folder, "delta", self.round + 1)
        new, momentum = advanced(delta, self.base, self.momentum, names=self.names, traits=TRAITS, outer=OUTER)
        self.base, self.momentum = self.base | new, self.momentum | momentum
        self.round += 1
        return made


@pytest.mark.parametrize("fragments", [1, 3, 9])
@pytest.mark.parametrize("codec", ["none", "bf16", "int8", "int4", "topk"])
def test_executor_and_server_and_replay_hold_the_same_bytes(tmp_path: Path, codec: str, fragments: int) -> None:
    """U37, D6: void rounds and fragments included; the digest is found without writing a file."""
    group = Group(tmp_path, Sync(codec=codec, fragments=fragments))
    scales = [1e-2, 1e-39, 1e3, 1e-7, 1e-2, 1e-2, 1e-2, 1e-2, 1e-2, 1e-2]
    for scale in scales:
        made = group.close([] if group.round == 3 else group.updates(scale))
        weights = path_of(tmp_path, "weights", group.round)
        parts = [{name: group.base[name] for name in names} for names in fragments_of(layout_of(group.base), fragments)]
        assert made.weights.sha256 == identity_of([digest_of(part, TRAITS.metadata) for part in parts])
        own = parts[(group.round - 1) % fragments]
        assert sorted(load_file(weights)) == sorted(own), "a commit writes its fragment, and no more"
        if fragments == 1:
            assert made.weights.sha256 == sha256_of(weights)
            assert made.momentum.sha256 == sha256_of(path_of(tmp_path, "momentum", group.round))
        assert made.delta.sha256 == sha256_of(path_of(tmp_path, "delta", group.round))
        whole = assemble(tmp_path, group.round, fragments)
        assert whole["weights"].sha256 == digest_of(group.base, TRAITS.metadata)
        assert whole["weights"].size_bytes == made.weights.size_bytes
        if codec != "none":
            held = load_file(whole_path_of(tmp_path, "momentum", group.round))
            assert all(
                torch.equal(group.momentum.get(name, torch.zeros(())), held[name]) or not held[name].any()
                for name in SHAPES
            )
        if group.round == 4:
            for kind in ("weights", "momentum"):
                shutil.copy(whole_path_of(tmp_path, kind, 4), tmp_path / f"base-{kind}")
    for base in (0, 4):
        out = tmp_path / f"replayed-{base}"
        out.mkdir()
        files = [("delta", n, path_of(tmp_path, "delta", n)) for n in range(base + 1, group.round + 1)]
        files += [("weights", base, tmp_path / "base-weights" if base else path_of(tmp_path, "weights", base))]
        files += [("momentum", base, tmp_path / "base-momentum")] if base else []
        version, weights, momentum = replay(out, files, OUTER, fragments)
        assert (version, weights, momentum) == (group.round, made.weights, made.momentum)
        updates = group.updates()
        again = commit(out, group.round, updates, outer=OUTER, sync=group.sync)
        mine = commit(tmp_path, group.round, updates, outer=OUTER, sync=group.sync)
        keeps_error = codec in ("int4", "topk", "int8")
        assert keeps_error or (again.weights, again.momentum) == (mine.weights, mine.momentum)


@pytest.mark.parametrize("codec", ["none", "int8", "int4", "topk"])
def test_a_commit_made_again_gives_the_same_bytes_and_counts_no_error_twice(tmp_path: Path, codec: str) -> None:
    """H6: killed after its files were written, before anybody heard of them."""
    group = Group(tmp_path, Sync(codec=codec))
    for _ in range(3):
        updates = group.updates()
        first = commit(tmp_path, group.round, updates, outer=OUTER, sync=group.sync)
        assert group.close(list(reversed(updates))) == first
    kept = [path.name for path in tmp_path.glob("residual-*")]
    assert sorted(kept) == (["residual-2.safetensors", "residual-3.safetensors"] if codec != "none" else [])


def test_what_the_answer_loses_is_sent_with_a_later_one(tmp_path: Path) -> None:
    """The mean of equal updates arrives in full over the rounds, though one byte holds two of its values."""
    group = Group(tmp_path, Sync(codec="int4"))
    write_tensors(path_of(tmp_path, "weights", 0), state(0), TRAITS.metadata)
    plain = tmp_path / "plain"
    plain.mkdir()
    exact = Group(plain, Sync())
    for _ in range(30):
        learned = state(7, 1e-2)
        zeros = {name: torch.zeros_like(value) for name, value in learned.items()}
        for each in (group, exact):
            write_update(tmp_path / "u", zeros, learned, buffers=BUFFERS)
            each.close([Update(tmp_path / "u", 1.0, "t", 1.0)])
    moved = (exact.base["a"] - state(0)["a"]).norm()
    assert (group.base["a"] - exact.base["a"]).norm() < 0.02 * moved


def test_a_void_round_leaves_everything_and_says_so(tmp_path: Path) -> None:
    """U35."""
    for codec, fragments in (("none", 1), ("none", 2), ("int8", 1)):
        folder = tmp_path / f"{codec}-{fragments}"
        folder.mkdir()
        group = Group(folder, Sync(codec=codec, fragments=fragments))
        first = group.close(group.updates())
        before = dict(group.base)
        made = group.close([])
        assert made.weights == first.weights and made.momentum == first.momentum
        assert all(torch.equal(before[name], group.base[name]) for name in SHAPES)
        held = load_file(path_of(folder, "delta", 2))
        assert held.keys() == (SHAPES.keys() if fragments == 1 and codec == "none" else set())
        assert not any(value.any() for value in held.values())


def test_buffers_have_no_momentum_whatever_the_codec(tmp_path: Path) -> None:
    """H49."""
    for codec in ("none", "int8"):
        folder = tmp_path / codec
        folder.mkdir()
        group = Group(folder, Sync(codec=codec))
        ones = {name: torch.ones(shape) for name, shape in SHAPES.items()}
        zeros = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
        for _ in range(2):
            write_update(folder / "u", zeros, ones, buffers=BUFFERS, codec=codec)
            group.close([Update(folder / "u", 1.0, "t", 1.0)])
        assert torch.allclose(group.base["running"], state(0)["running"] + 2)
        assert not load_file(path_of(folder, "momentum", 2))["running"].any()


def test_an_update_of_another_fragment_is_left_out_by_name(tmp_path: Path) -> None:
    """H9: it came late, and the round it was made for is over."""
    group = Group(tmp_path, Sync(fragments=2))
    late = group.updates(workers=1)[0]
    late = Update(late.path.rename(tmp_path / "late"), late.weight, "late", late.norm)
    group.close([])
    made = group.close([late, *group.updates(workers=2)])
    assert made.left_out.keys() == {"late"}
    with pytest.raises(TensorFileError):
        check(tmp_path, late.path, 1, group.sync)


def test_deltas_that_do_not_follow_one_another_are_not_replayed(tmp_path: Path) -> None:
    group = Group(tmp_path, Sync())
    for _ in range(3):
        group.close(group.updates())
    base = ("weights", 0, path_of(tmp_path, "weights", 0))
    second = path_of(tmp_path, "delta", 2)
    out = tmp_path / "out"
    out.mkdir()
    for files in ([base, ("delta", 2, second)], [base, ("delta", 1, second)], [("delta", 2, second)]):
        with pytest.raises(TensorFileError):
            replay(out, files, OUTER)
    assert not list(out.iterdir())


def test_a_delta_of_other_tensors_or_values_changes_nothing(tmp_path: Path) -> None:
    group = Group(tmp_path, Sync())
    shutil.copy(path_of(tmp_path, "weights", 0), tmp_path / "x")
    bad = state(1)
    bad["a"][0, 0] = float("nan")
    write_tensors(tmp_path / "y", bad)
    for path, names in ((tmp_path / "x", ["a"]), (tmp_path / "y", list(SHAPES))):
        with pytest.raises(TensorFileError):
            advanced(path, group.base, {}, names=names, traits=TRAITS, outer=OUTER)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
def test_fragments_hold_each_tensor_once_and_weigh_about_the_same(count: int) -> None:
    layout = {f"layer.{n}": (FLOAT32, (100 + n, 10)) for n in range(40)}
    fragments = fragments_of(layout, count)
    assert sorted(name for names in fragments for name in names) == sorted(layout)
    assert fragments == fragments_of(dict(reversed(layout.items())), count)
    weights = [sum(size_of(layout[name]) for name in names) for names in fragments]
    assert max(weights) <= 1.1 * sum(weights) / count


@pytest.mark.parametrize(("rule", "trim"), [("trimmed-mean", 0.2), ("trimmed-mean", 0.4), ("median", 0.0)])
def test_a_worker_that_sends_nonsense_moves_nothing_and_is_named(tmp_path: Path, rule: str, trim: float) -> None:
    group = Group(tmp_path, Sync(), Aggregation(rule=rule, trim=trim))
    updates = group.updates(workers=5)
    learned = [load_file(update.path) for update in updates]
    zeros = {name: torch.zeros_like(value) for name, value in learned[0].items()}
    write_update(updates[4].path, zeros, {name: value + 50 for name, value in learned[4].items()}, buffers=BUFFERS)
    made = group.close(updates)
    assert made.left_out.keys() == {"t4"}
    assert "outermost" in made.left_out["t4"]
    cut = {0.2: 1, 0.4: 2, 0.0: 2}[trim]
    step = load_file(path_of(tmp_path, "delta", 1))
    for name in ("a", "d"):
        columns = torch.stack([tensors[name] for tensors in learned[:4]] + [learned[4][name] + 50]).sort(dim=0).values
        mean = columns[cut : 5 - cut].mean(dim=0)
        assert torch.allclose(step[name], mean * OUTER.learning_rate * (1 + OUTER.momentum), atol=1e-7)


def test_honest_workers_are_not_named(tmp_path: Path) -> None:
    for rule in ("trimmed-mean", "median"):
        folder = tmp_path / rule
        folder.mkdir()
        group = Group(folder, Sync(), Aggregation(rule=rule))
        for _ in range(5):
            assert not group.close(group.updates(workers=4)).left_out


def test_an_update_that_is_too_long_is_shortened_and_named(tmp_path: Path) -> None:
    group = Group(tmp_path, Sync(), Aggregation(clip_norm=2.0))
    updates = group.updates(workers=3)
    learned = [load_file(update.path) for update in updates]
    zeros = {name: torch.zeros_like(value) for name, value in learned[0].items()}
    write_update(updates[1].path, zeros, {name: value * 10 for name, value in learned[1].items()}, buffers=BUFFERS)
    norms = [check(tmp_path, update.path, 0, group.sync) for update in updates]
    updates = [Update(u.path, 1.0, u.task_id, norm) for u, norm in zip(updates, norms, strict=True)]
    made = group.close(updates)
    factor = 2 * sorted(norms)[1] / norms[1]
    assert made.clipped == {"t1": pytest.approx(factor)}
    mean = (learned[0]["a"] + learned[1]["a"] * 10 * factor + learned[2]["a"]) / 3
    step = load_file(path_of(tmp_path, "delta", 1))["a"]
    assert torch.allclose(step, mean * OUTER.learning_rate * (1 + OUTER.momentum), atol=1e-7)


@pytest.mark.parametrize("count", range(1, 12))
def test_columns_are_sorted_as_the_library_sorts_them(count: int) -> None:
    rows = np.random.default_rng(count).standard_normal((count, 200)).astype(np.float32)
    wanted = np.sort(rows, axis=0)
    robust.sort_columns(rows, np.empty(200, np.float32))
    assert (rows == wanted).all()


def test_a_trim_never_cuts_everything() -> None:
    assert [robust.trimmed_count(n, 0.2) for n in range(1, 7)] == [0, 0, 1, 1, 1, 1]
    assert [robust.cut_of("median", n, 0.0) for n in range(1, 7)] == [0, 0, 1, 1, 2, 2]
    assert all(2 * robust.trimmed_count(n, 0.49) < n for n in range(1, 50))
