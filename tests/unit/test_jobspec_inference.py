"""Job files of `type = "inference"`, and what docs/inference.md says of them."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from node.errors import ConfigError
from node.jobspec import InferenceResources, InferenceTable, JobSpec, OutputSpec, parse_job

DOC = Path(__file__).parents[2] / "docs" / "inference.md"
JOB = """
type = "inference"
dataset = "photos"
[model]
type = "image-classification"
repository = "acme/vit"
filenames = ["config.json", "model.safetensors"]
token = "hush"
[output]
kind = "classes"
"""


def test_an_inference_job_needs_a_model_a_dataset_and_a_kind_of_output() -> None:
    spec = parse_job(JOB)
    assert spec.is_inference and spec.output is not None
    assert (spec.name, spec.output.format, spec.output.to, spec.batch_size) == ("photos", "jsonl", "", 16)
    assert (spec.num_workers, spec.precision, spec.rounds.update_rounds) == (1, "fp32", 0)
    assert parse_job(JOB.replace("classes", "embeddings")).wire_output().format == "safetensors"
    stored = msgspec.json.decode(msgspec.json.encode(spec.without_secrets()), type=JobSpec)
    assert stored == spec.without_secrets() and stored.token == ""


def test_the_model_may_be_that_of_an_earlier_job_and_then_nothing_else() -> None:
    model = re.sub(r"^(repository|filenames|token) = .*\n", "", JOB, flags=re.MULTILINE)
    with_job = model.replace("[output]", 'job = "shapes-1a2b3c"\n[output]')
    assert parse_job(with_job).model_job == "shapes-1a2b3c"
    for wrong in (JOB.replace("[output]", 'job = "x"\n[output]'), with_job.replace("shapes-1a2b3c", "../x")):
        with pytest.raises(ConfigError, match=r"model\.job"):
            parse_job(wrong)


def test_a_training_job_has_no_output() -> None:
    with pytest.raises(ConfigError, match="output"):
        parse_job(JOB.replace('type = "inference"', 'type = "diloco"', 1))


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('"classes"', '"labels"', "output.kind: 'labels' is not one of classes, tokens"),
        ('"classes"', '"logits"\nformat = "jsonl"', "output.format: logits are written as safetensors alone"),
        ('"classes"', '"classes"\nto = "out"', "output.to: must be an absolute folder, peer:"),
        ('"classes"', '"classes"\nto = "peer:"', "output.to: must be"),
        ('"classes"', '"classes"\nmax_new_tokens = 0', "output.max_new_tokens: must be 1"),
        ('"classes"', '"classes"\nwhere = "x"', "output.where: unknown key"),
        ('dataset = "photos"', 'dataset = "photos"\nbatch_size = 0', "line 4: batch_size: must be 1"),
        ('dataset = "photos"', "", "dataset: is missing"),
        ("[output]", "[rounds]\nupdate_rounds = 1\n[output]", "rounds: unknown key"),
        ("[output]", "[resources]\nnum_workers = 0\n[output]", "resources.num_workers: must be 1"),
        ("[output]", "[resources]\nworker_price = { bid = 2, max = 1 }\n[output]", "worker_price: bid must be"),
        ("image-classification", "image-clasification", "did you mean image-classification"),
    ],
)
def test_a_fault_names_the_key(old: str, new: str, expected: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_job(JOB.replace(old, new, 1), "job.toml")
    assert expected in str(error.value)


def test_the_document_has_exactly_the_keys_of_an_inference_job_and_its_example_is_one() -> None:
    text = DOC.read_text()
    (example,) = re.findall(r"^```toml\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert parse_job(example).is_inference
    named = set(re.findall(r"^\| `([a-z_]+)` \|", text, re.MULTILINE))
    fields = {f.name for kind in (InferenceTable, OutputSpec, InferenceResources) for f in msgspec.structs.fields(kind)}
    kinds = {"classes", "tokens", "embeddings", "hidden", "logits"}
    assert named - kinds == fields - {"dataset_name", "output", "resources"}
