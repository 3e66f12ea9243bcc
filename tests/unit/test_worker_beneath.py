"""Job code that swaps folders for links while its worker writes and reads: nothing leaves the work directory."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from node.worker.beneath import new_name, put, staging_of, take
from node.worker.fetch import _extract
from node.worker.references import BridgeError


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def staged(work: Path, text: str) -> Path:
    path = new_name(work)
    path.write_text(text)
    return path


def test_a_finished_file_is_moved_below_the_work_directory_and_folders_are_made(work: Path) -> None:
    source = staged(work, "x")
    put(source, work, work / "artifacts" / "deep" / "model.py")
    assert (work / "artifacts" / "deep" / "model.py").read_text() == "x"
    assert not source.exists()
    assert staging_of(work).stat().st_mode & 0o777 == 0o700


def test_a_folder_that_became_a_link_takes_no_file_outside(work: Path, tmp_path: Path) -> None:
    outside = tmp_path / "ssh"
    outside.mkdir()
    (work / "artifacts").symlink_to(outside)
    with pytest.raises(BridgeError, match="not a folder"):
        put(staged(work, "key"), work, work / "artifacts" / "authorized_keys")
    assert list(outside.iterdir()) == []


def test_a_link_in_the_place_of_a_file_is_replaced_and_not_followed(work: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (work / "model.py").symlink_to(victim)
    put(staged(work, "theirs"), work, work / "model.py")
    assert victim.read_text() == "mine"
    assert (work / "model.py").read_text() == "theirs"


@pytest.mark.parametrize("shape", ["file", "folder"])
def test_a_link_to_a_key_is_never_read_as_an_update(work: Path, tmp_path: Path, shape: str) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key.pem").write_text("key")
    if shape == "file":
        (work / "key.pem").symlink_to(secret / "key.pem")
        source = work / "key.pem"
    else:
        (work / "out").symlink_to(secret)
        source = work / "out" / "key.pem"
    with pytest.raises(BridgeError):
        take(source, work)
    assert not any(path.exists() or path.is_symlink() for path in staging_of(work).iterdir())


def test_an_update_keeps_its_own_name_when_it_is_taken(work: Path) -> None:
    (work / "out").mkdir()
    (work / "out" / "update").write_text("delta")
    taken = take(work / "out" / "update", work)
    assert taken.read_text() == "delta"
    assert taken.parent == staging_of(work)
    (work / "out" / "update").unlink()
    assert taken.read_text() == "delta"


def test_links_devices_and_sparse_files_of_a_job_folder_are_not_taken(work: Path, tmp_path: Path) -> None:
    """H55: a hostile archive writes nothing outside and nothing larger than itself."""
    archive = tmp_path / "job.tar"
    with tarfile.open(archive, "w") as tar:
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.GNUTYPE_SPARSE):
            entry = tarfile.TarInfo(f"odd-{kind.decode()}")
            entry.type, entry.linkname = kind, "/etc/passwd"
            tar.addfile(entry)
        for name in ("../outside.py", "/absolute.py", "model.py"):
            entry = tarfile.TarInfo(name)
            entry.size = 2
            tar.addfile(entry, io.BytesIO(b"ok"))
    target = work / "artifacts"
    target.mkdir()
    # What an earlier version would have written through.
    (target / ".model.py.part").symlink_to(tmp_path / "victim")
    found = _extract(archive, ["model.py"], work, target)
    assert [path.name for path, _, _ in found] == ["model.py"]
    assert sorted(path.name for path in target.iterdir()) == [".model.py.part", "model.py"]
    assert not (tmp_path / "victim").exists()
    assert not (tmp_path / "outside.py").exists()
