"""The real train program and the real aggregate program against an oracle of DiLoCo."""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from accelerate import Accelerator  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

from node.errors import HyphaError  # noqa: E402
from node.executors import train  # noqa: E402
from node.executors.bridge_client import Arrival, Bridge  # noqa: E402
from node.executors.job import parse  # noqa: E402
from node.executors.models import load_model, load_state  # noqa: E402
from node.training.schedules import factor_of  # noqa: E402
from tests.unit.oracle_diloco import Oracle  # noqa: E402
from tests.unit.scripted_bridge import ROOT, AggregateProgram, Group, Worker, environment, job  # noqa: E402

ROUNDS = 3
BATCH = 3
GPT2 = {
    "model_type": "gpt2", "vocab_size": 32, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2,
    "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip
BATCH_NORM = """
import torch
from torch import nn

def build():
    return nn.Sequential(nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))

def loss(model, batch):
    return nn.functional.mse_loss(model(batch["x"]).squeeze(-1), batch["y"])
"""
# The bias of attention keys has no gradient but rounding noise, which AdamW would blow up to full steps: hence epsilon.
INNER = {"learning-rate": 1e-2, "betas": [0.9, 0.99], "epsilon": 1e-4}
TORCH_INNER = {"lr": 1e-2, "betas": (0.9, 0.99), "eps": 1e-4, "weight_decay": 0.01}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def write_slices(folder: Path, task: str, seed: int, rows: list[int]) -> list[Path]:
    generator = torch.Generator().manual_seed(seed)
    paths = []
    for index, count in enumerate(rows):
        path = folder / f"{task}-{seed}-{index}.safetensors"
        if task == "torch":
            tensors = {"x": torch.randn(count, 4, generator=generator), "y": torch.randn(count, generator=generator)}
        else:
            tensors = {"input_ids": torch.randint(0, 32, (count, 12), generator=generator).to(torch.uint8)}
        save_file(tensors, path)
        paths.append(path)
    return paths


def batches_of(paths: list[Path]) -> Iterator[dict[str, Any]]:
    """Rows in order, never across slices; independent of the product's reader."""
    for path in paths:
        tensors = load_file(path)
        rows = len(next(iter(tensors.values())))
        for start in range(0, rows, BATCH):
            part = {name: value[start : start + BATCH] for name, value in tensors.items()}
            yield {name: value if value.is_floating_point() else value.long() for name, value in part.items()}


def loss_of(model: Any, batch: dict[str, Any]) -> Any:
    if "x" in batch:
        return torch.nn.functional.mse_loss(model(batch["x"]).squeeze(-1), batch["y"])
    logits = model(batch["input_ids"]).logits[:, :-1].flatten(0, 1)
    return torch.nn.functional.cross_entropy(logits, batch["input_ids"][:, 1:].flatten())


def rows_of(batch: dict[str, Any]) -> int:
    return len(next(iter(batch.values())))


def check_reports(worker: Worker, round_number: int, sizes: list[int]) -> None:
    """Each report, of one batch or of several, ends where a batch ends; the last one with the round."""
    told = [(batches, samples) for round_, batches, samples in worker.reported if round_ == round_number]
    assert all(samples == sum(sizes[:batches]) for batches, samples in told)
    assert told[-1] == (len(sizes), sum(sizes))


MakeScene = Callable[[str], "Scene"]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """Model folders with the version 0 that the aggregate program made of them."""
    folders: dict[str, Path] = {}
    program = AggregateProgram(tmp_path_factory.mktemp("aggregate"))
    for task, name, text in (("torch", "model.py", BATCH_NORM), ("causal-lm", "config.json", json.dumps(GPT2))):
        folders[task] = tmp_path_factory.mktemp(task)
        (folders[task] / "model").mkdir()
        (folders[task] / "model" / name).write_text(text)
        answer = program.ask(
            "prepare",
            artifacts=str(folders[task] / "model"),
            model={"task": task, "seed": 1},
            out=str(folders[task]),
        )
        assert answer["ok"], answer
    yield folders
    assert program.close() == 0


@pytest.fixture
def make_scene(tmp_path: Path, prepared: dict[str, Path]) -> MakeScene:
    return lambda task: Scene(tmp_path, task, prepared[task])


class Scene:
    """A folder with a model, and workers with slices."""

    def __init__(self, folder: Path, task: str, prepared: Path) -> None:
        self.folder, self.task, self.prepared = folder, task, prepared
        self.model_dir = folder / "model"
        shutil.copytree(prepared / "model", self.model_dir, ignore=shutil.ignore_patterns("__pycache__"))
        self.workers: list[Worker] = []

    def worker(self, rows: list[int], targets: list[int], **more: Any) -> Worker:
        number = len(self.workers)
        worker = Worker(
            self.folder / f"w{number}",
            write_slices(self.folder, self.task, number, rows),
            targets,
            model_files=list(self.model_dir.iterdir()),
            says_once=number % 2 == 1,
            **more,
        )
        self.workers.append(worker)
        return worker

    def group(self, *, lr: float, momentum: float, rounds: int = ROUNDS) -> Group:
        (self.folder / "server").mkdir()
        shutil.copy(self.prepared / "weights-0.safetensors", self.folder / "server")
        return Group(self.folder / "server", self.workers, rounds, lr, momentum)

    def initial(self) -> Any:
        return load_model(self.model_dir, self.task, 1).module

    def run(self, group: Group, **more: Any) -> list[BaseException | None]:
        failures: list[BaseException | None] = [None] * len(self.workers)

        def work(index: int, worker: Worker) -> None:
            text = json.dumps(job(worker, self.task, batch_size=BATCH, inner=INNER, **more))
            try:
                train.run(parse(text), Bridge(worker.socket, worker.folder), worker.folder)
            except BaseException as error:
                failures[index] = error
                group.failure = str(error)

        Accelerator()  # what it shares in a process is not made for several threads that are the first
        with group.serving():
            threads = [threading.Thread(target=work, args=item, daemon=True) for item in enumerate(self.workers)]
            for thread in threads:
                thread.start()
            for index, thread in enumerate(threads):
                thread.join(50)
                if thread.is_alive():
                    failures[index] = failures[index] or TimeoutError("it still runs")
        return failures


def compare(made: dict[str, Any], expected: dict[str, Any], tolerance: float) -> None:
    assert set(made) == set(expected)
    for name, value in expected.items():
        assert (made[name] - value).abs().max().item() <= tolerance, name


@pytest.mark.parametrize("task", ["causal-lm", "torch"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_three_rounds_give_the_weights_of_the_oracle(
    tmp_path: Path, make_scene: MakeScene, task: str, count: int
) -> None:
    """H1, H49, U39, U71: a tied GPT-2 and a batch-norm model; unequal counts; partial batches; any order."""
    scene = make_scene(task)
    targets = [[2, 3, 1], [4, 1, 2], [1, 2, 5]]
    for number in range(count):
        scene.worker([8, 5, 8, 11, 5], targets[number])
    schedule = {"type": "cosine-with-warmup", "warmup-steps": 2, "training-steps": 12}
    group = scene.group(lr=0.7, momentum=0.9)
    initial = scene.initial()
    assert scene.run(group, scheduler=schedule) == [None] * count

    factor = factor_of("cosine-with-warmup", warmup_steps=2, total_steps=12, decay_steps=0)
    oracle = Oracle(initial, loss_of, count, inner=TORCH_INNER, outer_lr=0.7, outer_momentum=0.9, factor=factor)
    streams = [batches_of(worker.slices) for worker in scene.workers]
    for round_number in range(ROUNDS):
        batches = [[next(streams[k]) for _ in range(targets[k][round_number])] for k in range(count)]
        oracle.round(batches, rows_of)
        for worker, mine in zip(scene.workers, batches, strict=True):
            check_reports(worker, round_number, [rows_of(batch) for batch in mine])
    compare(load_file(tmp_path / "server" / "weights-3.safetensors"), oracle.named(initial), 1e-5)
    moved = oracle.named(initial)
    assert any((moved[name] - value).abs().max() > 1e-3 for name, value in initial.named_parameters())


@pytest.mark.parametrize("task", ["causal-lm", "torch"])
def test_one_worker_with_an_outer_step_of_one_is_plain_local_training(
    tmp_path: Path, make_scene: MakeScene, task: str
) -> None:
    """U36."""
    scene = make_scene(task)
    worker = scene.worker([8, 5, 8], [2, 2, 3])
    group = scene.group(lr=1.0, momentum=0.0)
    model = scene.initial()
    assert scene.run(group) == [None]
    optimizer = torch.optim.AdamW(model.parameters(), **TORCH_INNER)
    model.train()
    stream = batches_of(worker.slices)
    for _ in range(7):
        optimizer.zero_grad()
        loss_of(model, next(stream)).backward()
        optimizer.step()
    made = load_file(tmp_path / "server" / "weights-3.safetensors")
    expected = {name: value for name, value in model.state_dict().items() if name in made}
    compare(made, expected, 1e-6)


def test_the_validation_loss_is_that_of_the_exported_model(tmp_path: Path, make_scene: MakeScene) -> None:
    """The number that is reported is the plain mean that anybody gets who loads the model."""
    scene = make_scene("causal-lm")
    validation = write_slices(tmp_path, "causal-lm", 99, [5, 4])
    worker = scene.worker([9, 9, 9], [2, 2, 2], evaluate=True, validation=validation)
    group = scene.group(lr=0.7, momentum=0.9)
    assert scene.run(group) == [None]
    losses = {m["round"]: m["metrics"]["eval_loss"] for m in worker.metrics if "eval_loss" in m["metrics"]}
    assert sorted(losses) == [0, 1, 2, 3]
    model = scene.initial()
    load_state(model, tmp_path / "server" / "weights-3.safetensors")
    model.eval()
    rows = torch.cat([load_file(path)["input_ids"].long() for path in validation])
    with torch.no_grad():
        plain = sum(loss_of(model, {"input_ids": row[None]}).item() for row in rows) / len(rows)
    assert losses[3] == pytest.approx(plain, abs=1e-5)
    metrics = [m["metrics"] for m in worker.metrics if "loss" in m["metrics"]]
    assert [m["samples"] for m in metrics] == [6.0, 6.0, 6.0]
    assert all(m["update_norm"] > 0 and m["seconds"] > 0 for m in metrics)


def test_an_executor_speaks_with_the_bridge_in_the_order_of_the_contract(tmp_path: Path, make_scene: MakeScene) -> None:
    scene = make_scene("torch")
    worker = scene.worker([6, 6], [2, 2])
    assert scene.run(scene.group(lr=0.7, momentum=0.9, rounds=2)) == [None]
    told = [entry for entry in worker.log if not entry.startswith("fetch ")]
    assert told == ["update", "send", "metrics", "update-received after 0"] * 2
    assert sorted(entry for entry in worker.log if entry.startswith("fetch "))[0] == "fetch job"
    left = sorted(path.name for path in (worker.folder / "out").iterdir())
    assert left == ["update-1.safetensors"], "updates that are out of use do not pile up"
    assert not list((worker.folder / "incoming").iterdir())


@pytest.mark.parametrize("damage", ["cut", "nan"])
def test_a_step_that_cannot_be_applied_ends_the_executor_and_leaves_the_base(
    make_scene: MakeScene, damage: str
) -> None:
    """H47, H48."""
    scene = make_scene("torch")

    def spoil(step: Path) -> None:
        if damage == "cut":
            step.write_bytes(step.read_bytes()[:-4])
        else:
            tensors = load_file(step)
            save_file({name: torch.full_like(value, float("nan")) for name, value in tensors.items()}, step)

    worker = scene.worker([6, 6], [2, 2], spoil=spoil)
    (failure,) = scene.run(scene.group(lr=0.7, momentum=0.9))
    assert isinstance(failure, HyphaError)
    assert "delta-1.safetensors" in str(failure)
    assert worker.round == 0


def test_the_model_is_the_base_again_when_a_step_fails_in_the_middle(
    tmp_path: Path, make_scene: MakeScene, monkeypatch: Any
) -> None:
    """H48."""
    from accelerate import Accelerator

    from node.executors.job import Optimizer
    from node.executors.trainer import Trainer
    from node.training.files import TensorReader

    scene = make_scene("torch")
    loaded = load_model(scene.model_dir, "torch", 1)
    trainer = Trainer(Accelerator(cpu=True), loaded, Optimizer(learning_rate=0.1), None)
    base = copy.deepcopy(loaded.module.state_dict())
    trainer.train({"x": torch.randn(3, 4), "y": torch.randn(3)})
    trainer.update_writer(0, "none", is_later=False)(tmp_path / "u.safetensors")
    read, calls = TensorReader.read_into, []

    def failing(self: Any, name: str, start: int, out: Any) -> None:
        calls.append(name)
        if len(calls) == len(base):
            raise OSError("disk gone")
        read(self, name, start, out)

    monkeypatch.setattr(TensorReader, "read_into", failing)
    with pytest.raises(OSError, match="disk gone"):
        trainer.apply(Arrival(tmp_path / "u.safetensors", 1), 1)
    state = loaded.module.state_dict()
    assert all(torch.equal(state[name], value) for name, value in base.items() if value.is_floating_point())


def test_the_program_exits_with_zero_when_done_and_says_why_when_not(tmp_path: Path, make_scene: MakeScene) -> None:
    """The real process, started as the worker does; the secret-free job comes by file as well."""
    scene = make_scene("torch")
    worker = scene.worker([6, 6], [2, 2])
    group = scene.group(lr=0.7, momentum=0.9, rounds=1)
    job_file = tmp_path / "job.json"
    job_file.write_text(json.dumps(job(worker, "torch", batch_size=BATCH, inner=INNER)))
    command = [
        sys.executable,
        "-m",
        "node.executors.train",
        "--socket",
        worker.socket,
        "--work-dir",
        str(worker.folder),
    ]
    with group.serving():
        done = subprocess.run(
            [*command, "--job", f"@{job_file}"], env=environment(), cwd=ROOT, capture_output=True, timeout=50
        )
        assert done.returncode == 0, done.stderr.decode()
        (scene.model_dir / "model.py").write_text("def build():\n    raise ValueError('no such layer')\n")
        failed = subprocess.run(
            [*command, "--job", f"@{job_file}"], env=environment(), cwd=ROOT, capture_output=True, timeout=50
        )
    assert failed.returncode == 1
    assert "no such layer" in failed.stderr.decode().splitlines()[-1]
