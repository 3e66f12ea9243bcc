"""The streaming loader: every row once, in an order of its own, from wherever it was stopped."""

from __future__ import annotations

import json
import random
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from node.errors import ConfigError, DatasetError, TensorFileError
from node.streaming import (
    Adaptive,
    Contiguous,
    FolderSource,
    HashBased,
    RangeBased,
    RoundRobin,
    Strategy,
    Stratified,
    StreamingConfig,
    StreamingLoader,
    StreamState,
    merge,
)
from node.streaming.config import Unit
from node.streaming.state import from_dict, from_json, to_dict
from node.tensorfile import write_tensors
from tests.unit.streaming_data import dataset, epoch_of, ids, in_turns

KINDS = ("round-robin", "contiguous", "hash", "range", "stratified", "adaptive")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("dataset")
    dataset(made)
    return made


def strategy_of(kind: str, units: int, world: int) -> tuple[Strategy, np.ndarray | None]:
    cuts = [units * rank // world for rank in range(world + 1)]
    match kind:
        case "round-robin":
            return RoundRobin(), None
        case "contiguous":
            return Contiguous(), None
        case "hash":
            return HashBased(num_partitions=16, hash_seed=3), None
        case "range":
            return RangeBased(ranges=tuple(pairwise(cuts))), None
        case "stratified":
            return Stratified(num_classes=3), np.arange(units) % 3
    return Adaptive(), None


def loaders(folder: Path, world: int, kind: str, unit: Unit, **more: object) -> list[StreamingLoader]:
    source = FolderSource(folder)
    strategy, labels = strategy_of(kind, len(source.rows) if unit == "slices" else sum(source.rows), world)
    return [
        StreamingLoader(
            FolderSource(folder),
            StreamingConfig(world_size=world, rank=rank, strategy=strategy, unit=unit, **more),  # type: ignore[arg-type]
            labels=labels,
        )
        for rank in range(world)
    ]


@pytest.mark.parametrize("unit", ["slices", "rows"])
@pytest.mark.parametrize("kind", KINDS)
def test_whatever_stops_and_however_many_go_on_every_row_is_read_once_in_each_epoch(
    folder: Path, kind: str, unit: Unit
) -> None:
    """Workers are stopped at random rows eight times; each time another number of them goes on."""
    rows = sum(FolderSource(folder).rows)
    for seed in range(3):
        chance = random.Random(f"{kind} {unit} {seed}")
        state: StreamState | None = None
        seen: list[tuple[int, int]] = []
        for stop in range(8):
            world = 3 if kind == "range" else chance.choice([1, 2, 3, 5])
            crew = loaders(folder, world, kind, unit, shuffle_seed=seed or None, batch_size=chance.choice([0, 0, 7]))
            if state is not None:
                speeds = tuple(chance.uniform(0.1, 1) for _ in range(world)) if kind == "adaptive" else None
                for loader in crew:
                    loader.restore(from_json(replace(state, speeds=speeds).to_json()))
            most = chance.randrange(40)
            for loader in crew:
                for _ in range(chance.randint(0, most)):
                    epoch, row = loader.epoch, loader.next()
                    if row is None:
                        break
                    seen += [(epoch, one) for one in ids(row)]
            state = merge([loader.state() for loader in crew])
            if stop == 7:
                for loader in crew:
                    while (epoch := loader.epoch) <= state.passes[-1].epoch:
                        seen += [(epoch, one) for one in epoch_of(loader)]
            for loader in crew:
                loader.close()
        assert max(Counter(seen).values()) == 1
        for epoch in range(max(epoch for epoch, _ in seen) + 1):
            assert {one for its, one in seen if its == epoch} == set(range(rows))


@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_that_goes_on_reads_what_it_would_have_read(folder: Path, kind: str) -> None:
    def run(stops: list[int]) -> list[int]:
        log: list[int] = []
        state: str | None = None
        for stop in [*stops, 10_000]:
            loader = loaders(folder, 2, kind, "rows", shuffle_seed=5)[1]
            if state is not None:
                loader.restore(from_dict(json.loads(state)))
            for _ in range(stop):
                row = loader.next()
                if row is None and loader.epoch == 3:
                    break
                log += ids(row) if row is not None else []
            state = json.dumps(to_dict(loader.state()))
            assert len(state) < 500
            loader.close()
        return log

    chance = random.Random(kind)
    assert run([chance.randrange(1, 120) for _ in range(4)]) == run([])


def test_the_order_is_one_for_any_number_of_workers_and_another_in_each_epoch(folder: Path) -> None:
    orders = []
    for world in (1, 2, 3, 5):
        crew = loaders(folder, world, "round-robin", "rows", shuffle_seed=11)
        orders.append([in_turns([epoch_of(loader) for loader in crew]) for _ in range(2)])
    assert orders[0] == orders[1] == orders[2] == orders[3]
    assert orders[0][0] != orders[0][1]
    assert sorted(orders[0][0]) == sorted(orders[0][1])
    (plain,) = loaders(folder, 1, "round-robin", "slices")
    assert epoch_of(plain) == epoch_of(plain) == sorted(orders[0][0])


def test_a_state_at_the_very_end_of_an_epoch_loses_no_epoch(folder: Path) -> None:
    (loader,) = loaders(folder, 1, "round-robin", "slices", shuffle_seed=1)
    rows = len(loader)
    for _ in range(rows):
        assert loader.next() is not None
    before_the_end = loader.state()
    assert loader.is_empty and loader.next() is None
    after_the_end = loader.state()
    second = epoch_of(loader)
    for state, left in ((before_the_end, 0), (after_the_end, rows)):
        (other,) = loaders(folder, 1, "round-robin", "slices", shuffle_seed=1)
        other.restore(state)
        first = epoch_of(other)
        assert len(first) == left
        assert (first or epoch_of(other)) == second
        assert len(epoch_of(other)) == rows, "the epochs after are whole"


def test_batches_are_of_one_size_across_slices(folder: Path) -> None:
    (single,) = loaders(folder, 1, "round-robin", "slices", shuffle_seed=2)
    (batched,) = loaders(folder, 1, "round-robin", "slices", shuffle_seed=2, batch_size=16, columns=("x", "id"))
    batches = list(batched)
    sizes = [len(batch["id"]) for batch in batches]
    assert set(sizes[:-1]) == {16} and sum(sizes) == len(single)
    assert [one for batch in batches for one in ids(batch)] == epoch_of(single)
    assert all((batch["x"][:, 0] == batch["id"]).all() and list(batch) == ["x", "id"] for batch in batches)


def test_prefetch_checkpoints_statistics_reset_and_length(folder: Path) -> None:
    taken: list[StreamState] = []
    loader = StreamingLoader(
        FolderSource(folder), StreamingConfig(checkpoint_every=50, prefetch_slices=0), on_checkpoint=taken.append
    )
    assert loader.prefetch(40) >= 40
    with loader:
        first = loader.next()
        assert first is not None and ids(first) == [0]
        rows = 1 + len(epoch_of(loader))
        assert rows == len(loader) and loader.epoch == 1
        stats = loader.stats()
        assert stats.samples_loaded == stats.local_samples == rows and stats.remote_samples == 0
        assert stats.slices_loaded == stats.prefetch_hits + stats.prefetch_misses >= 13
        assert stats.num_checkpoints == len(taken) == rows // 50
        assert [state.passes[0].count for state in taken] == [50 * n for n in range(1, len(taken) + 1)]
        assert 0 <= stats.worker_utilization <= 1 and stats.avg_load_time_us >= 0
        loader.reset()
        assert loader.epoch == 0 and len(epoch_of(loader)) == rows


def test_a_second_iterator_takes_over_from_the_first(folder: Path) -> None:
    (loader,) = loaders(folder, 1, "round-robin", "slices")
    first = iter(loader)
    head = [next(first) for _ in range(5)]
    rest = epoch_of(loader)
    assert [one for row in head for one in ids(row)] + rest == list(range(len(rest) + 5))
    assert next(first, None) is None


def test_a_state_of_another_stream_is_refused_and_says_why(folder: Path, tmp_path: Path) -> None:
    (loader,) = loaders(folder, 1, "round-robin", "slices", shuffle_seed=1)
    state = loader.state()
    other = loaders(folder, 2, "round-robin", "slices", shuffle_seed=1)[0]
    with pytest.raises(ConfigError, match="worker 0 of 1, this is 0 of 2; merge the states"):
        other.restore(state)
    with pytest.raises(ConfigError, match="its seed is 1, not 2"):
        loaders(folder, 1, "round-robin", "slices", shuffle_seed=2)[0].restore(state)
    dataset(tmp_path, 2)
    with pytest.raises(ConfigError, match="its dataset is"):
        loaders(tmp_path, 1, "round-robin", "slices", shuffle_seed=1)[0].restore(state)
    with pytest.raises(ConfigError, match="worker 1 of 2 is missing"):
        merge([other.state()])
    for text in (b"{}", b"nonsense", state.to_json().replace(b'"count":0', b'"count":-1'), b'{"format":9}'):
        with pytest.raises(ConfigError, match="state"):
            from_json(text)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"world_size": 0}, "world_size is 0"),
        ({"rank": 1}, "rank is 1; it must be from 0 to 0"),
        ({"batch_size": -1}, "batch_size is -1"),
        ({"strategy": HashBased(num_partitions=0)}, "0 partitions"),
    ],
)
def test_settings_that_cannot_be_are_refused(folder: Path, settings: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        StreamingLoader(FolderSource(folder), StreamingConfig(**settings))  # type: ignore[arg-type]


def test_a_slice_that_is_cut_short_or_has_other_columns_is_named(tmp_path: Path) -> None:
    dataset(tmp_path, 2)
    loader = StreamingLoader(FolderSource(tmp_path), StreamingConfig(columns=("nothing",)))
    with pytest.raises(DatasetError, match=r"slice-0000.safetensors has no column 'nothing'; it has id, x"):
        loader.next()
    loader = StreamingLoader(FolderSource(tmp_path))
    with (tmp_path / "slice-0000.safetensors").open("r+b") as file:
        file.truncate(40)
    with pytest.raises(TensorFileError, match=r"slice-0000.safetensors has 40 bytes, expected"):
        loader.next()


def test_bfloat16_is_read_as_the_float32_that_it_stands_for(tmp_path: Path) -> None:
    values = np.array([1.0, -2.5, 3.140625, 0.0], dtype=np.float32)
    bits = (values.view(np.uint32) >> 16).astype("<u2")
    write_tensors(tmp_path / "a.safetensors", {"x": ("BF16", [4], bits.tobytes())}, durable=False)
    (batch,) = StreamingLoader(FolderSource(tmp_path), StreamingConfig(batch_size=8))
    assert batch["x"].dtype == np.float32 and batch["x"].tolist() == values.tolist()
