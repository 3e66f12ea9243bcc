"""Records: the newest of each key, for as long as it lives."""

from __future__ import annotations

import msgspec

from node.identity.caller import Caller
from node.network.records import MAX_PER_ORIGIN, MAX_SENT, News, Opened, Records
from node.wire import PeerRecord, ProviderRecord, Record, Signed


def opened(record: Record, remaining_s: float | None = None) -> Opened:
    origin = Caller(peer_id=record.peer_id, role="node", name="n", expires_at=0.0)
    signed = Signed(payload=msgspec.msgpack.encode(record), signature=b"", chain=[])
    return Opened(record, signed, origin, record.ttl_s if remaining_s is None else remaining_s)


def peer(peer_id: str, seq: int, ttl_s: float = 60.0) -> PeerRecord:
    return PeerRecord(peer_id=peer_id, seq=seq, name=peer_id, roles=["worker"], addresses=[], ttl_s=ttl_s)


def provider(dataset: str, seq: int = 1) -> ProviderRecord:
    return ProviderRecord(peer_id="a", seq=seq, dataset=dataset, digest="d", slices=1, rows=1, size_bytes=1, ttl_s=60.0)


def test_the_highest_sequence_number_wins_in_any_order() -> None:
    for order in ((1, 2, 3), (3, 1, 2), (2, 3, 1)):
        records = Records()
        for seq in order:
            records.merge(opened(peer("a", seq)), 0.0)
        assert records.known() == {"peer:a": 3}


def test_a_record_ends_when_its_life_is_over_and_does_not_come_back() -> None:
    records = Records()
    assert records.merge(opened(peer("a", 1), remaining_s=10.0), 0.0) is News.NEW
    assert records.expire(9.9) == []
    assert [record.peer_id for record in records.expire(10.0)] == ["a"]
    assert records.merge(opened(peer("a", 1)), 11.0) is News.EXPIRED
    assert records.merge(opened(peer("a", 2)), 11.0) is News.NEW


def test_the_same_record_again_does_not_live_longer() -> None:
    records = Records()
    records.merge(opened(peer("a", 1), remaining_s=10.0), 0.0)
    assert records.merge(opened(peer("a", 1), remaining_s=60.0), 5.0) is News.KNOWN
    assert len(records.expire(10.0)) == 1


def test_nobody_can_promise_more_life_than_the_origin_gave() -> None:
    records = Records()
    records.merge(opened(peer("a", 1, ttl_s=5.0), remaining_s=1e9), 0.0)
    assert len(records.expire(5.0)) == 1


def test_two_nodes_cannot_keep_a_record_alive_by_handing_it_to_and_fro() -> None:
    records = Records()
    assert records.merge(opened(peer("a", 1), remaining_s=0.1), 0.0) is News.EXPIRED


def test_one_origin_cannot_fill_the_table() -> None:
    records = Records()
    news = [records.merge(opened(provider(f"d{number}")), 0.0) for number in range(MAX_PER_ORIGIN + 1)]
    assert news[-1] is News.TOO_MANY
    assert records.merge(opened(peer("b", 1)), 0.0) is News.NEW


def test_a_comparison_gives_what_the_other_lacks_and_asks_for_what_we_lack() -> None:
    ours = Records()
    for record in (peer("a", 2), peer("b", 1), peer("c", 5)):
        ours.merge(opened(record), 0.0)
    sent, wanted = ours.compare({"peer:a": 1, "peer:b": 3, "peer:c": 5, "peer:d": 1}, now=20.0)
    assert [(msgspec.msgpack.decode(item.signed.payload)["peer_id"], item.remaining_s) for item in sent] == [
        ("a", 40.0)
    ]
    assert sorted(wanted) == ["peer:b", "peer:d"]


def test_an_answer_is_bounded() -> None:
    records = Records()
    for number in range(MAX_SENT + 10):
        records.merge(opened(peer(f"p{number}", 1)), 0.0)
    assert len(records.compare({}, 0.0)[0]) == MAX_SENT


def test_what_a_revoked_peer_has_signed_is_forgotten() -> None:
    records = Records()
    records.merge(opened(peer("a", 1)), 0.0)
    records.merge(opened(provider("d")), 0.0)
    records.merge(opened(peer("b", 1)), 0.0)
    records.drop_origin("a", 1.0)
    assert records.known() == {"peer:b": 1}
