"""What the job form stands on: fields and text, names, what a folder lacks, and the draft that is kept."""

from __future__ import annotations

import stat
import tomllib
from pathlib import Path

import pytest

from hypha_tui.client.contents import contents_of
from hypha_tui.client.drafts import Draft, DraftFile
from hypha_tui.client.jobfields import field_of_problem, fields_of, read_value, suggest_name, with_field
from hypha_tui.client.jobfile import JobDraft, check
from hypha_tui.client.tomledit import with_value
from hypha_tui.store.dryrun import dry_run
from node.errors import ConfigError
from tests.terminal.feed import WHOLE_JOB, dataset, peers

TORCH = WHOLE_JOB.replace("causal-lm", "torch")


def test_a_changed_setting_leaves_comments_and_order_as_they_are() -> None:
    changed = with_field(with_field(WHOLE_JOB, "workers", 5), "price", 1.4)
    assert "# a comment" in changed
    assert changed.replace("num_workers = 5", "num_workers = 2").startswith(WHOLE_JOB.rstrip("\n"))
    assert tomllib.loads(changed)["resources"] == {"num_workers": 5, "worker_price": {"max": 1.4}}


@pytest.mark.parametrize(
    ("text", "path", "value", "after"),
    [
        ("a = 1 # one\n", ("a",), 2, "a = 2 # one\n"),
        ("[t]\na-b = 'x'\n", ("t", "a_b"), "y", '[t]\na-b = "y"\n'),
        ("t = { u = { v = 1, w = 2 } } # c\n", ("t", "u", "w"), 3, "t = { u = { v = 1, w = 3 } } # c\n"),
        ("t.u = 1\n", ("t", "u"), 2, "t.u = 2\n"),
        ("a = 1\nb = 2\n", ("a",), None, "b = 2\n"),
        ("[t]\na = 1\n\n[u]\nb = 1\n", ("t", "c"), 5, "[t]\na = 1\nc = 5\n\n[u]\nb = 1\n"),
        ("a = 1\n", ("t", "c"), 5, "a = 1\n\n[t]\nc = 5\n"),
        ('a = "[b]"\n[b]\nc = 1\n', ("b", "c"), 2, 'a = "[b]"\n[b]\nc = 2\n'),
        ("[[t]]\na = 1\n", ("b",), 1, "b = 1\n[[t]]\na = 1\n"),
    ],
)
def test_one_value_changes_and_the_rest_stays(text: str, path: tuple[str, ...], value: object, after: str) -> None:
    assert with_value(text, path, value) == after


def test_video_memory_is_read_and_changed_in_upstreams_list_too() -> None:
    text = '[resources]\nworker = [{ type = "GPU", min = 10 }, { kind = "mine" }]\n'
    assert fields_of(text).gpu == 10
    assert fields_of(with_field(text, "gpu", 24)).gpu == 24
    assert tomllib.loads(with_field(text, "gpu", None))["resources"]["worker"] == [{"kind": "mine"}]


@pytest.mark.parametrize(("name", "written"), [("workers", "x"), ("workers", "0"), ("price", "-1"), ("inner", "nan")])
def test_a_field_says_what_is_wrong_with_itself(name: str, written: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name}: ") as caught:
        read_value(name, written)
    assert field_of_problem(str(caught.value)) == name


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ("update_rounds = 3", "update_rounds = 0", "rounds"),
        ("learning_rate = 0.001", "learning_rate = 0", "inner"),
        ("num_workers = 2", "num_workers = 2\nworker_price = { bid = 2, max = 1 }", "price"),
        ('dataset_name = "stdlib-bytes"', "", "dataset"),
        ("momentum = 0.9", "momentum = 2", ""),
    ],
)
def test_a_complaint_about_the_text_is_shown_at_the_field_it_is_about(old: str, new: str, field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check(WHOLE_JOB.replace(old, new))
    assert field_of_problem(str(caught.value)) == field


def test_a_name_is_suggested_that_no_job_has() -> None:
    assert suggest_name("tiny", []) == "tiny"
    assert suggest_name("diloco-7", ["diloco-7", "diloco-8"]) == "diloco-9"
    assert suggest_name("tiny", ["tiny", "tiny-2"]) == "tiny-3"
    assert suggest_name("", []) == "job-2"


def test_what_a_folder_lacks_is_told_before_anything_is_sent(tmp_path: Path) -> None:
    spec = check(TORCH)
    assert contents_of(JobDraft(TORCH), spec).problems[0].endswith("submit a folder")
    assert contents_of(JobDraft(TORCH, tmp_path), spec).problems == ("model: the folder has no model.py",)
    (tmp_path / "model.py").write_text("x = 1\n")
    found = contents_of(JobDraft(TORCH, tmp_path), spec)
    assert found.problems == ()
    assert dict(found.files) == {"job.toml": len(TORCH), "model.py": 6}
    named = TORCH.replace('type = "torch"', 'type = "torch"\nfilenames = ["nets/model.py"]')
    assert contents_of(JobDraft(named, tmp_path), check(named)).problems == ("model: the folder has no nets/model.py",)


def test_a_dry_run_says_all_at_once_and_whether_it_would_start(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("x = 1\n")
    spec = check(TORCH)
    found = dry_run(spec, contents_of(JobDraft(TORCH, tmp_path), spec), peers(8), [dataset()], [])
    assert found.is_good
    assert found.document()["workers_matching"] == 7  # one cannot be reached
    assert [label for label, _, _ in found.rows()][:4] == ["job", "workers", "data", "averages"]
    assert not dry_run(spec, contents_of(JobDraft(TORCH), spec), peers(8), [dataset()], []).is_good


def test_the_draft_outlives_the_terminal_for_its_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    draft = Draft(text="token = 'x'", path="/p", sent_id="tiny-1", sent_sha256="ab")
    DraftFile(folder).save(draft)
    assert DraftFile(folder).load() == draft
    (file,) = folder.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    again = DraftFile(folder)
    again.remove()
    assert (again.load(), list(folder.iterdir())) == (Draft(), [])


def test_a_draft_that_cannot_be_read_or_kept_is_told_and_nothing_breaks(tmp_path: Path) -> None:
    (tmp_path / "draft.json").write_text("{")
    broken = DraftFile(tmp_path)
    assert broken.load() == Draft()
    assert "cannot be read" in broken.problem
    (tmp_path / "file").write_text("")
    blocked = DraftFile(tmp_path / "file" / "below")
    blocked.save(Draft(text="x"))
    assert "cannot be kept" in blocked.problem
    assert blocked.load().text == "x"
