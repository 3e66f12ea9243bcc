"""Models as executors load and export them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from safetensors.torch import load_file, save_file  # noqa: E402

from node.errors import JobError  # noqa: E402
from node.executors.models import (  # noqa: E402
    copy_preprocessor,
    export_model,
    listed,
    load_model,
    load_preprocessor,
    loss_of,
)
from node.training.files import write_tensors  # noqa: E402
from node.training.traits import Traits  # noqa: E402
from node.training.updates import state_of  # noqa: E402

GPT2 = {"model_type": "gpt2", "vocab_size": 32, "n_positions": 16, "n_embd": 16, "n_layer": 1, "n_head": 2,
        "bos_token_id": 0, "eos_token_id": 0}  # fmt: skip
BATCH_NORM = """
from torch import nn
import helper

def build():
    return nn.Sequential(nn.Linear(4, helper.WIDTH), nn.BatchNorm1d(helper.WIDTH))
"""


def write_config(folder: Path, name: str = "config.json", **more: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps({**GPT2, **more}))
    return folder


def test_a_model_without_weights_is_the_same_for_the_same_seed_and_leaves_the_random_state(tmp_path: Path) -> None:
    write_config(tmp_path)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first, again, other = (state_of(load_model(tmp_path, "causal-lm", seed).module)[0] for seed in (1, 1, 2))
    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_tied_weights_travel_under_one_name_and_counters_with_the_running_statistics(tmp_path: Path) -> None:
    """H49, U71."""
    tensors, traits = state_of(load_model(write_config(tmp_path / "gpt2"), "causal-lm", 1).module)
    assert "transformer.wte.weight" in tensors and "lm_head.weight" not in tensors
    assert not traits.buffers
    assert traits.tied == {"lm_head.weight": "transformer.wte.weight"}
    (tmp_path / "bn").mkdir()
    (tmp_path / "bn" / "model.py").write_text(BATCH_NORM)
    (tmp_path / "bn" / "helper.py").write_text("WIDTH = 3\n")
    tensors, traits = state_of(load_model(tmp_path / "bn", "torch", 1).module)
    assert traits.buffers == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
    assert traits.counters == {"1.num_batches_tracked"}
    assert Traits.of(traits.metadata) == traits


def test_an_exported_model_is_loaded_by_transformers_with_the_weights_of_the_version(tmp_path: Path) -> None:
    """U71: nothing is missing, the tie is there."""
    artifacts = write_config(tmp_path / "artifacts")
    (artifacts / "tokenizer_config.json").write_text("{}")
    (artifacts / "evil.py").write_text("raise SystemExit")
    loaded = load_model(artifacts, "causal-lm", 1)
    tensors, traits = state_of(loaded.module)
    moved = {name: value + 0.25 for name, value in tensors.items()}
    write_tensors(tmp_path / "weights-3.safetensors", moved, traits.metadata)
    export_model(load_model(artifacts, "causal-lm", 1), tmp_path / "weights-3.safetensors", tmp_path / "out")
    names = {entry["name"] for entry in listed(tmp_path / "out")}
    assert {"config.json", "model.safetensors", "tokenizer_config.json"} <= names and "evil.py" not in names
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert model.lm_head.weight is model.transformer.wte.weight
    assert all(torch.equal(value, moved[name]) for name, value in state_of(model)[0].items())
    again = load_model(tmp_path / "out", "causal-lm", 7)
    assert all(torch.equal(value, moved[name]) for name, value in state_of(again.module)[0].items())


def test_an_exported_torch_model_has_its_code_and_loads_its_weights(tmp_path: Path) -> None:
    artifacts = tmp_path / "artifacts"
    artifacts.mkdir()
    (artifacts / "model.py").write_text("from torch import nn\n\ndef build():\n    return nn.Linear(2, 2)\n")
    loaded = load_model(artifacts, "torch", 1)
    moved = {name: value + 1 for name, value in state_of(loaded.module)[0].items()}
    write_tensors(tmp_path / "weights-1.safetensors", moved)
    export_model(loaded, tmp_path / "weights-1.safetensors", tmp_path / "out")
    assert [entry["name"] for entry in listed(tmp_path / "out")] == ["model.py", "model.safetensors"]
    again = load_model(tmp_path / "out", "torch", 99)
    assert all(torch.equal(value, moved[name]) for name, value in state_of(again.module)[0].items())


def test_an_exported_model_brings_its_preprocessor(tmp_path: Path) -> None:
    """Of another folder or repository than the model's; the model's own files stay."""
    artifacts, own = write_config(tmp_path / "artifacts"), tmp_path / "own" / "processor"
    own.mkdir(parents=True)
    (own / "preprocessor_config.json").write_text('{"image_processor_type": "ViTImageProcessor", "size": 24}')
    (own / "config.json").write_text("{}")
    (own / "processing.py").write_text("raise SystemExit")
    loaded = load_model(artifacts, "causal-lm", 1)
    tensors, traits = state_of(loaded.module)
    write_tensors(tmp_path / "weights-1.safetensors", tensors, traits.metadata)
    export_model(loaded, tmp_path / "weights-1.safetensors", tmp_path / "out")
    copy_preprocessor(tmp_path / "own", ["processor"], tmp_path / "out")
    made = transformers.AutoImageProcessor.from_pretrained(tmp_path / "out", use_fast=False)
    assert made.size == {"height": 24, "width": 24}
    assert transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").config.n_embd == 16
    assert "processing.py" not in {entry["name"] for entry in listed(tmp_path / "out")}


def test_weights_that_a_job_brings_may_have_any_float_type_and_any_of_their_names(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(
        "from torch import nn\n\ndef build():\n"
        "    made = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.BatchNorm1d(2))\n"
        "    made[1].weight = made[0].weight\n    return made\n"
    )
    before = load_model(tmp_path, "torch", 1).module.state_dict()
    brought = {name: value.bfloat16() + 1 for name, value in before.items() if "tracked" not in name}
    del brought["0.weight"]
    save_file(brought, tmp_path / "model.safetensors")
    after = load_model(tmp_path, "torch", 2).module
    assert torch.equal(after[0].weight, brought["1.weight"].float()) and after[1].weight is after[0].weight
    assert after[2].num_batches_tracked == 0


def test_files_may_lie_in_a_folder_of_the_job_or_have_another_name(tmp_path: Path) -> None:
    write_config(tmp_path / "nested")
    assert load_model(tmp_path, "causal-lm", 1, ["nested"]).folder == tmp_path / "nested"
    assert load_model(tmp_path, "causal-lm", 1, ["nested/config.json"]).folder == tmp_path / "nested"
    write_config(tmp_path / "other", "tiny.json")
    assert load_model(tmp_path / "other", "causal-lm", 1, ["tiny.json"]).module.config.n_embd == 16


def test_the_task_names_an_auto_class_in_kebab_case(tmp_path: Path) -> None:
    write_config(tmp_path, num_labels=3)
    assert type(load_model(tmp_path, "sequence-classification", 1).module).__name__ == "GPT2ForSequenceClassification"
    assert type(load_model(tmp_path, "auto", 1).module).__name__ == "GPT2Model"
    with pytest.raises(JobError, match="unknown model task 'causal-llm'"):
        load_model(tmp_path, "causal-llm", 1)


def test_code_that_comes_with_a_model_is_not_run(tmp_path: Path) -> None:
    """H54."""
    ran = tmp_path / "ran"
    write_config(tmp_path, model_type="own", auto_map={"AutoConfig": "own.C", "AutoModelForCausalLM": "own.M"})
    (tmp_path / "own.py").write_text(f"open({str(ran)!r}, 'w')\n")
    with pytest.raises(JobError, match="cannot be loaded"):
        load_model(tmp_path, "causal-lm", 1)
    assert not ran.exists()


def test_pickled_weights_are_refused(tmp_path: Path) -> None:
    write_config(tmp_path)
    torch.save({}, tmp_path / "pytorch_model.bin")
    with pytest.raises(JobError, match="pickled"):
        load_model(tmp_path, "causal-lm", 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\n", "no function build"),
        ("def build():\n    return 3\n", "no torch module"),
        ("def build(:\n", "cannot be loaded"),
        ("raise RuntimeError('boom')\n", "boom"),
    ],
)
def test_a_broken_module_of_the_job_is_one_clear_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "model.py").write_text(text)
    with pytest.raises(JobError, match=message) as caught:
        load_model(tmp_path, "torch", 1)
    assert "\n" not in str(caught.value)


def test_a_folder_without_a_model_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"no config\.json"):
        load_model(tmp_path, "causal-lm", 1)


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("from torch import nn\n\ndef build():\n    return nn.Linear(2, 2)\n")
    save_file({"weight": torch.zeros(3, 3)}, tmp_path / "model.safetensors")
    with pytest.raises(JobError, match="tensor bias is missing"):
        load_model(tmp_path, "torch", 1)
    assert load_file(tmp_path / "model.safetensors")


def test_a_model_without_a_loss_says_what_the_dataset_lacks() -> None:
    with pytest.raises(JobError, match="labels"):
        loss_of({"logits": torch.zeros(3)})


def test_a_preprocessor_is_found_in_its_own_folder_of_the_job(tmp_path: Path) -> None:
    folder = tmp_path / "preprocessor"
    folder.mkdir()
    (folder / "preprocessor_config.json").write_text(
        '{"feature_extractor_type": "Wav2Vec2FeatureExtractor", "sampling_rate": 8000}'
    )
    assert load_preprocessor(tmp_path, "feature-extractor", ["preprocessor"]).sampling_rate == 8000
    assert load_preprocessor(folder, "feature-extractor").sampling_rate == 8000
    # upstream's files may name the model's type
    assert load_preprocessor(folder, "audio-classification").sampling_rate == 8000
