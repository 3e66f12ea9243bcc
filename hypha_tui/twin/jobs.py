"""The twin commands for one's own jobs: submitting, trying out, comparing, exporting. Each returns the exit code."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import cast

from hypha_tui.client.api import ApiClient, connected
from hypha_tui.client.contents import contents_of
from hypha_tui.client.endpoint import Endpoint
from hypha_tui.client.export import export as export_model
from hypha_tui.client.jobfile import JOB_FILE, check, pack, read_draft, read_job
from hypha_tui.client.link import Backoff
from hypha_tui.store.advance import advance
from hypha_tui.store.cluster import FINISHED
from hypha_tui.store.difference import difference, spec_of
from hypha_tui.store.dryrun import dry_run
from hypha_tui.twin import output
from hypha_tui.twin.naming import job_id_of
from node.errors import PeerUnreachable
from node.jobspec import JobSpec
from node.views import DatasetView, Frame, JobView, PeerView

PATIENCE_S = 60.0
"""How long `--wait` goes on trying to reach a node that went away."""


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


async def try_out(endpoint: Endpoint, path: Path, *, as_json: bool) -> int:
    """Say all that can be known of a job without sending it. Fails where it would be refused or would have to wait."""
    draft = read_job(path)
    spec = check(draft.text, JOB_FILE)
    contents = contents_of(draft, spec)
    async with connected(endpoint) as client:
        peers = cast("list[PeerView]", await client.objects(PeerView))
        datasets = cast("list[DatasetView]", await client.objects(DatasetView))
        jobs = cast("list[JobView]", await client.objects(JobView))
    found = dry_run(spec, contents, peers, datasets, jobs)
    if as_json:
        output.data(found.document())
    else:
        for label, words, _ in found.rows():
            output.line(f"{label:<9} {words}")
        output.note("nothing was sent")
    return 0 if found.is_good else 1


async def compare(endpoint: Endpoint, path: Path, other: str, *, as_json: bool) -> int:
    """The settings in which a job differs from another: one that the cluster knows, or a file or folder."""
    new = check(read_job(path).text)
    changes = difference(await _other(endpoint, other), new)
    if as_json:
        output.data([{"key": change.key, "old": change.old, "new": change.new} for change in changes])
        return 0
    width = max((len(change.key) for change in changes), default=0)
    for change in changes:
        old, now = change.words
        output.line(f"{change.key:<{width}}  {old} -> {now}")
    if not changes:
        output.note("no setting differs")
    return 0


async def _other(endpoint: Endpoint, word: str) -> JobSpec:
    """The job that a word stands for. A path is one that has a `/` in it or ends in `.toml`."""
    if "/" in word or word.endswith(".toml"):
        return check(read_draft(Path(word)).text, word)
    async with connected(endpoint) as client:
        return spec_of(await client.spec(await job_id_of(client, word, else_itself=True)))


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


async def export(endpoint: Endpoint, job_id: str, folder: Path, version: str, *, as_json: bool) -> int:
    """Fetch a job's model. Prints where it is."""
    async with connected(endpoint) as client:
        full_id = await job_id_of(client, job_id, else_itself=True)
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
