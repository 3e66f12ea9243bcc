"""The twin commands that tell: the cluster, the node asked, one object, a job's logs. Each returns the exit code."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, cast

import msgspec

from hypha_tui.client.api import DEADLINE_S, ApiClient, connected
from hypha_tui.client.endpoint import Endpoint
from hypha_tui.store import text
from hypha_tui.store.advance import advance
from hypha_tui.store.cluster import FINISHED, LIVE_LEASES, Changes, ClusterStore
from hypha_tui.store.columns import lease_tone
from hypha_tui.store.mentions import mentions
from hypha_tui.store.summary import summary
from hypha_tui.twin import output
from hypha_tui.twin.listing import Listing
from hypha_tui.twin.lists import look_at
from hypha_tui.twin.naming import job_id_of, object_of
from hypha_tui.twin.watching import Watched, repeat, watch
from node.errors import PeerUnreachable
from node.views import AnyView, Frame, JobView, LeaseView, LogChunk, PeerView, TransferView

LOGS_EVERY_S = 2.0
EVENTS_TOLD = 20

Rows = list[tuple[str, str]]
Tell = Callable[[ClusterStore], tuple[dict[str, Any], Rows]]


async def overview(endpoint: Endpoint, listing: Listing) -> int:
    """The cluster in numbers, and the jobs that go on."""
    return await _told(endpoint, listing, _overview)


async def node(endpoint: Endpoint, listing: Listing) -> int:
    """The node that is asked: who it is, and how it sees itself."""
    async with connected(endpoint) as client:
        cluster = await client.cluster()

    def tell(store: ClusterStore) -> tuple[dict[str, Any], Rows]:
        peer = store.get(PeerView, cluster.peer_id)
        rows: Rows = [
            ("node", cluster.name),
            ("id", cluster.peer_id),
            ("version", cluster.version),
            ("authority", cluster.authority),
            ("up for", text.long_age(cluster.age_s)),
        ]
        if peer is not None:
            days = "-" if peer.certificate_days is None else f"{peer.certificate_days:.0f} days"
            rows += [("roles", ",".join(peer.roles)), ("certificate", days)]
            rows += [("address", address) for address in peer.addresses]
        return {"cluster": msgspec.to_builtins(cluster), "peer": peer}, rows

    return await _told(endpoint, listing, tell)


async def inspect(endpoint: Endpoint, kind: str, word: str, listing: Listing) -> int:
    """One object in full, with the events about it."""

    def tell(store: ClusterStore) -> tuple[dict[str, Any], Rows]:
        view: AnyView = object_of(store, kind, word)
        look = look_at(store)
        about = mentions(store, kind, view.id)[-EVENTS_TOLD:]
        rows: Rows = [("id", view.id)]
        for line in summary(view, look):
            rows.append(("", "".join(words for words, _ in line)))
        for seen in about:
            at = f"{text.age(look.now - seen.at)} ago  {store.name_of(seen.event.node)}"
            rows.append(("event", f"{at}  {store.with_names(seen.event.text)}"))
        return {"object": view, "events": [seen.event for seen in about]}, rows

    return await _told(endpoint, listing, tell)


async def logs(endpoint: Endpoint, job: str, task: str, listing: Listing, *, lines: int) -> int:
    """The last lines that a job's tasks wrote; watched, what they write from then on. Fails when none can be read."""
    async with connected(endpoint) as client:
        job_id = await job_id_of(client, job)
        names = {peer.id: peer.name for peer in cast("list[PeerView]", await client.objects(PeerView))}
        if listing.watch_s is None:
            chunks = await client.logs(job_id, task, lines)
            if listing.as_json:
                output.data(chunks)
            else:
                _print(chunks, names, len(chunks) > 1)
            return 1 if chunks and all(chunk.error for chunk in chunks) else 0
        before: dict[str, LogChunk] = {}

        async def once() -> None:
            new = [_since(before.get(chunk.task_id), chunk) for chunk in await client.logs(job_id, task, lines)]
            for chunk in new:
                kept = before.get(chunk.task_id)
                tail = [*(kept.lines if kept is not None else []), *chunk.lines][-lines:]
                before[chunk.task_id] = LogChunk(
                    task_id=chunk.task_id, peer_id=chunk.peer_id, lines=tail, error=chunk.error
                )
            told = [chunk for chunk in new if chunk.lines or (chunk.error and not listing.as_json)]
            if listing.as_json:
                for chunk in told:
                    output.json_line(chunk)
            elif told:
                _print(told, names, len(before) > 1)

        return await repeat(max(listing.watch_s, LOGS_EVERY_S), once)


def _since(before: LogChunk | None, now: LogChunk) -> LogChunk:
    """What came after the lines that are known: the longest end of these that the new ones begin with is not new."""
    if before is None:
        return now
    error = "" if now.error == before.error else now.error
    for overlap in range(min(len(before.lines), len(now.lines)), -1, -1):
        if before.lines[len(before.lines) - overlap :] == now.lines[:overlap]:
            return LogChunk(task_id=now.task_id, peer_id=now.peer_id, lines=now.lines[overlap:], error=error)
    return now


def _print(chunks: list[LogChunk], names: dict[str, str], is_headed: bool) -> None:
    for chunk in chunks:
        if is_headed:
            output.line(f"==> {chunk.task_id} at {names.get(chunk.peer_id, chunk.peer_id)} <==")
        for line in chunk.lines:
            output.line(line)
        if chunk.error:
            output.note(f"hypha-tui: {chunk.task_id}: {chunk.error}")


async def _told(endpoint: Endpoint, listing: Listing, tell: Tell) -> int:
    """Print what `tell` makes of the cluster: once, or again whenever it has changed."""
    before = b""

    def put(store: ClusterStore) -> None:
        nonlocal before
        document, rows = tell(store)
        encoded = msgspec.json.encode(document if listing.as_json else rows)
        if encoded == before:
            return
        is_again, before = bool(before), encoded
        if not listing.as_json:
            if is_again:
                output.line("")
            width = max(len(label) for label, _ in rows)
            for label, words in rows:
                output.line(f"{label:<{width}}  {words}".rstrip())
        elif listing.watch_s is None:
            output.data(document)
        else:
            output.json_line(document)

    async with connected(endpoint) as client:
        if listing.watch_s is None:
            put(await snapshot(client))
            return 0

        async def show(watched: Watched, changes: Changes) -> None:
            put(watched.store)

        return await watch(client, listing.watch_s, show)


async def snapshot(client: ApiClient) -> ClusterStore:
    """The whole cluster, as it is now."""
    store = ClusterStore()
    try:
        async with (
            asyncio.timeout(DEADLINE_S),
            aclosing(cast("AsyncGenerator[Frame, None]", client.frames())) as frames,
        ):
            async for frame in frames:
                store.apply(frame, time.monotonic())
                break
    except TimeoutError:
        raise PeerUnreachable(
            f"{client.endpoint} does not answer", hint="is the node up, and the link to it?"
        ) from None
    return store


def _overview(store: ClusterStore) -> tuple[dict[str, Any], Rows]:
    now = time.monotonic()
    peers, jobs, leases = store.views(PeerView), store.views(JobView), store.views(LeaseView)
    transfers = [one for one in store.views(TransferView) if one.state == "active"]
    live = [lease for lease in leases if lease.state in LIVE_LEASES]
    late = sum(lease_tone(lease, store.remaining_s(lease.id, now))[0] == "late" for lease in live)
    up = sum(peer.state == "up" for peer in peers)
    roles = {role: {"up": have, "known": known} for role, (have, known) in sorted(store.roles().items())}
    states = dict(Counter(job.state for job in jobs))
    datasets = sorted({item.view.name for item in store.items("dataset").values() if hasattr(item.view, "name")})
    speed = sum(one.bytes_per_s for one in transfers)
    going = [job for job in store.jobs_by_activity() if job.state not in FINISHED]
    document: dict[str, Any] = {
        "nodes": {"up": up, "known": len(peers)},
        "roles": roles,
        "jobs": states,
        "leases": {"live": len(live), "late": late, "known": len(leases)},
        "transfers": {"active": len(transfers), "bytes_per_s": speed},
        "datasets": datasets,
        "active_jobs": [job.id for job in going],
    }
    rows: Rows = [("nodes", f"{up} of {len(peers)} up")]
    rows += [(role, f"{have} of {known} up") for role, (have, known) in sorted(store.roles().items())]
    rows += [
        ("jobs", ", ".join(f"{count} {state}" for state, count in states.items()) or "none"),
        ("leases", f"{len(live)} live, {late} late"),
        ("transfers", f"{len(transfers)} active, {text.rate(speed)}"),
        ("datasets", ", ".join(datasets) or "none"),
    ]
    for job in going:
        unit, done, whole = advance(job)
        reason = f"  {store.with_names(job.reason)}" if job.reason else ""
        loss = f"  loss {text.number(job.loss)}" if job.loss is not None else ""
        words = f"{job.name or job.id}  {job.state}  {unit} {done}/{whole}"
        rows.append(("job", f"{words}  {job.workers}/{job.workers_wanted} workers{loss}{reason}"))
    return document, rows
