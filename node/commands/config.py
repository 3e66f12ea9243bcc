"""`hypha-node config`: is a configuration right, and where does each value come from?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import App, Parameter

from node.commands.output import columns, say, warn
from node.config import SECRET_KEYS, Loaded, chosen_file, load
from node.errors import HyphaError
from node.identity.credentials import load_identity

app = App(name="config", help="Look at a configuration.")
HIDDEN = "(hidden)"


@app.command
def check(file: Path, /) -> None:
    """Check a configuration file. Files that it names and that are not here are warned about."""
    loaded = load(file)
    for line in [*loaded.warnings, *missing_files(loaded)]:
        warn(line)
    say(f"{file}: configuration is valid")


@app.command
def show(
    file: Annotated[Path | None, Parameter(help="Configuration file; else the one that HYPHA_CONFIG names.")] = None, /
) -> None:
    """Show each value and where it comes from: a flag, a variable, the file or the default."""
    loaded = load(chosen_file(file))
    columns([(key, value, origin) for key, value, origin in values(loaded)])
    for line in loaded.warnings:
        warn(line)


def missing_files(loaded: Loaded) -> list[str]:
    """What would keep this configuration from running here, one line each."""
    config = loaded.config
    lines = []
    try:
        lines += load_identity(config.cert_pem, config.key_pem, config.trust_pem, config.crls_pem).warnings
    except HyphaError as error:
        lines.append(str(error))
    lines += [f"dataset folder {path} does not exist" for path in config.dataset_folders if not path.is_dir()]
    return lines


def values(loaded: Loaded) -> list[tuple[str, str, str]]:
    """Dotted key, value as in TOML, and origin, of every setting. Secrets are hidden."""
    rows = []
    for key, value in _leaves(msgspec.to_builtins(loaded.config, enc_hook=str), ""):
        parts = key.split(".")
        secret = any(part in SECRET_KEYS for part in parts) and value not in ("", {}, None)
        shown = HIDDEN if secret else "" if value is None else msgspec.json.encode(value).decode()
        rows.append((key, shown, _origin(loaded.origins, key)))
    return rows


def _leaves(value: Any, path: str) -> list[tuple[str, Any]]:
    if isinstance(value, dict) and value and path not in SECRET_KEYS:
        return [leaf for key, item in value.items() for leaf in _leaves(item, f"{path}.{key}" if path else key)]
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        return [leaf for index, item in enumerate(value) for leaf in _leaves(item, f"{path}[{index}]")]
    return [(path, value)]


def _origin(origins: dict[str, str], key: str) -> str:
    """The origin of a key, or of the nearest key above or below it."""
    # a job is shown in its one form, whatever form its file has
    spellings = [
        key,
        key.replace("scheduler.job.", "scheduler.job.resources."),
        key.replace("job.dataset", "job.dataset_name"),
    ]
    for known, origin in origins.items():
        written = known.replace("-", "_")
        for spelling in spellings:
            parent = spelling.rpartition(".")[0]
            if written == spelling or _holds(written, spelling) or _holds(spelling, written):
                return origin
            if parent.startswith("scheduler.job.resources.") and written.startswith(f"{parent}["):
                return origin
    return "default"


def _holds(table: str, key: str) -> bool:
    return key.startswith((f"{table}.", f"{table}["))
