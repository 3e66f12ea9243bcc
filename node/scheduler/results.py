"""Results of an inference job: taken from its workers, verified, and placed where the job wants them."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from node.errors import DiskFull, HyphaError, JobError, Refused, TensorFileError
from node.network.serving import receive_file
from node.scheduler.destinations import Destination
from node.scheduler.files import write_json
from node.scheduler.inference import InferenceJob
from node.scheduler.inference_order import InferenceOrder
from node.scheduler.machine import Machine
from node.scheduler.messages import ExportFailed, ExportPulled, JobEvent, ResultStored
from node.scheduler.result_rows import results_of
from node.tensorfile import read_header
from node.wire import UNDECODABLE, ResultHeader

if TYPE_CHECKING:
    from node.store import Store

log = logging.getLogger(__name__)

LIMIT_BYTES = 1 << 42
AGAIN_S = 2.0
READ_BYTES = 1 << 20


class Results:
    """The results of one job; of a job that has none, nothing here is ever asked for."""

    def __init__(
        self,
        job: Machine,
        destination: Destination,
        store: Store,
        tell: Callable[[JobEvent], Awaitable[None]],
    ) -> None:
        self._job = job
        self._destination = destination
        self._store = store
        self._tell = tell
        self._is_ready = asyncio.Event()

    async def prepare(self) -> None:
        """Make the destination ready; a job whose results can go nowhere fails."""
        try:
            await self._destination.prepare()
        except JobError as error:
            await self._tell(ExportFailed(_text(error)))
        else:
            self._is_ready.set()

    async def take(self, request: web.Request, header: ResultHeader) -> None:
        """Take an upload in; its slice is done when this returns. Raises `Refused`."""
        job = self._inference()
        if not self._is_ready.is_set():
            raise Refused("busy", "the destination is being made ready")
        name, rows = job.expects(header.task_id, header.index)
        if header.rows != rows:
            raise Refused("invalid", f"slice {header.index} has {rows} rows, not {header.rows}")
        # Two tasks may send the same slice, where one of them is taken for lost.
        incoming = self._destination.incoming(f"{header.task_id}-{name}")
        await receive_file(
            request, incoming, sha256=header.sha256, size_bytes=header.size_bytes, limit_bytes=LIMIT_BYTES
        )
        try:
            await asyncio.to_thread(check_rows, incoming, rows)
            job.expects(header.task_id, header.index)
            await self._keep(incoming, name, header.sha256, header.size_bytes)
        finally:
            await asyncio.to_thread(incoming.unlink, missing_ok=True)
        await self._tell(ResultStored(header.task_id, header.index, name, header.sha256, header.size_bytes))

    async def store_index(self) -> None:
        """Place the list of all results, `<dataset>.results.json`, and tell the job."""
        job = self._inference()
        await self._is_ready.wait()
        name = f"{job.order.stem}.results.json"
        content = {**description(job.order), "dataset_digest": job.data_digest}
        content["results"] = await results_of(self._store, job.job_id)
        while True:
            try:
                incoming = self._destination.incoming(name)
                await asyncio.to_thread(write_json, incoming, content)
                size, sha256 = await asyncio.to_thread(_measured, incoming)
                await self._keep(incoming, name, sha256, size)
            except (Refused, OSError) as error:
                if job.is_over:
                    return
                log.warning("results.not_listed job=%s reason=%s", job.job_id, error)
                await asyncio.sleep(AGAIN_S)
            else:
                await self._tell(ExportPulled(self._destination.place))
                return

    async def close(self) -> None:
        """The job is over."""
        await self._destination.close()

    def _inference(self) -> InferenceJob:
        if not isinstance(self._job, InferenceJob):
            raise Refused("denied", f"job {self._job.job_id} has no results")
        return self._job

    async def _keep(self, incoming: Path, name: str, sha256: str, size_bytes: int) -> None:
        try:
            await self._destination.keep(incoming, name, sha256, size_bytes)
        except Refused:
            raise
        except JobError as error:
            await self._tell(ExportFailed(_text(error)))
            raise Refused("denied", error.message, hint=error.hint) from error
        except DiskFull as error:
            raise Refused("full", error.message) from error
        except (HyphaError, OSError) as error:
            log.warning("result.not_stored job=%s name=%s reason=%s", self._job.job_id, name, error)
            raise Refused("busy", f"{name} could not be stored: {error}") from error


def read_result_header(request: web.Request) -> ResultHeader:
    """The header of an upload. Raises `Refused`."""
    try:
        header = msgspec.json.decode(request.headers.get("Hypha-Result", ""), type=ResultHeader)
    except UNDECODABLE as error:
        raise Refused("invalid", f"the header Hypha-Result: {error}") from error
    if str(header.index) != request.match_info["index"]:
        raise Refused("invalid", "the header is of another slice than the address")
    return header


def check_rows(path: Path, rows: int) -> None:
    """Raise `Refused` (`invalid`) unless a result has just as many rows; for a thread."""
    if path.suffix == ".safetensors":
        try:
            found = read_header(path).rows
        except TensorFileError as error:
            raise Refused("invalid", error.message) from error
    else:
        found = _lines(path)
    if found != rows:
        raise Refused("invalid", f"the result has {found} rows, its slice has {rows}")


def description(order: InferenceOrder) -> dict[str, Any]:
    """What a list of results says of the job: nothing that differs between two runs of it."""
    model = {"task": order.model.task, "repository": order.model.repository, "revision": order.model.revision}
    if order.model_job:
        model["job"] = order.model_job
    output = msgspec.structs.asdict(order.output)
    return {"dataset": order.dataset, "model": model, "output": output, "precision": order.precision}


def _text(error: JobError) -> str:
    return f"{error.message}; {error.hint}" if error.hint else error.message


def _lines(path: Path) -> int | None:
    """Lines of a file; None where the last one has no end."""
    count, last = 0, b"\n"
    with path.open("rb") as file:
        while piece := file.read(READ_BYTES):
            count += piece.count(b"\n")
            last = piece[-1:]
    return count if last == b"\n" else None


def _measured(path: Path) -> tuple[int, str]:
    content = path.read_bytes()
    return len(content), hashlib.sha256(content).hexdigest()
