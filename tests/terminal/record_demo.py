"""`python -m tests.terminal.record_demo`: makes `demo.hyp` anew, from the cluster of the demo and two jobs in it.

The second job sends its updates as int8. What a terminal would ask for (logs, slices, the lives of leases) is asked for
every ten seconds. Folders of this machine are renamed, and the recording starts at a fixed time of day.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import msgspec

from hypha_tui.client.api import connected
from hypha_tui.client.jobfile import JobDraft, pack, read_job
from hypha_tui.client.recording import RecordingClient
from hypha_tui.client.tape import ANSWERS, FRAMES, KEY, POINTS, AnswerAt, FrameAt, Label, PointsAt, Tape, TapeWriter
from hypha_tui.demo import JOB, endpoint, start
from hypha_tui.local_cluster import LocalCluster
from hypha_tui.store.cluster import FINISHED, ClusterStore
from node.errors import HyphaError
from node.views import JobView, LeaseView
from tests.terminal.screenshots import TAPE

STARTED_UNIX: Final = 1_767_268_800.0
"""2026-01-01 12:00:00 UTC."""
ASK_EVERY_S: Final = 10.0
WORKERS: Final = 2
_FOLDER: Final = re.compile(r"/(?:tmp|var/tmp|home|root|Users|private|work)/[^/\s\"']+")
_TYPES: Final[dict[int, Any]] = {FRAMES: FrameAt, KEY: FrameAt, POINTS: PointsAt, ANSWERS: AnswerAt}


def tidy(value: Any) -> Any:
    """The same with folders renamed, however deep they are."""
    if isinstance(value, str):
        return _FOLDER.sub("/srv/hypha", value)
    if isinstance(value, bytes):
        return msgspec.msgpack.encode(tidy(msgspec.msgpack.decode(value)))
    if isinstance(value, list):
        return [tidy(one) for one in value]
    if isinstance(value, dict):
        return {tidy(key): tidy(one) for key, one in value.items()}
    return value


def tidied(raw: Tape, made: Path) -> None:
    """A copy of a recording that tells nothing of this machine."""
    made.unlink(missing_ok=True)
    writer = TapeWriter(made, Label(STARTED_UNIX, raw.label.program))
    for block in raw.blocks:
        records = [msgspec.msgpack.encode(one) for one in raw.records(block, _TYPES[block.kind])]
        packed = [msgspec.msgpack.encode(tidy(msgspec.msgpack.decode(one))) for one in records]
        writer.append(block.kind, block.first, block.last, packed)
    writer.close()
    made.chmod(0o644)


def drafts() -> list[JobDraft]:
    """The demo's job, and the same with smaller updates."""
    plain = read_job(JOB)
    changed = plain.text.replace('name = "stdlib-bytes"', 'name = "stdlib-int8"').replace("= 8e-3", "= 5e-3")
    return [plain, JobDraft(changed.replace("\n[resources]", '\n[sync]\ncodec = "int8"\n\n[resources]'), plain.folder)]


async def record(cluster: LocalCluster, path: Path) -> None:
    """Run both jobs, and keep what a terminal would be told."""
    async with connected(endpoint(cluster)) as client:
        recording = RecordingClient(client, path)
        store = ClusterStore()
        async with asyncio.TaskGroup() as tasks:
            following = tasks.create_task(_follow(recording, store))
            asking = tasks.create_task(_ask(recording, store))
            await recording.cluster()
            for draft in drafts():
                job_id = (await recording.submit(pack(draft))).job_id
                while (job := store.get(JobView, job_id)) is None or job.state not in FINISHED:
                    await asyncio.sleep(0.5)
                print(f"{job_id} {job.state}")
                await asyncio.sleep(8.0)
            following.cancel()
            asking.cancel()
        await recording.stop()


async def _follow(client: RecordingClient, store: ClusterStore) -> None:
    async for frame in client.frames():
        store.apply(frame, 0.0)


async def _ask(client: RecordingClient, store: ClusterStore) -> None:
    while True:
        await asyncio.sleep(ASK_EVERY_S)
        jobs = [job for job in store.views(JobView) if job.state not in FINISHED]
        asked: list[Any] = [client.slice_map(job.id) for job in jobs] + [client.logs(job.id) for job in jobs]
        asked += [client.lease_history(lease.id) for lease in store.views(LeaseView)]
        for question in asked:
            try:
                await question
            except HyphaError as error:
                print(error)


def main() -> None:
    """Make it."""
    folder = Path(tempfile.mkdtemp(prefix="hypha-demo-"))
    cluster = LocalCluster(folder)
    raw = folder.with_suffix(".hyp")
    try:
        start(cluster, WORKERS, print)
        asyncio.run(record(cluster, raw))
    finally:
        cluster.stop()
        cluster.remove()
        shutil.rmtree(folder, ignore_errors=True)
    tape = Tape(raw)
    tidied(tape, Path(sys.argv[1]) if len(sys.argv) > 1 else TAPE)
    tape.close()
    raw.unlink()


if __name__ == "__main__":
    main()
