"""The parameter server's program: every line has an answer, and state lives in files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file, save_file  # noqa: E402

from tests.unit.scripted_bridge import AggregateProgram, digest  # noqa: E402

MODEL = "print('model.py was here')\nfrom torch import nn\n\ndef build():\n    return nn.Linear(3, 2)\n"


@pytest.fixture
def program(tmp_path: Path) -> Iterator[AggregateProgram]:
    program = AggregateProgram(tmp_path)
    yield program
    program.close()


def prepare(program: AggregateProgram, folder: Path) -> dict[str, object]:
    (folder / "artifacts").mkdir(exist_ok=True)
    (folder / "artifacts" / "model.py").write_text(MODEL)
    return program.ask(
        "prepare",
        artifacts=str(folder / "artifacts"),
        model={"task": "torch", "repository": "", "filenames": ["model.py"], "input_names": [], "seed": 3},
        out=str(folder / "versions"),
    )


def test_a_life_from_version_0_to_the_export_across_a_kill(tmp_path: Path, program: AggregateProgram) -> None:
    """H6, H11: the state is in files, so a new process goes on where another one was killed."""
    made = prepare(program, tmp_path)
    versions = tmp_path / "versions"
    assert made["ok"] and made["version"] == 0
    assert made["weights"]["sha256"] == digest(versions / "weights-0.safetensors")
    update = tmp_path / "u.safetensors"
    save_file({"bias": torch.ones(2), "weight": torch.ones(2, 3)}, update)
    assert program.ask("check", round=0, path=str(update))["norm"] == pytest.approx(8**0.5)
    outer = {
        "updates": [{"path": str(update), "weight": 5, "task_id": "t", "norm": 2.8}],
        "learning_rate": 0.5,
        "momentum": 0.9,
    }
    first = program.ask("commit", round=0, **outer)
    assert first["ok"] and first["version"] == 1
    for kind in ("weights", "momentum", "delta"):
        path = versions / f"{kind}-1.safetensors"
        assert first[kind] == {"sha256": digest(path), "size_bytes": path.stat().st_size}

    os.kill(program.process.pid, signal.SIGKILL)
    program.process.wait()
    heir = AggregateProgram(tmp_path)
    place = {
        "folder": str(versions),
        "artifacts": str(tmp_path / "artifacts"),
        "model": {"task": "torch", "seed": 3},
    }
    assert heir.ask("check", round=0, path=str(update), **place)["ok"]
    assert heir.ask("commit", round=1, **outer, **place)["version"] == 2
    exported = heir.ask("export", version=2, out=str(tmp_path / "export"), **place)
    assert [entry["name"] for entry in exported["files"]] == ["model.py", "model.safetensors"]
    moved = load_file(tmp_path / "export" / "model.safetensors")["bias"]
    start = load_file(versions / "weights-0.safetensors")["bias"]
    assert torch.allclose(moved, start + 0.5 * (1 + 0.9 + 1 + 0.9 * 1.9))
    assert heir.close() == 0


def test_every_bad_request_is_answered_and_the_next_good_one_works(tmp_path: Path, program: AggregateProgram) -> None:
    """H5, H9, H10: and what a job's code prints does not get between the answers."""
    for line in (b"nonsense", b"[1]", b'{"do":"dance","id":7}', b'{"id":8}', b'{"do":"commit","id":9,"round":"x"}'):
        answer = program.tell(line)
        assert not answer["ok"] and answer["error"] == "invalid", answer
    assert program.ask("check", round=0, path="/nowhere")["error"] in ("unknown", "invalid")
    assert program.ask("export", version=4, out=str(tmp_path / "e"))["error"] == "unknown"
    assert prepare(program, tmp_path)["ok"]
    bad = tmp_path / "bad.safetensors"
    save_file({"bias": torch.full((2,), float("nan")), "weight": torch.ones(2, 3)}, bad)
    refused = program.ask("check", round=0, path=str(bad))
    assert refused["error"] == "invalid" and "bias" in refused["detail"]
    bad.write_bytes(bad.read_bytes()[:-1])
    assert program.ask("check", round=0, path=str(bad))["error"] == "invalid"
    save_file({"weight": torch.ones(2, 3)}, bad)
    assert "bias is missing" in program.ask("check", round=0, path=str(bad))["detail"]
    void = program.ask("commit", round=0, updates=[], learning_rate=0.7, momentum=0.9)
    assert void["ok"] and void["version"] == 1
    assert program.close() == 0


def test_the_arithmetic_needs_no_torch() -> None:
    """A replaced parameter server is there in a tenth of a second."""
    code = "import node.training.aggregate, node.training.replay, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=False).returncode == 0
