"""Results as a scheduler takes them from workers: verified, placed, written down once, and listed at the end."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from node.errors import HyphaError, JobError, Refused
from node.identity.caller import Caller
from node.jobspec import parse_job
from node.network import bulk
from node.network.overlay import Overlay
from node.scheduler import messages as m
from node.scheduler import records, runs
from node.scheduler.destinations import Folder
from node.scheduler.inference import InferenceJob
from node.scheduler.inference_order import inference_order
from node.scheduler.order import INFER
from node.scheduler.records import JobRow
from node.scheduler.results import Results, read_result_header
from node.store import Store
from node.wire import ResultHeader
from tests.support import MakeIdentity
from tests.unit.network_loopback import eventually, overlay_for

pytestmark = pytest.mark.asyncio

SPEC = parse_job(
    'type = "inference"\ndataset = "d"\n[model]\ntype = "causal-lm"\npath = "m"\n[output]\nkind = "tokens"\n'
)
ROW = JobRow("job-1", "d", msgspec.json.encode(SPEC).decode(), "", "", "ada")
ROWS = (2, 2)


class Shaky(Folder):
    """A folder that fails as it is told."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "job-1")
        self.problems: list[Exception] = []

    async def keep(self, source: Path, name: str, sha256: str, size_bytes: int) -> None:
        if self.problems:
            raise self.problems.pop(0)
        await super().keep(source, name, sha256, size_bytes)


@dataclass
class Site:
    """A job with one task, at a scheduler that a worker can reach."""

    folder: Path
    store: Store
    job: InferenceJob = field(init=False)
    task: str = ""
    told: list[m.JobEvent] = field(default_factory=list)
    worker: Overlay | None = None
    scheduler: str = ""

    def __post_init__(self) -> None:
        self.job = InferenceJob(inference_order("job-1", SPEC, ""), now=0.0)
        self.destination = Shaky(self.folder)
        self.results = Results(self.job, self.destination, self.store, self.tell)

    async def begin(self) -> None:
        await self.store.write(lambda db: records.insert_job(db, ROW))
        await self.apply(self.job.begin(0.0))
        await self.tell(m.DataFound(ROWS, "d1"))
        await self.tell(m.LeaseHeld(INFER, "l", "worker", 1.0))
        (self.task,) = self.job.group.tasks
        for number in (1, 2):
            await self.apply(self.job.next_slice(0.0, self.task, number)[1])

    async def tell(self, event: m.JobEvent) -> None:
        self.told.append(event)
        await self.apply(self.job.handle(1.0, event))

    async def apply(self, effects: list[m.JobEffect]) -> None:
        for effect in effects:
            if isinstance(effect, m.SaveEffect):
                saving = effect
                await self.store.write(lambda db: runs.save(db, "job-1", saving))  # noqa: B023

    async def handle(self, caller: Caller, request: web.Request) -> web.StreamResponse:
        await self.results.take(request, read_result_header(request))
        return web.json_response({})

    async def upload(self, index: int, content: bytes, *, rows: int = 2, sha256: str = "", at: int = -1) -> None:
        assert self.worker is not None
        source = self.folder.parent / "source"
        source.write_bytes(content)
        header = ResultHeader(
            task_id=self.task,
            index=index,
            rows=rows,
            sha256=sha256 or hashlib.sha256(content).hexdigest(),
            size_bytes=len(content),
        )
        path = f"/bulk/jobs/job-1/results/{index if at < 0 else at}"
        headers = {"Hypha-Result": msgspec.json.encode(header).decode()}
        await bulk.upload(self.worker, self.scheduler, path, source, headers=headers, attempts=1)


@contextlib.asynccontextmanager
async def site_for(make_identity: MakeIdentity, tmp_path: Path) -> AsyncIterator[Site]:
    async with Store.open(tmp_path / "jobs.db") as store:
        site = Site(tmp_path / "out", store)

        def prepare(overlay: Overlay) -> None:
            overlay.bulk_route("PUT", "/bulk/jobs/{job_id}/results/{index}", site.handle)

        async with (
            overlay_for(
                make_identity("scheduler"), tmp_path / "scheduler", prepare=prepare, roles=["scheduler"]
            ) as scheduler,
            overlay_for(
                make_identity("worker"), tmp_path / "worker", gateway_addresses=[scheduler.addresses[0]]
            ) as worker,
        ):
            await eventually(lambda: worker.peers("scheduler"))
            site.worker, site.scheduler = worker, scheduler.peer_id
            await site.begin()
            yield site


GOOD = b'{"row": 0}\n{"row": 1}\n'


async def test_a_result_counts_once_it_is_placed_and_written_and_never_again(
    make_identity: MakeIdentity, tmp_path: Path
) -> None:
    """H43, U47."""
    async with site_for(make_identity, tmp_path) as site:
        with pytest.raises(Refused, match="being made ready"):
            await site.upload(0, GOOD)
        await site.results.prepare()
        for wrong in (
            {"content": GOOD[:-1]},
            {"content": GOOD * 2},
            {"content": GOOD, "sha256": "0" * 64},
            {"content": GOOD, "rows": 3},
            {"content": GOOD, "at": 1},
        ):
            with pytest.raises(Refused) as refused:
                await site.upload(0, **wrong)  # type: ignore[arg-type]
            assert refused.value.code == "invalid"
        assert not list(site.folder.glob("*.jsonl"))
        await site.upload(0, GOOD)
        assert (site.folder / "d-000000-rows-0-2.jsonl").read_bytes() == GOOD
        assert site.job.answers.counts() == {"available": 0, "assigned": 1, "used": 1}
        with pytest.raises(Refused) as late:
            await site.upload(0, GOOD)
        assert late.value.code == "stale"
        saved = await runs.saved_run(site.store, "job-1")
        assert [span.index for span in saved.committed] == [0]
        assert [span.index for _, span in saved.granted] == [1]
        await site.upload(1, GOOD)
        assert site.job.state == "exporting"
        await site.results.store_index()
        listed = json.loads((site.folder / "d.results.json").read_text())
        assert [entry["name"] for entry in listed["results"]] == ["d-000000-rows-0-2.jsonl", "d-000001-rows-2-4.jsonl"]
        assert listed["dataset_digest"] == "d1" and "job-1" not in json.dumps(listed)
        assert (site.job.state, site.job.model_dir) == ("done", str(site.folder))
        ended = await records.view_of_ended(site.store, ROW, "s")
        assert (ended.samples, ended.slices, ended.rounds) == (4, {"used": 2}, 0)
        await site.results.close()
        assert not (site.folder / ".hypha-job-1").exists()


async def test_a_destination_in_trouble_is_waited_for_and_one_that_refuses_fails_the_job(
    make_identity: MakeIdentity, tmp_path: Path
) -> None:
    async with site_for(make_identity, tmp_path) as site:
        await site.results.prepare()
        site.destination.problems = [HyphaError("the data node is away"), OSError(5, "broken disk")]
        for _ in range(2):
            with pytest.raises(Refused) as refused:
                await site.upload(0, GOOD)
            assert refused.value.code == "busy"
        await site.upload(0, GOOD)
        site.destination.problems = [JobError("peer:data takes no results", hint="its owner sets results_path")]
        with pytest.raises(Refused) as denied:
            await site.upload(1, GOOD)
        assert denied.value.code == "denied"
        assert site.job.state == "failed"
        assert site.job.reason == "peer:data takes no results; its owner sets results_path"


async def test_a_job_whose_results_can_go_nowhere_fails_before_anything_is_computed(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    async with Store.open(tmp_path / "jobs.db") as store:
        site = Site(tmp_path / "out", store)
        await site.begin()
        await site.results.prepare()
        assert site.job.state == "failed" and "cannot be written to" in site.job.reason
