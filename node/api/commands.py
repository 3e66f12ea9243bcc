"""Commands of operators: checked here, carried out by a scheduler.

An operator signs a command, so that no node it passes can make one up; only for who is on this node's own machine, and
may read its Unix socket, the node signs itself.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import errno
import hashlib
import logging
import os
import secrets
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec
from aiohttp import web
from msgspec.structs import replace

from node.api.endpoints import FILL_WITHIN_S, to_json
from node.api.problems import Failure
from node.api.routes import MAX_BODY_BYTES, TAR, TOML
from node.api.watch import Watch
from node.commanding import payload_of
from node.config import NodeConfig
from node.errors import PeerProtocol, PeerUntrusted, Refused
from node.identity.caller import Caller
from node.network.bulk import upload
from node.network.overlay import Overlay
from node.views import SchedulerChoice, SubmitResult
from node.wire import JOB_ID, Cancel, Command, Export, Pause, Release, Resume, RunCommand, Submit

log = logging.getLogger(__name__)

HEADER = "Hypha-Command"
NAME_MOST = 200
STALL_S = 30.0
UPLOADS_AT_ONCE = 4

T = TypeVar("T")

_command: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
_run_command = msgspec.msgpack.Decoder(RunCommand)


class Commands:
    """Submit, cancel, pause and resume. `caller` is None over the Unix socket."""

    def __init__(self, config: NodeConfig, overlay: Overlay, watch: Watch) -> None:
        self._overlay = overlay
        self._watch = watch
        self._folder = config.state_dir / "uploads"
        self._uploads = 0

    async def job_scheduler(self, _: Caller | None, request: web.Request) -> web.StreamResponse:
        """Which scheduler has a job, or would be given one of this id: an operator signs a submission for it."""
        job_id = checked(request.match_info["id"])
        return to_json(SchedulerChoice(job_id=job_id, scheduler=await self._scheduler_for(job_id)))

    async def submit(self, caller: Caller | None, request: web.Request) -> web.StreamResponse:
        """Take a job in and hand it to a scheduler; it answers when the job is in the scheduler's store."""
        content_type = request.content_type
        if content_type not in (TOML, TAR):
            raise Failure(415, "invalid", f"a job comes as {TOML} or {TAR}, not as {content_type}")
        if (request.content_length or 0) > MAX_BODY_BYTES:
            raise _too_large()
        run = self.signed(caller, request)
        with self._room() as path:
            try:
                sha256 = await _receive(request, path)
                command = self._open(run) if run else _submission(request, sha256)
                if not isinstance(command, Submit):
                    raise Failure(422, "invalid", "the signed command is not a submission")
                if command.body_sha256 != sha256:
                    raise Failure(
                        422, "invalid", f"the body has SHA-256 {sha256}, signed for is {command.body_sha256[:64]}"
                    )
                scheduler = await self._scheduler_of(command)
                run = run or self.sign(replace(command, scheduler=scheduler))
                headers = {HEADER: header_of(run), "Content-Type": content_type}
                target = f"/bulk/submissions/{command.job_id}"
                answer = await upload(self._overlay, scheduler, target, path, headers=headers, attempts=2)
            finally:
                await asyncio.to_thread(path.unlink, missing_ok=True)
        result = _result(answer, scheduler)
        log.info("job.submitted job=%s scheduler=%s by=%s", result.job_id, scheduler, who(caller))
        return to_json(result, status=201)

    async def cancel(self, caller: Caller | None, request: web.Request) -> web.StreamResponse:
        """Have the job's scheduler end it."""
        return await self._give(caller, request, Cancel)

    async def resume(self, caller: Caller | None, request: web.Request) -> web.StreamResponse:
        """Have the job's scheduler go on with it."""
        return await self._give(caller, request, Resume)

    async def pause(self, caller: Caller | None, request: web.Request) -> web.StreamResponse:
        """Have the job's scheduler stop at its next commit."""
        return await self._give(caller, request, Pause)

    async def _give(
        self, caller: Caller | None, request: web.Request, kind: type[Cancel | Resume | Pause]
    ) -> web.StreamResponse:
        job_id, name = request.match_info["id"], kind.__name__.lower()
        run = self.signed(caller, request)
        command = self._open(run) if run else kind(job_id=checked(job_id))
        if not isinstance(command, kind) or command.job_id != job_id:
            raise Failure(422, "invalid", f"the signed command is not to {name} {job_id}")
        signed = run or self.sign(command)
        accepted = await self.somewhere(job_id, lambda scheduler: self._overlay.call(scheduler, signed))
        log.info("job.%s job=%s scheduler=%s by=%s", name, job_id, accepted.scheduler, who(caller))
        return to_json(SubmitResult(job_id=accepted.job_id, scheduler=accepted.scheduler), status=202)

    async def somewhere(self, job_id: str, ask: Callable[[str], Awaitable[T]]) -> T:
        """The answer of the job's scheduler; of each in turn, where the job is one that nobody shows any more."""
        cluster = await self._watch.fill(FILL_WITHIN_S)
        job = cluster.job(job_id, self._watch.now())
        if job is not None:
            return await ask(job.scheduler)
        for scheduler in self._schedulers(job_id):
            try:
                return await ask(scheduler)
            except Refused as error:
                if error.code != "unknown":
                    raise
        raise Failure(404, "unknown", f"no job {job_id}", hint="`jobs` lists them all")

    def signed(self, caller: Caller | None, request: web.Request) -> RunCommand | None:
        """What the operator signed; None where the node may sign for whoever asks."""
        return signed_in(caller, request)

    def sign(self, command: Command | Export) -> RunCommand:
        """Sign for who is on this machine."""
        return RunCommand(signed=self._overlay.identity.sign(payload_of(command)))

    def _open(self, run: RunCommand) -> Command:
        command = opened(self._overlay, run, _command)
        if not isinstance(command, Release):
            checked(command.job_id)
        return command

    async def _scheduler_of(self, command: Submit) -> str:
        """The scheduler that a submission is signed for; where it names none, one that we choose."""
        if not command.scheduler:
            return await self._scheduler_for(command.job_id)
        if command.scheduler not in self._schedulers(command.job_id):
            text = f"the job is signed for scheduler {command.scheduler[:80]}, which cannot be reached from here"
            raise Failure(503, "busy", text, hint="submit it again")
        return command.scheduler

    async def _scheduler_for(self, job_id: str) -> str:
        """Where the job is already, else this node, else one that every node would choose for this id."""
        cluster = await self._watch.fill(FILL_WITHIN_S)
        job = cluster.job(job_id, self._watch.now())
        return job.scheduler if job is not None else self._schedulers(job_id)[0]

    def _schedulers(self, job_id: str) -> list[str]:
        own_id = self._overlay.peer_id
        known = [peer.record.peer_id for peer in self._overlay.peers("scheduler") if peer.reachable]
        if not known:
            raise Failure(
                503, "busy", "no scheduler in the cluster", hint="start a node with --role scheduler, then try again"
            )

        def order(peer_id: str) -> tuple[bool, bytes]:
            return peer_id != own_id, hashlib.sha256(f"{job_id}/{peer_id}".encode()).digest()

        return sorted(known, key=order)

    @contextlib.contextmanager
    def _room(self) -> Iterator[Path]:
        if self._uploads >= UPLOADS_AT_ONCE:
            raise Failure(503, "busy", f"{UPLOADS_AT_ONCE} jobs are being uploaded here already")
        self._uploads += 1
        try:
            yield self._folder / secrets.token_hex(8)
        finally:
            self._uploads -= 1


def signed_in(caller: Caller | None, request: web.Request) -> RunCommand | None:
    """What the operator signed; None where the node may sign for whoever asks."""
    text = request.headers.get(HEADER)
    if text is None:
        if caller is None:
            return None
        raise Failure(403, "denied", "an operator's command must be signed", hint=f"sign it, in {HEADER}")
    try:
        return _run_command.decode(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError, msgspec.MsgspecError) as error:
        raise Failure(422, "invalid", f"{HEADER} cannot be read: {error}") from error


def opened(overlay: Overlay, run: RunCommand, decoder: msgspec.msgpack.Decoder[T]) -> T:
    """A command that came signed; a Failure unless an operator signed it."""
    try:
        signer, payload = overlay.identity.trust.open(run.signed)
    except PeerUntrusted as error:
        raise Failure(403, "denied", f"the command's signature does not count: {error.message}") from error
    if not signer.is_operator:
        raise Failure(403, "denied", f"{signer.name} has signed the command and is not an operator")
    try:
        return decoder.decode(payload)
    except (ValueError, msgspec.MsgspecError) as error:
        raise Failure(422, "invalid", f"the signed command cannot be read: {error}") from error


def _submission(request: web.Request, sha256: str) -> Submit:
    job_id = request.query.get("job_id") or secrets.token_hex(6)
    return Submit(job_id=checked(job_id), body_sha256=sha256, name=request.query.get("name", "")[:NAME_MOST])


def header_of(run: RunCommand) -> str:
    """A signed command as the value of its header."""
    return base64.b64encode(msgspec.msgpack.encode(run)).decode()


def checked(job_id: str) -> str:
    """The id, if it can be one."""
    if not JOB_ID.fullmatch(job_id):
        hint = "letters, digits, dot, dash and underscore, at most 64"
        raise Failure(422, "invalid", f"{job_id[:80]!r} is no job id", hint=hint)
    return job_id


async def _receive(request: web.Request, path: Path) -> str:
    """Write the body to `path`, counted; its SHA-256."""
    digest = hashlib.sha256()
    size = 0
    loop = asyncio.get_running_loop()
    try:
        file = await asyncio.to_thread(_create, path)
        try:
            async with asyncio.timeout(STALL_S) as deadline:
                async for piece in request.content.iter_chunked(1 << 20):
                    deadline.reschedule(loop.time() + STALL_S)
                    size += len(piece)
                    if size > MAX_BODY_BYTES:
                        raise _too_large()
                    await asyncio.to_thread(_append, file, piece)
                    digest.update(piece)
        finally:
            os.close(file)
    except TimeoutError:
        raise Failure(408, "invalid", f"the body stopped for {STALL_S:.0f} s") from None
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise Failure(507, "full", "no room on this node's disk for the job") from error
    if not size:
        raise Failure(422, "invalid", "the body is empty")
    return digest.hexdigest()


def _create(path: Path) -> int:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)


def _append(file: int, piece: bytes) -> None:
    view = memoryview(piece)
    while view:
        view = view[os.write(file, view) :]


def _result(body: bytes, scheduler: str) -> SubmitResult:
    try:
        return msgspec.json.decode(body, type=SubmitResult)
    except (ValueError, msgspec.MsgspecError) as error:
        raise PeerProtocol(f"{scheduler} answered a submission with something unreadable: {error}") from error


def _too_large() -> Failure:
    return Failure(413, "full", f"a job has at most {MAX_BODY_BYTES >> 20} MiB", hint="datasets belong on a data node")


def who(caller: Caller | None) -> str:
    """Who gave a command, for the log."""
    return caller.name if caller else "local"
