"""Settings from the environment, and keys that a file holds in another place than they belong."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote

from node.errors import ConfigError
from node.schema import nearest

PREFIX = "HYPHA_"
NOT_SETTINGS = ("HYPHA_CONFIG", "HYPHA_DEBUG", "HYPHA_LOG")
"""Variables of ours that are no configuration keys; those that start with `HYPHA_TUI_` belong to the terminal."""
_OTEL = {
    "OTEL_EXPORTER_OTLP_ENDPOINT": "telemetry_endpoint",
    "OTEL_EXPORTER_OTLP_PROTOCOL": "telemetry_protocol",
    "OTEL_EXPORTER_OTLP_HEADERS": "telemetry_headers",
    "OTEL_TRACES_SAMPLER": "telemetry_sampler",
    "OTEL_TRACES_SAMPLER_ARG": "telemetry_sample_ratio",
    "OTEL_RESOURCE_ATTRIBUTES": "telemetry_attributes",
}
# keys that one of these tables may hold by accident: TOML gives a table every line that follows its header
_TABLES = {
    "resources": ("cpu", "memory", "storage", "gpu"),
    "offer": ("price", "floor", "strategy"),
    "exports": ("tensorboard", "csv", "mlflow", "wandb"),
    "executors": ("class", "name", "runtime", "cmd", "args"),
}


def hoist(data: Mapping[str, Any], known: Iterable[str]) -> dict[str, Any]:
    """Move top-level keys that stand below a table header, as `work_dir` in the documented worker file, back up."""
    known = set(known)
    result = dict(data)
    for table, own in _TABLES.items():
        held = result.get(table)
        if isinstance(held, dict):
            result[table] = _without_strays(held, own, known, result)
        elif isinstance(held, list):
            result[table] = [
                _without_strays(item, own, known, result) if isinstance(item, dict) else item for item in held
            ]
    return result


def apply_environment(
    data: dict[str, Any], env: Mapping[str, str], known: Iterable[str]
) -> tuple[dict[str, str], list[str]]:
    """Put the values of variables into `data`. Returns the variable by dotted key, and warnings about unknown ones."""
    known = list(known)
    names: dict[str, str] = {}
    warnings: list[str] = []
    for variable in sorted(env):
        if not variable.startswith(PREFIX) or variable in NOT_SETTINGS or variable.startswith("HYPHA_TUI_"):
            continue
        steps = [step.lower() for step in variable.removeprefix(PREFIX).split("__")]
        if steps[0] not in known:
            close = nearest(steps[0], known)
            hint = f"; did you mean {PREFIX}{close.upper()}?" if close else ""
            warnings.append(f"{variable} is not a setting{hint}")
            continue
        _put(data, steps, _value(env[variable]))
        names[_dotted(steps)] = variable
    for variable, key in _OTEL.items():
        text = env.get(variable)
        if not text or (key == "telemetry_sample_ratio" and not _is_number(text)):
            continue
        if key == "telemetry_attributes" and isinstance(data.get(key), dict):
            # the file's attributes stay, as in OpenTelemetry's own merging of resources
            data[key] = {**data[key], **pairs(text)}
        else:
            data[key] = text
        names[key] = variable
    service = env.get("OTEL_SERVICE_NAME")
    if service:
        held = data.get("telemetry_attributes") or {}
        attributes = pairs(held) if isinstance(held, str) else dict(held)
        data["telemetry_attributes"] = {**attributes, "service.name": service}
        names.setdefault("telemetry_attributes", "OTEL_SERVICE_NAME")
    return names, warnings


def pairs(text: str) -> dict[str, str]:
    """The table in `k=v,k=v`; values may be percent-encoded, as in OpenTelemetry's variables."""
    table = {}
    for part in text.split(","):
        if not part.strip():
            continue
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            raise ValueError("is not of the form k=v,k=v")
        table[key.strip()] = unquote(value.strip())
    return table


def _without_strays(
    table: dict[str, Any], own: tuple[str, ...], known: set[str], top: dict[str, Any]
) -> dict[str, Any]:
    kept = {}
    for key, value in table.items():
        if key in own or key not in known or key in top:
            kept[key] = value
        else:
            top[key] = value
    return kept


def _value(text: str) -> Any:
    """A variable's text; as a TOML value where it is a list or a table."""
    if not text.startswith(("[", "{")):
        return text
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _put(data: dict[str, Any], steps: list[str], value: Any) -> None:
    here: Any = data
    for position, step in enumerate(steps[:-1]):
        following = steps[position + 1]
        if isinstance(here, list):
            here = _element(here, step)
            continue
        held = here.get(step)
        # tables are copied: `data` may share them with what the file gave
        here[step] = list(held) if isinstance(held, list) else dict(held) if isinstance(held, dict) else None
        if here[step] is None:
            here[step] = [] if following.isdigit() else {}
        here = here[step]
    if isinstance(here, list):
        raise ConfigError(f"{PREFIX}{'__'.join(steps).upper()} names no key", hint="write it as LIST__0__KEY")
    here[steps[-1]] = value


def _element(items: list[Any], step: str) -> Any:
    if not step.isdigit() or int(step) > len(items):
        raise ConfigError(f"{PREFIX}..__{step.upper()}: the list has {len(items)} elements", hint="the first is __0__")
    index = int(step)
    items[index:] = [dict(items[index]) if index < len(items) else {}, *items[index + 1 :]]
    return items[index]


def _dotted(steps: list[str]) -> str:
    text = steps[0]
    for step in steps[1:]:
        text += f"[{step}]" if step.isdigit() else f".{step}"
    return text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
