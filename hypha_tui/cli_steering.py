"""`hypha-tui lease ..` and `hypha-tui worker ..`: what `cli.py` reads only when one of them is called."""

from __future__ import annotations

from hypha_tui.cli import HERE, Json, run_command
from hypha_tui.options import Reach
from hypha_tui.twin import steering as steering_commands


def release(lease: str, /, *, reach: Reach = HERE, json: Json = False) -> int:
    """Let a lease go, by id or the beginning of it. Its job looks for another worker; nobody is blamed."""
    return run_command(steering_commands.release(reach.endpoint(), lease, as_json=json))


def cordon(worker: str, /, *, reach: Reach = HERE, json: Json = False) -> int:
    """Have a worker offer nothing any more, by name or id. What it runs goes on; it stays so over restarts."""
    return run_command(steering_commands.steer_worker(reach.endpoint(), "cordon", worker, as_json=json))


def uncordon(worker: str, /, *, reach: Reach = HERE, json: Json = False) -> int:
    """Have a worker offer again. What it was handing over stays."""
    return run_command(steering_commands.steer_worker(reach.endpoint(), "uncordon", worker, as_json=json))


def drain(worker: str, /, *, reach: Reach = HERE, json: Json = False) -> int:
    """Cordon a worker, and have each of its tasks moved at its job's next commit. `worker.drained` tells the end."""
    return run_command(steering_commands.steer_worker(reach.endpoint(), "drain", worker, as_json=json))
