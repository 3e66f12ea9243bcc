"""When a round closes, and whose update counts."""

from __future__ import annotations

import random

import pytest

from node.errors import Refused
from node.wire import Member, UpdateHeader
from node.worker.rounds import GRACE_S, Admission, Rounds


def rounds(members: int = 2, *, total: int = 3, min_members: int = 1) -> Rounds:
    return Rounds("job", 0, total, [member(n) for n in range(members)], min_members, 0.0)


def member(number: int, since: int = 0) -> Member:
    return Member(task_id=f"t{number}", peer_id=f"p{number}", since_round=since)


def header(number: int, *, round_: int = 0, samples: int = 10, sha256: str = "aa", epoch: int = 0) -> UpdateHeader:
    return UpdateHeader(
        job_id="job", epoch=epoch, task_id=f"t{number}", round=round_, samples=samples, sha256=sha256, size_bytes=100
    )


def arrive(machine: Rounds, number: int, now: float, **more: object) -> None:
    item = header(number, **more)  # type: ignore[arg-type]
    if machine.admit(item, f"p{number}") is Admission.RECEIVE:
        machine.record(item, f"p{number}", f"/u/{number}", 1.0, now)
    machine.validate()


def code_of(machine: Rounds, item: UpdateHeader, peer: str) -> str:
    with pytest.raises(Refused) as told:
        machine.admit(item, peer)
    return told.value.code


def test_a_round_closes_when_every_member_has_answered() -> None:
    machine = rounds()
    arrive(machine, 0, 1.0)
    assert machine.closes_at(1.0) != 1.0
    arrive(machine, 1, 2.0)
    assert machine.closes_at(2.0) == 2.0
    closing = machine.close()
    assert [update.contribution.task_id for update in closing.updates] == ["t0", "t1"]
    assert closing.left_out == {}


def test_sending_twice_counts_once_and_another_update_is_a_conflict() -> None:
    """H2: a round counts distinct members. H3: an update does not change once it is counted."""
    machine = rounds()
    arrive(machine, 0, 1.0)
    assert machine.admit(header(0), "p0") is Admission.HAVE
    arrive(machine, 0, 1.5)
    assert machine.closes_at(2.0) != 2.0
    assert code_of(machine, header(0, sha256="bb"), "p0") == "conflict"


def test_a_silent_member_is_left_out_at_the_deadline_and_told_why_when_it_comes() -> None:
    """H4: a timer, a quorum, and a reason for the late one."""
    machine = rounds()
    arrive(machine, 0, 4.0)
    assert machine.closes_at(5.0) == 4.0 + GRACE_S
    closing = machine.close()
    assert closing.left_out == {"t1": "no update before the deadline"}
    assert code_of(machine, header(1), "p1") == "stale"
    machine.committed(30.0)
    assert code_of(machine, header(1), "p1") == "stale"
    assert machine.admit(header(1, round_=1), "p1") is Admission.RECEIVE


def test_a_long_round_waits_as_long_again_for_the_slow_ones() -> None:
    machine = rounds()
    arrive(machine, 0, 100.0)
    assert machine.closes_at(101.0) == 200.0


def test_without_a_quorum_the_round_waits() -> None:
    machine = rounds(3, min_members=2)
    arrive(machine, 0, 1.0)
    assert machine.closes_at(1e9) is None
    arrive(machine, 1, 2.0)
    assert machine.closes_at(3.0) == 1.0 + GRACE_S


def test_strangers_and_other_tasks_are_denied() -> None:
    """H37: deny by default."""
    machine = rounds()
    assert code_of(machine, header(0), "p1") == "denied"
    assert code_of(machine, header(7), "p7") == "denied"
    assert code_of(Rounds("job", 0, 1, [], 1, 0.0), header(0), "p0") == "denied"


def test_another_epoch_is_stale_and_a_round_to_come_is_busy() -> None:
    """H12: every message carries its round."""
    machine = rounds()
    assert code_of(machine, header(0, epoch=1), "p0") == "stale"
    assert code_of(machine, header(0, round_=2), "p0") == "busy"


def test_a_bad_update_is_set_aside_and_the_round_goes_on() -> None:
    """H5: a failed update is quarantined."""
    machine = rounds()
    machine.quarantine(header(0), "tensor w is not finite")
    assert code_of(machine, header(0), "p0") == "invalid"
    arrive(machine, 1, 2.0)
    assert machine.closes_at(2.0) == 2.0
    closing = machine.close()
    assert closing.left_out == {"t0": "tensor w is not finite"}
    assert len(closing.updates) == 1


def test_a_round_without_samples_is_void_and_still_closes() -> None:
    machine = rounds(1)
    arrive(machine, 0, 1.0, samples=0)
    assert machine.closes_at(1.0) == 1.0
    assert machine.close().updates == []


def test_members_can_leave_and_join_between_and_within_rounds() -> None:
    machine = rounds()
    arrive(machine, 0, 1.0)
    machine.set_members([member(0), member(2, since=1)])
    assert machine.closes_at(2.0) == 2.0
    machine.close()
    machine.committed(3.0)
    arrive(machine, 0, 4.0, round_=1)
    assert machine.closes_at(4.0) != 4.0
    arrive(machine, 2, 5.0, round_=1)
    assert machine.closes_at(5.0) == 5.0


@pytest.mark.parametrize("seed", range(30))
def test_whatever_arrives_in_whatever_order_every_round_counts_each_task_once(seed: int) -> None:
    rng = random.Random(seed)
    machine, now = rounds(3, total=4), 0.0
    for _ in range(400):
        if machine.is_over:
            break
        now += rng.uniform(0, 10)
        item = header(rng.randrange(4), round_=rng.randrange(5), sha256=rng.choice("ab"), samples=rng.randrange(3))
        peer = f"p{rng.randrange(4)}"
        try:
            if machine.admit(item, peer) is Admission.RECEIVE:
                if rng.random() < 0.2:
                    machine.quarantine(item, "bad")
                else:
                    machine.record(item, peer, "/u", 1.0, now)
        except Refused:
            pass
        machine.validate()
        due = machine.closes_at(now)
        if due is not None and due <= now:
            tasks = [update.contribution.task_id for update in machine.close().updates]
            assert sorted(set(tasks)) == tasks
            machine.committed(now)
