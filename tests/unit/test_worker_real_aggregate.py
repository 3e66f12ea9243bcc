"""A parameter server with its real program over real TLS: without torch, from what a scheduler keeps."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import time
from pathlib import Path

import pytest

from node.errors import Refused
from node.wire import OuterOptimizer, Sync, VersionFile, WholeVersion
from tests.support import MakeIdentity
from tests.unit import tiny_tensors
from tests.unit.network_loopback import eventually
from tests.unit.test_worker_parameter_server import group
from tests.unit.worker_cluster import processes

pytest.importorskip("numpy")
pytestmark = pytest.mark.asyncio

OUTER = {"optimizer": OuterOptimizer(learning_rate=0.5, momentum=0.5)}


def base_of(path: Path) -> VersionFile:
    """Version 0, as a scheduler keeps it."""
    tiny_tensors.write(path, [1.0, 2.0, 3.0, 4.0])
    data = path.read_bytes()
    return VersionFile(kind="weights", number=0, sha256=hashlib.sha256(data).hexdigest(), size_bytes=len(data))


async def test_rounds_are_closed_committed_and_made_again_elsewhere_with_the_same_bytes(
    make_identity: MakeIdentity, tmp_path: Path
) -> None:
    """H11, H1: a server placed again is there in well under a second, and its version is the committed one."""
    async with group(make_identity, tmp_path) as job:
        job.scheduler.keeps = True
        base = base_of(job.scheduler.journal / "weights-0.safetensors")
        began = time.monotonic()
        await job.serve(["t0", "t1"], rounds=9, terms={"start": [base], **OUTER})
        assert time.monotonic() - began < 5
        for round_ in range(3):
            await job.send("t0", round_, round_ + 1.0)
            await job.send("t1", round_, -1.0, rows=2)
            await job.version(round_ + 1, "committed", 10)
        first, _, last = job.scheduler.committed
        # mean 1/3; the step is lr * (g + momentum * g)
        assert tiny_tensors.read(job.scheduler.journal / "delta-1.safetensors") == pytest.approx([0.25] * 4)
        await job.scheduler.release(job.worker.peer_id, job.scheduler.offers[-1].lease_id)
        await eventually(lambda: "cancelled" in job.scheduler.states("ps"))
        start = [base, *(request.delta for request in job.scheduler.committed)]
        await job.serve(["t0"], task_id="ps2", epoch=1, rounds=9, terms={"start": start, **OUTER})
        assert job.scheduler.last("ps2").files == [last.weights, last.momentum]
        assert first.weights != last.weights
        await job.send("t0", 3, epoch=1)
        assert (await job.version(4, "committed", 10)).epoch == 1


async def test_with_fragments_a_version_is_put_together_for_who_asks_and_known_by_what_it_was_committed_as(
    make_identity: MakeIdentity, tmp_path: Path
) -> None:
    """Of two fragments one is empty: the second round changes nothing, and is known by the same digests."""
    async with group(make_identity, tmp_path) as job:
        job.scheduler.keeps = True
        base = base_of(job.scheduler.journal / "weights-0.safetensors")
        terms = {"start": [base], "sync": Sync(fragments=2), **OUTER}
        await job.serve(["t0"], rounds=9, terms=terms)
        await job.send("t0", 0)
        await job.version(1, "committed", 10)
        with pytest.raises(Refused):  # it holds the other fragment's tensor
            await job.send("t0", 1)
        await job.version(2, "committed", 10)
        one, two = job.scheduler.committed
        assert two.weights.sha256 == one.weights.sha256

        ask = WholeVersion(job_id="job", number=2)
        told = (await job.worker.overlay.call(job.worker.peer_id, ask, timeout_s=20)).files
        weights, momentum = told
        assert (weights.kind, momentum.kind, weights.size_bytes) == ("weights", "momentum", two.weights.size_bytes)
        assert await job.fetch(weights) == pytest.approx([1.75, 2.75, 3.75, 4.75])
        assert await job.fetch(momentum) == pytest.approx([1.0] * 4)
        with pytest.raises(Refused, match="does not exist yet"):
            await job.worker.overlay.call(job.worker.peer_id, WholeVersion(job_id="job", number=3), timeout_s=20)

        await job.scheduler.release(job.worker.peer_id, job.scheduler.offers[-1].lease_id)
        await eventually(lambda: "cancelled" in job.scheduler.states("ps"))
        for epoch, start in ((1, told), (2, [base, one.delta, two.delta])):
            await job.serve(["t0"], task_id=f"ps{epoch}", epoch=epoch, rounds=9, terms={**terms, "start": start})
            assert job.scheduler.last(f"ps{epoch}").files == [two.weights, two.momentum]
            await job.scheduler.release(job.worker.peer_id, job.scheduler.offers[-1].lease_id)
            await eventually(lambda epoch=epoch: "cancelled" in job.scheduler.states(f"ps{epoch}"))


async def test_a_program_that_is_killed_at_its_work_is_started_again_and_asked_again(
    make_identity: MakeIdentity, tmp_path: Path
) -> None:
    """H6: whatever of it was written counts for nothing."""
    async with group(make_identity, tmp_path) as job:
        job.scheduler.keeps = True
        base = base_of(job.scheduler.journal / "weights-0.safetensors")
        await job.serve(["t0"], rounds=9, terms={"start": [base], **OUTER})
        work = str(job.worker.jobs_dir / "hypha-ps")

        def programs() -> list[int]:
            return processes(lambda line: "node.executors.aggregate" in line and work in line)

        await eventually(programs)
        (program,) = programs()
        os.kill(program, signal.SIGSTOP)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(job.send("t0", 0))
            await eventually(lambda: list((job.worker.jobs_dir / "hypha-ps" / "updates").glob("t0*")))
            os.kill(program, signal.SIGKILL)
        version = await job.version(1, "committed", 10)
        assert version.contributors == [("t0", 0)]
        assert await job.fetch(version.weights) == pytest.approx([1.75, 2.75, 3.75, 4.75])
