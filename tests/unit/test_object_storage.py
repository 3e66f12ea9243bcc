"""Object storage as a source: what is read from it is what was put there, or one clear line says why not."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from node.data.datasets import MANIFEST, make_manifest
from node.errors import ConfigError, DatasetError, HyphaError, ObjectMissing, ObjectStoreError
from node.network.objects import download_object
from node.objectstore import open_bucket
from node.storeurl import checked_dataset_url, is_within, name_in
from node.streaming import FolderSource, StreamingConfig, StreamingLoader
from node.streaming.store_source import StoreSource, StoreStream
from tests.unit.object_storage import SECRET, Storage, cutting_proxy, reach, storage, storage_server
from tests.unit.streaming_data import dataset, epoch_of

__all__ = ["storage", "storage_server"]


def made(folder: Path) -> Path:
    """A small dataset with its manifest."""
    folder.mkdir()
    dataset(folder, 5)
    (folder / MANIFEST).write_bytes(make_manifest(folder, folder.name))
    return folder


@pytest.mark.parametrize("url", ["s3://bucket/a", "gs://b/path/to/set-1.0", "az://account/container/set/", "s3://name"])
def test_an_address_names_its_dataset(url: str) -> None:
    assert checked_dataset_url(url) == url.rstrip("/")
    assert name_in(url) == url.rstrip("/").rsplit("/", 1)[-1]


@pytest.mark.parametrize(
    ("url", "words"),
    [
        (f"s3://key:{SECRET}@bucket/a", "credentials come from the environment"),
        (f"s3://bucket/a?X-Amz-Signature={SECRET}", "credentials come from the environment"),
        ("s3://bucket/../other/a", "not of the form s3://bucket/path/name"),
        ("s3://", "not of the form"),
        ("s3://bucket/a b", "cannot be a dataset's name"),
    ],
)
def test_an_address_that_leaves_its_folder_or_holds_a_secret_is_refused_unseen(url: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        checked_dataset_url(url)
    assert SECRET not in str(caught.value)


def test_what_is_allowed_ends_at_a_slash() -> None:
    assert is_within("s3://bucket/sets/a", "s3://bucket/sets") and is_within("s3://bucket/a", "s3://bucket/a/")
    assert not is_within("s3://bucket-2/a", "s3://bucket") and not is_within("gs://bucket/a", "s3://bucket")


@pytest.mark.asyncio
async def test_a_download_goes_on_where_connections_were_cut(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    content = hashlib.shake_128(b"slice").digest(6 << 20)
    storage.put("a/x.bin", content)
    sha256, told = hashlib.sha256(content).hexdigest(), []
    async with cutting_proxy(storage.address, [1 << 20, 3 << 20, 200]) as proxy:
        reach(monkeypatch, proxy.address)
        bucket = open_bucket(storage.url("a"))
        await download_object(
            bucket, "x.bin", tmp_path / "x", sha256=sha256, size_bytes=len(content), on_progress=told.append
        )
        assert proxy.cuts == []
        # What was read ahead at a cut is lost, the rest is not asked for again.
        assert proxy.passed < 1.8 * len(content)
    reach(monkeypatch, storage.address)
    assert (tmp_path / "x").read_bytes() == content
    assert told == sorted(told) and told[-1] == len(content)
    with pytest.raises(DatasetError, match="manifest says"):
        await download_object(open_bucket(storage.url("a")), "x.bin", tmp_path / "y", sha256=sha256, size_bytes=5)
    with pytest.raises(DatasetError, match="has the SHA-256"):
        bucket = open_bucket(storage.url("a"))
        await download_object(bucket, "x.bin", tmp_path / "y", sha256="0" * 64, size_bytes=6 << 20)
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


@pytest.mark.asyncio
async def test_what_fails_is_one_line_without_secrets(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = open_bucket(storage.url("a"))
    with pytest.raises(ObjectMissing, match=r"s3://.*/sets/a/none does not exist"):
        await bucket.read("none", 100)
    with pytest.raises(ObjectStoreError, match="NoSuchBucket"):
        await open_bucket("s3://no-such-bucket/a").entries()
    storage.put("a/x", b"x" * 101)
    with pytest.raises(DatasetError, match="larger than 100 bytes"):
        await bucket.read("x", 100)
    monkeypatch.setattr("moto.settings.INITIAL_NO_AUTH_ACTION_COUNT", 0)
    with pytest.raises(ObjectStoreError, match="refuses these credentials") as refused:
        await bucket.read("x", 1000)
    assert refused.value.is_final and "AWS_ACCESS_KEY_ID" in refused.value.hint
    reach(monkeypatch, "http://127.0.0.1:9")
    with pytest.raises(ObjectStoreError, match="cannot be reached") as away:
        await open_bucket(storage.url("a")).about("x")
    assert not away.value.is_final
    for error in (refused.value, away.value):
        assert len(str(error).splitlines()) == 1
        assert SECRET not in str(error) and "127.0.0.1" not in str(error)
        assert error.__suppress_context__


def test_a_stream_gives_the_same_rows_from_storage_as_from_a_folder(storage: Storage, tmp_path: Path) -> None:
    folder = made(tmp_path / "set")
    url = storage.upload(folder, "set")
    for config in (
        StreamingConfig(shuffle_seed=3, batch_size=7),
        StreamingConfig(world_size=2, rank=1, unit="rows", columns=("id",)),
        StreamingConfig(world_size=2, rank=0, batch_size=4),
    ):
        with StreamingLoader(FolderSource(folder), config) as here:
            expected = [{name: array.tolist() for name, array in row.items()} for row in here]
        for source in (StoreSource(url, cache=tmp_path / "cache"), StoreStream(url)):
            assert source.digest == FolderSource(folder).digest
            with StreamingLoader(source, config) as there:
                assert [{name: array.tolist() for name, array in row.items()} for row in there] == expected
    source = StoreSource(url, cache=tmp_path / "cache", digest=source.digest)
    for path in folder.glob("*.safetensors"):
        storage.delete(f"set/{path.name}")
    with StreamingLoader(source) as cached:
        assert source.is_here(0)
        assert len(epoch_of(cached)) == sum(source.rows)
    with StreamingLoader(StoreStream(url)) as gone, pytest.raises(ObjectMissing):
        epoch_of(gone)
    with pytest.raises(DatasetError, match="is the version"):
        StoreStream(url, digest="0" * 64)


def test_a_slice_that_is_replaced_is_not_read_on(storage: Storage, tmp_path: Path) -> None:
    folder = made(tmp_path / "set")
    url = storage.upload(folder, "set")
    first = sorted(folder.glob("*.safetensors"))[0]
    stream = StoreStream(url)
    stream.open_rows(0, ("id",), 0, 1)
    storage.put(f"set/{first.name}", bytes(first.stat().st_size))
    with pytest.raises(HyphaError, match="changed meanwhile"):
        stream.open_rows(0, ("id",), 0, 1)
    stream.close()
    source = StoreSource(url, cache=tmp_path / "cache")
    with pytest.raises(DatasetError, match="the manifest says"):
        source.open(0)
    source.close()
    assert list((tmp_path / "cache").iterdir()) == []
    with pytest.raises(DatasetError, match="upload the whole folder"):
        StoreSource(storage.url("none"), cache=tmp_path / "cache")
    with pytest.raises(DatasetError, match="not in object storage"):
        StoreStream("/srv/set")
