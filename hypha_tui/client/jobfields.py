"""The settings of a job that change from run to run: read from its TOML, checked by themselves, written back."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from hypha_tui.client.tomledit import with_value
from node.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Field:
    """One setting. `path` is its place in a job file; `kind`: text, whole (number above 0) or number (0 or more)."""

    name: str
    label: str
    kind: str
    path: tuple[str, ...]
    hint: str


FIELDS: Final = (
    Field("name", "name", "text", ("name",), "what the job is called"),
    Field("dataset", "dataset", "text", ("dataset",), "announced by a data node"),
    Field("workers", "workers", "whole", ("resources", "num_workers"), "how many are wanted"),
    Field("rounds", "rounds", "whole", ("rounds", "update_rounds"), "how often weights are averaged"),
    Field("gpu", "gpu GB", "number", ("resources", "worker", "gpu"), "each worker's video memory"),
    Field("price", "price <=", "number", ("resources", "worker_price", "max"), "an hour, for one worker"),
    Field("samples", "samples", "whole", ("rounds", "avg_samples_between_updates"), "of a round, all workers"),
    Field("batch", "batch", "whole", ("rounds", "max_batch_size"), "rows at once, at most"),
    Field("inner", "inner rate", "number", ("inner_optimizer", "learning_rate"), "AdamW's learning rate"),
    Field("outer", "outer rate", "number", ("outer_optimizer", "learning_rate"), "Nesterov's, 0.7 is usual"),
)
BY_NAME: Final = {field.name: field for field in FIELDS}
_DOTTED: Final = re.compile(r"[A-Za-z_-]+(\.[A-Za-z0-9_-]+)*")
_ENDS_IN_NUMBER: Final = re.compile(r"(.*?)(\d+)$")


@dataclass(frozen=True, slots=True)
class JobFields:
    """The values of these settings; what is missing or of another type is empty."""

    name: str = ""
    dataset: str = ""
    workers: int | None = None
    rounds: int | None = None
    gpu: float | None = None
    price: float | None = None
    samples: int | None = None
    batch: int | None = None
    inner: float | None = None
    outer: float | None = None


def fields_of(text: str) -> JobFields:
    """The settings as the text has them; ConfigError where it is not TOML."""
    job = parse_text(text)
    found: dict[str, Any] = {}
    for field in FIELDS:
        value = _dataset(job) if field.name == "dataset" else _at(job, field.path)
        if field.kind == "text":
            found[field.name] = value if isinstance(value, str) else ""
        elif isinstance(value, bool) or not isinstance(value, int | float):
            found[field.name] = _listed_gpu(job) if field.name == "gpu" else None
        else:
            found[field.name] = value if field.kind == "number" or isinstance(value, int) else None
    return JobFields(**found)


def with_fields(text: str, wanted: JobFields) -> str:
    """The text with these settings; an empty one leaves what is there."""
    for field in FIELDS:
        value = getattr(wanted, field.name)
        if value not in (None, ""):
            text = with_field(text, field.name, value)
    return text


def with_field(text: str, name: str, value: str | int | float | None) -> str:
    """The text with one setting; None takes it out. Comments stay where that can be."""
    if getattr(fields_of(text), name) == ("" if value is None and BY_NAME[name].kind == "text" else value):
        return text
    prefix = _prefix(tomllib.loads(text))
    machines = _at(parse_text(text), ("resources", "worker"))
    if name == "gpu" and isinstance(machines, list):
        return with_value(text, (*prefix, "resources", "worker"), _with_gpu(machines, value))
    path = _dataset_path(text) if name == "dataset" else BY_NAME[name].path
    return with_value(text, (*prefix, *path), value)


def parse_text(text: str, where: str = "job.toml") -> dict[str, Any]:
    """The job's table: the file itself, or its `[scheduler.job]`."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where} is not TOML: {error}", hint="mend the line it names") from None
    found = _at(document, _prefix(document))
    return found if isinstance(found, dict) else document


def read_value(name: str, written: str) -> str | int | float | None:
    """What a person wrote into a field, as its value; None for nothing. ConfigError says what is wrong with it."""
    written = written.strip()
    kind = BY_NAME[name].kind
    if kind == "text" or not written:
        return written or None
    if kind == "whole":
        if written.isascii() and written.isdigit() and len(written) < 10 and int(written) > 0:
            return int(written)
        raise ConfigError(f"{name}: {written!r} is not a whole number above 0")
    try:
        value = float(written)
    except ValueError:
        value = math.nan
    if not 0 <= value < 1e12:
        raise ConfigError(f"{name}: {written!r} is not a number of 0 or more")
    return int(written) if written.isascii() and written.isdigit() else value


def field_of_problem(problem: str) -> str:
    """The field that a complaint about a job file is about, by the key that it names; empty if none is."""
    if problem.split(": ", 1)[0] in BY_NAME:
        return problem.split(": ", 1)[0]
    named = next((part for part in problem.split(": ")[1:] if _DOTTED.fullmatch(part)), "")
    steps = tuple(named.replace("-", "_").removeprefix("scheduler.job.").split("."))
    if steps in (("dataset_name",), ("dataset", "dataset")):
        return "dataset"
    exact = [field.name for field in FIELDS if field.path == steps]
    around = [field.name for field in FIELDS if len(steps) > 1 and field.path[: len(steps)] == steps]
    return exact[0] if exact else around[0] if len(around) == 1 else ""


def suggest_name(name: str, taken: Iterable[str]) -> str:
    """The next name after `name` that no job has: `diloco-7` leads to `diloco-8`, `tiny` to `tiny-2`."""
    known = set(taken)
    if name and name not in known:
        return name
    numbered = _ENDS_IN_NUMBER.match(name)
    stem, number = (numbered[1], int(numbered[2])) if numbered else (f"{name or 'job'}-", 1)
    while f"{stem}{number + 1}" in known:
        number += 1
    return f"{stem}{number + 1}"


def _prefix(document: dict[str, Any]) -> tuple[str, ...]:
    return ("scheduler", "job") if isinstance(_at(document, ("scheduler", "job")), dict) else ()


def _at(table: object, path: Iterable[str]) -> object:
    for step in path:
        if not isinstance(table, dict):
            return None
        table = next((value for key, value in table.items() if key.replace("-", "_") == step), None)
    return table


def _dataset(job: dict[str, Any]) -> object:
    named = _at(job, ("dataset_name",))
    written = _at(job, ("dataset",))
    return named or (_at(written, ("dataset",)) if isinstance(written, dict) else written)


def _dataset_path(text: str) -> tuple[str, ...]:
    job = parse_text(text)
    if _at(job, ("dataset_name",)):
        return ("dataset_name",)
    return ("dataset", "dataset") if isinstance(_at(job, ("dataset",)), dict) else ("dataset",)


def _listed_gpu(job: dict[str, Any]) -> float | None:
    """The video memory in upstream's list of requirements."""
    machines = _at(job, ("resources", "worker"))
    for line in machines if isinstance(machines, list) else []:
        if isinstance(line, dict) and str(line.get("type", "")).lower() == "gpu":
            least = line.get("min")
            return least if isinstance(least, int | float) and not isinstance(least, bool) else None
    return None


def _with_gpu(machines: list[object], gpu: object) -> list[object]:
    kept = [line for line in machines if not (isinstance(line, dict) and str(line.get("type", "")).lower() == "gpu")]
    return kept if gpu is None else [{"type": "GPU", "min": gpu}, *kept]
