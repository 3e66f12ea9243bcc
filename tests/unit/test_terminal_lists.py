"""The twin commands that look: forms, columns, filters and order; and what `--watch` prints as things change."""

from __future__ import annotations

import asyncio
import csv
import dataclasses
import json
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from msgspec.structs import replace

from hypha_tui.cli import run
from hypha_tui.client import link
from hypha_tui.client.api import connected
from hypha_tui.client.endpoint import Endpoint
from hypha_tui.twin import columnpage, lists, naming, reports
from hypha_tui.twin import jobs as commands
from hypha_tui.twin.listing import Listing
from node.errors import ConfigError, PeerUnreachable, Refused
from node.views import (
    DatasetView,
    Delta,
    Frame,
    JobView,
    LeaseView,
    PeerView,
    Point,
    SliceHolder,
    SliceMap,
    SlicePart,
    Snapshot,
    TransferView,
)
from tests.terminal.feed import WHOLE_JOB, cluster_items, events, fake_client, job, peer_id, points

KINDS = {"peers": PeerView, "leases": LeaseView, "transfers": TransferView, "jobs": JobView, "datasets": DatasetView}
MAP = SliceMap(
    job_id="diloco-7",
    dataset="words",
    pass_=1,
    states="uap." * 20,
    parts=[SlicePart(slice=1, rows=9, assigned=4, holder=0)],
    holders=[SliceHolder(task_id="t1", peer_id=peer_id(4))],
)


class Api:
    """The operator API of the made-up cluster; the stream gives what a test puts into it."""

    def __init__(self, socket: Path) -> None:
        self.endpoint = Endpoint(socket=socket)
        self.frames: asyncio.Queue[Frame | None] = asyncio.Queue()
        self.history: list[Point] = points(rounds=2)
        self.lines = ["epoch 1"]
        self.slices = MAP
        self.asked: list[str] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(f"{request.method} {request.path}")
        name = request.path.rpartition("/")[2]
        if request.path == "/events":
            return await self._stream(request)
        if name in KINDS:
            return _json([item for item in cluster_items(6) if isinstance(item, KINDS[name])])
        client = fake_client(6)
        chunks = await client.logs("diloco-7")
        answers = {
            "cluster": await client.cluster(),
            "events": events(40),
            "metrics": self.history,
            "slices": self.slices,
            "spec": await client.spec("diloco-7"),
            "logs": [replace(chunks[0], lines=list(self.lines))],
        }
        return _json(answers[name])

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        first: Frame = Snapshot(seq=1, items=cluster_items(6), events=events(3))
        await response.write(b"data: " + msgspec.json.encode(first) + b"\n\n")
        while (frame := await self.frames.get()) is not None:
            await response.write(b"data: " + msgspec.json.encode(frame) + b"\n\n")
        return response


def _json(answer: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(answer))


@asynccontextmanager
async def api(folder: Path) -> AsyncIterator[Api]:
    """Serve it on a socket of the folder."""
    made = Api(folder / "s")
    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", made.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.UnixSite(runner, str(folder / "s")).start()
        yield made
    finally:
        made.frames.put_nowait(None)
        await runner.cleanup()


class Reading:
    """A command that watches, and what it has printed so far."""

    def __init__(self, command: Coroutine[Any, Any, int], capsys: pytest.CaptureFixture[str]) -> None:
        self._task = asyncio.ensure_future(command)
        self._capsys = capsys
        self.text = ""

    async def until(self, words: str) -> str:
        """Wait until it has printed these words; all that it printed since the last time."""
        async with asyncio.timeout(5):
            while words not in self.text:
                assert not self._task.done(), self._task.exception()
                await asyncio.sleep(0.01)
                self.text += self._capsys.readouterr().out
        told, self.text = self.text, ""
        return told

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])


@pytest.mark.asyncio
async def test_a_list_is_filtered_sorted_and_cut_to_columns_in_every_form(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listing = Listing(filter="roles:worker rtt>50", columns="name,rtt,state", sort="rtt", reverse=True)
    async with api(tmp_path) as node:
        assert await lists.objects(node.endpoint, "peers", listing) == 0
        plain = capsys.readouterr().out.splitlines()
        assert plain[0].split() == ["NAME", "RTT", "ms", "STATE"]
        assert [line.split()[0] for line in plain[1:]] == ["w-nyc-02", "w-fra-01", "w-ams-00", "w-gru-05", "w-mum-04"]
        await lists.objects(node.endpoint, "peers", dataclasses.replace(listing, as_csv=True))
        rows = list(csv.reader(capsys.readouterr().out.splitlines()))
        assert rows[:2] == [["name", "rtt", "state"], ["w-nyc-02", "188", "up"]]
        await lists.objects(node.endpoint, "peers", dataclasses.replace(listing, as_json=True))
        assert json.loads(capsys.readouterr().out)[0] == {"name": "w-nyc-02", "rtt": 188, "state": "up"}
        await lists.objects(node.endpoint, "jobs", Listing(as_json=True))
        assert [one["kind"] for one in json.loads(capsys.readouterr().out)] == ["job", "job"]
        assert node.asked[-1] == "GET /api/v1/jobs"  # nothing else is needed for objects as they are
        await lists.objects(node.endpoint, "jobs", Listing(as_csv=True))
        first = next(csv.DictReader(capsys.readouterr().out.splitlines()))
        assert (first["sent"], first["id"], first["workers"]) == ("412000000", "diloco-7", "4")


@pytest.mark.asyncio
async def test_what_is_no_object_is_a_table_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with api(tmp_path) as node:
        await lists.events(node.endpoint, Listing(filter="level:error age<20s", as_csv=True))
        assert [row["age"] for row in csv.DictReader(capsys.readouterr().out.splitlines())] == ["11", "1"]
        await lists.metrics(node.endpoint, "diloco", Listing(filter="metric:eval_loss", as_csv=True))
        assert capsys.readouterr().out.splitlines()[:2] == ["metric,worker,round,value,after", "eval_loss,,0,5.6,0"]
        await lists.slices(node.endpoint, "diloco-7", Listing())
        shown = capsys.readouterr().out.splitlines()
        assert shown[0] == "diloco-7  words  pass 1  available 20  assigned 20  partly 20  used 20"
        assert shown[2].split() == ["64", "uap." * 4]
        await lists.slices(node.endpoint, "diloco-7", Listing(filter="worker:w-fra-01", as_json=True))
        (found,) = json.loads(capsys.readouterr().out)
        assert (found["slice"], found["state"], found["assigned"], found["task_id"]) == (1, "assigned", 4, "t1")


@pytest.mark.asyncio
async def test_the_cluster_the_node_and_one_object_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with api(tmp_path) as node:
        await reports.overview(node.endpoint, Listing(as_json=True))
        told = json.loads(capsys.readouterr().out)
        assert (told["nodes"], told["jobs"]) == ({"up": 9, "known": 9}, {"running": 1, "failed": 1})
        await reports.node(node.endpoint, Listing())
        assert "certificate  61 days" in capsys.readouterr().out
        await reports.inspect(node.endpoint, "peer", "w-fra-01", Listing(as_json=True))
        assert json.loads(capsys.readouterr().out)["object"]["id"] == peer_id(4)
        await reports.inspect(node.endpoint, "job", "broken", Listing())
        assert "ValueError: no [bold]such[/] layer" in capsys.readouterr().out
        with pytest.raises(Refused, match="there is no lease 'zz'"):
            await reports.inspect(node.endpoint, "lease", "zz", Listing())
        with pytest.raises(ConfigError, match="not a kind of object"):
            await reports.inspect(node.endpoint, "thing", "zz", Listing())


@pytest.mark.asyncio
async def test_watching_appends_what_changed_a_json_line_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with api(tmp_path) as node:
        reading = Reading(lists.objects(node.endpoint, "jobs", Listing(as_json=True, watch_s=0)), capsys)
        assert len((await reading.until("broken")).splitlines()) == 2
        node.frames.put_nowait(Delta(seq=2, items=[job(round_=13)]))
        changed = json.loads(await reading.until("diloco-7"))
        assert (changed["id"], changed["round"]) == ("diloco-7", 13)
        node.frames.put_nowait(Delta(seq=3, dropped=[("job", "broken-1")]))
        assert json.loads(await reading.until("dropped")) == {"kind": "job", "id": "broken-1", "dropped": True}
        await reading.stop()


@pytest.mark.asyncio
async def test_watching_curves_events_and_logs_prints_each_new_line_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "LOGS_EVERY_S", 0.01)
    async with api(tmp_path) as node:
        listing = Listing(watch_s=0, filter="metric:eval_loss", as_csv=True)
        reading = Reading(lists.metrics(node.endpoint, "diloco-7", listing), capsys)
        assert len((await reading.until("eval_loss,,2")).splitlines()) == 4
        new = [point for point in points(rounds=3) if point.round >= 2]
        node.frames.put_nowait(Delta(seq=2, points=new))
        assert (await reading.until("eval_loss,,3")).count("eval_loss") == 1
        await reading.stop()
        node.frames.put_nowait(None)

        reading = Reading(lists.events(node.endpoint, Listing(watch_s=0)), capsys)
        await reading.until("TEXT")
        node.frames = asyncio.Queue()
        await reading.stop()

        reading = Reading(reports.logs(node.endpoint, "diloco-7", "", Listing(watch_s=0), lines=100), capsys)
        assert await reading.until("epoch 1") == "epoch 1\n"
        node.lines.append("epoch 2")
        assert await reading.until("epoch 2") == "epoch 2\n"
        await reading.stop()


@pytest.mark.asyncio
async def test_watching_slices_asks_again_only_when_the_stream_tells_of_the_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with api(tmp_path) as node:
        reading = Reading(lists.slices(node.endpoint, "diloco-7", Listing(watch_s=0)), capsys)
        await reading.until("used 20")
        asked = "GET /api/v1/jobs/diloco-7/slices"
        node.slices = replace(MAP, states="uuap." * 16)
        node.frames.put_nowait(Delta(seq=2, items=[replace(job(), id="other")]))
        node.frames.put_nowait(Delta(seq=3, items=[job(round_=13)]))
        await reading.until("used 32")
        assert node.asked.count(asked) == 2
        await reading.stop()


@pytest.mark.asyncio
async def test_watching_goes_on_over_a_link_that_breaks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "LOGS_EVERY_S", 0.01)
    monkeypatch.setattr(link, "FIRST_WAIT_S", 0.02)
    async with api(tmp_path) as node:
        logs = Reading(reports.logs(node.endpoint, "diloco-7", "", Listing(watch_s=0), lines=100), capsys)
        await logs.until("epoch 1")
        slices = Reading(lists.slices(node.endpoint, "diloco-7", Listing(watch_s=0)), capsys)
        await slices.until("used 20")
        endpoint = node.endpoint
    async with api(tmp_path) as node:
        assert node.endpoint == endpoint
        node.slices, node.lines = replace(MAP, states="uuap." * 16), ["epoch 1", "epoch 2"]
        await slices.until("used 32")
        await slices.stop()
        node.lines.append("epoch 3")
        await logs.until("epoch 3")
        await logs.stop()


@pytest.mark.parametrize("word", ["job", "lease", "worker"])
@pytest.mark.asyncio
async def test_an_empty_word_names_nothing_not_even_where_there_is_one_only(word: str, tmp_path: Path) -> None:
    """A script's variable that is not set must not cancel the only job."""
    finders: dict[str, Any] = {"job": naming.job_id_of, "lease": naming.lease_id_of, "worker": naming.worker_of}
    async with api(tmp_path) as node, connected(node.endpoint) as client:
        with pytest.raises(ConfigError, match=f"no {word} is named"):
            await finders[word](client, "")


@pytest.mark.asyncio
async def test_watching_ends_at_once_where_no_node_is(tmp_path: Path) -> None:
    with pytest.raises(PeerUnreachable, match="cannot reach"):
        await lists.objects(Endpoint(socket=tmp_path / "none"), "jobs", Listing(watch_s=0))


@pytest.mark.asyncio
async def test_a_dry_run_and_a_difference_send_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "job.toml"
    file.write_text(WHOLE_JOB.replace("update_rounds = 3", "update_rounds = 9"))
    async with api(tmp_path) as node:
        assert await commands.compare(node.endpoint, file, "diloco-7", as_json=False) == 0
        assert capsys.readouterr().out.split() == [
            "name",
            '"diloco-7"',
            "->",
            '"tiny"',
            "rounds.update_rounds",
            "3",
            "->",
            "9",
        ]
        assert await commands.compare(node.endpoint, file, str(file), as_json=True) == 0
        assert json.loads(capsys.readouterr().out) == []
        assert await commands.try_out(node.endpoint, file, as_json=True) == 1  # a file alone brings no model
        told = json.loads(capsys.readouterr().out)
        assert (told["workers_matching"], told["workers_needed"]) == (6, 2)
        assert "no repository" in told["problems"][0]
        assert all(one.startswith("GET ") for one in node.asked)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["jobs", "--json", "--csv"], "two forms"),
        (["jobs", "--columns", "nam"], "did you mean name?"),
        (["leases", "--sort", "zz"], "no column 'zz'"),
        (["leases", "--filter", "rtt>x"], "'x' is no value of rtt"),
        (["logs", "j", "--watch", "1", "--lines", "x"], "lines"),
    ],
)
def test_a_list_that_cannot_be_is_refused_before_a_node_is_asked(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*arguments, "--node", "unix:/nonexistent/socket"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert words in err


def test_the_page_for_scripts_has_every_column() -> None:
    text = (Path(__file__).parents[2] / "docs" / "scripting.md").read_text()
    assert columnpage.section() in text, "put what hypha_tui.twin.columnpage prints into docs/scripting.md"
