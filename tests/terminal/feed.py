"""A made-up cluster for the terminal: a client that answers from a script, by an injected clock.

`python -m tests.terminal.feed` opens the terminal on it, live.
"""

from __future__ import annotations

import asyncio
import math
import random
import sys
import time
import tomllib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from hypha_tui.client.jobfile import Body
from node.errors import HyphaError, Refused
from node.views import (
    AnyView,
    ClusterView,
    DatasetView,
    Delta,
    Event,
    Frame,
    JobView,
    LeaseHistory,
    LeaseMark,
    LeaseView,
    LogChunk,
    PeerView,
    Point,
    SliceHolder,
    SliceMap,
    SlicePart,
    Snapshot,
    SubmitResult,
    TaskView,
    TransferView,
)
from node.wire import Resources

WHOLE_JOB = """
# a comment
name = "tiny"
dataset_name = "stdlib-bytes"
[model]
type = "causal-lm"
[rounds]
update_rounds = 3
avg_samples_between_updates = 64
[inner_optimizer]
learning_rate = 0.001
[outer_optimizer]
learning_rate = 0.7
momentum = 0.9
[resources]
num_workers = 2
"""

PLACES = ("ams", "fra", "nyc", "sea", "mum", "gru", "sin", "syd")


def peer_id(number: int) -> str:
    """A made-up peer id of the real length."""
    alphabet = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
    random_ = random.Random(number)
    return "12D3KooW" + "".join(random_.choice(alphabet) for _ in range(44))


def peers(workers: int) -> list[PeerView]:
    """A gateway, a scheduler, a data node and so many workers."""
    roles = [("gw-eu", "gateway"), ("sched-1", "scheduler"), ("data-1", "data")]
    roles += [(f"w-{PLACES[n % len(PLACES)]}-{n:02d}", "worker") for n in range(workers)]
    return [
        PeerView(
            id=peer_id(number),
            name=name,
            roles=[role],
            addresses=[f"/ip4/10.0.{number // 250}.{number % 250 + 1}/tcp/4001"],
            state="unreachable" if role == "worker" and number % 17 == 9 else "up",
            reason="no answer for 12 s" if role == "worker" and number % 17 == 9 else "",
            version="0.1.0",
            rtt_ms=None if number == 0 else 3.0 + (number * 37) % 200,
            seen_s=0.4,
            total=Resources(cpu=16, memory=64, storage=500, gpu=24) if role == "worker" else None,
            free=Resources(cpu=4, memory=24, storage=480) if role == "worker" else None,
            certificate_days=61.0 - number % 58,
            uptime_s=3_600.0 * (1 + number % 80),
        )
        for number, (name, role) in enumerate(roles)
    ]


def lease(number: int, *, remaining_s: float, job_id: str = "diloco-7", state: str = "held") -> LeaseView:
    """The lease of worker `number`."""
    return LeaseView(
        id=f"{(number * 2654435761) & 0xFFFFFF:06x}",
        worker=peer_id(3 + number),
        scheduler=peer_id(1),
        job_id=job_id,
        state=state,
        executor="train/diloco-transformer",
        resources=Resources(cpu=8, memory=32, gpu=24),
        price=0.4 + number % 5 * 0.05,
        duration_s=10.0,
        remaining_s=remaining_s,
        renewals=20 + number % 17,
        age_s=400.0,
        task_id=f"diloco-7-train-{number}",
    )


def job(job_id: str = "diloco-7", *, state: str = "running", round_: int = 12, workers: int = 4) -> JobView:
    """A job with its tasks."""
    names = ("aggregate", *["train"] * workers)
    tasks = [
        TaskView(
            task_id=f"{job_id}-{role}-{number}",
            role=role,
            state="running",
            peer_id=peer_id(3 + number),
            round=round_,
            batches=0 if role == "aggregate" else 31 + number,
            samples=0 if role == "aggregate" else 992 + number * 32,
            batch_s=0.0 if role == "aggregate" else 0.21 + number / 50,
        )
        for number, role in enumerate(names)
    ]
    return JobView(
        id=job_id,
        name=job_id,
        scheduler=peer_id(1),
        state=state,
        reason="",
        dataset="stdlib-bytes",
        round=round_,
        rounds=50,
        workers=workers,
        workers_wanted=workers + 1,
        samples=49_152,
        epoch=1,
        slices={"available": 11, "assigned": workers, "used": 9},
        loss=2.113,
        eval_loss=2.204,
        first_eval_loss=5.545,
        samples_per_s=312.4,
        bytes_up=412_000_000,
        bytes_down=388_000_000,
        age_s=372.0,
        tasks=tasks,
    )


def failed_job() -> JobView:
    """A job whose executor crashed: its exit code and last lines are known."""
    crashed = TaskView(
        task_id="broken-1-train-1",
        role="train",
        state="failed",
        peer_id=peer_id(4),
        exit_code=1,
        detail="the executor ended by itself",
        tail=["Traceback (most recent call last):", '  File "train.py", line 7', "ValueError: no [bold]such[/] layer"],
    )
    return JobView(
        id="broken-1",
        name="broken",
        scheduler=peer_id(1),
        state="failed",
        reason="task broken-1-train-1 failed",
        dataset="stdlib-bytes",
        round=0,
        rounds=5,
        workers=0,
        workers_wanted=2,
        samples=0,
        age_s=910.0,
        tasks=[crashed],
    )


def transfers(count: int) -> list[TransferView]:
    """Slices on their way to workers."""
    return [
        TransferView(
            id=f"t{number}",
            what=("slice", "update", "step")[number % 3],
            name=f"train-{number:05d}.safetensors",
            job_id="diloco-7",
            source=peer_id(2),
            target=peer_id(4 + number),
            size_bytes=64_000_000,
            done_bytes=(number * 13_000_000 + 8_000_000) % 64_000_000,
            bytes_per_s=11_200_000.0,
            state="active",
            age_s=2.0 + number,
        )
        for number in range(count)
    ]


def dataset(name: str = "stdlib-bytes", provider: int = 2) -> DatasetView:
    """A dataset at its provider."""
    return DatasetView(
        id=f"{peer_id(provider)}/{name}",
        name=name,
        peer_id=peer_id(provider),
        slices=24,
        rows=49_152,
        size_bytes=402_653_184,
        digest="9f2c5a7710d4" + "0" * 52,
    )


def events(count: int) -> list[Event]:
    """Some of each level."""
    kinds = (
        ("lease.renewed", "lease {0:06x} holds for another 10 s", "info"),
        ("slice.used", "train-{0:05d} is used", "info"),
        ("renewal.late", "lease {0:06x}: renewal late by 2.1 s", "warning"),
        ("task.failed", "executor ended with exit code 1", "error"),
    )
    found = []
    for number in range(count):
        name, words, level = kinds[(0, 0, 1, 0, 1, 2, 0, 1, 0, 3)[number % 10]]
        found.append(
            Event(
                node=peer_id(1 + number % 6),
                seq=number + 1,
                name=name,
                text=words.format(number),
                level=level,
                age_s=float(count - number),
            )
        )
    return found


def points(job_id: str = "diloco-7", rounds: int = 12, workers: int = 4) -> list[Point]:
    """Curves that fall, one for each worker, and the job's own."""
    found: list[Point] = []
    for round_ in range(rounds + 1):
        base = 1.9 + 3.6 * math.exp(-round_ / 4)
        for number in range(workers):
            wobble = math.sin(round_ * 1.7 + number) * 0.12
            at = peer_id(4 + number)
            found.append(
                Point(job_id=job_id, name="loss", round=round_, value=base + wobble, t_s=round_ * 30.0, worker=at)
            )
        found.append(Point(job_id=job_id, name="eval_loss", round=round_, value=base + 0.1, t_s=round_ * 30.0))
        speed = 300 + 40 * math.sin(round_)
        found.append(Point(job_id=job_id, name="samples_per_s", round=round_, value=speed, t_s=round_ * 30.0))
    return found


def cluster_items(workers: int) -> list[AnyView]:
    """Everything on the board of a cluster with so many workers."""
    items: list[AnyView] = [*peers(workers), dataset(), job(), failed_job()]
    items += [lease(number, remaining_s=1.0 + (number * 7) % 9) for number in range(workers)]
    items += transfers(min(workers, 6))
    return items


@dataclass
class FakeClient:
    """A client fed by a test: `send` hands it frames, `fail` breaks the link with an error."""

    items: list[AnyView] = field(default_factory=list)
    past_events: list[Event] = field(default_factory=list)
    history: list[Point] = field(default_factory=list)
    submitted: list[Body] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    resumed: list[str] = field(default_factory=list)
    acts: list[tuple[str, str]] = field(default_factory=list)
    """What else was asked for, and of what."""
    refused: dict[str, HyphaError] = field(default_factory=dict)
    """Objects of which nothing is done, and why."""
    refusal: HyphaError | None = None
    connections: int = 0
    seq: int = 0

    def __post_init__(self) -> None:
        self._queue: asyncio.Queue[Frame | HyphaError] = asyncio.Queue()

    def send(self, **parts: object) -> None:
        """The next delta."""
        self.seq += 1
        self._queue.put_nowait(Delta(seq=self.seq, **parts))  # type: ignore[arg-type]

    def lose_frames(self, count: int) -> None:
        """Frames that never arrive."""
        self.seq += count

    def fail(self, error: HyphaError) -> None:
        """Break the link."""
        self._queue.put_nowait(error)

    async def frames(self) -> AsyncIterator[Frame]:
        """A snapshot, then what the test sends."""
        self.connections += 1
        if self.refusal is not None:
            raise self.refusal
        self.seq += 1
        yield Snapshot(seq=self.seq, items=list(self.items), events=list(self.past_events))
        while True:
            frame = await self._queue.get()
            if isinstance(frame, HyphaError):
                raise frame
            yield frame

    async def cluster(self) -> ClusterView:
        """A cluster in numbers."""
        found = [item for item in self.items if isinstance(item, PeerView)]
        return ClusterView(
            peer_id=peer_id(0),
            name="lab-eu",
            version="0.1.0",
            authority="5f1d9c20",
            peers=len(found),
            up=sum(peer.state == "up" for peer in found),
            roles={"gateway": 1, "scheduler": 1, "data": 1, "worker": max(len(found) - 3, 0)},
            leases=0,
            jobs={"running": 1},
            age_s=0.0,
        )

    async def metrics(self, job_id: str) -> list[Point]:
        """The past of a job's curves."""
        return [point for point in self.history if point.job_id == job_id]

    async def spec(self, job_id: str) -> dict[str, Any]:
        """A job's file: of one that is known, `WHOLE_JOB` with its name."""
        if job_id not in {item.id for item in self.items if isinstance(item, JobView)}:
            raise Refused("unknown", f"no job {job_id}")
        return tomllib.loads(WHOLE_JOB) | {"name": job_id}

    async def lease_history(self, lease_id: str) -> LeaseHistory:
        """The life of a lease that is renewed every three seconds."""
        if all(item.id != lease_id for item in self.items if isinstance(item, LeaseView)):
            raise Refused("unknown", f"no lease {lease_id}")
        renewals = [LeaseMark(name="renewed", age_s=1.5 + 3.0 * number) for number in range(8, -1, -1)]
        marks = [
            LeaseMark(name="offered", age_s=33.4, text="offered to job diloco-7 at 1.2"),
            LeaseMark(name="accepted", age_s=33.0),
            LeaseMark(name="dispatched", age_s=32.5, text="task diloco-7.0.1"),
        ]
        return LeaseHistory(lease_id=lease_id, marks=[*marks, *renewals], next_renewal_s=1.5)

    async def slice_map(self, job_id: str) -> SliceMap:
        """Slices in every state."""
        if job_id not in {item.id for item in self.items if isinstance(item, JobView)}:
            raise Refused("unknown", f"no job {job_id}")
        parts = [SlicePart(slice=9 + number, rows=2048, assigned=2048, holder=number) for number in range(4)]
        parts.append(SlicePart(slice=13, rows=2048, used=512))
        holders = [SliceHolder(task_id=f"{job_id}.0.{number}", peer_id=peer_id(4 + number)) for number in range(4)]
        states = "u" * 9 + "aaaa" + "p" + "." * 10
        return SliceMap(job_id=job_id, dataset="stdlib-bytes", pass_=1, states=states, parts=parts, holders=holders)

    async def logs(self, job_id: str, task_id: str = "", lines: int = 200) -> list[LogChunk]:
        """Two lines."""
        return [LogChunk(task_id=f"{job_id}-train-1", peer_id=peer_id(4), lines=["epoch 1", "loss 2.113 \x1b[31mred"])]

    async def submit(self, body: Body) -> SubmitResult:
        """Noted, or refused."""
        if self.refusal is not None:
            raise self.refusal
        self.submitted.append(body)
        return SubmitResult(job_id=body.job_id, scheduler=peer_id(1))

    async def cancel(self, job_id: str) -> None:
        """Noted."""
        self.cancelled.append(job_id)

    async def close(self) -> None:
        """Nothing to close."""

    async def resume(self, job_id: str) -> None:
        """Noted."""
        self.resumed.append(job_id)

    async def pause(self, job_id: str) -> None:
        """Noted, or refused."""
        self._act("pause", job_id)

    async def release(self, lease_id: str) -> None:
        """Noted, or refused."""
        self._act("release", lease_id)

    async def cordon(self, peer_id: str) -> None:
        """Noted, or refused."""
        self._act("cordon", peer_id)

    async def uncordon(self, peer_id: str) -> None:
        """Noted, or refused."""
        self._act("uncordon", peer_id)

    async def drain(self, peer_id: str) -> None:
        """Noted, or refused."""
        self._act("drain", peer_id)

    def _act(self, name: str, id_: str) -> None:
        if id_ in self.refused:
            raise self.refused[id_]
        self.acts.append((name, id_))


def fake_client(workers: int = 4) -> FakeClient:
    """A client of a cluster with so many workers; 0: of nothing at all."""
    if workers == 0:
        return FakeClient()
    return FakeClient(items=cluster_items(workers), past_events=events(40), history=points())


async def animate(client: FakeClient) -> None:
    """Move the cluster on, four times a second, for ever."""
    rounds = 12
    step = 0
    while True:
        await asyncio.sleep(0.25)
        step += 1
        items: list[AnyView] = []
        for number, one in enumerate(transfers(6)):
            done = (one.done_bytes + step * 2_800_000 * (1 + number % 3)) % one.size_bytes
            items.append(_replaced(one, done_bytes=done))
        if step % 4 == 0:
            number = step // 4 % 4
            items.append(_replaced(lease(number, remaining_s=10.0), renewals=20 + step // 4))
        new: list[Point] = []
        if step % 12 == 0:
            rounds += 1
            new = [point for point in points(rounds=rounds) if point.round == rounds]
            items.append(job(round_=rounds))
        event = Event(node=peer_id(4), seq=1_000 + step, name="slice.used", text=f"train-{step:05d} is used")
        client.send(items=items, points=new, events=[event])


def _replaced(view: AnyView, **changes: object) -> AnyView:
    from msgspec.structs import replace

    return replace(view, **changes)


def main() -> None:
    """The terminal on a made-up, moving cluster."""
    from hypha_tui.screens.app import HyphaApp

    client = fake_client(int(sys.argv[1]) if len(sys.argv) > 1 else 4)

    class Moving(HyphaApp):
        def on_mount(self) -> None:
            super().on_mount()
            self.run_worker(animate(client))

    Moving(client, label="made-up cluster", clock=time.monotonic, ascii_only="--ascii" in sys.argv).run()


if __name__ == "__main__":
    main()
