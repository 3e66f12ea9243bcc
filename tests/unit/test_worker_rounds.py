"""When a round closes, and whose update counts."""

from __future__ import annotations

import random

import pytest

from node.errors import Refused
from node.wire import Aggregation, AnnounceUpdate, Member, Span
from node.worker.deadline import FIRST_GRACE_S, Deadline
from node.worker.rounds import Closing, Rounds, contributors, label, without

CARRY = Aggregation(late="carry", late_weight=0.5)


def rounds(
    members: int = 2,
    *,
    total: int = 3,
    min_members: int = 1,
    first: int = 0,
    terms: Aggregation | None = None,
    fragments: int = 1,
) -> Rounds:
    group = [member(n) for n in range(members)]
    return Rounds("job", 0, total, group, min_members, 0.0, first=first, terms=terms, fragments=fragments)


def member(number: int, since: int = 0) -> Member:
    return Member(task_id=f"t{number}", peer_id=f"p{number}", since_round=since)


def header(
    number: int, *, round_: int = 0, samples: int = 10, sha256: str = "aa", epoch: int = 0, attempt: int = 0
) -> AnnounceUpdate:
    return AnnounceUpdate(
        job_id="job",
        epoch=epoch,
        task_id=f"t{number}",
        round=round_,
        samples=samples,
        sha256=sha256,
        size_bytes=100,
        attempt=attempt,
        spans=[Span(0, number, round_ * 100, round_ * 100 + samples)] if samples else [],
    )


def arrive(machine: Rounds, number: int, now: float, **more: object) -> int:
    item = header(number, **more)  # type: ignore[arg-type]
    counted = machine.admit(item, f"p{number}", now)
    if counted is None:
        counted = machine.record(item, f"p{number}", f"/u/{number}-{item.round}-{item.sha256}", 1.0, now)
    machine.validate()
    return counted


def code_of(machine: Rounds, item: AnnounceUpdate, peer: str, now: float = 0.0) -> str:
    with pytest.raises(Refused) as told:
        machine.admit(item, peer, now)
    return told.value.code


def tasks_of(closing: Closing) -> list[str]:
    return [update.contribution.task_id for update in closing.updates]


def commit(machine: Rounds, now: float) -> Closing:
    closing = machine.close()
    machine.committed(now)
    machine.validate()
    return closing


def test_a_round_closes_when_every_member_has_answered() -> None:
    machine = rounds()
    arrive(machine, 0, 1.0)
    assert machine.closes_at(1.0) != 1.0
    arrive(machine, 1, 2.0)
    assert machine.closes_at(2.0) == 2.0
    closing = machine.close()
    assert tasks_of(closing) == ["t0", "t1"]
    assert closing.left_out == {}


def test_an_update_brings_its_rows_and_its_weight() -> None:
    """Samples count with the round that holds them, so that the round must know which they are."""
    machine = rounds(1)
    arrive(machine, 0, 1.0, samples=7)
    (update,) = machine.close().updates
    assert update.contribution.spans == [Span(0, 0, 0, 7)]
    assert (update.contribution.samples, update.contribution.weight, update.contribution.from_round) == (7, 7.0, 0)


def test_sending_twice_counts_once_and_another_update_is_a_conflict() -> None:
    """H2: a round counts distinct members. H3: an update does not change once it is counted."""
    machine = rounds()
    arrive(machine, 0, 1.0)
    assert machine.admit(header(0), "p0", 1.0) == 0
    assert arrive(machine, 0, 1.5, attempt=4) == 0
    assert machine.closes_at(2.0) != 2.0
    assert code_of(machine, header(0, sha256="bb"), "p0") == "conflict"


def test_a_later_attempt_replaces_an_earlier_one_while_the_round_is_open_and_never_the_other_way() -> None:
    """H3, H12: old attempts are fenced off."""
    machine = rounds()
    arrive(machine, 0, 1.0)
    arrive(machine, 0, 2.0, sha256="bb", attempt=1)
    assert code_of(machine, header(0, sha256="cc"), "p0") == "stale"
    arrive(machine, 1, 2.5)
    closing = machine.close()
    assert [update.contribution.sha256 for update in closing.updates] == ["bb", "aa"]
    assert code_of(machine, header(0, sha256="cc", attempt=2), "p0") == "conflict"


def test_a_closed_round_is_not_over_before_it_is_committed() -> None:
    """At most one side of a partition commits: a server that its scheduler does not answer takes nothing more."""
    machine = rounds()
    arrive(machine, 0, 1.0)
    arrive(machine, 1, 1.0)
    machine.close()
    assert machine.closes_at(1e9) is None
    assert code_of(machine, header(0, round_=1), "p0") == "busy"
    assert machine.admit(header(0), "p0", 2.0) == 0
    machine.committed(3.0)
    assert machine.admit(header(0, round_=1), "p0", 3.0) is None
    assert machine.admit(header(0), "p0", 3.0) == 0


def test_a_silent_member_is_left_out_at_the_deadline_and_told_why_when_it_comes() -> None:
    """H4: a timer, a quorum, and a reason for the late one."""
    machine = rounds()
    arrive(machine, 0, 4.0)
    assert machine.closes_at(5.0) == 4.0 + FIRST_GRACE_S
    closing = machine.close()
    assert closing.left_out == {"t1": "no update before the deadline"}
    assert code_of(machine, header(1), "p1") == "stale"
    machine.committed(30.0)
    assert code_of(machine, header(1), "p1") == "stale"
    assert machine.admit(header(1, round_=1), "p1", 30.0) is None


def test_without_a_quorum_the_round_waits() -> None:
    machine = rounds(3, min_members=2)
    arrive(machine, 0, 1.0)
    assert machine.closes_at(1e9) is None
    arrive(machine, 1, 2.0)
    assert machine.closes_at(3.0) == 1.0 + FIRST_GRACE_S


def test_a_long_first_round_waits_as_long_again_for_the_slow_ones() -> None:
    machine = rounds()
    arrive(machine, 0, 100.0)
    assert machine.closes_at(101.0) == 200.0


def test_later_rounds_wait_as_long_as_recent_arrivals_suggest() -> None:
    """U16: median and deviation of what was seen; a straggler costs one deadline at most."""
    deadline = Deadline(Aggregation(deadline_k=4.0, deadline_floor_s=2.0, deadline_ceiling_s=60.0), 0.0)
    for offset in (10.0, 11.0, 12.0):
        deadline.arrived(offset)
    deadline.opened(100.0)
    assert deadline.at() is None
    deadline.arrived(110.0)
    assert deadline.at() == 100.0 + 11.0 + 4.0
    deadline.arrived(114.0)
    deadline.opened(200.0)
    deadline.arrived(230.0)  # a longer round than those before: nobody is left out for that
    assert deadline.at() == 230.0 + 4.0


def test_the_deadline_keeps_to_floor_and_ceiling() -> None:
    deadline = Deadline(Aggregation(deadline_k=4.0, deadline_floor_s=2.0, deadline_ceiling_s=20.0), 0.0)
    deadline.arrived(10.0)
    deadline.arrived(10.0)
    deadline.opened(100.0)
    deadline.arrived(110.0)
    assert deadline.at() == 112.0
    for late in (150.0, 190.0, 195.0):
        deadline.arrived(late)
    deadline.opened(200.0)
    deadline.arrived(210.0)
    assert deadline.at() == 230.0


def test_one_who_came_late_is_waited_for_longer_in_the_next_rounds() -> None:
    machine = rounds(2, total=9, terms=Aggregation(deadline_floor_s=1.0))
    arrive(machine, 0, 10.0)
    commit(machine, 30.0)
    assert code_of(machine, header(1), "p1", 34.0) == "stale"
    assert code_of(machine, header(1), "p1", 35.0) == "stale"
    arrive(machine, 0, 40.0, round_=1)
    assert machine.closes_at(40.0) == 30.0 + 22.0 + 4 * 12.0


def test_strangers_and_other_tasks_are_denied() -> None:
    """H37: deny by default. H18: a member is a task at a peer."""
    machine = rounds()
    assert code_of(machine, header(0), "p1") == "denied"
    assert code_of(machine, header(7), "p7") == "denied"
    assert code_of(Rounds("job", 0, 1, [], 1, 0.0), header(0), "p0") == "denied"


def test_another_epoch_is_stale_and_a_round_to_come_is_busy() -> None:
    """H12, U23: every message carries its epoch and its round."""
    machine = rounds()
    assert code_of(machine, header(0, epoch=1), "p0") == "stale"
    assert code_of(machine, header(0, round_=2), "p0") == "busy"


def test_an_update_must_say_which_rows_it_was_made_of() -> None:
    machine = rounds()
    no_rows = AnnounceUpdate(job_id="job", epoch=0, task_id="t0", round=0, samples=3, sha256="aa", size_bytes=100)
    assert code_of(machine, no_rows, "p0") == "invalid"


def test_a_bad_update_is_set_aside_and_the_round_goes_on() -> None:
    """H5: a failed update is quarantined."""
    machine = rounds()
    machine.quarantine(header(0), "tensor w is not finite")
    assert code_of(machine, header(0), "p0") == "invalid"
    assert machine.admit(header(0, attempt=1), "p0", 1.0) is None
    arrive(machine, 1, 2.0)
    assert machine.closes_at(2.0) == 2.0
    closing = machine.close()
    assert closing.left_out == {"t0": "tensor w is not finite"}
    assert len(closing.updates) == 1


def test_a_round_without_samples_is_void_and_still_closes() -> None:
    """U35: nothing to average."""
    machine = rounds(1)
    arrive(machine, 0, 1.0, samples=0)
    assert machine.closes_at(1.0) == 1.0
    closing = machine.close()
    assert closing.updates == []
    assert closing.left_out == {"t0": "0 samples"}


def test_members_can_leave_and_join_between_and_within_rounds() -> None:
    """U17, U20: a lost member is not waited for, and what it sent counts; a new one is expected from its round on."""
    machine = rounds()
    arrive(machine, 0, 1.0)
    machine.set_members([member(0), member(2, since=1)])
    assert machine.closes_at(2.0) == 2.0
    commit(machine, 3.0)
    arrive(machine, 0, 4.0, round_=1)
    assert machine.closes_at(4.0) != 4.0
    arrive(machine, 2, 5.0, round_=1)
    assert machine.closes_at(5.0) == 5.0


def test_a_late_update_counts_in_the_next_round_with_less_weight_where_the_job_says_so() -> None:
    machine = rounds(2, terms=CARRY)
    arrive(machine, 0, 1.0)
    machine.close()
    assert code_of(machine, header(1), "p1") == "busy"
    machine.committed(20.0)
    assert arrive(machine, 1, 21.0) == 1
    assert machine.admit(header(1), "p1", 21.0) == 1
    arrive(machine, 0, 22.0, round_=1)
    assert machine.closes_at(22.0) != 22.0  # its own update of round 1 is still to come
    arrive(machine, 1, 23.0, round_=1)
    assert machine.closes_at(23.0) == 23.0
    closing = commit(machine, 24.0)
    assert contributors(closing) == [("t0", 1), ("t1", 0), ("t1", 1)]
    assert [update.contribution.weight for update in closing.updates] == [10.0, 5.0, 10.0]
    assert machine.admit(header(1), "p1", 25.0) == 1


def test_a_late_update_is_not_carried_into_another_fragment_nor_past_the_last_round_nor_over_servers() -> None:
    for machine in (rounds(fragments=2, terms=CARRY), rounds(total=1, terms=CARRY)):
        arrive(machine, 0, 1.0)
        commit(machine, 20.0)
        assert code_of(machine, header(1), "p1") == "stale"
    # what an earlier server may have committed is not counted again
    assert code_of(rounds(first=1, terms=CARRY), header(1), "p1") == "stale"


def test_an_update_can_be_left_out_of_a_closed_round_by_name() -> None:
    machine = rounds(2, terms=CARRY)
    arrive(machine, 0, 1.0)
    commit(machine, 20.0)
    arrive(machine, 1, 21.0)
    arrive(machine, 0, 22.0, round_=1)
    arrive(machine, 1, 23.0, round_=1)
    closing = machine.close()
    labels = [label(update.contribution, closing.round) for update in closing.updates]
    assert labels == closing.labels() == ["t0", "t1@0", "t1"]
    kept = without(closing, {"t1@0": "far from the others"})
    assert contributors(kept) == [("t0", 1), ("t1", 1)]
    assert kept.left_out == {"t1@0": "far from the others"}


def test_a_server_that_begins_in_the_middle_opens_that_round() -> None:
    machine = rounds(first=2)
    machine.begin(5.0)
    assert code_of(machine, header(0, round_=1), "p0") == "stale"
    arrive(machine, 0, 6.0, round_=2)
    arrive(machine, 1, 6.0, round_=2)
    assert commit(machine, 7.0).round == 2
    assert machine.is_over


@pytest.mark.parametrize("seed", range(60))
def test_whatever_arrives_in_whatever_order_every_update_counts_once(seed: int) -> None:
    """H1, H2, H12: late, doubled, bad and foreign updates, members that come and go, commits that take their time."""
    rng = random.Random(seed)
    terms = Aggregation(late=rng.choice(("refuse", "carry")), deadline_floor_s=1.0, deadline_ceiling_s=20.0)
    machine, now = rounds(3, total=6, min_members=rng.randint(1, 3), terms=terms), 0.0
    committed: dict[tuple[str, int], int] = {}
    closing: Closing | None = None
    for _ in range(600):
        if machine.is_over:
            break
        now += rng.uniform(0, 4)
        number = rng.randrange(4)
        item = header(
            number,
            round_=max(0, machine.round + rng.randint(-3, 1)),
            sha256=rng.choice("ab"),
            samples=rng.randrange(3),
            attempt=rng.randrange(3),
            epoch=0 if rng.random() < 0.9 else 1,
        )
        try:
            if machine.admit(item, f"p{number}", now) is None:
                if rng.random() < 0.1:
                    machine.quarantine(item, "bad")
                else:
                    machine.record(item, f"p{number}", "/u", 1.0, now)
        except Refused as error:
            assert error.message
        if rng.random() < 0.05:
            machine.set_members([member(n, max(0, machine.round - rng.randrange(2))) for n in rng.sample(range(4), 3)])
        machine.validate()
        due = machine.closes_at(now)
        if closing is None and due is not None and due <= now:
            closing = machine.close()
        elif closing is not None and rng.random() < 0.5:
            for key in contributors(closing):
                assert key not in committed
                assert key[1] == closing.round or (terms.late == "carry" and key[1] < closing.round)
                committed[key] = closing.round
            closing = None
            machine.committed(now)
    assert machine.round > 0


@pytest.mark.parametrize("seed", range(20))
def test_two_servers_of_one_job_never_commit_the_same_round_between_them(seed: int) -> None:
    """U21, U23: a scheduler that writes each round once, two servers, and links that are cut at random."""
    rng = random.Random(seed)
    group = [member(0), member(1)]
    servers = {0: Rounds("job", 0, 8, group, 1, 0.0)}
    waiting: dict[int, Closing] = {}
    written: list[int] = []

    def scheduler_commits(epoch: int, round_: int) -> None:
        if epoch != max(servers):
            raise Refused("stale", "the epoch is over")
        if round_ == len(written):
            written.append(epoch)
        assert round_ < len(written)

    for step in range(400):
        now = float(step)
        if len(servers) < 4 and rng.random() < 0.02:
            epoch = len(servers)
            servers[epoch] = Rounds("job", epoch, 8, group, 1, now, first=len(written))
        epoch = rng.choice(list(servers))
        machine = servers[epoch]
        if machine.is_over:
            continue
        if epoch not in waiting:
            for number in range(2):
                arrive(machine, number, now, round_=machine.round, epoch=epoch)
            waiting[epoch] = machine.close()
        try:
            if rng.random() < 0.3:
                scheduler_commits(epoch, waiting[epoch].round)
                if rng.random() < 0.7:  # else its answer is lost, and it is asked again
                    machine.committed(now)
                    del waiting[epoch]
        except Refused:
            servers[epoch].round = servers[epoch].rounds  # it ends
    assert len(written) == 8
    assert written == sorted(written)
