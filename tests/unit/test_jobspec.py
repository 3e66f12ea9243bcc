"""Job descriptions, in every spelling."""

from __future__ import annotations

import msgspec
import pytest

from node.errors import ConfigError
from node.jobspec import JobSpec, parse_job
from node.wire import InnerOptimizer, ModelSource, OuterOptimizer, Resources

DOCUMENTED = """\
[scheduler.job]
dataset_name = "wikitext-103"

[scheduler.job.model]
repository = "HuggingFaceTB/SmolLM-135M"
revision = "main"
filenames = ["config.json", "model.safetensors"]
token = "hf_secret"
type = "causal-lm"
input_names = ["input_ids"]

[scheduler.job.preprocessor]
repository = "HuggingFaceTB/SmolLM-135M"
filenames = ["tokenizer.json"]
input-names = ["text"]
type = "tokenizer"

[scheduler.job.rounds]
update_rounds = 100
avg_samples_between_updates = 1200
max_batch_size = 32

[scheduler.job.inner_optimizer]
learning_rate = 0.001
betas = [0.9, 0.95]
epsilon = 1e-6
schedule = "cosine-with-warmup"
warmup_steps = 10
total_steps = 1000

[scheduler.job.outer_optimizer]
learning_rate = 0.7
momentum = 0.9

[scheduler.job.resources]
num_workers = 2
worker = { gpu = 10.0, cpu = 2.0, memory = 4.0, storage = 1.0 }
parameter_server = { cpu = 1.0 }
worker_price = { bid = 110.0, max = 160.0 }
parameter_server_price = { bid = 80.0, max = 120.0 }
"""

REAL = """\
type = "diloco"
dataset = { dataset = "digits" }
validation_dataset = "digits-val"
name = "try 1"
min-workers = 2

[model]
type = "torch"
path = "model"
filenames = ["net.py"]
seed = 7

[rounds]
update-rounds = 3
avg-samples-between-updates = 64

[inner-optimizer]
learning-rate = 1e-3

[outer_optimizer]
learning-rate = 0.7
momentum = 0.9

[resources]
num_workers = 3
worker = [{ type = "GPU", min = 10.0 }, { type = "Memory", min = 2 }, { kind = "my-executor" }]
parameter_server = [{ type = "CPU", min = 1.0 }, { type = "Storage", min = 5.0 }]
"""


def failure(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_job(text, "job.toml")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_documented_spelling_is_understood() -> None:
    spec = parse_job(DOCUMENTED)
    assert spec.model_source() == ModelSource(
        task="causal-lm",
        repository="HuggingFaceTB/SmolLM-135M",
        revision="main",
        filenames=["config.json", "model.safetensors"],
        input_names=["input_ids"],
    )
    assert spec.preprocessor_source() == ModelSource(
        task="tokenizer",
        repository="HuggingFaceTB/SmolLM-135M",
        filenames=["tokenizer.json"],
        input_names=["text"],
    )
    assert spec.inner() == InnerOptimizer(
        learning_rate=0.001,
        betas=(0.9, 0.95),
        epsilon=1e-6,
        schedule="cosine-with-warmup",
        warmup_steps=10,
        total_steps=1000,
    )
    assert spec.outer() == OuterOptimizer(learning_rate=0.7, momentum=0.9)
    assert (spec.num_workers, spec.min_workers) == (2, 1)
    assert spec.worker == Resources(gpu=10, cpu=2, memory=4, storage=1)
    assert spec.parameter_server == Resources(cpu=1)
    assert (spec.worker_price.bid, spec.worker_price.limit, spec.parameter_server_price.limit) == (110, 160, 120)
    assert (spec.rounds.update_rounds, spec.rounds.avg_samples_between_updates) == (100, 1200)
    assert (spec.rounds.max_batch_size, spec.dataset, spec.name) == (32, "wikitext-103", "wikitext-103")


def test_the_real_spelling_is_understood_without_a_scheduler_table() -> None:
    spec = parse_job(REAL)
    assert spec.model_source() == ModelSource(task="torch", filenames=["model/net.py"], seed=7)
    assert (spec.dataset, spec.validation_dataset, spec.name) == ("digits", "digits-val", "try 1")
    assert spec.inner() == InnerOptimizer(learning_rate=1e-3)
    assert (spec.worker, spec.worker_executor) == (Resources(gpu=10, memory=2), "my-executor")
    assert spec.parameter_server == Resources(cpu=1, storage=5)
    assert (spec.num_workers, spec.min_workers, spec.rounds.max_batch_size) == (3, 2, None)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("vision-classification", "image-classification"),
        ("image-classification", "image-classification"),
        ("causal-lm", "causal-lm"),
        ("CAUSAL_LM", "causal-lm"),
        ("seq2seq-lm", "seq2seq-lm"),
        ("seq2-seq-lm", "seq2seq-lm"),
        ("torch", "torch"),
    ],
)
def test_model_types_of_both_vocabularies_are_understood(written: str, meant: str) -> None:
    assert parse_job(REAL.replace('"torch"', f'"{written}"')).model.type == meant


def test_a_folder_of_the_job_stands_for_all_that_is_in_it() -> None:
    spec = parse_job(REAL.replace('filenames = ["net.py"]\n', ""))
    assert spec.model_source().filenames == ["model"]
    spec = parse_job(REAL.replace('path = "model"\nfilenames = ["net.py"]\n', 'config = "tiny.json"\n'))
    assert spec.model_source().filenames == ["tiny.json"]


def test_a_job_without_a_price_pays_nothing_and_a_bid_alone_is_the_limit() -> None:
    assert parse_job(REAL).worker_price.limit == 0
    assert parse_job(REAL + "worker_price = { bid = 5.0 }\n").worker_price.limit == 5


def test_the_token_stays_out_of_everything_but_its_own_property() -> None:
    """H32."""
    spec = parse_job(DOCUMENTED)
    assert spec.token == "hf_secret"
    assert "hf_secret" not in repr(spec.model_source())
    stored = msgspec.json.encode(spec.without_secrets())
    assert b"hf_secret" not in stored
    assert msgspec.json.decode(stored, type=JobSpec).model_source().repository == "HuggingFaceTB/SmolLM-135M"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("update_rounds = 100", "updat_rounds = 100", "line 19: scheduler.job.rounds.updat_rounds: unknown key"),
        (
            "total_steps = 1000",
            "total_steps = 10",
            "total_steps: must be more than warmup_steps for cosine-with-warmup",
        ),
        ("update_rounds = 100", "update_rounds = 0", "line 19: scheduler.job.rounds.update_rounds: must be 1 or more"),
        ("momentum = 0.9", "momentum = 1.0", "line 33: scheduler.job.outer_optimizer.momentum: must be from 0"),
        ("momentum = 0.9", "", "scheduler.job.outer_optimizer.momentum: is missing"),
        (
            '"causal-lm"',
            '"causal-ml"',
            "line 9: scheduler.job.model.type: 'causal-ml' is not a model type; did you mean",
        ),
        ("num_workers = 2", "num_workers = 0", "line 36: scheduler.job.resources.num_workers: must be 1 to"),
        ("gpu = 10.0", "gpu = -1", "scheduler.job.resources.worker.gpu: -1.0 is out of bounds"),
        ("gpu = 10.0", "gpus = 1", "scheduler.job.resources.worker.gpus: unknown key; did you mean gpu?"),
        ("max = 160.0", "max = 16.0", "scheduler.job.resources.worker_price: bid must be"),
        ('"config.json"', '"../config.json"', "'../config.json' is outside the job's folder"),
        ('"config.json"', '"/etc/passwd"', "'/etc/passwd' is outside the job's folder"),
        ('dataset_name = "wikitext-103"', "", "scheduler.job.dataset: is missing"),
        ('dataset_name = "wikitext-103"', 'type = "sync"', "line 2: scheduler.job.type: 'sync' is not a kind of job"),
        ('"cosine-with-warmup"', '"cosine"', "line 27: scheduler.job.inner_optimizer.schedule: 'cosine' is not"),
        ("learning_rate = 0.001", "learning_rate = -1", "line 24: scheduler.job.inner_optimizer.learning_rate: must"),
    ],
)
def test_a_fault_is_one_line_that_names_the_key_and_its_line(old: str, new: str, expected: str) -> None:
    assert old in DOCUMENTED
    text = failure(DOCUMENTED.replace(old, new, 1))
    assert text.startswith("job.toml")
    assert expected in text


def test_an_array_of_requirements_names_the_resource_it_does_not_know() -> None:
    text = failure(REAL.replace('type = "Memory"', 'type = "TPU"'))
    assert "resources.worker[1].type: 'TPU' is not a resource; GPU, CPU, Memory or Storage" in text


def test_how_updates_travel_is_off_by_default_and_checked_where_it_is_set() -> None:
    """A job file without the newer tables trains as it always did; a wrong value names its key."""
    spec = parse_job(REAL)
    assert (spec.sync.codec, spec.sync.fragments, spec.sync.overlap) == ("none", 1, False)
    assert (spec.aggregation.rule, spec.aggregation.late, spec.spare_workers) == ("mean", "refuse", 0)
    tables = '[sync]\ncodec = "int4"\nfragments = 4\noverlap = true\n[aggregation]\nrule = "median"\n'
    spec = parse_job(REAL + tables)
    assert spec.sync.codec == "int4"
    assert spec.sync.fragments == 4
    assert spec.aggregation.rule == "median"


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ('[sync]\ncodec = "zip"', "codec"),
        ("[sync]\ndensity = 0", "density"),
        ("[sync]\nfragments = 0", "fragments"),
        ("[sync]\ndelay_batches = 3", "delay_batches"),
        ("[sync]\nmixing = 1.0", "mixing"),
        ('[aggregation]\nrule = "best"', "rule"),
        ("[aggregation]\ntrim = 0.5", "trim"),
        ('[aggregation]\nlate = "drop"', "late"),
        ("[aggregation]\ndeadline_floor_s = 9\ndeadline_ceiling_s = 3", "deadline_floor_s"),
        ("[checkpoint]\nkeep = 0", "keep"),
    ],
)
def test_a_wrong_setting_of_a_round_is_refused_by_its_name(table: str, key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        parse_job(f"{REAL}\n{table}\n")
