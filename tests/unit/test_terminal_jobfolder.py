"""What of a folder goes with its job: an ignore file as git reads it, and a limit that names what is large."""

from __future__ import annotations

import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from hypha_tui.client import contents, jobfile
from hypha_tui.client.contents import contents_of
from hypha_tui.client.jobfolder import files_of
from node.errors import ConfigError
from tests.terminal.feed import WHOLE_JOB


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A job as it lies about: with data, runs and what tools leave."""
    (tmp_path / "job.toml").write_text(WHOLE_JOB)
    for name in (
        "model.py",
        "data/train.csv",
        "data/raw/huge.bin",
        "data/raw/keep.csv",
        "runs/1.log",
        "runs/best.log",
        "notes.txt",
        "deep/notes.txt",
        "deep/.venv/bin/python",
        "deep/__pycache__/x.pyc",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return tmp_path


def names(folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in files_of(folder)]


def test_the_ignore_file_is_read_as_git_reads_one(folder: Path) -> None:
    lines = ["# data", "data/raw/", "!data/raw/keep.csv", "*.log", "!best.log", "/notes.txt", "job.toml", "!.venv"]
    (folder / ".hyphaignore").write_text("\n".join(lines))
    # a folder that is left out keeps all that is in it; `!` takes in again what was left out by itself
    found = ["data/train.csv", "deep/.venv/bin/python", "deep/notes.txt", "model.py", "runs/best.log"]
    assert names(folder) == found
    body = jobfile.pack(jobfile.read_draft(folder))
    with tarfile.open(fileobj=BytesIO(body.data)) as archive:
        assert archive.getnames() == ["job.toml", *found]
    draft = jobfile.read_draft(folder)
    assert [name for name, _ in contents_of(draft, jobfile.check(draft.text)).files] == sorted(["job.toml", *found])


def test_without_one_what_tools_leave_stays_behind(folder: Path) -> None:
    assert [name for name in names(folder) if name.startswith("deep/")] == ["deep/notes.txt"]
    assert len(names(folder)) == 8


def test_an_ignore_file_that_cannot_be_read_is_one_line_with_its_place(folder: Path) -> None:
    (folder / ".hyphaignore").write_text("*.log\n!\n")
    with pytest.raises(ConfigError, match=r"\.hyphaignore: line 2: '!' is not a pattern"):
        jobfile.pack(jobfile.read_draft(folder))
    draft = jobfile.read_draft(folder)
    assert "line 2" in contents_of(draft, jobfile.check(draft.text)).problems[0]
    (folder / ".hyphaignore").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="cannot be read"):
        names(folder)


def test_a_folder_over_the_limit_is_refused_with_its_largest_files(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (jobfile, contents):
        monkeypatch.setattr(module, "MAX_BODY_BYTES", 2 << 20)
    (folder / "a.bin").write_bytes(bytes(1_500_000))
    (folder / "data" / "b.bin").write_bytes(bytes(2_500_000))
    said = r"4\.0 MB; at most 2\.1 MB \(2 MiB\) can be submitted\. The largest: data/b\.bin 2\.5 MB, a\.bin 1\.5 MB, "
    with pytest.raises(ConfigError, match=said) as told:
        jobfile.pack(jobfile.read_draft(folder))
    assert ".hyphaignore" in (told.value.hint or "")
    draft = jobfile.read_draft(folder)
    assert "data/b.bin 2.5 MB" in contents_of(draft, jobfile.check(draft.text)).problems[0]
    (folder / ".hyphaignore").write_text("*.bin")
    jobfile.pack(jobfile.read_draft(folder))
