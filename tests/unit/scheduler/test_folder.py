from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path

import pytest

from node.errors import Refused
from node.scheduler import folder
from node.scheduler.folder import read_submission

JOB = """
dataset = "d"
model = {type = "torch", path = "net", token = "hf_secret"}
rounds = {update_rounds = 1, avg_samples_between_updates = 8}
inner_optimizer = {learning_rate = 0.001}
outer_optimizer = {learning_rate = 0.7, momentum = 0.9}
"""


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type = kind
    made.linkname = link
    return made


def body_with(path: Path, *extra: tarfile.TarInfo, job: str | None = JOB, job_name: str = "job.toml") -> Path:
    with tarfile.open(path, "w") as archive:
        if job is not None:
            made = entry(job_name)
            made.size = len(job)
            archive.addfile(made, io.BytesIO(job.encode()))
        for item in extra:
            item.size = 3 if item.isreg() else 0
            item.mtime, item.uid, item.mode = 12345, 1000, 0o777
            archive.addfile(item, io.BytesIO(b"abc"))
    return path


def test_a_job_file_alone_is_a_job(tmp_path: Path) -> None:
    body = tmp_path / "body"
    body.write_text(JOB)
    found = read_submission(body, tmp_path / "folder.tar")
    assert (found.spec.dataset, found.folder_sha256) == ("d", "")
    assert not (tmp_path / "folder.tar").exists()


def test_the_folder_that_workers_get_has_its_files_and_nothing_else(tmp_path: Path) -> None:
    extra = [entry("net/b.py"), entry("./net/a.py"), entry("net", tarfile.DIRTYPE)]
    target = tmp_path / "made" / "folder.tar"
    found = read_submission(body_with(tmp_path / "body", *extra, job_name="./job.toml"), target)
    assert found.folder_sha256 == hashlib.sha256(target.read_bytes()).hexdigest()
    assert b"hf_secret" not in target.read_bytes()
    with tarfile.open(target) as archive:
        members = archive.getmembers()
        assert [(member.name, member.uid, member.mtime) for member in members] == [
            ("net/a.py", 0, 0),
            ("net/b.py", 0, 0),
        ]
        content = archive.extractfile(members[0])
        assert content is not None
        assert content.read() == b"abc"


@pytest.mark.parametrize(
    "bad",
    [
        entry("/etc/passwd"),
        entry("../outside"),
        entry("a/../../outside"),
        entry("a\\b"),
        entry("a\nb"),
        entry("link", tarfile.SYMTYPE, "/etc/passwd"),
        entry("hard", tarfile.LNKTYPE, "job.toml"),
        entry("device", tarfile.CHRTYPE),
        entry("pipe", tarfile.FIFOTYPE),
        entry("x" * 300),
    ],
    ids=lambda item: item.name[:20],
)
def test_what_could_leave_the_folder_is_refused(tmp_path: Path, bad: tarfile.TarInfo) -> None:
    """No absolute path, no parent, no link, no device."""
    target = tmp_path / "folder.tar"
    with pytest.raises(Refused) as caught:
        read_submission(body_with(tmp_path / "body", entry("ok.py"), bad), target)
    assert caught.value.code == "invalid"
    assert "\n" not in str(caught.value)
    assert not target.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["body"]


def test_a_file_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="twice"):
        read_submission(body_with(tmp_path / "body", entry("a"), entry("./a")), tmp_path / "t")


def test_too_many_or_too_large_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "FILES_ALLOWED", 3)
    with pytest.raises(Refused, match="over 3 files"):
        read_submission(body_with(tmp_path / "body", *(entry(f"f{n}") for n in range(3))), tmp_path / "t")
    monkeypatch.setattr(folder, "BODY_LIMIT_BYTES", 100)
    with pytest.raises(Refused, match="MiB"):
        read_submission(body_with(tmp_path / "body2"), tmp_path / "t")


@pytest.mark.parametrize("cut", [100, 600, 1537])
def test_a_truncated_tar_is_refused(tmp_path: Path, cut: int) -> None:
    body = body_with(tmp_path / "body", entry("a.py"), entry("b.py"))
    body.write_bytes(body.read_bytes()[:cut])
    with pytest.raises(Refused) as caught:
        read_submission(body, tmp_path / "t")
    assert caught.value.code == "invalid"


def test_a_folder_without_a_job_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"no job\.toml"):
        read_submission(body_with(tmp_path / "body", entry("a"), job=None), tmp_path / "t")


def test_a_compressed_tar_is_not_opened(tmp_path: Path) -> None:
    """A small upload must not become a large one."""
    body = tmp_path / "body"
    with tarfile.open(body, "w:gz") as archive:
        archive.addfile(entry("job.toml"), io.BytesIO(b""))
    with pytest.raises(Refused) as caught:
        read_submission(body, tmp_path / "t")
    assert caught.value.code == "invalid"


def test_a_job_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    body = tmp_path / "body"
    body.write_bytes(b"\xff\xfe\x00binary")
    with pytest.raises(Refused, match="UTF-8"):
        read_submission(body, tmp_path / "t")
