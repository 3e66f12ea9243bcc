"""`hypha-node dataset`: building, verifying and showing datasets."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import pytest

from node.cli import run
from node.data import cli
from node.data.build import build
from node.data.building import building
from node.data.datasets import Dataset, read_manifest, verify
from node.data.recipe import Recipe
from node.errors import DatasetError
from node.tensorfile import read_header


def content_of(dataset: Dataset, tensor: str) -> bytes:
    """A tensor's bytes of all slices, one after another."""
    found = b""
    for info in dataset.manifest.slices:
        path = dataset.path_of(info)
        header = read_header(path)
        entry = header.tensors[tensor]
        found += path.read_bytes()[header.data_start + entry.start : header.data_start + entry.end]
    return found


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    folder = tmp_path / "texts"
    (folder / "sub").mkdir(parents=True)
    for number in range(20):
        (folder / ("sub" if number % 2 else ".") / f"{number:02}.py").write_bytes(f"{number:02}".encode() * 500)
    (folder / "notes.txt").write_text("not python")
    (folder / ".hidden.py").write_text("hidden")
    (folder / "link.py").symlink_to(folder / "notes.txt")
    return folder


def text_recipe(texts: Path, **changes: Any) -> Recipe:
    given = {"sources": [texts], "format": "text", "glob": "*.py", "sequence_length": 100, "rows_per_slice": 30}
    return Recipe(**(given | changes))


def test_text_becomes_rows_of_bytes_split_by_whole_files(texts: Path, tmp_path: Path) -> None:
    train, held = build(text_recipe(texts, validation_fraction=0.2), tmp_path / "out" / "py")
    assert (train.name, held.name) == ("py", "py-validation")
    assert (train.rows, held.rows) == (160, 40)
    assert [info.rows for info in train.manifest.slices] == [30, 30, 30, 30, 30, 10]
    assert train.manifest.schema == {"input_ids": "U8[100]"}
    ours, theirs = content_of(train, "input_ids"), content_of(held, "input_ids")
    pairs = [{body[at : at + 2] for at in range(0, len(body), 2)} for body in (ours, theirs)]
    assert not pairs[0] & pairs[1]
    assert pairs[0] | pairs[1] == {f"{number:02}".encode() for number in range(20)}
    assert verify(train.folder)[1] == []


def test_rows_of_a_slice_are_a_mix_of_the_file_with_their_columns_kept_together(tmp_path: Path) -> None:
    """Neighbours in a file are alike, and a batch is a run of rows: in file order it would be a poor sample."""
    lines = tmp_path / "numbers.jsonl"
    lines.write_text("".join(json.dumps({"a": number, "b": number + 1000}) + "\n" for number in range(200)))
    recipe = Recipe(sources=[lines], format="jsonl", fields=["a", "b"], rows_per_slice=100)
    (dataset,) = build(recipe, tmp_path / "out" / "numbers")
    a, b = (memoryview(content_of(dataset, name)).cast("q").tolist() for name in "ab")
    assert sorted(a) == list(range(200))
    assert b == [number + 1000 for number in a]

    text = tmp_path / "bytes.txt"
    text.write_bytes(bytes(number for number in range(64) for _ in range(10)))
    (dataset,) = build(text_recipe(text, sequence_length=10, rows_per_slice=64), tmp_path / "out" / "bytes")
    rows = content_of(dataset, "input_ids")[::10]
    assert sorted(rows) == list(range(64))
    followers = sum(following == row + 1 for row, following in pairwise(rows))
    assert followers < 16


def test_the_same_input_and_settings_give_the_same_digests_and_others_do_not(texts: Path, tmp_path: Path) -> None:
    digests = []
    for out, changes in (("a", {}), ("b", {}), ("c", {"seed": 1}), ("d", {"rows_per_slice": 31})):
        (made,) = build(text_recipe(texts, **changes), tmp_path / out / "py")
        digests.append(made.digest)
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


def test_no_more_than_max_bytes_is_taken(texts: Path, tmp_path: Path) -> None:
    (made,) = build(text_recipe(texts, max_bytes=1_550), tmp_path / "py")
    assert made.rows == 15


def test_what_is_there_is_replaced_only_if_it_is_a_dataset_and_only_by_force(texts: Path, tmp_path: Path) -> None:
    out = tmp_path / "py"
    build(text_recipe(texts), out)
    with pytest.raises(DatasetError, match="exists; --force"):
        build(text_recipe(texts), out)
    (again,) = build(text_recipe(texts, rows_per_slice=200), out, force=True)
    assert [path.name for path in out.iterdir() if path.suffix == ".safetensors"] == ["slice-00000.safetensors"]
    assert len(again.manifest.slices) == 1
    with pytest.raises(DatasetError, match="not a dataset"):
        build(text_recipe(texts), texts, force=True)
    assert (texts / "notes.txt").exists()


def test_a_build_that_fails_leaves_nothing_behind(texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """U47: nothing half-written is ever seen."""

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("node.data.build.write_file", full)
    with pytest.raises(DatasetError, match="cannot be built: No space left"):
        build(text_recipe(texts), tmp_path / "out" / "py")
    assert list((tmp_path / "out").iterdir()) == []


def test_lines_of_text_become_tokens(tmp_path: Path) -> None:
    lines = tmp_path / "x.jsonl"
    lines.write_text('{"text": "abc"}\n\n{"text": "äö"}\n')
    (made,) = build(Recipe(sources=[lines], format="jsonl", sequence_length=9), tmp_path / "d")
    assert content_of(made, "input_ids") in ("abc\näö\n".encode(), "äö\nabc\n".encode())


def test_fields_of_numbers_become_tensors(tmp_path: Path) -> None:
    lines = tmp_path / "x.jsonl"
    lines.write_text("".join(json.dumps({"x": [[n, 0.5], [1, 2]], "y": n, "z": "no"}) + "\n" for n in range(10)))
    (made,) = build(Recipe(sources=[lines], format="jsonl", fields=["x", "y"], rows_per_slice=4), tmp_path / "d")
    assert made.manifest.schema == {"x": "F32[2,2]", "y": "I64[]"}
    assert [info.rows for info in made.manifest.slices] == [4, 4, 2]
    values = memoryview(content_of(made, "y")).cast("q").tolist()
    assert sorted(values) == list(range(10))
    assert memoryview(content_of(made, "x")).cast("f").tolist()[::4] == [float(n) for n in values]


@pytest.mark.parametrize(
    ("second", "cause"),
    [
        ('{"x": [1]}', r"line 2: field 'x' has the shape \(1,\), before it was \(2,\)"),
        ('{"x": [1, "a"]}', "line 2: field 'x' is not numbers"),
        ('{"y": 1}', "line 2: no field 'x'.*from: y"),
        ("[1]", "line 2: not a JSON object"),
        ('{"x": [1, 1e39]}', "does not fit"),
        ('{"x": [[1], 2]}', "has the shape None"),
        ('{"x": "\xe9"}', "line 2: not a JSON object: 'utf-8' codec can't decode"),
        ('{"x": ' + "[" * 100_000, "line 2: not a JSON object"),
    ],
)
def test_a_line_unlike_the_others_is_named(tmp_path: Path, second: str, cause: str) -> None:
    lines = tmp_path / "x.jsonl"
    lines.write_text('{"x": [1, 2]}\n' + second + "\n", encoding="latin-1")
    with pytest.raises(DatasetError, match=cause):
        build(Recipe(sources=[lines], format="jsonl", fields=["x"]), tmp_path / "d")


def test_arrays_become_tensors_row_by_row(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    numpy.savez(tmp_path / "x.npz", images=numpy.arange(60, dtype=">f4").reshape(10, 2, 3), labels=numpy.arange(10))
    recipe = Recipe(sources=[tmp_path / "x.npz"], format="numpy", validation_fraction=0.3)
    train, held = build(recipe, tmp_path / "d")
    assert train.manifest.schema == {"images": "F32[2,3]", "labels": "I64[]"}
    assert (train.rows, held.rows) == (7, 3)
    labels = memoryview(content_of(train, "labels")).cast("q").tolist()
    assert memoryview(content_of(train, "images")).cast("f").tolist()[::6] == [6.0 * label for label in labels]
    numpy.save(tmp_path / "bad.npy", numpy.array(["a"]))
    with pytest.raises(DatasetError, match="'bad' has the dtype <U1"):
        build(Recipe(sources=[tmp_path / "bad.npy"], format="numpy"), tmp_path / "e")


def test_numpy_missing_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    (tmp_path / "x.npy").touch()
    with pytest.raises(DatasetError, match=r"pip install 'hypha-tui\[train\]'"):
        build(Recipe(sources=[tmp_path / "x.npy"], format="numpy"), tmp_path / "d")


def test_the_commands_build_verify_and_show(texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "py"
    arguments = [
        "dataset",
        "build",
        str(texts),
        "--out",
        str(out),
        "--glob",
        "*.py",
        "--rows-per-slice",
        "50",
        "--json",
    ]
    assert run(arguments) == 0
    built = json.loads(capsys.readouterr().out)
    assert (built["name"], built["slices"], built["digest"]) == ("py", 4, read_manifest(out).digest)
    assert run(["dataset", "verify", str(out)]) == 0
    assert "all as the manifest says" in capsys.readouterr().out
    assert run(["dataset", "show", str(out), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["entries"]) == 4
    assert run(["dataset", "show", str(out), "--slices"]) == 0
    assert "slice-00003.safetensors" in capsys.readouterr().out
    assert run(arguments) == 1
    assert "exists; --force replaces it" in capsys.readouterr().err
    slices = sorted(out.glob("*.safetensors"))
    body = bytearray(slices[0].read_bytes())
    body[-1] ^= 1
    slices[0].write_bytes(body)
    slices[1].write_bytes(slices[1].read_bytes()[:-1])
    slices[2].unlink()
    (out / "extra.safetensors").write_bytes(b"")
    assert run(["dataset", "verify", str(out), "--json"]) == 1
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert [problem.split(":")[0] for problem in problems] == [path.name for path in slices[:3]] + ["extra.safetensors"]
    assert "SHA-256" in problems[0]
    assert "cut short" in problems[1]
    assert "No such file" in problems[2]


def test_a_build_of_text_needs_neither_numpy_nor_torch(texts: Path, tmp_path: Path) -> None:
    program = (
        "import sys; from node.cli import run; "
        f"assert run(['dataset', 'build', {str(texts)!r}, '--out', {str(tmp_path / 'py')!r}]) == 0; "
        "assert not {'numpy', 'torch', 'textual'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_what_a_killed_build_has_left_goes_with_the_next_of_its_name_but_not_that_of_a_live_one(
    texts: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    program = (
        "import os, signal, sys; from pathlib import Path; from node.data.building import building\n"
        "with building(Path(sys.argv[1]), '0' * 12) as part:\n"
        "    (part / 'x').touch(); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(out / "killed")], check=False, timeout=60)
    assert [path.suffix for path in out.iterdir()] == [".building"]
    with building(out / "live", "1" * 12) as live:
        build(text_recipe(texts), out / "py")
        assert len(list(out.iterdir())) == 3
        with pytest.raises(DatasetError, match="another build is at work"), building(out / "live", "1" * 12):
            pass
        build(text_recipe(texts), out / "killed")
        assert sorted(path.name for path in out.iterdir()) == sorted([live.name, "killed", "py"])
        build(text_recipe(texts), out / "live")
        assert live.exists()
    assert sorted(path.name for path in out.iterdir()) == ["killed", "live", "py"]


def test_a_dataset_that_a_killed_build_was_just_replacing_comes_back(texts: Path, tmp_path: Path) -> None:
    (dataset,) = build(text_recipe(texts), tmp_path / "out" / "py")
    dataset.folder.rename(tmp_path / "out" / f".py.{'0' * 12}.building.old")
    build(text_recipe(texts), tmp_path / "out" / "other")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["other", "py"]
    assert verify(dataset.folder)[1] == []


def test_every_format_and_option_of_a_build_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "datasets.md").read_text()
    signature = inspect.signature(cli.build)
    for name, parameter in signature.parameters.items():
        flag = f"--{name.replace('_', '-')}"
        assert f"`{flag}`" in text or f"`--no-{name}`" in text or parameter.kind is parameter.VAR_POSITIONAL, flag
    for format in get_args(cli.Formats):
        assert f"| `{format}` |" in text, format
