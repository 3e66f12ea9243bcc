"""What datasets are built from: each kind of input gives the same digests again, and names what is wrong with it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from node.data.build import build
from node.data.contents import class_counts, class_problems, histogram, labels_in
from node.data.datasets import Dataset, verify
from node.data.permutation import Permutation
from node.data.processes import Processes
from node.data.recipe import Recipe
from node.data.spool import parts_of
from node.errors import DatasetError
from tests.unit.test_dataset_build import content_of

Maker = Callable[[Path], Recipe]


def text(folder: Path) -> Recipe:
    for number in range(8):
        (folder / f"{number}.txt").write_bytes(bytes([97 + number]) * 700)
    return Recipe([folder], "text", glob="*.txt", sequence_length=50, rows_per_slice=40)


def tokenized(folder: Path) -> Recipe:
    tokenizers = pytest.importorskip("tokenizers")
    words = {word: number for number, word in enumerate(["[UNK]", "<end>", "one", "two", "three"])}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    (folder / "words").mkdir()
    made.save(str(folder / "words" / "tokenizer.json"))
    (folder / "words" / "tokenizer_config.json").write_text('{"eos_token": "<end>"}')
    for number in range(3):
        (folder / f"{number}.txt").write_text("one two three\n" * 10)
    return Recipe([folder], "text", glob="*.txt", tokenizer=folder / "words", sequence_length=31)


def lines(folder: Path) -> Recipe:
    rows = [json.dumps({"x": [number, 0.5], "kind": "ab"[number % 2]}) for number in range(60)]
    (folder / "a.jsonl").write_text("\n".join(rows))
    return Recipe([folder], "jsonl", fields=["x"], label="kind", rows_per_slice=25)


def cells(folder: Path) -> Recipe:
    animals = ['"the\ndog"', "cat", "cat"]
    rows = [f"{number},{number / 2},{animals[number % 3]}" for number in range(60)]
    (folder / "a.csv").write_text("n,half,animal\n" + "\n".join(rows) + "\n")
    return Recipe([folder], "csv", label="animal", rows_per_slice=25)


def arrays(folder: Path) -> Recipe:
    numpy = pytest.importorskip("numpy")
    numpy.savez(folder / "a.npz", x=numpy.arange(120).reshape(60, 2), labels=numpy.arange(60) % 4)
    return Recipe([folder], "numpy", rows_per_slice=25)


def parquet(folder: Path) -> Recipe:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet as file

    table = arrow.table(
        {
            "x": arrow.array([[float(number), 1.0] for number in range(60)], arrow.list_(arrow.float32())),
            "flag": [number % 2 == 0 for number in range(60)],
            "kind": ["ab"[number % 2] for number in range(60)],
        }
    )
    file.write_table(table, folder / "a.parquet", row_group_size=17)
    return Recipe([folder], "parquet", label="kind", rows_per_slice=25)


def saved(folder: Path) -> Recipe:
    arrow = pytest.importorskip("pyarrow")
    schema = arrow.schema([("n", arrow.int32()), ("label", arrow.int64())])
    names = []
    for number in range(2):
        names.append({"filename": f"data-{number:05d}-of-00002.arrow"})
        with arrow.ipc.new_stream(folder / names[-1]["filename"], schema) as out:
            for start in range(0, 30, 10):
                rows = range(30 * number + start, 30 * number + start + 10)
                out.write_batch(arrow.record_batch([arrow.array(rows, arrow.int32()), [n % 2 for n in rows]], schema))
    (folder / "state.json").write_text(json.dumps({"_data_files": names}))
    features = {"features": {"label": {"names": ["no", "yes"], "_type": "ClassLabel"}, "n": {"dtype": "int32"}}}
    (folder / "dataset_info.json").write_text(json.dumps(features))
    return Recipe([folder], "saved", label="label", rows_per_slice=25)


def pictures(folder: Path) -> Recipe:
    image = pytest.importorskip("PIL.Image")
    for number in range(60):
        made = folder / ("cat" if number % 3 else "dog") / f"{number}.png"
        made.parent.mkdir(exist_ok=True)
        image.new("RGB", (6, 4), (number, 0, 255)).save(made)
    return Recipe([folder], "images", image_size="4", rows_per_slice=25)


def function(folder: Path) -> Recipe:
    pytest.importorskip("numpy")
    (folder / "rows.py").write_text(
        "import numpy\n"
        "def rows():\n"
        "    for number in range(60):\n"
        "        yield {'x': numpy.full((2, 3), number, 'f4'), 'y': numpy.int64(number)}\n"
    )
    return Recipe([f"{folder / 'rows.py'}:rows"], "function", rows_per_slice=25)


MAKERS: list[Maker] = [text, tokenized, lines, cells, arrays, parquet, saved, pictures, function]


@pytest.fixture
def made(tmp_path: Path, request: pytest.FixtureRequest) -> tuple[str, Recipe, Path]:
    """The name of a kind, a recipe of it, and where to build."""
    folder = tmp_path / "input"
    folder.mkdir()
    return request.param.__name__, request.param(folder), tmp_path / "out"


def labels_of(dataset: Dataset) -> list[int]:
    return memoryview(content_of(dataset, "labels")).cast("q").tolist()


@pytest.mark.parametrize("made", MAKERS, indirect=True, ids=lambda maker: maker.__name__)
def test_every_kind_gives_the_same_digest_again_and_all_its_rows(made: tuple[str, Recipe, Path]) -> None:
    kind, recipe, out = made
    (first,) = build(recipe, out / "a" / "set")
    (again,) = build(recipe, out / "b" / "set")
    assert first.digest == again.digest
    assert verify(first.folder)[1] == []
    assert sorted(path.name for path in (out / "a").iterdir()) == ["set"]
    schema = first.manifest.schema
    if kind == "text":
        assert (first.rows, schema) == (112, {"input_ids": "U8[50]"})
    elif kind == "tokenized":
        assert (first.rows, schema) == (3, {"input_ids": "U16[31]"})
        row = [*[2, 3, 4] * 10, 1]
        assert array("H", content_of(first, "input_ids")).tolist() == row * 3
    else:
        assert (first.rows, len(first.manifest.slices)) == (60, 3)
    if kind == "lines":
        assert schema == {"x": "F32[2]", "labels": "I64[]"}
        values = memoryview(content_of(first, "x")).cast("f").tolist()
        assert [int(value) % 2 for value in values[::2]] == labels_of(first)
        assert first.manifest.classes == {"labels": ["a", "b"]}
    elif kind == "cells":
        assert schema == {"n": "I64[]", "half": "F32[]", "labels": "I64[]"}
        numbers = memoryview(content_of(first, "n")).cast("q").tolist()
        assert sorted(numbers) == list(range(60))
        assert memoryview(content_of(first, "half")).cast("f").tolist() == [number / 2 for number in numbers]
        assert [int(number % 3 == 0) for number in numbers] == labels_of(first)
        assert class_counts(first.manifest, labels_in(first)) == {"cat": 40, "the\ndog": 20}
    elif kind == "parquet":
        assert schema == {"x": "F32[2]", "flag": "BOOL[]", "labels": "I64[]"}
        xs = memoryview(content_of(first, "x")).cast("f").tolist()[::2]
        assert sorted(xs) == list(range(60))
        assert [int(x) % 2 for x in xs] == labels_of(first)
        assert list(content_of(first, "flag")) == [int(x % 2 == 0) for x in xs]
    elif kind == "saved":
        assert schema == {"n": "I32[]", "labels": "I64[]"}
        assert class_counts(first.manifest, labels_in(first)) == {"no": 30, "yes": 30}
        assert class_problems(first.manifest, labels_in(first)) == []
        one, two, three = first.manifest.slices
        wrong = [one, msgspec.structs.replace(two, labels={0: 1}), three]
        (problem,) = class_problems(msgspec.structs.replace(first.manifest, slices=wrong), labels_in(first))
        assert problem == f"{two.name}: it has other rows of each class than the manifest says"
        assert sorted(memoryview(content_of(first, "n")).cast("i").tolist()) == list(range(60))
    elif kind == "pictures":
        assert schema == {"images": "U8[3,4,4]", "labels": "I64[]"}
        reds = list(content_of(first, "images")[::48])
        assert sorted(reds) == list(range(60))
        assert [int(red % 3 == 0) for red in reds] == labels_of(first)
        assert first.manifest.classes == {"labels": ["cat", "dog"]}
    elif kind == "function":
        assert schema == {"x": "F32[2,3]", "y": "I64[]"}
        assert sorted(memoryview(content_of(first, "y")).cast("q").tolist()) == list(range(60))


def test_any_number_of_processes_builds_the_same_and_so_does_one_killed_and_started_again(tmp_path: Path) -> None:
    folder = tmp_path / "input"
    folder.mkdir()
    lines = folder / "a.jsonl"
    lines.write_text("".join(json.dumps({"x": number}) + "\n" for number in range(600)))
    recipe = Recipe([lines], "jsonl", fields=["x"], rows_per_slice=100, validation_fraction=0.25)
    one = build(recipe, tmp_path / "one" / "set", workers=1)
    two = build(recipe, tmp_path / "two" / "set", workers=2)
    assert [dataset.digest for dataset in one] == [dataset.digest for dataset in two]
    assert [dataset.rows for dataset in one] == [450, 150]
    # Killed when the third slice was written; the first is damaged meanwhile, the second is kept.
    program = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from node.data.build import build\n"
        "from node.data.recipe import Recipe\n"
        "def report(what, done, total):\n"
        "    if what.startswith('writing') and done >= 300:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "settings = {'fields': ['x'], 'rows_per_slice': 100, 'validation_fraction': 0.25}\n"
        f"recipe = Recipe([Path({str(lines)!r})], 'jsonl', **settings)\n"
        f"build(recipe, Path({str(tmp_path / 'killed' / 'set')!r}), workers=1, report=report)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], check=False, timeout=60)
    assert ended.returncode == -signal.SIGKILL
    (left,) = (tmp_path / "killed").iterdir()
    slices = sorted((left / "part-0").glob("*.safetensors"))
    assert len(slices) == 3
    slices[0].write_bytes(b"?")
    kept = slices[1].stat().st_ino
    told: list[tuple[str, int, int]] = []
    again = build(recipe, tmp_path / "killed" / "set", workers=1, report=lambda *args: told.append(args))
    assert [dataset.digest for dataset in again] == [dataset.digest for dataset in one]
    assert again[0].path_of(again[0].manifest.slices[1]).stat().st_ino == kept
    assert ("reading", 600, 600) not in told
    assert sorted(path.name for path in (tmp_path / "killed").iterdir()) == ["set", "set-validation"]


def test_rows_can_stay_in_order_and_slices_be_cut_by_bytes(tmp_path: Path) -> None:
    lines = tmp_path / "a.jsonl"
    lines.write_text("".join(json.dumps({"x": number}) + "\n" for number in range(100)))
    recipe = Recipe([lines], "jsonl", fields=["x"], slice_bytes=240, is_shuffled=False)
    (made,) = build(recipe, tmp_path / "set")
    assert memoryview(content_of(made, "x")).cast("q").tolist() == list(range(100))
    assert [info.rows for info in made.manifest.slices] == [30, 30, 30, 10]


@pytest.mark.parametrize(
    ("name", "content", "options", "cause"),
    [
        ("a.csv", "x,y\n1,2\n3\n", {}, r"a\.csv, line 3: 1 cells, but 2 columns"),
        ("a.csv", "x,y\n1,2\n3,z\n", {}, r"a\.csv, line 2: field 'y' is not numbers; .*--label"),
        ("a.csv", "x,x\n1,2\n", {}, r"a\.csv, line 1: the first line must name the columns, each once"),
        ("a.csv", 'x\n1\n"2\n', {}, r"a\.csv, line 3: not a row of values"),
        ("a.csv", "x\n1\n", {"label": "z"}, r"a\.csv, line 2: no field 'z'; choose .*: x"),
        (
            "a.jsonl",
            '{"x": 1, "y": 2}\n{"x": 1, "y": "b"}\n',
            {"fields": ["x"], "label": "y"},
            "names of classes in some",
        ),
        ("a.jsonl", '{"x": 1, "y": 0.5}\n', {"fields": ["x"], "label": "y"}, "'y' has fractions"),
        ("a.jsonl", '{"x": 1}\n', {"fields": ["x"], "tokenizer": Path("t")}, "t has no tokenizer.json"),
        ("a.png", "not a picture", {"image_size": "4"}, "lies in no folder of a class"),
        ("cat/a.png", "not a picture", {"image_size": "4"}, r"cat/a\.png is not a picture that can be read"),
        ("cat/a.png", "not a picture", {"image_size": "4y"}, "--image-size '4y' is not a size"),
        ("a.parquet", "PAR1 and more", {}, r"a\.parquet is not a Parquet file"),
        (
            "a.py",
            "def rows():\n    yield {'x': 1}\n    yield {'x': 'b'}\n",
            {},
            r"a\.py:rows, row 2: field 'x' is not numb",
        ),
        (
            "a.py",
            "def rows():\n    yield {'x': 1}\n    1 / 0\n",
            {},
            r"a\.py:rows failed: ZeroDivisionError.*line 3 of",
        ),
        ("a.py", "def rows():\n    yield 3\n", {}, r"a\.py:rows, row 1 is not a dict"),
        ("state.json", "{}", {}, "was not written by save_to_disk"),
        ("dataset_dict.json", '{"splits": ["train"]}', {}, "holds several splits"),
    ],
)
def test_what_is_wrong_with_an_input_is_named(
    tmp_path: Path, name: str, content: str, options: dict[str, Any], cause: str
) -> None:
    path = tmp_path / "input" / name
    path.parent.mkdir(parents=True)
    path.write_text(content)
    kinds = {".csv": "csv", ".jsonl": "jsonl", ".png": "images", ".parquet": "parquet", ".py": "function"}
    format: Any = kinds.get(path.suffix, "saved")
    source: Path | str = f"{path}:rows" if format == "function" else tmp_path / "input"
    with pytest.raises(DatasetError, match=cause):
        build(Recipe([source], format, **options), tmp_path / "out" / "set")
    assert not (tmp_path / "out").exists() or list((tmp_path / "out").iterdir()) == []


def test_an_empty_cell_and_a_list_of_another_length_are_named_with_their_rows(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet as file

    for column, cause in (([1, None], "row 2: 'x' is empty"), ([[1], [1, 2]], r"rows 1 to 2: 'x' has lists that")):
        file.write_table(arrow.table({"x": column}), tmp_path / "a.parquet")
        with pytest.raises(DatasetError, match=cause):
            build(Recipe([tmp_path / "a.parquet"], "parquet"), tmp_path / "out" / "set")


def test_a_permutation_has_every_number_once_and_follows_from_its_key() -> None:
    for count in (1, 2, 3, 17, 1000):
        made = [Permutation(count, "k")[index] for index in range(count)]
        assert sorted(made) == list(range(count))
    other = [Permutation(1000, "other")[index] for index in range(1000)]
    assert made != other
    assert sum(abs(value - index) for index, value in enumerate(made)) > 250_000


def test_shares_are_met_and_no_part_is_empty() -> None:
    assert parts_of(10, [0.9, 0.1], 0).bounds == (9, 10)
    assert parts_of(3, [98, 1, 1], 0).bounds == (1, 2, 3)
    with pytest.raises(DatasetError, match="1 pieces are too few for 2 parts"):
        parts_of(1, [1, 1], 0)


def test_a_process_that_is_killed_is_one_clear_error() -> None:
    with Processes(2) as processes, pytest.raises(DatasetError, match="a process of the build was killed"):
        list(processes.each(_kill_yourself, None, [1, 2, 3]))


def _kill_yourself(_: None, __: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_histogram_has_all_sizes() -> None:
    assert sum(int(line.split()[-1].replace(",", "")) for line in histogram([1, 2, 2, 90, 100])) == 5
    assert histogram([5, 5])[0].endswith("# 2")
