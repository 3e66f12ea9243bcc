"""The executor's loop over many rounds, and in several processes, with a bridge that answers in this process."""

from __future__ import annotations

import gc
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("accelerate")

from accelerate import Accelerator  # noqa: E402

from node.executors.bridge_client import Arrival, BridgeError, Fetched  # noqa: E402
from node.executors.job import Model, Optimizer, TrainConfig  # noqa: E402
from node.executors.models import LoadedModel  # noqa: E402
from node.executors.rounds import RoundLoop  # noqa: E402
from node.executors.train import LocalRanks  # noqa: E402
from node.executors.trainer import Trainer  # noqa: E402

BATCHES = 2
CONFIG = TrainConfig(
    model=Model(task="torch", artifact={}),
    data={},
    updates={},
    results={},
    optimizer=Optimizer(learning_rate=1e-3),
    batch_size=4,
)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Rows:
    """A slice of eight rows."""

    rows = 8

    def batches(self, size: int) -> Iterator[tuple[int, int]]:
        for start in range(0, self.rows, size):
            yield start, start + size

    def read_all(self, size: int) -> Iterator[tuple[dict[str, Any], int]]:
        for start, end in self.batches(size):
            yield self.read(start, end), end - start

    def head(self, rows: int) -> dict[str, Any]:
        return self.read(0, rows)

    def read(self, start: int, end: int) -> dict[str, Any]:
        return {"x": torch.ones(end - start, 256)}


class Bridge:
    """Tells after each batch how many are left, and hands every update back as the next step."""

    def __init__(self, folder: Path, rounds: int) -> None:
        self.folder = folder
        self.rounds = rounds
        self.round = 0
        self.batches = 0
        self.fails_in: int | None = None
        self.after_round: Callable[[int], None] = lambda round_: None

    def status(self, body: Any) -> dict[str, Any]:
        if body == "update-received":
            self.round, self.batches = self.round + 1, 0
            self.after_round(self.round)
            return {"type": "Done" if self.round == self.rounds else "Continue"}
        if "status" in body:
            if self.round == self.fails_in:
                raise BridgeError("the bridge refused a batch")
            self.batches += body["status"].get("batches", 1)
            return {"type": "ScheduleUpdate", "counter": BATCHES - self.batches}
        return {"type": "Ok"}

    def fetch(self, reference: object) -> list[Fetched]:
        return [Fetched(self.folder / "slice", None)]

    def send(self, reference: object, path: Path) -> None:
        shutil.copyfile(path, self.folder / "step")

    def take(self) -> Arrival:
        return Arrival(self.folder / "step", self.round + 1)


def resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_memory_is_flat_over_two_hundred_rounds_and_the_model_is_never_wrapped_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H53: no round wraps or registers the model again, or keeps a copy of it."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    prepared: list[int] = []
    prepare = Accelerator.prepare

    def counted(self: Any, *things: Any, **more: Any) -> Any:
        prepared.append(len(things))
        return prepare(self, *things, **more)

    monkeypatch.setattr(Accelerator, "prepare", counted)
    module = torch.nn.Linear(256, 256)
    accelerator = Accelerator(cpu=True)
    loss = lambda model, batch: model(batch["x"]).square().mean()  # noqa: E731
    trainer = Trainer(accelerator, LoadedModel(module, loss, tmp_path, "torch"), CONFIG.optimizer, None)
    bridge = Bridge(tmp_path, rounds=200)
    seen: dict[int, int] = {}

    def look(round_: int) -> None:
        if round_ in (60, 200):
            seen[round_] = resident_bytes()

    bridge.after_round = look
    before = module.weight.detach().clone()
    loop_of(tmp_path, trainer, bridge, LocalRanks(), is_main=True).run()

    assert bridge.round == 200 and not torch.equal(module.weight, before)
    assert prepared == []
    assert (len(accelerator._models), len(accelerator._optimizers)) == (0, 0)
    model_bytes = 256 * 257 * 4
    assert seen[200] - seen[60] < 30 * model_bytes, "140 rounds, less than a quarter of a copy in each"


class TwoRanks:
    """Two processes, here threads: who calls out of step finds the other one missing."""

    def __init__(self) -> None:
        self._barrier = threading.Barrier(2, timeout=5)
        self._box: tuple[Any, BaseException | None] = (None, None)

    def of(self, is_main: bool) -> Any:
        outer = self

        class Ranks:
            def share(self, call: Callable[[], Any]) -> Any:
                if is_main:
                    try:
                        outer._box = (call(), None)
                    except BridgeError as error:
                        outer._box = (None, error)
                outer._barrier.wait()
                value, error = outer._box
                outer._barrier.wait()
                if error is not None:
                    raise error
                return value

            def wait(self) -> None:
                outer._barrier.wait()

        return Ranks()

    @property
    def is_one_waiting(self) -> bool:
        return self._barrier.n_waiting == 1


class CountingTrainer:
    """Trains nothing."""

    learning_rate = 1.0
    is_asynchronous = False

    def __init__(self) -> None:
        self.batches = 0
        self.steps = 0
        self.written = 0
        self.before_step: Callable[[Path], None] = lambda path: None

    def probe(self, size: int, read: object) -> int:
        return size

    def train(self, batch: object) -> float:
        self.batches += 1
        return 1.0

    def update_writer(self, round_: int, codec: str, *, is_later: bool) -> Callable[[Path], float]:
        def write(path: Path) -> float:
            self.written += 1
            path.touch()
            return 1.0

        return write

    def base_is_sound(self) -> bool:
        return True

    def apply(self, arrival: Arrival, version: int, *, mixing: float) -> None:
        self.before_step(arrival.path)
        self.steps += 1


@pytest.mark.parametrize("fails_in", [None, 1])
def test_every_process_of_an_executor_ends_with_the_one_that_talks_to_the_bridge(
    tmp_path: Path, fails_in: int | None
) -> None:
    """H50: all are told of each answer, the last one and an error included; nobody counts for himself."""
    both = TwoRanks()
    bridge = Bridge(tmp_path, rounds=3)
    bridge.fails_in = fails_in
    trainers = [CountingTrainer(), CountingTrainer()]
    ends: list[BaseException | None] = [None, None]

    def be_late(path: Path) -> None:
        deadline = time.monotonic() + 5
        while not both.is_one_waiting and time.monotonic() < deadline:
            time.sleep(0.001)
        assert path.exists(), "the step is kept until every process has read it"

    trainers[1].before_step = be_late

    def work(rank: int) -> None:
        silent: Any = object()  # has no bridge to talk to
        try:
            loop_of(
                tmp_path, trainers[rank], bridge if rank == 0 else silent, both.of(rank == 0), is_main=rank == 0
            ).run()
        except BaseException as error:
            ends[rank] = error

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert not any(thread.is_alive() for thread in threads)
    counts = [(trainer.batches, trainer.steps) for trainer in trainers]
    if fails_in is None:
        assert ends == [None, None]
        assert counts == [(3 * BATCHES, 3)] * 2
        assert [trainer.written for trainer in trainers] == [3, 0], "one update, whatever the number of processes"
    else:
        assert [type(end) for end in ends] == [BridgeError] * 2
        assert counts == [(BATCHES + 1, 1)] * 2


def loop_of(folder: Path, trainer: Any, bridge: Any, ranks: Any, *, is_main: bool) -> RoundLoop:
    return RoundLoop(
        CONFIG,
        trainer,
        bridge,
        bridge if is_main else None,
        ranks,
        work_dir=folder,
        version=0,
        validation=[],
        open_slice=lambda path: Rows(),  # type: ignore[arg-type, return-value]
    )
