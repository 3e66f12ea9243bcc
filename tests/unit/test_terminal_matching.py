"""What the cluster could give a job now, in the words of the form; and what one job does otherwise than another."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from hypha_tui.client.jobfields import with_field
from hypha_tui.store.difference import difference, spec_of
from hypha_tui.store.matching import datasets_line, matching
from node.jobdocument import document_of
from node.jobspec import JobSpec, parse_job
from node.views import PeerView
from node.wire import Mountable, Resources
from tests.terminal.feed import WHOLE_JOB, dataset, peer_id

ROOMY = Resources(cpu=16, memory=64, storage=500, gpu=24)


def worker(number: int, **changes: Any) -> PeerView:
    """A worker with everything free."""
    view = PeerView(
        id=peer_id(number),
        name=f"w-{number}",
        roles=["worker"],
        addresses=[],
        state="up",
        total=ROOMY,
        free=ROOMY,
        executors=["train/diloco-transformer", "aggregate/parameter-server"],
        price=0.5,
    )
    return replace(view, **changes)


def wanting(**resources: Any) -> JobSpec:
    """A job for 3 workers with 8 GB of video memory, at 1.40 at most."""
    text = WHOLE_JOB.replace("num_workers = 2", "num_workers = 3\nmin_workers = 2")
    text += "worker = { gpu = 8 }\nworker_price = { bid = 1, max = 1.4 }\nparameter_server_price = { max = 1 }\n"
    return parse_job(text)


def test_enough_workers_are_told_with_the_price_of_the_cheapest() -> None:
    found = matching(wanting(), [worker(number, price=0.4 + number / 10) for number in range(5)])
    assert found.sentence == "5 workers match, 3 needed, 1.90/h"  # 0.4 + 0.5 + 0.6, and 0.4 for the server
    assert found.tone == "ok"


def test_too_few_workers_are_told_with_the_reasons_of_the_others_the_commonest_first() -> None:
    peers = [worker(0), worker(1)]
    peers += [worker(number, total=Resources(cpu=8, memory=9), free=Resources()) for number in range(2, 7)]
    peers += [worker(number, price=2.0) for number in (7, 8)]
    peers += [worker(9, free=Resources(cpu=1, memory=1)), worker(10, state="unreachable")]
    found = matching(wanting(), peers)
    assert found.sentence.startswith(
        "2 workers match, 3 needed: 5 lack GPU memory (8 GB asked), 2 ask more than 1.40/h"
    )
    assert found.tone == "late"  # it begins with two
    assert matching(wanting(), peers[1:]).tone == "lost"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"executors": ["aggregate/parameter-server"]}, "1 has no executor train"),
        ({"floor": 1.2}, "1 answers no bid of 1"),
        ({"price": 1.5}, "1 asks more than 1.40/h"),
        ({"free": Resources(cpu=9, memory=9, gpu=4)}, "1 is busy"),
        ({"state": "left"}, "1 cannot be reached"),
        ({"cordoned": True}, "1 takes no new work"),
    ],
)
def test_each_reason_is_a_workers_own(changes: dict[str, Any], reason: str) -> None:
    assert reason in matching(wanting(), [worker(0), worker(1, **changes)]).sentence


def test_a_node_that_tells_nothing_of_itself_is_not_ruled_out() -> None:
    old = worker(0, executors=[], price=None, total=None, free=None)
    assert matching(wanting(), [old]).workers.peers == (old,)


def test_the_parameter_server_takes_a_workers_place_only_where_both_do_not_fit() -> None:
    tight = parse_job(
        WHOLE_JOB + "worker = { cpu = 12 }\nparameter_server = { cpu = 8 }\n"
        "worker_price = { max = 1 }\nparameter_server_price = { max = 1 }\n"
    )
    assert len(matching(tight, [worker(0), worker(1)]).workers.peers) == 1
    assert "1 would be the parameter server" in matching(tight, [worker(0), worker(1)]).sentence
    roomy = replace(tight, parameter_server=Resources(cpu=2))
    assert matching(roomy, [worker(0), worker(1)]).sentence == "2 workers match, 2 needed, 1.50/h"


def test_without_a_parameter_server_nothing_begins() -> None:
    none = [worker(number, executors=["train/diloco-transformer"]) for number in range(4)]
    found = matching(wanting(), none)
    assert found.sentence.startswith("no parameter server can be had: 4 have no executor aggregate")
    assert found.tone == "lost"


def test_data_are_told_with_their_providers_and_a_missing_name_with_the_nearest() -> None:
    spec = parse_job(WHOLE_JOB)
    other = replace(dataset(provider=3), digest="another")
    assert datasets_line(spec, [dataset()]) == ("stdlib-bytes: 24 slices, 49,152 rows, 403 MB, 1 provider", "ok")
    assert "2 versions" in datasets_line(spec, [dataset(), other])[0]
    words, tone = datasets_line(spec, [dataset("stdlib-byte")])
    assert ("did you mean stdlib-byte?" in words, tone) == (True, "late")


def test_a_difference_is_of_settings_not_of_spelling() -> None:
    old = parse_job(WHOLE_JOB)
    spelled = WHOLE_JOB.replace("num_workers = 2", 'num-workers = 2\nmin_workers = 1\n[sync]\ncodec = "none"')
    assert difference(old, parse_job(spelled)) == []
    assert difference(old, spec_of(document_of(old))) == []
    changed = with_field(with_field(WHOLE_JOB, "rounds", 5), "gpu", 24)
    told = [(change.key, *change.words) for change in difference(old, parse_job(changed))]
    assert told == [("rounds.update_rounds", "3", "5"), ("resources.worker.gpu", "0.0", "24.0")]


def test_workers_that_let_nothing_be_mounted_do_not_match_a_job_that_mounts() -> None:
    text = WHOLE_JOB + '[[bind_mounts]]\nhost_path = "/mnt/data"\n'
    peers = [
        worker(number, price=0.0, mounts=mounts) for number, mounts in enumerate(([], [Mountable(path="/mnt")], None))
    ]
    found = matching(parse_job(text), [*peers, worker(3, price=0.0, executors=[])])
    # What a node does not say is not held against it, unless it says all else: then it is of a version without mounts.
    assert [peer.name for peer in found.workers.peers] == ["w-1", "w-3"]
    assert found.workers.reasons == ((1, "are too old to know mounts"), (1, "have no mount /mnt/data"))


def test_workers_that_read_nothing_from_a_store_do_not_match_a_job_whose_data_lies_there() -> None:
    job = replace(parse_job(WHOLE_JOB), dataset="s3://bucket/sets/texts", num_workers=1)
    lists = [], ["s3://bucket/sets"], ["s3://bucket/sets/text"], ["gs://bucket/sets/texts"], None
    found = matching(job, [worker(number, price=0.0, stores=stores) for number, stores in enumerate(lists)])
    assert [peer.name for peer in found.workers.peers] == ["w-1"]
    assert found.workers.reasons == (
        (3, "fetch nothing from s3://bucket/sets/texts"), (1, "are too old to know stores")
    )  # fmt: skip
    assert found.server is not None and len(found.server.peers) == 5  # it reads no data
    alone = matching(job, [worker(0, price=0.0, stores=[])])
    assert "1 fetches nothing from s3://bucket/sets/texts" in alone.sentence and alone.tone == "lost"
