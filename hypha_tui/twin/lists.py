"""The twin commands that list: objects, events, values of metrics, slices. Each returns the exit code."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any, cast

from hypha_tui.client.api import ApiClient, connected
from hypha_tui.client.endpoint import Endpoint
from hypha_tui.store import text
from hypha_tui.store.cluster import Changes, ClusterStore
from hypha_tui.store.columns import Look
from hypha_tui.store.glyphs import glyphs_for
from hypha_tui.store.records import slice_counts, slice_rows
from hypha_tui.twin import output
from hypha_tui.twin.listing import Listing, Table
from hypha_tui.twin.naming import job_id_of
from hypha_tui.twin.watching import Watched, watch
from node.views import AnyView, DatasetView, JobView, LeaseView, PeerView, Point, SliceMap, Snapshot, TransferView

KINDS: dict[str, type[AnyView]] = {
    "peers": PeerView,
    "leases": LeaseView,
    "transfers": TransferView,
    "jobs": JobView,
    "datasets": DatasetView,
}
MAP_WIDTH = 64


def look_at(store: ClusterStore) -> Look:
    """How cells are written on this terminal, now."""
    return Look(store, time.monotonic(), glyphs_for(os.environ))


async def objects(endpoint: Endpoint, what: str, listing: Listing) -> int:
    """All objects of a kind. Watched as JSON or CSV, an object that changed is a line of its own."""
    table, kind = Table(what, listing), KINDS[what]
    async with connected(endpoint) as client:
        if listing.watch_s is None:
            views = await client.objects(kind)
            look = look_at(await _store(client, views, kind, is_raw=listing.is_raw))
            table.print(table.select(views, look), look)
            return 0

        async def show(watched: Watched, changes: Changes) -> None:
            dirty = changes.dirty.get(kind.kind, set())
            if not dirty and kind.kind not in changes.members and not watched.is_new:
                return
            look, store = look_at(watched.store), watched.store
            is_lines = listing.as_json or listing.as_csv
            some = [store.get(kind, id_) for id_ in sorted(dirty)] if is_lines else store.views(kind)
            found = table.select([view for view in some if view is not None], look)
            if not is_lines:
                table.print(found, look)
                output.line("")
                return
            table.append(found, look)
            if listing.as_json:
                for id_ in sorted(id_ for id_ in dirty if store.get(kind, id_) is None):
                    output.json_line({"kind": kind.kind, "id": id_, "dropped": True})

        return await watch(client, listing.watch_s, show)


async def events(endpoint: Endpoint, listing: Listing) -> int:
    """The last events of all nodes, oldest first; watched, each new one as it comes."""
    table = Table("events", listing)
    async with connected(endpoint) as client:
        if listing.watch_s is None:
            found = await client.events()
            look = look_at(await _store(client, [], None, is_raw=listing.is_raw))
            table.print(table.select(found, look), look)
            return 0
        last = 0

        async def show(watched: Watched, changes: Changes) -> None:
            nonlocal last
            new = [seen for seen in watched.store.events if seen.number > last]
            if new:
                last = new[-1].number
                look = look_at(watched.store)
                table.append(table.select([seen.event for seen in new], look), look)

        return await watch(client, listing.watch_s, show)


async def metrics(endpoint: Endpoint, job: str, listing: Listing) -> int:
    """The history of a job's metrics; watched, each new value as it comes."""
    table = Table("metrics", listing)
    async with connected(endpoint) as client:
        job_id = await job_id_of(client, job)
        if listing.watch_s is None:
            found = await client.metrics(job_id)
            found.sort(key=_by_metric)
            look = look_at(await _store(client, [], None, is_raw=listing.is_raw))
            table.print(table.select(found, look), look)
            return 0
        known: set[tuple[str, str, int, float]] = set()

        async def show(watched: Watched, changes: Changes) -> None:
            here = [point for point in watched.points if point.job_id == job_id]
            history = await client.metrics(job_id) if watched.is_new else []
            new = [point for point in (*history, *here) if _key(point) not in known]
            if new:
                known.update(_key(point) for point in new)
                look = look_at(watched.store)
                table.append(table.select(new, look), look)

        return await watch(client, listing.watch_s, show)


async def slices(endpoint: Endpoint, job: str, listing: Listing) -> int:
    """The slices of a job's present pass: a map of all, or with any option a list."""
    table = Table("slices", listing)
    async with connected(endpoint) as client:
        job_id = await job_id_of(client, job)
        told: SliceMap | None = None

        async def once() -> None:
            nonlocal told
            found = await client.slice_map(job_id)
            if found == told:
                return
            told = found
            if listing.is_plain:
                _map(found)
                return
            look = look_at(await _store(client, [], None, is_raw=listing.is_raw))
            rows = table.select(slice_rows(found), look)
            if listing.watch_s is None:
                table.print(rows, look)
            else:
                table.append(rows, look)

        if listing.watch_s is None:
            await once()
            return 0

        async def show(watched: Watched, changes: Changes) -> None:
            if watched.is_new or job_id in changes.dirty.get(JobView.kind, ()):
                await once()

        return await watch(client, listing.watch_s, show)


def _map(found: SliceMap) -> None:
    counts = "  ".join(f"{word} {text.count(count)}" for word, count in slice_counts(found).items())
    output.line(f"{found.job_id}  {found.dataset}  pass {found.pass_}  {counts}")
    for start in range(0, len(found.states), MAP_WIDTH):
        output.line(f"{start:>7}  {found.states[start : start + MAP_WIDTH]}")
    output.note(". available  a assigned  p partly used  u used")


async def _store(client: ApiClient, views: Sequence[Any], kind: type[AnyView] | None, *, is_raw: bool) -> ClusterStore:
    """A store with these objects, and with the peers and jobs that they name."""
    store = ClusterStore()
    others: list[AnyView] = []
    if not is_raw:
        for other in (PeerView, JobView):
            if other is not kind:
                others += cast("list[AnyView]", await client.objects(other))
    store.apply(Snapshot(seq=1, items=[*views, *others]), time.monotonic())
    return store


def _by_metric(point: Point) -> tuple[str, str, int]:
    return point.name, point.worker, point.round


def _key(point: Point) -> tuple[str, str, int, float]:
    return point.name, point.worker, point.round, point.t_s
