"""The merged view of the cluster."""

from __future__ import annotations

import random
from dataclasses import dataclass

import msgspec
import pytest

from node.api.view import GRACE_S, Cluster
from node.views import AnyView, DatasetView, Delta, Event, JobView, LeaseView, PeerView, Snapshot
from node.wire import PeerRecord, Resources


@dataclass
class Member:
    """A peer as membership knows it."""

    record: PeerRecord
    reachable: bool = True
    rtt_ms: float | None = 1.0
    seen_at: float = 0.0


def member(peer_id: str, *, reachable: bool = True, leaving: bool = False, seen_at: float = 0.0) -> Member:
    record = PeerRecord(
        peer_id=peer_id, seq=1, name=f"n-{peer_id}", roles=["worker"], addresses=[], ttl_s=60, leaving=leaving
    )
    return Member(record, reachable, seen_at=seen_at)


def peer(peer_id: str, **fields: object) -> PeerView:
    base = {"name": f"n-{peer_id}", "roles": ["worker"], "addresses": [], "state": "up"}
    return PeerView(id=peer_id, **{**base, **fields})  # type: ignore[arg-type]


def lease(lease_id: str, worker: str, remaining_s: float = 10.0, renewals: int = 0) -> LeaseView:
    return LeaseView(
        id=lease_id,
        worker=worker,
        scheduler="s",
        job_id="j",
        state="held",
        executor="train",
        resources=Resources(),
        price=0.0,
        duration_s=10.0,
        remaining_s=remaining_s,
        renewals=renewals,
        age_s=0.0,
    )


def job(job_id: str, scheduler: str, state: str = "running") -> JobView:
    return JobView(
        id=job_id,
        name="j",
        scheduler=scheduler,
        state=state,
        reason="",
        dataset="d",
        round=0,
        rounds=1,
        workers=1,
        workers_wanted=1,
        samples=0,
    )


def dataset(peer_id: str) -> DatasetView:
    return DatasetView(id=f"{peer_id}/d", name="d", peer_id=peer_id, slices=1, rows=1, size_bytes=1, digest="x")


def event(peer_id: str, seq: int, age_s: float = 0.0) -> Event:
    return Event(node=peer_id, seq=seq, name="a.b", text="t", age_s=age_s)


def shown(cluster: Cluster, now: float = 0.0) -> dict[tuple[str, str], AnyView]:
    return {(item.kind, item.id): item for item in cluster.items(now)}


def started(*peers: str) -> Cluster:
    cluster = Cluster("me")
    cluster.membership([member("me"), *[member(peer_id) for peer_id in peers]], 0.0)
    return cluster


def test_a_peer_that_only_membership_knows_is_shown() -> None:
    cluster = started("w")
    view = shown(cluster)["peer", "w"]
    assert isinstance(view, PeerView)
    assert (view.name, view.state) == ("n-w", "up")


def test_a_peers_own_word_about_itself_counts_and_others_about_it_do_not() -> None:
    cluster = started("w", "liar")
    cluster.apply("w", Snapshot(seq=1, items=[peer("w", version="1.0", total=Resources(cpu=4))]), 0.0)
    cluster.apply("liar", Snapshot(seq=1, items=[peer("w", version="evil")]), 0.0)
    view = shown(cluster)["peer", "w"]
    assert isinstance(view, PeerView)
    assert view.version == "1.0"
    assert view.rtt_ms == 1.0


def test_an_object_two_peers_show_is_taken_from_its_owner_whoever_was_first() -> None:
    for order in (("w", "other"), ("other", "w")):
        cluster = started("w", "other")
        for source in order:
            cluster.apply(source, Snapshot(seq=1, items=[lease("l", "w", renewals=source == "w")]), 0.0)
        view = shown(cluster)["lease", "l"]
        assert isinstance(view, LeaseView)
        assert view.renewals == 1


def test_when_the_owner_takes_an_object_off_the_other_report_remains() -> None:
    cluster = started("w", "other")
    cluster.apply("w", Snapshot(seq=1, items=[lease("l", "w", renewals=5)]), 0.0)
    cluster.apply("other", Snapshot(seq=1, items=[lease("l", "w")]), 0.0)
    cluster.apply("w", Delta(seq=2, dropped=[("lease", "l")]), 0.0)
    assert ("lease", "l") in shown(cluster)
    cluster.apply("other", Delta(seq=2, dropped=[("lease", "l")]), 0.0)
    assert ("lease", "l") not in shown(cluster)


def test_remaining_times_and_ages_move_on_between_frames() -> None:
    cluster = started("w")
    cluster.apply("w", Snapshot(seq=1, items=[lease("l", "w", remaining_s=10.0)]), 100.0)
    view = shown(cluster, 104.0)["lease", "l"]
    assert isinstance(view, LeaseView)
    assert view.remaining_s == pytest.approx(6.0)
    assert view.age_s == pytest.approx(4.0)


def test_a_gap_asks_for_a_new_snapshot_and_an_old_frame_is_ignored() -> None:
    cluster = started("w")
    cluster.apply("w", Snapshot(seq=1, items=[]), 0.0)
    assert not cluster.apply("w", Delta(seq=3, items=[lease("l", "w")]), 0.0)
    assert ("lease", "l") not in shown(cluster)
    assert cluster.apply("w", Delta(seq=2, items=[lease("l", "w", renewals=2)]), 0.0)
    assert cluster.apply("w", Delta(seq=1, dropped=[("lease", "l")]), 0.0)
    assert ("lease", "l") in shown(cluster)
    assert cluster.apply("w", Snapshot(seq=9, items=[]), 0.0)
    assert ("lease", "l") not in shown(cluster)


def test_a_delta_before_any_snapshot_is_a_gap() -> None:
    assert not started("w").apply("w", Delta(seq=1, items=[lease("l", "w")]), 0.0)


def test_what_an_unreachable_peer_showed_vanishes_at_once_and_the_peer_stays_with_when_it_was_seen() -> None:
    cluster = started("w")
    cluster.apply("w", Snapshot(seq=1, items=[peer("w", version="1.0"), lease("l", "w"), dataset("w")]), 10.0)
    cluster.lost("w", "connection refused", 12.0, is_unreachable=True)
    view = shown(cluster, 15.0)["peer", "w"]
    assert isinstance(view, PeerView)
    assert (view.state, view.version, view.reason) == ("unreachable", "1.0", "connection refused")
    assert view.seen_s == pytest.approx(5.0)
    assert set(shown(cluster)) == {("peer", "me"), ("peer", "w"), ("lease", "l")}


def test_leases_of_a_worker_that_is_gone_are_shown_as_expired_until_they_would_have_run_out() -> None:
    cluster = started("w")
    over = msgspec.structs.replace(lease("old", "w", remaining_s=0.0), state="released")
    cluster.apply("w", Snapshot(seq=1, items=[lease("l", "w", remaining_s=10.0), over]), 0.0)
    cluster.lost("w", "connection refused", 2.0, is_unreachable=True)
    for now in (2.0, 9.0):
        cluster.tick(now)
        view = shown(cluster, now)["lease", "l"]
        assert isinstance(view, LeaseView)
        assert (view.state, view.remaining_s) == ("expired", 8.0)
        assert view.reason == "its worker cannot be asked: connection refused"
    assert ("lease", "old") not in shown(cluster)
    cluster.tick(10.1)
    assert ("lease", "l") not in shown(cluster)
    cluster.apply("w", Snapshot(seq=1, items=[lease("l", "w", remaining_s=9.0)]), 11.0)
    view = shown(cluster, 11.0)["lease", "l"]
    assert isinstance(view, LeaseView)
    assert (view.state, view.reason) == ("held", "")


def test_a_broken_stream_is_forgiven_for_a_while() -> None:
    cluster = started("w")
    cluster.apply("w", Snapshot(seq=1, items=[dataset("w")]), 0.0)
    cluster.lost("w", "the connection broke", 1.0, is_unreachable=False)
    cluster.tick(1.0 + GRACE_S)
    assert ("dataset", "w/d") in shown(cluster)
    cluster.tick(1.1 + GRACE_S)
    assert ("dataset", "w/d") not in shown(cluster)


def test_a_job_stays_in_sight_while_its_scheduler_is_gone_and_says_so() -> None:
    cluster = started("s")
    cluster.apply("s", Snapshot(seq=1, items=[job("j", "s"), job("k", "s", "done")]), 0.0)
    cluster.lost("s", "no route", 1.0, is_unreachable=True)
    running, done = cluster.job("j", 1.0), cluster.job("k", 1.0)
    assert running is not None
    assert "no route" in running.reason
    assert done is not None
    assert done.reason == ""
    cluster.membership([member("me")], 2.0)
    assert cluster.job("j", 2.0) is None
    assert ("peer", "s") not in shown(cluster)


def test_a_peer_that_came_back_is_up_again() -> None:
    cluster = started("w")
    cluster.apply("w", Snapshot(seq=4, items=[lease("l", "w")]), 0.0)
    cluster.lost("w", "gone", 1.0, is_unreachable=True)
    assert cluster.apply("w", Snapshot(seq=1, items=[lease("m", "w")]), 2.0)
    view = shown(cluster)["peer", "w"]
    assert isinstance(view, PeerView)
    assert (view.state, view.reason) == ("up", "")
    assert ("lease", "m") in shown(cluster)


def test_a_peer_that_said_goodbye_has_left() -> None:
    cluster = started("w")
    cluster.apply("w", Snapshot(seq=1, items=[lease("l", "w")]), 0.0)
    cluster.lost("w", "the connection broke", 1.0, is_unreachable=False)
    cluster.membership([member("me"), member("w", leaving=True)], 1.0)
    view = shown(cluster)["peer", "w"]
    assert isinstance(view, PeerView)
    assert view.state == "left"
    assert ("lease", "l") not in shown(cluster)


def test_events_of_all_nodes_come_once_each_in_the_order_they_happened() -> None:
    cluster = started("a", "b")
    cluster.apply("a", Snapshot(seq=1, items=[], events=[event("a", 1, 9.0), event("a", 2, 1.0)]), 10.0)
    cluster.apply("b", Snapshot(seq=1, items=[], events=[event("b", 1, 5.0)]), 10.0)
    cluster.apply("a", Snapshot(seq=2, items=[], events=[event("a", 1, 9.0), event("a", 2, 1.0)]), 10.0)
    cluster.apply("b", Delta(seq=2, events=[event("a", 7)]), 10.0)
    seen = cluster.events(12.0)
    assert [(one.node, one.seq) for one in seen] == [("a", 1), ("b", 1), ("a", 2)]
    assert [one.age_s for one in seen] == pytest.approx([11.0, 7.0, 3.0])


def test_events_of_a_node_that_started_anew_are_shown() -> None:
    cluster = started("a")
    cluster.apply("a", Snapshot(seq=1, items=[], events=[event("a", 40)]), 0.0)
    cluster.apply("a", Snapshot(seq=1, items=[], events=[event("a", 1)]), 1.0)
    assert [one.seq for one in cluster.events(1.0)] == [40, 1]


def test_membership_that_says_nothing_new_tells_no_feed() -> None:
    cluster = started("w")
    feed = cluster.open_feed(lambda: None)
    feed.snapshot(0.0)
    cluster.membership([member("me", seen_at=5.0), member("w", seen_at=5.0)], 5.0)
    assert feed.take(5.0) is None


def test_a_peer_cannot_fill_the_view_without_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.api.view.ITEMS_PER_PEER", 10)
    cluster = started("w")
    cluster.apply("w", Snapshot(seq=1, items=[lease(str(n), "w") for n in range(50)]), 0.0)
    assert sum(kind == "lease" for kind, _ in shown(cluster)) == 10


@pytest.mark.parametrize("seed", range(40))
def test_a_client_that_takes_every_delta_sees_what_the_cluster_sees(seed: int) -> None:
    """Frames are lost, doubled and reordered; streams break; peers go and come. A gap is answered with a snapshot."""
    rng = random.Random(seed)
    peers = ["a", "b", "c"]
    cluster = started(*peers)
    boards: dict[str, dict[str, AnyView]] = {peer_id: {} for peer_id in peers}
    seqs = dict.fromkeys(peers, 0)
    feed = cluster.open_feed(lambda: None)
    client = {(item.kind, item.id): item for item in feed.snapshot(0.0).items}
    late: list[tuple[str, Delta]] = []

    def resync(peer_id: str) -> None:
        seqs[peer_id] += 1
        assert cluster.apply(peer_id, Snapshot(seq=seqs[peer_id], items=list(boards[peer_id].values())), 0.0)

    for peer_id in peers:
        resync(peer_id)
    for _ in range(300):
        peer_id = rng.choice(peers)
        board = boards[peer_id]
        name = f"l{rng.randrange(6)}"
        if rng.random() < 0.6:
            board[name] = lease(name, rng.choice(peers), renewals=rng.randrange(1000))
            delta = Delta(seq=seqs[peer_id] + 1, items=[board[name]])
        else:
            board.pop(name, None)
            delta = Delta(seq=seqs[peer_id] + 1, dropped=[("lease", name)])
        seqs[peer_id] += 1
        fate = rng.random()
        if fate < 0.1:
            late.append((peer_id, delta))
        elif fate < 0.15:
            cluster.lost(peer_id, "gone", 0.0, is_unreachable=rng.random() < 0.5)
            resync(peer_id)
        else:
            for _ in range(1 + (fate > 0.9)):
                if not cluster.apply(peer_id, delta, 0.0):
                    resync(peer_id)
        if late and rng.random() < 0.3:
            late_peer, late_delta = late.pop(rng.randrange(len(late)))
            if not cluster.apply(late_peer, late_delta, 0.0):
                resync(late_peer)
        if rng.random() < 0.3 and (change := feed.take(0.0)) is not None:
            client.update({(item.kind, item.id): item for item in change.items})
            for kind, id_ in change.dropped:
                client.pop((kind, id_), None)
    for peer_id in peers:
        resync(peer_id)
    if (change := feed.take(0.0)) is not None:
        client.update({(item.kind, item.id): item for item in change.items})
        for kind, id_ in change.dropped:
            client.pop((kind, id_), None)
    assert client == shown(cluster)
    everything = {name for board in boards.values() for name in board}
    assert {id_ for kind, id_ in client if kind == "lease"} == everything
    for (kind, id_), item in client.items():
        if isinstance(item, LeaseView):
            assert kind == "lease"
            held = [peer_id for peer_id in peers if id_ in boards[peer_id]]
            assert item in [boards[peer_id][id_] for peer_id in held]
