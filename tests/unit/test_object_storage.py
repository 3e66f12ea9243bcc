"""Object storage as a source: what is read from it is what was put there, or one clear line says why not."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from pathlib import Path

import pytest

from node.cli import run
from node.data.datasets import make_manifest
from node.errors import ConfigError, DatasetError, HyphaError, ObjectMissing, ObjectStoreError
from node.manifest import MANIFEST
from node.network.objects import download_object
from node.objectstore import CREDENTIALS, open_bucket
from node.storeurl import checked_dataset_url, is_within, name_in
from node.streaming import FolderSource, StreamingConfig, StreamingLoader
from node.streaming.store_source import StoreSource, StoreStream
from tests.unit.object_storage import SECRET, Storage, cutting_proxy, plain_storage, reach, storage, storage_server
from tests.unit.streaming_data import dataset, epoch_of

__all__ = ["storage", "storage_server"]


def made(folder: Path, slices: int = 5) -> Path:
    """A small dataset with its manifest."""
    folder.mkdir()
    dataset(folder, slices)
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


AZURE = {"AZURE_STORAGE_ACCOUNT_NAME": "account", "AZURE_STORAGE_ACCOUNT_KEY": base64.b64encode(SECRET.encode())}
OTHERS = {
    "az": AZURE | {"AZURE_ENDPOINT": "{}/account"},
    "gs": {"GOOGLE_BASE_URL": "{}", "GOOGLE_SKIP_SIGNATURE": "true"},
}


@pytest.mark.parametrize("kind", OTHERS)
def test_other_stores_are_read_with_what_the_environment_gives(
    kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder, seen, refuse = made(tmp_path / "set"), list[str](), threading.Event()
    caplog.set_level("DEBUG")
    with plain_storage(folder, seen, refuse) as address:
        for name, value in OTHERS[kind].items():
            monkeypatch.setenv(name, value.decode() if isinstance(value, bytes) else value.format(address))
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        url = f"{kind}://bucket/sets/set"
        assert run(["dataset", "show", url, "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert (shown["path"], shown["digest"]) == (url, FolderSource(folder).digest)
        source = StoreSource(url, cache=tmp_path / "cache")
        with StreamingLoader(source) as there, StreamingLoader(FolderSource(folder)) as here:
            assert epoch_of(there) == epoch_of(here)
        assert all(header.startswith("SharedKey account:") for header in seen) == (kind == "az")
        refuse.set()
        assert run(["dataset", "show", url]) == 3
        said = capsys.readouterr().err
        assert "refuses these credentials" in said and CREDENTIALS[kind].split()[0] in said
    assert SECRET not in caplog.text + said and AZURE["AZURE_STORAGE_ACCOUNT_KEY"].decode() not in caplog.text + said


@pytest.mark.parametrize(
    ("url", "environment"),
    [
        ("az://container/set", {"AZURE_STORAGE_ACCOUNT_KEY": "bm90IGl0"}),
        ("az://container/set", {"AZURE_STORAGE_ACCOUNT_NAME": "account", "AZURE_STORAGE_ACCOUNT_KEY": f"{SECRET}!"}),
        ("gs://bucket/set", {"GOOGLE_APPLICATION_CREDENTIALS": f"/nowhere/{SECRET}.json"}),
        ("gs://bucket/set", {"GOOGLE_SERVICE_ACCOUNT_KEY": f'{{"private_key":"{SECRET}"}}'}),
    ],
)
def test_credentials_that_are_none_are_told_without_showing_them(
    url: str, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ObjectStoreError, match="cannot be used") as caught:
        open_bucket(url)
    assert caught.value.is_final and CREDENTIALS[url[:2]] in caught.value.hint
    assert SECRET not in str(caught.value) and caught.value.__suppress_context__


def test_a_dataset_in_storage_is_verified_and_shown_as_one_in_a_folder_is(
    storage: Storage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = made(tmp_path / "set", 6)
    url = storage.upload(folder, "set")
    for command in (["verify", "--json"], ["show", "--json"], ["show", "--slices"], ["verify"]):
        told = []
        for place in (str(folder), url):
            assert run(["dataset", command[0], place, *command[1:]]) == 0
            told.append(capsys.readouterr().out.replace(place, "HERE"))
        assert told[0] == told[1]
    names = sorted(path.name for path in folder.glob("*.safetensors"))
    content = folder.joinpath(names[0]).read_bytes()
    storage.put(f"set/{names[0]}", content[:-1] + bytes([content[-1] ^ 1]))
    storage.put(f"set/{names[1]}", b"cut")
    storage.put(f"set/{names[2]}", bytes(folder.joinpath(names[2]).stat().st_size))
    storage.delete(f"set/{names[3]}")
    storage.put("set/extra.safetensors", b"")
    assert run(["dataset", "verify", url, "--json"]) == 1
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert [problem.split(":")[0] for problem in problems] == [*names[:4], "extra.safetensors"]
    assert run(["dataset", "verify", storage.url("none")]) == 1
    assert "upload the whole folder" in capsys.readouterr().err
    assert run(["dataset", "show", f"s3://me:{SECRET}@bucket/set"]) == 2
    assert SECRET not in capsys.readouterr().err


def test_a_slice_that_is_streamed_whole_is_verified_before_a_row_is_given_out(storage: Storage, tmp_path: Path) -> None:
    folder = made(tmp_path / "set")
    url = storage.upload(folder, "set")
    first = sorted(folder.glob("*.safetensors"))[0]
    content = bytearray(first.read_bytes())
    content[-1] ^= 1
    storage.put(f"set/{first.name}", bytes(content))
    with StreamingLoader(StoreStream(url)) as whole, pytest.raises(DatasetError, match="is not what the manifest says"):
        whole.next()
    with StreamingLoader(StoreStream(url), StreamingConfig(columns=("id",))) as part:
        assert len(epoch_of(part)) == sum(FolderSource(folder).rows), "a part has no digest of its own"


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
