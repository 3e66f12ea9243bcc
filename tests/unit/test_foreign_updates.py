"""Updates as upstream's executor writes them: counters, other types, other names; and the steps it is answered with."""

from __future__ import annotations

from pathlib import Path

import pytest

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

from safetensors.torch import load_file, save_file, save_model  # noqa: E402
from torch import nn  # noqa: E402

from node.errors import TensorFileError  # noqa: E402
from node.training.aggregate import Update, check, commit  # noqa: E402
from node.training.files import write_tensors  # noqa: E402
from node.training.folder import path_of  # noqa: E402
from node.training.replay import replay  # noqa: E402
from node.training.updates import state_of  # noqa: E402
from node.training.versions import Outer, advanced, digest_of  # noqa: E402
from node.wire import Sync  # noqa: E402
from node.worker.dialect import in_names_of, names_in  # noqa: E402

SYNC = Sync()


class Net(nn.Module):
    """Batch norm with its counter, and a tied weight: ours is `first.weight`, safetensors saves `also.weight`."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.also = nn.Linear(3, 3, bias=False)
        self.also.weight = self.first.weight
        self.norm = nn.BatchNorm1d(3)


def prepared(folder: Path) -> Net:
    """Version 0 of it, and what an executor has saved."""
    torch.manual_seed(0)
    model = Net()
    tensors, traits = state_of(model)
    write_tensors(path_of(folder, "weights", 0), tensors, traits.metadata)
    save_model(model, str(folder / "before.pt"))
    return model


def upstreams(folder: Path, name: str, batches: int, moved: float, **more: torch.Tensor) -> Path:
    """The change of everything that it saved, counters as they are."""
    change = {key: torch.full_like(value, moved) for key, value in load_file(folder / "before.pt").items()}
    change["norm.num_batches_tracked"] = torch.tensor(batches)
    save_file(change | more, folder / name)
    return folder / name


def test_counters_move_as_far_as_the_busiest_worker_s_and_tied_weights_by_any_of_their_names(tmp_path: Path) -> None:
    """U71: the version is the same for who holds deltas and who replays them; a contract's update has no counters."""
    prepared(tmp_path)
    before = load_file(tmp_path / "before.pt")
    assert "also.weight" in before and before["norm.num_batches_tracked"].dtype == torch.int64
    raw = torch.full((3, 3), 77.0)
    half = {key: torch.full((3, 3), 1.0, dtype=torch.bfloat16) for key in ("also.weight",)}
    paths = [
        upstreams(tmp_path, "a", 7, 1.0, **{"first.weight": raw}, **half),
        upstreams(tmp_path, "b", 4, 3.0),
    ]
    plain = {key: torch.full_like(value, 2.0) for key, value in before.items() if value.is_floating_point()}
    plain["first.weight"] = plain.pop("also.weight")
    save_file(plain, tmp_path / "c")
    paths.append(tmp_path / "c")
    updates = [Update(path, 10.0, path.name, check(tmp_path, path, 0, SYNC)) for path in paths]
    made = commit(tmp_path, 0, updates, outer=Outer(1.0, 0.0))
    assert made.left_out == {}
    step = load_file(path_of(tmp_path, "delta", 1))
    assert step["norm.num_batches_tracked"] == 7
    assert torch.allclose(step["first.weight"], torch.full((3, 3), 2.0)) and "also.weight" not in step

    traits = state_of(Net())[1]
    base = {name: value.float().clone() for name, value in load_file(path_of(tmp_path, "weights", 0)).items()}
    new, _ = advanced(path_of(tmp_path, "delta", 1), base, {}, names=sorted(base), traits=traits, outer=Outer(1.0, 0.0))
    assert digest_of(new, traits.metadata) == made.weights.sha256
    files = [("weights", 0, path_of(tmp_path, "weights", 0)), ("delta", 1, path_of(tmp_path, "delta", 1))]
    (tmp_path / "again").mkdir()
    assert replay(tmp_path / "again", files, Outer(1.0, 0.0))[1] == made.weights


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"norm.weight": torch.ones(3, dtype=torch.int64)}, r"norm.weight is I64 \[3\], expected F32"),
        ({"norm.num_batches_tracked": torch.zeros(2, dtype=torch.int64)}, "num_batches_tracked is I64"),
        ({"lm_head.weight": torch.ones(3)}, "lm_head.weight is not part of the model"),
        ({"also.weight": torch.full((3, 3), torch.nan)}, "also.weight|first.weight"),
    ],
)
def test_what_is_no_update_of_the_model_is_named(tmp_path: Path, more: dict[str, torch.Tensor], message: str) -> None:
    """H9, H10."""
    prepared(tmp_path)
    path = upstreams(tmp_path, "u", 1, 1.0, **more)
    with pytest.raises(TensorFileError, match=message):
        check(tmp_path, path, 0, SYNC)


def test_a_step_is_handed_over_in_the_names_of_the_executor_s_own_update(tmp_path: Path) -> None:
    """Upstream adds what it finds under the names that it saved; it fails where one is missing."""
    model = prepared(tmp_path)
    update = upstreams(tmp_path, "u", 5, 1.0)
    commit(tmp_path, 0, [Update(update, 1.0)], outer=Outer(1.0, 0.0))
    step, target = path_of(tmp_path, "delta", 1), tmp_path / "handed-over"
    assert in_names_of(names_in(update), step, target)
    before, found = load_file(tmp_path / "before.pt"), load_file(target)
    model.load_state_dict({name: before[name] + found[name] for name in before}, strict=False)
    assert model.norm.num_batches_tracked == 5
    assert torch.allclose(model.first.weight, before["also.weight"] + 1)

    assert not in_names_of(names_in(target), target, tmp_path / "same")
    assert not in_names_of(frozenset(), step, tmp_path / "same") and not (tmp_path / "same").exists()
    with pytest.raises(TensorFileError, match="has no tensor other"):
        in_names_of(frozenset({"other"}), step, tmp_path / "same")
    (tmp_path / "junk").write_bytes(b"junk")
    assert names_in(tmp_path / "junk") == frozenset()
