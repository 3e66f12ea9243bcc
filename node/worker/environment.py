"""What an executor is started with: its environment and its arguments. Nothing secret is in either."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import node
from node.errors import Refused
from node.wire import Resources

INHERITED = (
    "PATH",
    "LANG",
    "LC_ALL",
    "TZ",
    "USER",
    "LOGNAME",
    "LD_LIBRARY_PATH",
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "UV_CACHE_DIR",
    "UV_PYTHON_INSTALL_DIR",
    "UV_LINK_MODE",
    "VIRTUAL_ENV",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
)
THREADS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
MAX_ARGUMENT_BYTES = 120_000


def environment(
    task_id: str, work_dir: Path, resources: Resources, command: str, own: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The variables of an executor: an allow-list of the node's, and what keeps it inside its lease and offline."""
    source = os.environ if own is None else own
    variables = {name: source[name] for name in INHERITED if name in source}
    threads = str(max(1, int(resources.cpu)))
    variables.update(dict.fromkeys(THREADS, threads))
    variables.update(
        HYPHA_TASK_ID=task_id,
        HOME=source.get("HOME", str(work_dir)),
        TMPDIR=str(work_dir / "tmp"),
        HF_HOME=str(work_dir / "tmp" / "hf"),
        HF_HUB_OFFLINE="1",
        HF_HUB_DISABLE_TELEMETRY="1",
        TOKENIZERS_PARALLELISM="false",
        PYTHONUNBUFFERED="1",
        PYTHONFAULTHANDLER="1",
        MALLOC_ARENA_MAX="2",
    )
    if resources.memory:
        variables["HYPHA_MEMORY_BYTES"] = str(int(resources.memory * 1e9))
    if command == sys.executable:
        # Ours: it needs this `node` package, also where that is not installed, and nothing from the work directory.
        variables.update(PYTHONSAFEPATH="1", PYTHONPATH=str(package_root()))
    return variables


def package_root() -> Path:
    """The folder that this `node` package is imported from."""
    return Path(node.__file__).resolve().parent.parent


def arguments(templates: Sequence[str], socket_path: Path, work_dir: Path, job_json: str) -> list[str]:
    """Fill in `{SOCKET_PATH}`, `{WORK_DIR}` and `{JOB_JSON}`. Raises `Refused` for what no kernel takes as argument."""
    if len(job_json.encode()) > MAX_ARGUMENT_BYTES:
        raise Refused("invalid", f"the job's description has {len(job_json):,} characters, too many for an argument")
    values = {"{SOCKET_PATH}": str(socket_path), "{WORK_DIR}": str(work_dir), "{JOB_JSON}": job_json}
    return [_filled(template, values) for template in templates]


def _filled(template: str, values: Mapping[str, str]) -> str:
    # One pass, so that a job cannot smuggle in another placeholder.
    done, rest = "", template
    while rest:
        positions = [(rest.index(key), key) for key in values if key in rest]
        if not positions:
            return done + rest
        at, key = min(positions)
        done, rest = done + rest[:at] + values[key], rest[at + len(key) :]
    return done
