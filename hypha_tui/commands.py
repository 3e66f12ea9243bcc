"""The twin commands: what the screens show and do, for scripts. Each returns the exit code."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import cast

from hypha_tui import output
from hypha_tui.client.api import ApiClient, connected
from hypha_tui.client.endpoint import Endpoint
from hypha_tui.client.export import export as export_model
from hypha_tui.client.jobfile import pack, read_job
from hypha_tui.client.link import Backoff
from hypha_tui.store import text
from hypha_tui.store.advance import advance
from hypha_tui.store.cluster import FINISHED, ClusterStore, with_names
from hypha_tui.store.columns import Look
from hypha_tui.store.glyphs import glyphs_for
from node.errors import PeerUnreachable, Refused
from node.views import AnyView, DatasetView, Frame, JobView, LeaseView, PeerView, Point, Snapshot, TransferView

KINDS: dict[str, type[AnyView]] = {
    "peers": PeerView,
    "leases": LeaseView,
    "transfers": TransferView,
    "jobs": JobView,
    "datasets": DatasetView,
}
PATIENCE_S = 60.0
"""How long `--wait` goes on trying to reach a node that went away."""


async def show(endpoint: Endpoint, what: str, *, as_json: bool) -> int:
    """All objects of a kind."""
    async with connected(endpoint) as client:
        views = await client.objects(KINDS[what])
        if as_json:
            output.data(views)
            return 0
        names: list[AnyView] = [*await client.objects(PeerView), *await client.objects(JobView)]
    others = [view for view in names if view.kind != KINDS[what].kind]
    store = ClusterStore()
    now = time.monotonic()
    store.apply(Snapshot(seq=1, items=[*views, *others]), now)
    output.objects(KINDS[what].kind, views, Look(store, now, glyphs_for(os.environ)))
    return 0


async def events(endpoint: Endpoint, *, as_json: bool) -> int:
    """The last events of all nodes, oldest first."""
    async with connected(endpoint) as client:
        found = await client.events()
        names = {} if as_json else {peer.id: peer.name for peer in await client.objects(PeerView)}
    if as_json:
        output.data(found)
        return 0
    rows = [
        [text.age(one.age_s), one.level, names.get(one.node, one.node), one.name, with_names(one.text, names)]
        for one in found
    ]
    output.table(["AGE", "LEVEL", "NODE", "EVENT", "TEXT"], rows)
    return 0


async def metrics(endpoint: Endpoint, job_id: str, *, as_json: bool) -> int:
    """The history of a job's metrics."""
    async with connected(endpoint) as client:
        points = await client.metrics(await _job_id(client, job_id))
        names = {} if as_json else {peer.id: peer.name for peer in await client.objects(PeerView)}
    if as_json:
        output.data(points)
        return 0
    points.sort(key=lambda point: (point.name, point.worker, point.round))
    output.table(["METRIC", "WORKER", "ROUND", "VALUE", "AFTER"], [_metric_row(point, names) for point in points])
    return 0


def _metric_row(point: Point, names: dict[str, str]) -> list[str]:
    worker = names.get(point.worker, point.worker) or "-"
    return [point.name, worker, str(point.round), f"{point.value:.6g}", f"{point.t_s:.1f}s"]


async def logs(endpoint: Endpoint, job_id: str, task_id: str, *, lines: int, as_json: bool) -> int:
    """The last lines that a job's tasks wrote. Fails when none of them could be read."""
    async with connected(endpoint) as client:
        chunks = await client.logs(await _job_id(client, job_id), task_id, lines)
        names = {} if as_json else {peer.id: peer.name for peer in await client.objects(PeerView)}
    if as_json:
        output.data(chunks)
    else:
        for chunk in chunks:
            if len(chunks) > 1:
                output.line(f"==> {chunk.task_id} at {names.get(chunk.peer_id, chunk.peer_id)} <==")
            for line in chunk.lines:
                output.line(line)
            if chunk.error:
                output.note(f"hypha-tui: {chunk.task_id}: {chunk.error}")
    return 1 if chunks and all(chunk.error for chunk in chunks) else 0


async def submit(endpoint: Endpoint, path: Path, *, wait: bool, as_json: bool) -> int:
    """Run a job; with `wait` until it ends, which decides the exit code."""
    body = pack(read_job(path))
    async with connected(endpoint) as client:
        result = await client.submit(body)
        if not wait:
            if as_json:
                output.data(result)
            else:
                output.line(result.job_id)
            return 0
        output.note(f"{result.job_id} is accepted; interrupting this does not end it")
        job = await _wait(client, result.job_id)
    if as_json:
        output.data(job)
    else:
        output.line(f"{job.id} {job.state}{f': {job.reason}' if job.reason else ''}")
        if job.model_dir:
            output.line(f"{'model' if job.rounds else 'results'} {job.model_dir}")
    return 0 if job.state == "done" else 1


async def _wait(client: ApiClient, job_id: str) -> JobView:
    """The job once it has ended. A broken link is tried again; what the job does does not depend on it."""
    waits = Backoff()
    told = ""
    broken_at: float | None = None
    while True:
        try:
            async with aclosing(cast("AsyncGenerator[Frame, None]", client.frames())) as frames:
                async for frame in frames:
                    waits.reset()
                    broken_at = None
                    jobs = [item for item in frame.items if isinstance(item, JobView) and item.id == job_id]
                    for job in jobs:
                        told = _tell(job, told)
                        if job.state in FINISHED:
                            return job
        except PeerUnreachable:
            now = time.monotonic()
            broken_at = now if broken_at is None else broken_at
            if now - broken_at > PATIENCE_S:
                raise
        await asyncio.sleep(waits.next_wait_s())


def _tell(job: JobView, told: str) -> str:
    losses = f"  validation loss {job.eval_loss:.4f}" if job.eval_loss is not None else ""
    reason = f"  {job.reason}" if job.reason else ""
    unit, done, whole = advance(job)
    line = f"{job.state}  {unit} {done}/{whole}{losses}{reason}"
    if line != told:
        output.note(line)
    return line


async def cancel(endpoint: Endpoint, job_id: str, *, as_json: bool) -> int:
    """End a job."""
    async with connected(endpoint) as client:
        full_id = await _job_id(client, job_id)
        ended = [job for job in await client.objects(JobView) if job.id == full_id and job.state in FINISHED]
        if ended:
            raise Refused("conflict", f"{full_id} is {ended[0].state}", hint="nothing is left to cancel")
        await client.cancel(full_id)
    if as_json:
        output.data({"job_id": full_id, "cancelled": True})
    else:
        output.line(f"{full_id} is being cancelled")
    return 0


async def resume(endpoint: Endpoint, job_id: str, *, as_json: bool) -> int:
    """Go on with a job."""
    async with connected(endpoint) as client:
        full_id = await _job_id(client, job_id)
        await client.resume(full_id)
    if as_json:
        output.data({"job_id": full_id, "resumed": True})
    else:
        output.line(f"{full_id} goes on")
    return 0


async def export(endpoint: Endpoint, job_id: str, folder: Path, version: str, *, as_json: bool) -> int:
    """Fetch a job's model. Prints where it is."""
    async with connected(endpoint) as client:
        full_id = await _job_id(client, job_id, else_itself=True)
        with output.progress(full_id) as on_progress:
            done = await export_model(client, full_id, version, folder, on_progress)
    size_bytes = sum(file.size_bytes for file in done.model.files)
    if as_json:
        output.data(
            {
                "job_id": full_id,
                "path": str(done.path),
                "version": done.model.version,
                "is_final": done.model.is_final,
                "files": len(done.model.files),
                "size_bytes": size_bytes,
            }
        )
        return 0
    what = "the final model" if done.model.is_final else f"version {done.model.version}, not the final model"
    output.note(f"{what}: {len(done.model.files)} files, {size_bytes / 1e6:.1f} MB{_was_here(done.was_here)}")
    output.line(str(done.path))
    return 0


def _was_here(was_here: bool) -> str:
    return ", here already" if was_here else ""


async def _job_id(client: ApiClient, word: str, *, else_itself: bool = False) -> str:
    """The id of the job with this id, name, or beginning of an id; never one of several.

    `else_itself`: a word that stands for none is taken for the id of a job that ended too long ago to be shown."""
    jobs = cast("list[JobView]", await client.objects(JobView))
    if any(job.id == word for job in jobs):
        return word
    found = [job.id for job in jobs if job.name == word] or [job.id for job in jobs if job.id.startswith(word)]
    if len(found) == 1:
        return found[0]
    if found:
        raise Refused("unknown", f"{len(found)} jobs are called {word!r}", hint=f"name one: {', '.join(found[:5])}")
    if else_itself:
        return word
    raise Refused("unknown", f"there is no job {word!r}", hint="`hypha-tui jobs` lists them")
