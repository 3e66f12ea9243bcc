"""`hypha-node dataset split`: parts that together are the dataset, the same for the same seed."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from node.cli import run
from node.data.build import build
from node.data.contents import MOST_CLASSES, labels_in
from node.data.datasets import Dataset, verify
from node.data.recipe import Recipe
from node.data.splitting import parse_shares, split
from node.errors import DatasetError
from tests.unit.test_dataset_build import content_of


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    lines = tmp_path / "a.jsonl"
    lines.write_text("".join(json.dumps({"x": number, "y": "ab"[number % 2]}) + "\n" for number in range(100)))
    recipe = Recipe([lines], "jsonl", fields=["x"], label="y", rows_per_slice=10)
    return build(recipe, tmp_path / "sets" / "numbers")[0]


def numbers(made: Dataset) -> list[int]:
    return memoryview(content_of(made, "x")).cast("q").tolist()


@pytest.mark.parametrize("by", ["rows", "slices"])
def test_the_parts_have_every_row_once_in_shares_that_follow_from_the_seed(
    dataset: Dataset, tmp_path: Path, by: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["dataset", "split", str(dataset.folder), "train=0.8", "validation=0.2", "--by", by, "--json"]
    assert run(arguments) == 0
    told = json.loads(capsys.readouterr().out)
    assert [(part["name"], part["rows"], part["split_of"]) for part in told] == [
        ("numbers-train", 80, "numbers"),
        ("numbers-validation", 20, "numbers"),
    ]
    train, held = split(dataset.folder, [("train", 0.8), ("validation", 0.2)], by=by, out=tmp_path / "again")  # type: ignore[arg-type]
    assert [train.digest, held.digest] == [part["digest"] for part in told]
    assert sorted(numbers(train) + numbers(held)) == list(range(100))
    assert train.manifest.classes == held.manifest.classes == {"labels": ["a", "b"]}
    assert verify(train.folder)[1] == verify(held.folder)[1] == []
    others = split(dataset.folder, [("train", 0.8), ("validation", 0.2)], by=by, seed=1, out=tmp_path / "other")  # type: ignore[arg-type]
    assert others[1].digest != held.digest
    assert run(arguments) == 1
    assert "exists; --force replaces it" in capsys.readouterr().err
    assert run([*arguments, "--force"]) == 0
    assert sorted(path.name for path in dataset.folder.parent.iterdir()) == [
        "numbers",
        "numbers-train",
        "numbers-validation",
    ]
    if by == "slices":
        info = held.manifest.slices[0]
        assert held.path_of(info).stat().st_ino == dataset.path_of(info).stat().st_ino


def test_parts_are_written_with_their_shares(dataset: Dataset) -> None:
    assert parse_shares(["a=8", "b=2"]) == [("a", 8.0), ("b", 2.0)]
    for wrong in (["a"], ["a=1", "a=1"], ["a=x", "b=1"], ["a=0", "b=1"], []):
        with pytest.raises(DatasetError):
            parse_shares(wrong)
    with pytest.raises(DatasetError, match="10 pieces are too few for 11 parts"):
        split(dataset.folder, [(f"p{number}", 1.0) for number in range(11)], by="slices")


def test_the_manifest_says_how_many_rows_of_each_class_a_slice_has_wherever_it_went(dataset: Dataset) -> None:
    by_rows = split(dataset.folder, [("a", 1), ("b", 1)], by="rows")
    by_slices = split(dataset.folder, [("c", 1), ("d", 1)], by="slices")
    for made in [dataset, *by_rows, *by_slices]:
        for info in made.manifest.slices:
            labels = labels_in(made)(info)
            assert info.labels == Counter(memoryview(labels).cast("q").tolist())
    # One number has too many values, the other only over all slices: neither is taken for classes.
    lines = dataset.folder.parent / "many.jsonl"
    lines.write_text("".join(json.dumps({"labels": number // 2}) + "\n" for number in range(4 * MOST_CLASSES)))
    for rows in (4 * MOST_CLASSES, MOST_CLASSES):
        (many,) = build(
            Recipe([lines], "jsonl", fields=["labels"], rows_per_slice=rows), dataset.folder.with_name(f"many-{rows}")
        )
        assert many.manifest.schema == {"labels": "I64[]"}
        assert [info.labels for info in many.manifest.slices] == [{}] * (4 * MOST_CLASSES // rows)
