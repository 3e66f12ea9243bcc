"""Codecs, fragments, overlap and momentum in the executor, against replays written out with the same codec."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from accelerate import Accelerator  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

from node.executors.bridge_client import Arrival  # noqa: E402
from node.executors.job import Optimizer  # noqa: E402
from node.executors.models import LoadedModel  # noqa: E402
from node.executors.trainer import Trainer  # noqa: E402
from node.training.codec import codec_named  # noqa: E402
from node.training.files import flat_float32, write_tensors  # noqa: E402
from node.training.fragments import fragments_of  # noqa: E402
from node.training.updates import layout_of, write_update  # noqa: E402
from node.wire import OuterOptimizer, Sync  # noqa: E402
from tests.unit.oracle_diloco import Oracle  # noqa: E402
from tests.unit.scripted_bridge import Group  # noqa: E402
from tests.unit.test_diloco_rounds import (  # noqa: E402
    TORCH_INNER,
    MakeScene,
    Scene,
    batches_of,
    loss_of,
    make_scene,
    one_thread,
    prepared,
    rows_of,
)

__all__ = ["make_scene", "one_thread", "prepared"]

OUTER = {"learning_rate": 0.7, "momentum": 0.9}


def run(scene: Scene, sync: dict[str, Any], rounds: int) -> Group:
    (scene.folder / "server").mkdir()
    shutil.copy(scene.prepared / "weights-0.safetensors", scene.folder / "server")
    group = Group(scene.folder / "server", scene.workers, rounds, 0.7, 0.9, sync=sync)
    failures = scene.run(group, sync=sync, outer=OUTER, rounds=rounds)
    assert failures == [None] * len(scene.workers), failures
    return group


def coded(name: str, values: Any) -> Any:
    """What arrives of a tensor that is sent with a codec."""
    codec = codec_named(name)
    flat = flat_float32(values)
    out = flat.copy()
    codec.decode([part.copy() for part in codec.encode(flat)], out)
    return torch.from_numpy(out).reshape(values.shape)


@pytest.mark.parametrize("codec", ["int8", "int4"])
def test_rounds_with_a_codec_are_those_of_a_replay_with_error_feedback_on_both_ways(
    tmp_path: Path, make_scene: MakeScene, codec: str
) -> None:
    """Two workers; what the codec leaves out of a file is in the next one, the parameter server's as well."""
    scene = make_scene("causal-lm")
    for _ in range(2):
        scene.worker([8, 8, 8, 8], [2, 2, 2])
    run(scene, {"codec": codec}, 3)
    keeps = codec_named(codec).keeps_residual
    initial = scene.initial()
    names = [name for name, _ in initial.named_parameters()]
    streams = [batches_of(worker.slices) for worker in scene.workers]
    weights = {name: value.detach().clone() for name, value in initial.named_parameters()}
    speed = {name: torch.zeros_like(value) for name, value in weights.items()}
    left: list[dict[str, Any]] = [{}, {}, {}]
    oracle = Oracle(initial, loss_of, 2, inner=TORCH_INNER, outer_lr=0.0, outer_momentum=0.0)
    for _ in range(3):
        oracle.weights = [weights[name].clone() for name in names]
        oracle.outer = torch.optim.SGD(oracle.weights, lr=0.0)
        mine = [[next(stream) for _ in range(2)] for stream in streams]
        oracle.round(mine, rows_of)
        samples = [sum(rows_of(batch) for batch in batches) for batches in mine]
        for name in names:
            sent = []
            for number, replica in enumerate(oracle.replicas):
                change = dict(replica.named_parameters())[name].detach() - weights[name] + left[number].get(name, 0)
                sent.append(coded(codec, change))
                left[number][name] = (change - sent[-1]) * keeps
            mean = sum(n / sum(samples) * value for n, value in zip(samples, sent, strict=True))
            mean = mean + left[2].get(name, 0)
            gradient = coded(codec, mean)
            left[2][name] = (mean - gradient) * keeps
            speed[name] = 0.9 * speed[name] + gradient
            weights[name] = weights[name] + 0.7 * (gradient + 0.9 * speed[name])
    made = load_file(tmp_path / "server" / "weights-3.safetensors")
    apart = torch.cat([(made[name] - weights[name]).abs().reshape(-1) for name in names])
    # A value between two codes falls to the one or the other by rounding noise.
    assert (apart > 1e-5).float().mean().item() < 0.01
    assert scene.workers[0].log.count("fetch weights") == 1, "the workers' own weights have the committed digest"


@pytest.mark.parametrize("codec", ["none", "int4"])
def test_fragments_and_overlap_leave_everybody_with_the_bytes_of_the_committed_version(
    tmp_path: Path, make_scene: MakeScene, codec: str
) -> None:
    """Each version's digest is compared by the workers themselves; they would fetch the weights if it were another."""
    scene = make_scene("causal-lm")
    for _ in range(2):
        scene.worker([8, 8, 8, 8, 8, 8], [3] * 6)
    sync = {"codec": codec, "fragments": 3, "overlap": True, "delay_batches": 2, "mixing": 0.5}
    group = run(scene, sync, 6)
    layout = layout_of(dict(scene.initial().named_parameters()))
    before = load_file(tmp_path / "server" / "weights-1.safetensors")
    after = load_file(tmp_path / "server" / "weights-4.safetensors")
    assert set(before) == set(after) == set(fragments_of(layout, 3)[0])
    assert any(not torch.equal(before[name], value) for name, value in after.items())
    for worker in group.workers:
        assert worker.log.count("fetch weights") == 1
        merges = [entry for entry in worker.log if entry.startswith("update-received")]
        assert len(merges) == 6 and merges[-1] == "update-received after 0"
        # Merged after two batches; the second one's report may still be on its way.
        assert all(int(entry.split()[-1]) >= 1 for entry in merges[:-1]), merges


def test_a_base_that_is_not_the_committed_one_is_fetched_once_and_training_goes_on(
    make_scene: MakeScene, caplog: pytest.LogCaptureFixture
) -> None:
    scene = make_scene("torch")
    worker = scene.worker([6, 6, 6], [2, 2, 2], wrong_digests={1})
    run(scene, {"codec": "int8"}, 3)
    assert worker.log.count("fetch weights") == 2
    assert sum("base.differs" in record.getMessage() for record in caplog.records) == 1


class Alone:
    """A trainer of two small tensors, and files for it."""

    def __init__(self, folder: Path, **sync: Any) -> None:
        self.folder = folder
        self.module = torch.nn.Linear(64, 64)
        loss = lambda model, batch: model(batch["x"]).square().mean()  # noqa: E731
        loaded = LoadedModel(self.module, loss, folder, "torch")
        self.trainer = Trainer(
            Accelerator(cpu=True), loaded, Optimizer(learning_rate=0.1), None,
            sync=Sync(**sync), outer=OuterOptimizer(0.7, 0.9),
        )  # fmt: skip

    def train(self) -> None:
        self.trainer.train({"x": torch.randn(4, 64)})

    def update(self, round_: int, codec: str) -> dict[str, Any]:
        path = self.folder / f"u{round_}.safetensors"
        self.trainer.update_writer(round_, codec, is_later=False)(path)
        return load_file(path)

    def delta(self, version: int, *, counted: bool, mixing: float = 0.0) -> None:
        """An empty one."""
        base = {name: value.detach() for name, value in self.module.state_dict().items()}
        path = self.folder / f"d{version}.safetensors"
        write_update(path, base, base)
        self.trainer.apply(Arrival(path, version, counted=counted), version, mixing=mixing)


@pytest.mark.parametrize("counted", [True, False])
def test_what_a_codec_left_out_counts_only_once_the_update_has_counted(tmp_path: Path, counted: bool) -> None:
    """D7: otherwise it would be sent twice, or be lost."""
    alone = Alone(tmp_path, codec="int4")
    alone.train()
    first = alone.update(0, "int4")
    alone.delta(1, counted=counted)
    # Nothing was learned since: all that is sent is what was left out.
    second = alone.update(1, "int4")
    assert any(value.any() for value in second.values()) == counted
    assert any(value.any() for value in first.values())


def test_own_weights_are_mixed_with_the_new_ones_and_the_base_is_theirs(tmp_path: Path) -> None:
    alone = Alone(tmp_path, overlap=True, mixing=0.25)
    base = {name: value.detach().clone() for name, value in alone.module.state_dict().items()}
    alone.train()
    mine = {name: value.detach().clone() for name, value in alone.module.state_dict().items()}
    alone.delta(1, counted=True, mixing=0.25)
    for name, value in alone.module.state_dict().items():
        assert torch.allclose(value, 0.25 * mine[name] + 0.75 * base[name], atol=1e-6)
    update = alone.update(1, "none")
    for name, value in alone.module.state_dict().items():
        assert torch.allclose(update[name], value - base[name], atol=1e-6)


def test_whole_weights_come_with_their_momentum(tmp_path: Path) -> None:
    """U37: a joiner has the outer momentum too, so its next version is that of the others."""
    alone = Alone(tmp_path, codec="bf16")
    ones = {name: torch.ones_like(value) for name, value in alone.module.state_dict().items()}
    write_tensors(tmp_path / "w", ones)
    write_tensors(tmp_path / "m", {name: 2 * value for name, value in ones.items()})
    alone.trainer.apply_weights(tmp_path / "w", tmp_path / "m")
    layout = layout_of(ones)
    zeros = {name: torch.zeros_like(value) for name, value in ones.items()}
    path = tmp_path / "d"
    write_update(path, zeros, zeros, codec="bf16")
    text = path.read_bytes()
    at = 8 + int.from_bytes(text[:8], "little")
    header = json.loads(text[8:at])
    header["__metadata__"]["hypha.content"] = "gradient"
    made = json.dumps(header).encode()
    path.write_bytes(len(made).to_bytes(8, "little") + made + text[at:])
    alone.trainer.apply(Arrival(path, 5, "gradient"), 5)
    assert set(layout) == {"weight", "bias"}
    for value in alone.module.state_dict().values():
        assert torch.allclose(value, 1 + 0.7 * 0.9 * (0.9 * torch.full_like(value, 2.0)), atol=1e-5)


def test_a_batch_that_does_not_fit_in_memory_is_halved_and_nothing_else_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H24: by what a small batch and a doubled one need; weights, counters and random state are as before."""
    from node.executors import memory

    module = torch.nn.Sequential(torch.nn.Linear(8, 4096), torch.nn.BatchNorm1d(4096), torch.nn.Dropout(0.5))
    loss = lambda model, batch: model(batch["x"]).square().mean()  # noqa: E731
    trainer = Trainer(
        Accelerator(cpu=True), LoadedModel(module, loss, tmp_path, "torch"), Optimizer(learning_rate=0.1), None
    )
    before = {name: value.clone() for name, value in module.state_dict().items()}
    drawn = torch.random.get_rng_state()
    read = lambda rows: {"x": torch.randn(rows, 8)}  # noqa: E731
    assert trainer.probe(1000, read) == 1000
    row_bytes = 4096 * 4 * 4
    own = 5 * sum(value.numel() * 4 for value in module.parameters())
    monkeypatch.setattr(memory, "resident_bytes", lambda: 0)
    for room, rows in ((100, 62), (10**6, 1000), (0, 1)):
        monkeypatch.setenv(memory.LIMIT, str(int((own + room * row_bytes) / memory.USABLE)))
        assert trainer.probe(1000, read) in (rows, 2 * rows, rows // 2 or 1), room
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert torch.equal(torch.random.get_rng_state(), drawn)
    assert all(parameter.grad is None for parameter in module.parameters())


def test_bf16_computes_in_bf16_and_keeps_float32_weights(tmp_path: Path) -> None:
    seen = []

    def loss(model: Any, batch: Any) -> Any:
        out = model(batch["x"])
        seen.append(out.dtype)
        return out.float().square().mean()

    module = torch.nn.Linear(8, 8)
    trainer = Trainer(
        Accelerator(cpu=True), LoadedModel(module, loss, tmp_path, "torch"), Optimizer(learning_rate=0.1), None,
        precision="bf16",
    )  # fmt: skip
    trainer.train({"x": torch.randn(4, 8)})
    assert seen == [torch.bfloat16] and module.weight.dtype == torch.float32
