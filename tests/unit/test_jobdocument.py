"""A checked job written down again: it reads back the same, and holds no secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.jobdocument import document_of, settings_of
from node.jobspec import JobSpec, job_from, parse_job
from node.schema import Origin
from tests.terminal.feed import WHOLE_JOB

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").rglob("job.toml"))
FULL = """
name = "full"
dataset = { dataset = "words" }
validation-dataset = "words-validation"
precision = "bf16"
[model]
type = "causal-lm"
repository = "acme/model"
filenames = ["config.json"]
token = "hf_secret"
[preprocessor]
type = "image-processor"
repository = "acme/pre"
filenames = ["p.json"]
token = "hf_secret"
[rounds]
update_rounds = 3
avg_samples_between_updates = 64
max_batch_size = 8
[inner_optimizer]
learning_rate = 0.001
betas = [0.8, 0.9]
schedule = "wsd"
[outer_optimizer]
learning_rate = 0.7
momentum = 0.9
[resources]
num_workers = 16
min_workers = 4
spare_workers = 2
worker = [{ type = "GPU", min = 24 }, { type = "Memory", min = 32 }, { kind = "mine" }]
parameter_server = { cpu = 2 }
worker_price = { bid = 1.0, max = 1.4 }
[sync]
codec = "topk"
density = 0.1
[aggregation]
rule = "median"
[checkpoint]
every = 5
"""
INFERENCE = """
type = "inference"
dataset = "words"
batch_size = 4
[model]
type = "causal-lm"
job = "tiny-1f"
[output]
kind = "tokens"
"""


@pytest.mark.parametrize("text", [WHOLE_JOB, FULL, INFERENCE, *(path.read_text() for path in EXAMPLES)])
def test_what_is_written_down_reads_back_as_the_same_job(text: str) -> None:
    spec = parse_job(text)
    assert job_from(document_of(spec), Origin("again")) == spec.without_secrets()


def test_no_secret_is_written_down() -> None:
    spec = parse_job(FULL)
    assert "hf_secret" not in str(document_of(spec)) + str(settings_of(spec))


def test_what_is_as_by_default_is_left_out_of_the_file_and_stands_in_the_settings() -> None:
    spec: JobSpec = parse_job(WHOLE_JOB)
    assert "sync" not in document_of(spec)
    assert document_of(spec)["inner_optimizer"] == {"learning_rate": 0.001}
    settings = settings_of(spec)
    assert settings["sync.codec"] == "none"
    assert settings["inner_optimizer.betas"] == [0.9, 0.999]
    assert settings["resources.num_workers"] == 2
    assert "batch_size" not in settings
    assert "rounds.update_rounds" not in settings_of(parse_job(INFERENCE))
