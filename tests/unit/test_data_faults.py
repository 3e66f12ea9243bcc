"""Faults that other data loaders have had, and that ours must not have."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import pytest

from node.data.datasets import make_manifest
from node.errors import CacheTooSmall, DatasetError
from node.manifest import MANIFEST
from node.network.cache import STALE_S, ContentCache
from node.streaming import FolderSource, StreamingConfig, StreamingLoader
from node.streaming.store_source import StoreSource
from tests.unit.object_storage import Storage, storage, storage_server
from tests.unit.streaming_data import dataset, epoch_of

__all__ = ["storage", "storage_server"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A dataset of 40 small slices."""
    made = tmp_path / "set"
    made.mkdir()
    dataset(made, 40)
    (made / MANIFEST).write_bytes(make_manifest(made, "set"))
    return made


def test_a_cache_of_two_slices_serves_a_dataset_of_forty_and_ends_within_its_limit(
    storage: Storage, folder: Path, tmp_path: Path
) -> None:
    """U59, U52: what was used leaves, the last one too; the order does not depend on what is in the cache."""
    url, cache = storage.upload(folder, "set"), tmp_path / "cache"
    limit = 3 * max(path.stat().st_size for path in folder.glob("*.safetensors"))
    config = StreamingConfig(shuffle_seed=4, prefetch_slices=1)
    with StreamingLoader(FolderSource(folder), config) as undisturbed:
        expected = [epoch_of(undisturbed), epoch_of(undisturbed)]
    with StreamingLoader(StoreSource(url, cache=cache, cache_bytes=limit), config) as loader:
        assert [epoch_of(loader), epoch_of(loader)] == expected
    kept = list(cache.iterdir())
    assert sum(path.stat().st_size for path in kept) <= limit
    assert all(len(path.name) == 64 for path in kept), "no lock, no part, no index"


def test_a_slice_that_no_cache_of_this_size_can_hold_is_told_with_path_need_and_limit(
    storage: Storage, folder: Path, tmp_path: Path
) -> None:
    """U44."""
    source = StoreSource(storage.upload(folder, "set"), cache=tmp_path / "cache", cache_bytes=100)
    with StreamingLoader(source) as loader, pytest.raises(CacheTooSmall, match="100") as told:
        epoch_of(loader)
    assert str(tmp_path / "cache") in str(told.value)


def test_a_cache_folder_of_somebody_else_is_told_before_anything_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U42."""
    theirs, file = tmp_path / "theirs", tmp_path / "file"
    theirs.mkdir()
    file.touch()
    monkeypatch.setattr(os, "access", lambda path, mode: path != theirs)
    for cache, why in ((theirs, "it is another user's"), (file, "File exists"), (file / "cache", "Not a directory")):
        with pytest.raises(DatasetError, match=f"the cache {cache} cannot be used: {why}") as told:
            StoreSource("s3://bucket/set", cache=cache)
        assert "of their own" in told.value.hint


@pytest.mark.asyncio
async def test_nothing_leaves_a_cache_folder_that_the_cache_has_not_put_there(tmp_path: Path) -> None:
    """U45: what lies there beside may be the only copy, however old it is and however full the cache."""
    names = ["photo.jpg", ".hidden", "old.part", "a" * 63, f"{'a' * 64}.safetensors", ".note"]
    old = time.time() - 2 * STALE_S
    for name in names:
        (tmp_path / name).write_bytes(b"mine")
        os.utime(tmp_path / name, (old, old))
    (tmp_path / "folder").mkdir()
    os.utime(tmp_path / "folder", (old, old))
    stale = tmp_path / f".{'b' * 64}.note"
    stale.write_bytes(b"a note of a download")
    os.utime(stale, (old, old))
    cache = ContentCache(tmp_path, 10)
    cache.sweep()
    async with cache.room("c" * 64, 10):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*names, "folder"])


def test_an_epoch_of_many_slices_holds_no_more_of_them_at_its_end_than_at_its_beginning(folder: Path) -> None:
    """U54: neither maps nor descriptors are left of slices that are used."""

    def held() -> tuple[int, int]:
        maps = sum(str(folder) in line for line in Path("/proc/self/maps").read_text().splitlines())
        descriptors = 0
        for path in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # threads come and go with theirs
                descriptors += str(folder) in str(path.readlink())
        return maps, descriptors

    most = (0, 0)
    with StreamingLoader(FolderSource(folder), StreamingConfig(shuffle_seed=1, prefetch_slices=2)) as loader:
        for number, _ in enumerate(loader):
            if number % 20 == 0:
                most = tuple(map(max, most, held()))  # type: ignore[assignment]
    assert 1 <= most[0] <= 6 and most[1] <= 6
    assert held() == (0, 0)
