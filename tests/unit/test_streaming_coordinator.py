"""The coordinator of several loaders: health by what it hears, and shares made anew when that pays."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.errors import ConfigError
from node.streaming import Adaptive, FolderSource, StreamCoordinator, StreamingConfig, StreamingLoader
from tests.unit.streaming_data import dataset, epoch_of, ids


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_health_follows_from_what_was_heard_and_when() -> None:
    clock = Clock()
    coordinator = StreamCoordinator(4, silent_after_s=10, clock=clock)
    for rank in range(3):
        coordinator.register_worker(rank)
    coordinator.update_worker_health(0, 1000, 50.0)
    coordinator.update_worker_health(1, 200, 10.0)
    assert [coordinator.worker_health(rank).status for rank in range(4)] == ["active", "active", "idle", "unknown"]
    coordinator.update_worker_health(2, 900, 45.0)
    assert coordinator.worker_health(1).status == "slow"
    clock.now = 11.0
    coordinator.update_worker_health(0, 1500, 50.0)
    assert [coordinator.worker_health(rank).status for rank in range(3)] == ["active", "failed", "failed"]
    assert coordinator.worker_health(1).heard_s == 11.0
    with pytest.raises(ConfigError, match="not registered"):
        coordinator.update_worker_health(3, 1, 1.0)
    with pytest.raises(ConfigError, match="from 0 to 3"):
        coordinator.register_worker(4)


def test_workers_of_one_speed_are_left_alone_and_others_get_shares_by_their_speed(tmp_path: Path) -> None:
    rows = dataset(tmp_path, 40)

    def crew(world: int) -> list[StreamingLoader]:
        return [
            StreamingLoader(
                FolderSource(tmp_path),
                StreamingConfig(world_size=world, rank=rank, strategy=Adaptive(), unit="rows", checkpoint_every=10),
                coordinator=coordinator,
            )
            for rank in range(world)
        ]

    coordinator = StreamCoordinator(2, clock=Clock())
    loaders = crew(2)
    seen: list[int] = []
    for rank, loader in enumerate(loaders):
        coordinator.register_worker(rank)
        coordinator.update_worker_health(rank, 0, 100.0)
        for _ in range(20):
            row = loader.next()
            assert row is not None
            seen += ids(row)
    assert coordinator.rebalance_if_needed() is None
    coordinator.update_worker_health(1, 20, 25.0)
    state = coordinator.rebalance_if_needed()
    assert state is not None and state.speeds == (100.0, 25.0)
    coordinator = StreamCoordinator(2)
    for rank in range(2):
        coordinator.register_worker(rank)
    shares = []
    for loader in crew(2):
        loader.restore(state)
        shares.append(epoch_of(loader))
    assert len(shares[0]) == pytest.approx(4 * len(shares[1]), rel=0.02)
    assert sorted(seen + shares[0] + shares[1]) == list(range(rows))


def test_a_failed_workers_share_goes_to_the_others_from_its_last_checkpoint(tmp_path: Path) -> None:
    rows = dataset(tmp_path, 10)
    clock = Clock()
    coordinator = StreamCoordinator(2, silent_after_s=5, clock=clock)
    seen: list[int] = []
    for rank in range(2):
        coordinator.register_worker(rank)
        config = StreamingConfig(world_size=2, rank=rank, checkpoint_every=7)
        with StreamingLoader(FolderSource(tmp_path), config, coordinator=coordinator) as loader:
            seen += [one for _ in range(7) for one in ids(loader.next() or {})]
    clock.now = 9.0
    coordinator.update_worker_health(0, 7, 10.0)
    state = coordinator.rebalance_if_needed()
    assert state is not None
    with StreamingLoader(FolderSource(tmp_path)) as alone:
        alone.restore(state)
        assert sorted(seen + epoch_of(alone)) == list(range(rows))
