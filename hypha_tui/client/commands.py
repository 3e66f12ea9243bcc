"""Commands as an operator signs them. Read only when something is changed: a terminal that looks needs none of it."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Final

import msgspec

from node.commanding import payload_of
from node.identity.credentials import Identity
from node.wire import (
    Cancel,
    Command,
    Cordon,
    Drain,
    Export,
    Pause,
    Release,
    Resume,
    RunCommand,
    Submit,
    Uncordon,
    WorkerCommand,
)

HEADER: Final = "Hypha-Command"
ACTS: Final[dict[str, Callable[[str], Command | WorkerCommand]]] = {
    "cancel": lambda id_: Cancel(job_id=id_),
    "pause": lambda id_: Pause(job_id=id_),
    "resume": lambda id_: Resume(job_id=id_),
    "release": lambda id_: Release(lease_id=id_),
    "cordon": lambda id_: Cordon(peer_id=id_),
    "uncordon": lambda id_: Uncordon(peer_id=id_),
    "drain": lambda id_: Drain(peer_id=id_),
}
"""What can be done to one object, by its name in the API's paths."""


def act(identity: Identity, name: str, id_: str) -> dict[str, str]:
    """The header that has an object acted on."""
    return _signed(identity, ACTS[name](id_))


def submission(identity: Identity, job_id: str, body_sha256: str, name: str, scheduler: str) -> dict[str, str]:
    """The header that has an uploaded job run, by this scheduler and no other."""
    return _signed(identity, Submit(job_id=job_id, body_sha256=body_sha256, name=name, scheduler=scheduler))


def export(identity: Identity, job_id: str) -> dict[str, str]:
    """The header that lets a job's model be read."""
    return _signed(identity, Export(job_id=job_id))


def _signed(identity: Identity, command: Command | WorkerCommand | Export) -> dict[str, str]:
    run = msgspec.msgpack.encode(RunCommand(signed=identity.sign(payload_of(command))))
    return {HEADER: base64.b64encode(run).decode()}
