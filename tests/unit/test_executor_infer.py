"""The inference executor, with a bridge that answers in this process."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from safetensors.torch import load_file, save_file  # noqa: E402

from node.errors import JobError  # noqa: E402
from node.executors import infer  # noqa: E402
from node.executors.bridge_client import Fetched  # noqa: E402
from node.executors.infer import InferConfig, main, run  # noqa: E402
from node.executors.job import Model  # noqa: E402
from node.executors.models import load_model  # noqa: E402
from node.executors.outputs import NOTHING, TensorSink  # noqa: E402
from node.tensorfile import read_header  # noqa: E402

GPT2 = {"model_type": "gpt2", "vocab_size": 32, "n_positions": 16, "n_embd": 16, "n_layer": 1, "n_head": 2,
        "bos_token_id": 0, "eos_token_id": 3}  # fmt: skip
VIT = {"model_type": "vit", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 8,
       "patch_size": 4, "intermediate_size": 16, "id2label": {"0": "cat", "1": "dog", "2": "emu"}}  # fmt: skip
MODULE = """
import torch

class Twice(torch.nn.Module):
    def forward(self, x):
        return 2 * x

def build():
    return Twice()
"""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Here:
    """A bridge that has everything at hand. Results are kept as they are sent."""

    def __init__(self, work_dir: Path, slices: list[dict[str, Any]], **files: str) -> None:
        self.work_dir = work_dir
        self.sent: dict[str, Path] = {}
        self.sizes: list[int] = []
        self._files = files
        (work_dir / "artifacts" / "slices").mkdir(parents=True)
        self._slices = []
        row = 0
        for number, tensors in enumerate(slices):
            path = work_dir / "artifacts" / "slices" / f"d-{number:06d}.safetensors"
            save_file(tensors, path)
            self._slices.append(Fetched(path, None, first_row=row))
            row += len(next(iter(tensors.values())))

    def fetch(self, reference: dict[str, Any]) -> list[Fetched]:
        if reference["type"] == "scheduler":
            return [self._slices.pop(0)] if self._slices else []
        made = []
        for name, text in self._files.items():
            path = self.work_dir / "artifacts" / name.replace("__", ".")
            path.write_text(text)
            made.append(Fetched(path, None))
        return made

    def send(self, peers: dict[str, Any], path: Path) -> None:
        kept = self.work_dir / f"sent-{path.name}"
        shutil.copyfile(path, kept)
        self.sent[path.name] = kept

    def status(self, body: Any) -> dict[str, Any]:
        self.sizes.append(body["status"]["batch_size"])
        return {"type": "Continue"}


def infer_with(here: Here, task: str, kind: str, *, format_: str = "safetensors", **more: Any) -> dict[str, Path]:
    """Run to the end; the results that were sent."""
    output = {"kind": kind, "format": format_, "max_new_tokens": 4}
    config = InferConfig(
        model=Model(task=task, artifact={"type": "job"}, seed=1),
        data={"type": "scheduler"},
        results={},
        output=output,
        **{"batch_size": 4, **more},
    )
    run(config, here, here.work_dir)  # type: ignore[arg-type]
    return here.sent


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def tokens(rows: int, seed: int = 0) -> dict[str, Any]:
    made = torch.randint(4, 32, (rows, 6), generator=torch.Generator().manual_seed(seed))
    return {"input_ids": made.to(torch.int32)}


def test_each_slice_gives_one_result_with_its_rows_in_order_whatever_the_batch_size(tmp_path: Path) -> None:
    slices = [tokens(10), tokens(3, 1)]
    sent = infer_with(Here(tmp_path / "a", slices, config__json=json.dumps(GPT2)), "causal-lm", "logits")
    assert list(sent) == ["d-000000.safetensors", "d-000001.safetensors"]
    module = load_model(tmp_path / "a" / "artifacts", "causal-lm", 1).module.eval()
    for part, path in zip(slices, sent.values(), strict=True):
        with torch.no_grad():
            expected = module(part["input_ids"].long()).logits
        torch.testing.assert_close(load_file(path)["logits"], expected)
        assert read_header(path).rows == len(part["input_ids"])
    here = Here(tmp_path / "b", slices, config__json=json.dumps(GPT2))
    other = infer_with(here, "causal-lm", "logits", batch_size=100)
    assert here.sizes == [10, 3]
    torch.testing.assert_close(load_file(other["d-000000.safetensors"]), load_file(sent["d-000000.safetensors"]))


def test_the_same_slice_gives_the_same_bytes(tmp_path: Path) -> None:
    made = [
        infer_with(Here(tmp_path / name, [tokens(9)], config__json=json.dumps(GPT2)), "causal-lm", "hidden")
        for name in ("a", "b")
    ]
    first, again = (results["d-000000.safetensors"].read_bytes() for results in made)
    assert first == again


def test_classes_are_named_as_the_model_names_them_and_rows_are_numbered_through(tmp_path: Path) -> None:
    pictures = [{"pixel_values": torch.rand(rows, 3, 8, 8), "labels": torch.zeros(rows)} for rows in (2, 3)]
    here = Here(tmp_path, pictures, config__json=json.dumps(VIT))
    sent = infer_with(here, "image-classification", "classes", format_="jsonl")
    found = [line for path in sent.values() for line in lines(path)]
    assert [line["row"] for line in found] == [0, 1, 2, 3, 4]
    assert all(line["label"] == VIT["id2label"][str(line["class"])] for line in found)  # type: ignore[index]
    assert all(1 / 3 <= line["score"] <= 1 for line in found)


def test_generated_tokens_end_with_the_first_end_token_in_both_formats(tmp_path: Path) -> None:
    part = tokens(8)
    ends = json.dumps(GPT2)
    as_lines = infer_with(Here(tmp_path / "a", [part], config__json=ends), "causal-lm", "tokens", format_="jsonl")
    as_tensors = infer_with(Here(tmp_path / "b", [part], config__json=ends), "causal-lm", "tokens")
    module = load_model(tmp_path / "a" / "artifacts", "causal-lm", 1).module.eval()
    made = load_file(as_tensors["d-000000.safetensors"])["tokens"]
    assert made.shape == (8, 4) and made.dtype == torch.int64
    for number, line in enumerate(lines(as_lines["d-000000.jsonl"])):
        row = part["input_ids"][number : number + 1].long()
        expected = module.generate(row, max_new_tokens=4, do_sample=False, pad_token_id=3)[0, 6:].tolist()
        if 3 in expected:
            expected = expected[: expected.index(3) + 1]
        assert line["tokens"] == expected
        assert made[number].tolist() == expected + [NOTHING] * (4 - len(expected))


def test_embeddings_are_the_mean_over_what_the_mask_lets_in(tmp_path: Path) -> None:
    part = {**tokens(2), "attention_mask": torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 0, 0, 0, 0]], dtype=torch.uint8)}
    sent = infer_with(Here(tmp_path, [part], config__json=json.dumps(GPT2)), "causal-lm", "embeddings")
    made = load_file(sent["d-000000.safetensors"])["embedding"]
    module = load_model(tmp_path / "artifacts", "causal-lm", 1).module.eval()
    with torch.no_grad():
        hidden = module(part["input_ids"].long(), output_hidden_states=True).hidden_states[-1]
    torch.testing.assert_close(made[0], hidden[0].mean(0))
    torch.testing.assert_close(made[1], hidden[1, :2].mean(0))


def test_a_module_of_the_jobs_own_answers_with_a_tensor(tmp_path: Path) -> None:
    here = Here(tmp_path, [{"x": torch.ones(5, 2)}], model__py=MODULE)
    sent = infer_with(here, "torch", "logits", precision="bf16")
    assert torch.equal(load_file(sent["d-000000.safetensors"])["logits"], torch.full((5, 2), 2.0))


def test_what_a_model_cannot_answer_is_an_error_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="generates no tokens"):
        infer_with(Here(tmp_path / "a", [{"x": torch.ones(1, 2)}], model__py=MODULE), "torch", "tokens")
    other = MODULE.replace("2 * x", '{"y": x}')
    for kind in ("hidden", "logits"):
        here = Here(tmp_path / kind, [{"x": torch.ones(1, 2)}], model__py=other)
        with pytest.raises(JobError, match="the model answers without"):
            infer_with(here, "torch", kind)
        assert not here.sent and not list((tmp_path / kind / "out").iterdir())


def test_a_result_that_lacks_rows_never_gets_its_name(tmp_path: Path) -> None:
    """U47."""
    with pytest.raises(JobError, match="3 of 4 rows"), TensorSink(tmp_path / "r.safetensors", 4) as sink:
        sink.write({"logits": torch.ones(3, 2)})
        with pytest.raises(JobError, match="change their shape"):
            sink.write({"logits": torch.ones(1, 3)})
        sink.finish()
    assert not list(tmp_path.iterdir())


def test_the_program_ends_with_one_line_and_an_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--socket", str(tmp_path / "s"), "--work-dir", str(tmp_path)]
    assert main([*arguments, "--job", "{}"]) == 1
    config = {"model": {"task": "causal-lm", "artifact": {}, "input-names": []}, "data": {}, "results": {}}
    whole = {**config, "output": {"kind": "tokens", "format": "jsonl"}, "batch_size": 0}
    assert main([*arguments, "--job", json.dumps({"executor": {"config": whole}})]) == 1

    def broken(*_: Any) -> None:
        raise RuntimeError("out of\nluck")

    monkeypatch.setattr(infer, "run", broken)
    text = json.dumps({"executor": {"config": {**whole, "batch_size": 2}}})
    assert main([*arguments, "--job", text]) == 1
    assert "infer.failed RuntimeError: out of luck" in capsys.readouterr().err
