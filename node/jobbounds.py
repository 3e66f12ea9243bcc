"""What the values of a job file may be."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from node.schema import Origin
from node.wire import JOB_ID

if TYPE_CHECKING:
    from node.jobspec import JobSpec, Price

SCHEDULES = ("cosine-with-warmup", "linear-with-warmup", "wsd")
CODECS = ("none", "bf16", "int8", "int4", "topk", "auto")
RULES = ("mean", "trimmed-mean", "median")
PRECISIONS = ("fp32", "bf16")
OUTPUTS = ("classes", "tokens", "embeddings", "hidden", "logits")
FORMATS = ("jsonl", "safetensors")
STORES = ("peer:", "s3://", "gs://", "az://")

Need = Callable[[bool, list[str], str], None]


def check_training(spec: JobSpec, origin: Origin) -> None:
    """Refuse a training job whose values cannot work; the error names the key."""
    need = _needing(origin)
    rounds, inner, outer = spec.rounds, spec.inner_optimizer, spec.outer_optimizer
    need(1 <= rounds.update_rounds <= 10**6, ["rounds", "update_rounds"], "must be 1 or more")
    need(rounds.avg_samples_between_updates >= 1, ["rounds", "avg_samples_between_updates"], "must be 1 or more")
    need(rounds.max_batch_size is None or rounds.max_batch_size >= 1, ["rounds", "max_batch_size"], "must be 1 or more")
    need(1 <= spec.num_workers <= 10_000, ["resources", "num_workers"], "must be 1 to 10000")
    need(1 <= spec.min_workers <= spec.num_workers, ["resources", "min_workers"], "must be 1 to num_workers")
    need(0 < inner.learning_rate < 1e6, ["inner_optimizer", "learning_rate"], "must be more than 0")
    need(
        all(0 <= beta < 1 for beta in inner.betas),
        ["inner_optimizer", "betas"],
        "must be from 0 up to, not including, 1",
    )
    need(inner.epsilon > 0, ["inner_optimizer", "epsilon"], "must be more than 0")
    need(0 < outer.learning_rate < 1e6, ["outer_optimizer", "learning_rate"], "must be more than 0")
    need(0 <= outer.momentum < 1, ["outer_optimizer", "momentum"], "must be from 0 up to, not including, 1")
    known = not inner.schedule or inner.schedule in SCHEDULES
    need(known, ["inner_optimizer", "schedule"], f"{inner.schedule!r} is not a schedule; {', '.join(SCHEDULES)}")
    ends = inner.total_steps > inner.warmup_steps or inner.schedule not in ("cosine-with-warmup", "linear-with-warmup")
    need(ends, ["inner_optimizer", "total_steps"], f"must be more than warmup_steps for {inner.schedule}")
    need(0 <= spec.spare_workers <= 1000, ["resources", "spare_workers"], "must be 0 to 1000")
    _check_sync(spec, need)
    for name in ("worker_price", "parameter_server_price"):
        price: Price = getattr(spec, name)
        need(0 <= price.bid <= price.limit, ["resources", name], "bid must be 0 or more, and max at least the bid")


def check_inference(spec: JobSpec, origin: Origin) -> None:
    """Refuse an inference job whose values cannot work; the error names the key."""
    need = _needing(origin)
    output, price = spec.output, spec.worker_price
    assert output is not None
    need(output.kind in OUTPUTS, ["output", "kind"], f"{output.kind!r} is not one of {', '.join(OUTPUTS)}")
    need(output.format in FORMATS, ["output", "format"], f"{output.format!r} is not one of {', '.join(FORMATS)}")
    is_small = output.kind in ("classes", "tokens") or output.format == "safetensors"
    need(is_small, ["output", "format"], f"{output.kind} are written as safetensors alone")
    place = output.to
    is_place = not place or place.startswith("/") or any(place.startswith(s) and place != s for s in STORES)
    need(is_place, ["output", "to"], "must be an absolute folder, peer:<name or id>, s3://, gs:// or az://")
    is_trained = not spec.model_job or JOB_ID.fullmatch(spec.model_job) is not None
    need(is_trained, ["model", "job"], f"{spec.model_job!r} cannot be a job's id")
    has_other = bool(spec.model.repository or spec.model.path or spec.model.filenames)
    need(not (spec.model_job and has_other), ["model", "job"], "stands alone: no repository, path or filenames")
    need(1 <= output.max_new_tokens <= 100_000, ["output", "max_new_tokens"], "must be 1 to 100000")
    need(1 <= spec.batch_size <= 10**6, ["batch_size"], "must be 1 or more")
    need(spec.precision in PRECISIONS, ["precision"], f"must be {' or '.join(PRECISIONS)}")
    need(1 <= spec.num_workers <= 10_000, ["resources", "num_workers"], "must be 1 to 10000")
    need(
        0 <= price.bid <= price.limit, ["resources", "worker_price"], "bid must be 0 or more, and max at least the bid"
    )


def _check_sync(spec: JobSpec, need: Need) -> None:
    sync, closing, checkpoint = spec.sync, spec.aggregation, spec.checkpoint
    need(spec.precision in PRECISIONS, ["precision"], f"must be {' or '.join(PRECISIONS)}")
    need(sync.codec in CODECS, ["sync", "codec"], f"{sync.codec!r} is not one of {', '.join(CODECS)}")
    need(0 < sync.density <= 1, ["sync", "density"], "must be more than 0 and at most 1")
    need(1 <= sync.fragments <= 1000, ["sync", "fragments"], "must be 1 to 1000")
    share = spec.rounds.avg_samples_between_updates
    need(sync.fragments <= share, ["sync", "fragments"], "must be at most avg_samples_between_updates")
    need(0 <= sync.delay_batches <= 10**6, ["sync", "delay_batches"], "must be 0 or more")
    need(sync.overlap or not sync.delay_batches, ["sync", "delay_batches"], "needs overlap = true")
    need(0 <= sync.mixing < 1, ["sync", "mixing"], "must be from 0 up to, not including, 1")
    need(closing.rule in RULES, ["aggregation", "rule"], f"{closing.rule!r} is not one of {', '.join(RULES)}")
    need(0 <= closing.trim < 0.5, ["aggregation", "trim"], "must be from 0 up to, not including, 0.5")
    need(0 <= closing.clip_norm < 1e6, ["aggregation", "clip_norm"], "must be 0 (off) or more")
    need(closing.late in ("refuse", "carry"), ["aggregation", "late"], "must be refuse or carry")
    need(0 < closing.late_weight <= 1, ["aggregation", "late_weight"], "must be more than 0 and at most 1")
    need(0 <= closing.deadline_k < 1e6, ["aggregation", "deadline_k"], "must be 0 or more")
    bounds = 0 < closing.deadline_floor_s <= closing.deadline_ceiling_s < 1e7
    need(bounds, ["aggregation", "deadline_floor_s"], "must be more than 0 and at most deadline_ceiling_s")
    part = spec.partition
    need(1 <= part.num_partitions <= 10**6, ["partition", "num_partitions"], "must be 1 to 1000000")
    need(0 <= part.rebalance_threshold <= 1000, ["partition", "rebalance_threshold"], "must not be negative")
    is_shared_out = part.strategy != "first-come"
    need(is_shared_out or part.unit == "slices", ["partition", "unit"], 'goes with a strategy, such as "round-robin"')
    is_range = part.strategy == "range"
    need(is_range == bool(part.ranges), ["partition", "ranges"], 'goes with strategy = "range", one for each worker')
    need(not is_range or len(part.ranges) >= spec.num_workers, ["partition", "ranges"], "must be one for each worker")
    need(0 <= checkpoint.every <= 10**6, ["checkpoint", "every"], "must be 0 (none) or more")
    need(1 <= checkpoint.keep <= 1000, ["checkpoint", "keep"], "must be 1 to 1000")
    need(len(checkpoint.start_from) <= 1000, ["checkpoint", "start_from"], "must be at most 1000 characters")


def _needing(origin: Origin) -> Need:
    def need(holds: bool, path: list[str], problem: str) -> None:
        if not holds:
            raise origin.error(path, problem)

    return need
