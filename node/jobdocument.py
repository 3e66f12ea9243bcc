"""A checked job written down again: as a job file's tables, and as one flat list of settings. Without secrets."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from node.jobspec import JobSpec
from node.wire import BindMount, Resources

Setting = bool | int | float | str | list[Any] | None
_KINDS: Final = (("cpu", "CPU"), ("memory", "Memory"), ("storage", "Storage"), ("gpu", "GPU"))


def document_of(spec: JobSpec) -> dict[str, Any]:
    """The tables of a job file that says the same. What a job has by default is left out."""
    model: dict[str, Any] = {"job": spec.model_job} if spec.model_job else {}
    document: dict[str, Any] = {"type": "inference"} if spec.is_inference else {}
    document |= {"name": spec.name, "dataset": spec.dataset}
    if spec.validation_dataset:
        document["validation_dataset"] = spec.validation_dataset
    if spec.precision != "fp32":
        document["precision"] = spec.precision
    if spec.is_inference:
        document["batch_size"] = spec.batch_size
    document["model"] = _written(spec.model) | model
    if spec.preprocessor is not None:
        document["preprocessor"] = _written(spec.preprocessor)
    if spec.output is not None:
        document["output"] = _written(spec.output)
    else:
        document["rounds"] = _written(spec.rounds)
        document["inner_optimizer"] = _written(spec.inner_optimizer)
        document["outer_optimizer"] = _written(spec.outer_optimizer)
    document["resources"] = _machines(spec)
    if spec.bind_mounts:
        document["bind_mounts"] = [_mount(mount) for mount in spec.bind_mounts]
    for name in ("sync", "aggregation", "checkpoint", "partition"):
        table = _written(getattr(spec, name))
        if table:
            document[name] = table
    return document


def settings_of(spec: JobSpec) -> dict[str, Setting]:
    """Every setting by its key in a job file (`resources.worker.gpu`), also those that have their default value."""
    whole: dict[str, Any] = msgspec.to_builtins(spec)
    for name in ("model", "preprocessor"):
        if whole[name] is not None:
            del whole[name]["token"]
    whole["bind_mounts"] = [_mount_text(mount) for mount in spec.bind_mounts]
    resources: dict[str, Any] = {}
    for name in ("num_workers", "min_workers", "spare_workers", "worker", "parameter_server"):
        resources[name] = whole.pop(name)
    for name in ("worker_price", "parameter_server_price"):
        resources[name] = whole.pop(name)
    resources["worker"] |= {"executor": whole.pop("worker_executor")}
    resources["parameter_server"] |= {"executor": whole.pop("parameter_server_executor")}
    whole["resources"] = resources
    whole["model"]["job"] = whole.pop("model_job")
    unused = ("output", "batch_size") if not spec.is_inference else ("rounds", "inner_optimizer", "outer_optimizer")
    for name in unused:
        del whole[name]
    return dict(_flat(whole, ""))


def _flat(table: dict[str, Any], prefix: str) -> list[tuple[str, Setting]]:
    found: list[tuple[str, Setting]] = []
    for key, value in table.items():
        if isinstance(value, dict):
            found += _flat(value, f"{prefix}{key}.")
        else:
            found.append((f"{prefix}{key}", list(value) if isinstance(value, tuple) else value))
    return found


def _written(value: msgspec.Struct) -> dict[str, Any]:
    """A table's keys that differ from their defaults, but for the token."""
    table: dict[str, Any] = {}
    for field in msgspec.structs.fields(value):
        here = getattr(value, field.name)
        default = field.default_factory() if field.default_factory is not msgspec.NODEFAULT else field.default
        if field.name != "token" and here is not None and here != default:
            table[field.name] = list(here) if isinstance(here, tuple) else here
    return table


def _mount(mount: BindMount) -> dict[str, Any]:
    table = _written(mount)
    if mount.container_path == mount.host_path:
        del table["container_path"]
    return table


def _mount_text(mount: BindMount) -> str:
    seen = "" if mount.container_path == mount.host_path else f" as {mount.container_path}"
    return f"{mount.host_path}{seen}{'' if mount.read_only else ', writable'}"


def _machines(spec: JobSpec) -> dict[str, Any]:
    table: dict[str, Any] = {"num_workers": spec.num_workers}
    if spec.min_workers != 1:
        table["min_workers"] = spec.min_workers
    if spec.spare_workers:
        table["spare_workers"] = spec.spare_workers
    for name, amount, executor in (
        ("worker", spec.worker, spec.worker_executor),
        ("parameter_server", spec.parameter_server, spec.parameter_server_executor),
    ):
        written = _amount(amount, executor)
        if written:
            table[name] = written
    for name in ("worker_price", "parameter_server_price"):
        price = _written(getattr(spec, name))
        if price:
            table[name] = price
    return table


def _amount(amount: Resources, executor: str) -> dict[str, float] | list[dict[str, Any]]:
    asked = {name: getattr(amount, name) for name, _ in _KINDS if getattr(amount, name)}
    if not executor:
        return asked
    return [*({"type": kind, "min": asked[name]} for name, kind in _KINDS if name in asked), {"kind": executor}]
