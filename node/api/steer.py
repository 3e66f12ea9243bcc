"""Commands about leases and workers: checked here, carried out by the lease's scheduler or by the worker itself."""

from __future__ import annotations

import logging
from typing import TypeVar

import msgspec
from aiohttp import web

from node.api.commands import opened, signed_in, who
from node.api.endpoints import FILL_WITHIN_S, to_json
from node.api.problems import Failure
from node.api.watch import Watch
from node.commanding import payload_of
from node.identity.caller import Caller
from node.network.overlay import Overlay
from node.views import ActResult, LeaseView, PeerView, View
from node.wire import Command, Cordon, Drain, Release, RunCommand, SteerWorker, Uncordon, WorkerCommand

log = logging.getLogger(__name__)

V = TypeVar("V", bound=View)

_command: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
_worker_command: msgspec.msgpack.Decoder[WorkerCommand] = msgspec.msgpack.Decoder(WorkerCommand)


class Steer:
    """Release, cordon, uncordon, drain. `caller` is None over the Unix socket: then the node signs."""

    def __init__(self, overlay: Overlay, watch: Watch) -> None:
        self._overlay = overlay
        self._watch = watch

    async def release(self, caller: Caller | None, request: web.Request) -> web.StreamResponse:
        """Have the lease's scheduler let it go."""
        lease_id = request.match_info["id"]
        run = signed_in(caller, request)
        if run is not None:
            command = opened(self._overlay, run, _command)
            if not isinstance(command, Release) or command.lease_id != lease_id:
                raise Failure(422, "invalid", f"the signed command is not to release {lease_id}")
        lease = await self._find(LeaseView, lease_id)
        if lease is None:
            raise Failure(404, "unknown", f"no lease {lease_id[:80]}", hint="`leases` lists them all")
        if lease.state not in ("offered", "held"):
            raise Failure(409, "conflict", f"lease {lease_id} is {lease.state}: there is nothing to release")
        signed = run.signed if run else self._overlay.identity.sign(payload_of(Release(lease_id=lease_id)))
        await self._overlay.call(lease.scheduler, RunCommand(signed=signed, worker=lease.worker))
        log.info("lease.release lease=%s scheduler=%s by=%s", lease_id, lease.scheduler, who(caller))
        return to_json(ActResult(id=lease_id, node=lease.scheduler), status=202)

    async def cordon(self, caller: Caller | None, request: web.Request) -> web.StreamResponse:
        """Have a worker offer nothing any more."""
        return await self._tell(caller, request, Cordon)

    async def uncordon(self, caller: Caller | None, request: web.Request) -> web.StreamResponse:
        """Have a worker offer again."""
        return await self._tell(caller, request, Uncordon)

    async def drain(self, caller: Caller | None, request: web.Request) -> web.StreamResponse:
        """Have a worker hand over what it runs."""
        return await self._tell(caller, request, Drain)

    async def _tell(
        self, caller: Caller | None, request: web.Request, kind: type[Cordon | Uncordon | Drain]
    ) -> web.StreamResponse:
        asked, name = request.match_info["id"], kind.__name__.lower()
        peer = await self._find(PeerView, asked) or await self._find(PeerView, self._overlay.find_name(asked) or "")
        if peer is None:
            raise Failure(404, "unknown", f"no node {asked[:80]}", hint="`peers` lists them all")
        if "worker" not in peer.roles:
            raise Failure(409, "conflict", f"{peer.name} is no worker: there is nothing to {name}")
        run = signed_in(caller, request)
        if run is not None:
            command = opened(self._overlay, run, _worker_command)
            if not isinstance(command, kind) or command.peer_id != peer.id:
                raise Failure(422, "invalid", f"the signed command is not to {name} {peer.id}")
        signed = run.signed if run else self._overlay.identity.sign(payload_of(kind(peer_id=peer.id)))
        await self._overlay.call(peer.id, SteerWorker(signed=signed))
        log.info("worker.%s peer=%s by=%s", name, peer.id, who(caller))
        return to_json(ActResult(id=peer.id, node=peer.id), status=202)

    async def _find(self, kind: type[V], id_: str) -> V | None:
        cluster = await self._watch.fill(FILL_WITHIN_S)
        items = cluster.items(self._watch.now())
        return next((item for item in items if isinstance(item, kind) and item.id == id_), None)
