"""The train program as several processes, started by `accelerate launch`, against a scripted bridge."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from safetensors.torch import load_file  # noqa: E402

from tests.unit.oracle_diloco import Oracle  # noqa: E402
from tests.unit.scripted_bridge import ROOT, environment, job  # noqa: E402
from tests.unit.test_diloco_rounds import (  # noqa: E402
    BATCH,
    INNER,
    TORCH_INNER,
    MakeScene,
    batches_of,
    loss_of,
    make_scene,
    prepared,
    rows_of,
)

__all__ = ["make_scene", "prepared"]

LAUNCH = ["accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1"]
LAUNCH += ["--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]


@pytest.mark.timeout(150)
def test_two_processes_make_the_rounds_of_one_and_end_together(tmp_path: Path, make_scene: MakeScene) -> None:
    """H50: two CPU processes (gloo) split each batch, an odd one too; one of them talks to the bridge. In round 2 the
    bridge refuses: both end, and the program says so with its exit code."""
    scene = make_scene("causal-lm")
    worker = scene.worker([8, 5, 8, 7], [2, 2, 3], fails_in=2)
    group = scene.group(lr=0.7, momentum=0.9)
    text = json.dumps(job(worker, "causal-lm", batch_size=BATCH, inner=INNER))
    program = ["-m", "node.executors.train", "--socket", worker.socket, "--work-dir", str(worker.folder), "--job", text]
    with group.serving():
        ended = subprocess.run(
            [sys.executable, "-m", *LAUNCH, *program], env=environment(), cwd=ROOT, capture_output=True, timeout=140
        )
    said = ended.stderr.decode()
    assert ended.returncode == 1, said
    assert "the bridge refused status" in said, said
    assert [entry for entry in worker.log if entry == "send"] == ["send"] * 2, said

    initial = scene.initial()
    oracle = Oracle(initial, loss_of, 1, inner=TORCH_INNER, outer_lr=0.7, outer_momentum=0.9)
    stream = batches_of(worker.slices)
    for _ in range(2):
        oracle.round([[next(stream) for _ in range(2)]], rows_of)
    made: dict[str, Any] = load_file(tmp_path / "server" / "weights-2.safetensors")
    for name, value in oracle.named(initial).items():
        assert (made[name] - value).abs().max().item() <= 1e-5, name
