"""Which state machine a job gets."""

from __future__ import annotations

from collections.abc import Callable

from node.jobspec import JobSpec
from node.scheduler.inference import InferenceJob
from node.scheduler.inference_order import inference_order
from node.scheduler.job import Job
from node.scheduler.machine import Machine, Saved
from node.scheduler.order import order_of_spec
from node.scheduler.records import JobRow


def machine_of(
    row: JobRow, spec: JobSpec, saved: Saved, *, now: float, age_s: float, name_of: Callable[[str], str]
) -> Machine:
    """The machine of a job, as far as it has come."""
    if spec.is_inference:
        inference = inference_order(row.job_id, spec, row.folder_sha256)
        return InferenceJob(inference, now=now, age_s=age_s, saved=saved, name_of=name_of)
    order = order_of_spec(row.job_id, spec, row.folder_sha256)
    return Job(order, now=now, age_s=age_s, saved=saved, name_of=name_of)
