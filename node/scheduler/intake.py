"""Jobs on their way in: the command checked, the body counted and read, the row written before the answer."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import sqlite3
import time
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import msgspec
from aiohttp import web

from node.commanding import Opened, Orders, signer_of
from node.errors import JobError, Refused
from node.jobspec import JobSpec
from node.scheduler import records, starting
from node.scheduler.files import SchedulerFiles
from node.scheduler.folder import BODY_LIMIT_BYTES, Submission, read_submission
from node.scheduler.peer_folder import PEER
from node.scheduler.places import check_place
from node.scheduler.records import JobRow
from node.wire import JOB_ID, UNDECODABLE, Command, Export, Release, RunCommand, Signed, Submit

if TYPE_CHECKING:
    from node.config import NodeConfig
    from node.network.overlay import Overlay
    from node.store import Store

BODY_STALL_S = 30.0
PIECE_BYTES = 1 << 18
COMMAND_HEADER = "Hypha-Command"


class Intake:
    """Takes jobs in."""

    def __init__(self, config: NodeConfig, overlay: Overlay, store: Store, files: SchedulerFiles) -> None:
        self._config = config
        self._overlay = overlay
        self._store = store
        self._files = files
        self._taking = asyncio.Lock()
        self.orders: Orders[Command] = Orders(Command, config, overlay, store)

    def open_command(self, signed: Signed) -> Opened[Command]:
        """A command, and who gave it. Raises `Refused` unless its signer may give one."""
        opened = self.orders.open(signed)
        command = opened.command
        if not isinstance(command, Release) and not JOB_ID.fullmatch(command.job_id):
            raise Refused("invalid", f"{command.job_id[:80]!r} cannot be a job's id", hint="letters, digits, - and _")
        return opened

    def open_export(self, request: web.Request, job_id: str) -> None:
        """Raise `Refused` unless who asks brings an operator's word that this job's model may be handed over."""
        _, payload = signer_of(_in_header(request), self._config, self._overlay)
        try:
            command = msgspec.msgpack.decode(payload, type=Export)
        except UNDECODABLE as error:
            raise Refused("invalid", f"the command cannot be read: {error}") from error
        if command.job_id != job_id or not JOB_ID.fullmatch(job_id):
            raise Refused("denied", "the command is about another job")

    def open_header(self, request: web.Request) -> tuple[str, Submit]:
        """The command that comes with an upload."""
        opened = self.open_command(_in_header(request))
        command = opened.command
        if not isinstance(command, Submit) or command.job_id != request.match_info["job_id"]:
            raise Refused("invalid", "the command is not about this job")
        if command.scheduler not in ("", self._overlay.peer_id):
            raise Refused("denied", "the job is signed for another scheduler", hint="submit it again, through any node")
        return opened.by, command

    async def take_upload(self, request: web.Request, by: str, command: Submit) -> JobRow:
        """Read an upload and write its job down. The same job twice is one job; another under its id is refused."""
        body = self._files.incoming(command.job_id)
        try:
            digest = await _receive(request, body)
            if digest != command.body_sha256:
                raise Refused("invalid", f"the upload's SHA-256 is {digest}, the command says {command.body_sha256}")
            async with self._taking:
                known = await records.find_job(self._store, command.job_id)
                if known is not None:
                    return _same(known, digest)
                folder = self._files.folder(command.job_id)
                submission = await asyncio.to_thread(read_submission, body, folder)
                return await self._write(command.job_id, command.name, by, digest, submission)
        finally:
            await asyncio.to_thread(body.unlink, missing_ok=True)

    async def take_configured(self, spec: JobSpec) -> JobRow:
        """The job of the node's own configuration, once: its id is derived from what it says."""
        content = msgspec.json.encode(spec.without_secrets())
        digest = hashlib.sha256(content).hexdigest()
        job_id = f"config-{digest[:16]}"
        async with self._taking:
            known = await records.find_job(self._store, job_id)
            if known is not None:
                return known
            return await self._write(
                job_id, spec.name, self._config.name or "configuration", digest, Submission(spec, "")
            )

    async def _write(self, job_id: str, name: str, by: str, digest: str, submission: Submission) -> JobRow:
        spec = submission.spec
        try:
            await asyncio.to_thread(check_place, spec.checkpoint.to)
            if spec.output is not None and not spec.output.to.startswith(PEER):
                await asyncio.to_thread(check_place, spec.output.to)
        except JobError as error:
            raise Refused("invalid", error.message, hint=error.hint) from error
        if spec.model_job:
            trained = await records.find_job(self._store, spec.model_job)
            if trained is None or trained.state != "done" or trained.job_spec().is_inference:
                hint = "name a training job that is done, at the same scheduler"
                raise Refused("invalid", f"job {spec.model_job} has no final model here", hint=hint)
        start = await starting.look(self._overlay, spec) if spec.checkpoint.start_from else None
        row = JobRow(
            job_id=job_id,
            name=name or spec.name,
            spec=msgspec.json.encode(spec.without_secrets()).decode(),
            body_sha256=digest,
            folder_sha256=submission.folder_sha256,
            submitted_by=by,
            submitted_unix=time.time(),
        )
        await asyncio.to_thread(self._files.write_token, job_id, spec.token)

        def write(db: sqlite3.Connection) -> None:
            records.insert_job(db, row)
            if start is not None:
                start.save(db, job_id, spec.dataset)

        await self._store.write(write)
        return row if start is None else await records.find_job(self._store, job_id) or row


def _in_header(request: web.Request) -> Signed:
    try:
        body = base64.b64decode(request.headers.get(COMMAND_HEADER, ""), validate=True)
        return msgspec.msgpack.decode(body, type=RunCommand).signed
    except (binascii.Error, *UNDECODABLE) as error:
        raise Refused("invalid", f"the header {COMMAND_HEADER} cannot be read: {error}") from error


def _same(known: JobRow, digest: str) -> JobRow:
    if known.body_sha256 != digest:
        raise Refused("conflict", f"there is another job {known.job_id}", hint="submit under a new id")
    return known


async def _receive(request: web.Request, target: Path) -> str:
    """Stream a body to disk, counted; answers with its SHA-256."""
    if (request.content_length or 0) > BODY_LIMIT_BYTES:
        raise Refused("full", f"the upload is over {BODY_LIMIT_BYTES >> 20} MiB")
    digest = hashlib.sha256()
    size = 0
    file = await asyncio.to_thread(target.open, "xb")
    try:
        while True:
            async with asyncio.timeout(BODY_STALL_S):
                piece = await request.content.read(PIECE_BYTES)
            if not piece:
                break
            size += len(piece)
            if size > BODY_LIMIT_BYTES:
                raise Refused("full", f"the upload is over {BODY_LIMIT_BYTES >> 20} MiB")
            digest.update(piece)
            await asyncio.to_thread(file.write, piece)
    except (TimeoutError, aiohttp.ClientError, ConnectionError, web.RequestPayloadError) as error:
        raise Refused("invalid", f"the upload broke off after {size:,} bytes") from error
    finally:
        await asyncio.to_thread(file.close)
    return digest.hexdigest()
