"""`{JOB_JSON}`: a training task as its executor is told of it. Secrets stay with the bridge."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from node.wire import InferTask, InnerOptimizer, ModelSource, TrainTask
from node.worker.context import TaskContext


def job_json(context: TaskContext, task: TrainTask) -> str:
    """The text for the executor's command line."""
    servers = [task.parameter_server] if task.parameter_server else []
    peers = {"type": "peers", "peers": servers, "strategy": {"type": "All"}, "resource": None}
    config: dict[str, Any] = {
        "model": {**_model(task.model), "seed": task.model.seed},
        "data": {"type": "scheduler", "peer": context.scheduler, "dataset": task.dataset},
        "updates": peers,
        "results": peers,
        "optimizer": {
            "learning-rate": task.optimizer.learning_rate,
            "betas": list(task.optimizer.betas),
            "epsilon": task.optimizer.epsilon,
            "weight-decay": task.optimizer.weight_decay,
        },
        "batch_size": task.batch_size,
        "rounds": task.rounds,
        "sync": msgspec.structs.asdict(task.sync),
        "precision": task.precision,
        "evaluate": task.evaluate,
        "job_id": context.job_id,
        "weights": {"type": "weights"},
    }
    if task.outer is not None:
        config["outer"] = msgspec.structs.asdict(task.outer)
    if task.preprocessor is not None:
        config["preprocessor"] = _model(task.preprocessor)
    if task.optimizer.schedule:
        config["scheduler"] = _schedule(task.optimizer)
    if task.validation_dataset:
        config["validation"] = {"type": "validation"}
    executor = {"class": "train", "name": context.dispatch.executor.name, "config": config}
    return json.dumps({"job_id": context.job_id, "executor": executor}, separators=(",", ":"))


def _model(source: ModelSource) -> dict[str, Any]:
    if source.repository:
        artifact: dict[str, Any] = {"type": "huggingface", "repository": source.repository}
        if source.revision:
            artifact["revision"] = source.revision
    else:
        artifact = {"type": "job"}
    artifact["filenames"] = source.filenames
    return {"task": source.task, "artifact": artifact, "input-names": source.input_names}


def _schedule(optimizer: InnerOptimizer) -> dict[str, Any]:
    schedule: dict[str, Any] = {"type": optimizer.schedule, "warmup_steps": optimizer.warmup_steps}
    if optimizer.schedule == "wsd":
        # Upstream's executor reads the singular, its messages and documentation have the plural.
        schedule.update(decay_steps=optimizer.decay_steps, decay_step=optimizer.decay_steps)
    schedule["training_steps"] = optimizer.total_steps
    return schedule


def inference_json(context: TaskContext, task: InferTask) -> str:
    """The same for an inference task."""
    config: dict[str, Any] = {
        "model": {**_model(task.model), "seed": task.model.seed},
        "data": {"type": "scheduler", "peer": context.scheduler, "dataset": task.dataset},
        "results": {"type": "peers", "peers": [context.scheduler], "strategy": {"type": "All"}, "resource": None},
        "output": msgspec.structs.asdict(task.output),
        "batch_size": task.batch_size,
        "precision": task.precision,
    }
    if task.preprocessor is not None:
        config["preprocessor"] = _model(task.preprocessor)
    executor = {"class": "inference", "name": context.dispatch.executor.name, "config": config}
    return json.dumps({"job_id": context.job_id, "executor": executor}, separators=(",", ":"))
