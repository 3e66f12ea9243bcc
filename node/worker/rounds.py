"""When a round of the parameter server closes, and what it averages. No clock, no I/O.

An update counts once, in one round. A round closes when every expected member has answered, or, once one update is in,
at a deadline with at least `min_members`. A closed round is committed by the scheduler, not by us: until then it takes
nothing more, and the next one is not open yet. Who comes late is told that the round is over, or counts in the next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from node.errors import Refused
from node.wire import Aggregation, AnnounceUpdate, Contribution, Member
from node.worker.deadline import Deadline

REMEMBERED = 3
"""So many rounds after its own an update is still known, or carried over."""


@dataclass(frozen=True, slots=True)
class Update:
    """One update that passed the check, and the file it lies in."""

    contribution: Contribution
    path: str


@dataclass(frozen=True, slots=True)
class Closing:
    """A round that takes no more updates. Without updates it is void: the next version has the same weights."""

    round: int
    updates: list[Update]
    left_out: dict[str, str]

    def labels(self) -> list[str]:
        """What its updates are called."""
        return [label(update.contribution, self.round) for update in self.updates]


@dataclass(frozen=True, slots=True)
class _Taken:
    """What a task sent for a round: counted in round `round`, or for `reason` in none."""

    attempt: int
    sha256: str
    round: int
    reason: str = ""


class Rounds:
    """The rounds of one job on its parameter server, in one epoch of its group. `first` is the one to begin with."""

    def __init__(
        self,
        job_id: str,
        epoch: int,
        rounds: int,
        members: Sequence[Member],
        min_members: int,
        now: float,
        *,
        first: int = 0,
        terms: Aggregation | None = None,
        fragments: int = 1,
    ) -> None:
        self.job_id = job_id
        self.epoch = epoch
        self.rounds = rounds
        self.round = first
        self.is_closing = False
        self._first = first
        self._members = {member.task_id: member for member in members}
        self._min_members = max(1, min_members)
        self._terms = terms or Aggregation()
        # The next round averages other tensors than those of a late update.
        self._carries = self._terms.late == "carry" and fragments == 1
        self._deadline = Deadline(self._terms, now)
        self._updates: dict[tuple[str, int], Update] = {}
        self._taken: dict[tuple[str, int], _Taken] = {}
        self._late: set[tuple[str, int]] = set()

    def begin(self, now: float) -> None:
        """The first version is here: its round opens now."""
        self._deadline.opened(now)

    @property
    def is_over(self) -> bool:
        """Whether the last round is committed."""
        return self.round >= self.rounds

    def members(self) -> list[Member]:
        """Who belongs to the group now."""
        return list(self._members.values())

    def is_member(self, peer_id: str) -> bool:
        """Whether a task of the group runs at this peer."""
        return any(member.peer_id == peer_id for member in self._members.values())

    def check_member(self, task_id: str, peer_id: str) -> Member:
        """The member that this task of this peer is. Raises `Refused`."""
        member = self._members.get(task_id)
        if member is None or member.peer_id != peer_id:
            raise Refused("denied", f"task {task_id} of this peer is not a member of job {self.job_id}")
        return member

    def set_members(self, members: Sequence[Member]) -> None:
        """Replace the group. Updates of this round by members who left still count."""
        self._members = {member.task_id: member for member in members}

    def admit(self, header: AnnounceUpdate, peer_id: str, now: float) -> int | None:
        """Decide on an upload before its bytes are read: the round in which it counts already, or None where its bytes
        are wanted. Raises `Refused`."""
        member = self.check_member(header.task_id, peer_id)
        self._check_header(header)
        taken = self._taken.get((header.task_id, header.round))
        if taken is not None and header.sha256 == taken.sha256 and not taken.reason:
            return taken.round
        if taken is not None and header.attempt < taken.attempt:
            raise Refused("stale", f"attempt {header.attempt} is over, attempt {taken.attempt} came before it")
        if taken is not None and taken.reason and header.attempt == taken.attempt:
            raise Refused("invalid", taken.reason)
        if taken is not None and (taken.round != self.round or self.is_closing or header.attempt == taken.attempt):
            raise Refused("conflict", f"round {header.round} already has another update of task {header.task_id}")
        if header.round > self.round:
            raise Refused("busy", f"round {header.round} is not open yet, round {self.round} is")
        if header.round < member.since_round:
            raise Refused("stale", f"task {header.task_id} is expected from round {member.since_round} on")
        if header.round < self.round or self.is_closing:
            self._check_late(header, now)
        return None

    def record(self, header: AnnounceUpdate, peer_id: str, path: str, norm: float, now: float) -> int:
        """Count an update that arrived whole and passed the check; the round in which it counts. Raises `Refused` if
        its round closed meanwhile."""
        counted = self.admit(header, peer_id, now)
        if counted is not None:
            return counted
        if header.samples == 0:
            self.quarantine(header, "0 samples")
            return self.round
        is_late = header.round < self.round
        contribution = Contribution(
            task_id=header.task_id,
            peer_id=peer_id,
            samples=header.samples,
            sha256=header.sha256,
            norm=norm,
            from_round=header.round,
            weight=header.samples * (self._terms.late_weight if is_late else 1.0),
            spans=header.spans,
        )
        key = (header.task_id, header.round)
        if not is_late and key not in self._taken:
            self._deadline.arrived(now)
        self._updates[key] = Update(contribution, path)
        self._taken[key] = _Taken(header.attempt, header.sha256, self.round)
        return self.round

    def quarantine(self, header: AnnounceUpdate, reason: str) -> None:
        """An update that cannot be used: its task counts as having answered, and the round goes on without it."""
        if header.round <= self.round and not self.is_closing:
            key = (header.task_id, header.round)
            self._updates.pop(key, None)
            self._taken[key] = _Taken(header.attempt, header.sha256, self.round, reason)

    def path_of(self, header: AnnounceUpdate) -> str:
        """The file of what this task sent for this round before; empty where there is none."""
        update = self._updates.get((header.task_id, header.round))
        return "" if update is None else update.path

    def closes_at(self, now: float) -> float | None:
        """When to close the open round: `now` if everybody has answered, a deadline, or None (not foreseeable)."""
        if self.is_over or self.is_closing:
            return None
        answered = {task_id for task_id, from_round in self._taken if from_round == self.round}
        if answered and self._expected() <= answered:
            return now
        if len({task_id for task_id, _ in self._updates}) < self._min_members:
            return None
        return self._deadline.at()

    def close(self) -> Closing:
        """Take no more updates for the open round; `committed` opens the next."""
        if self.is_closing or self.is_over:
            raise AssertionError(f"round {self.round} is not open")
        self.is_closing = True
        left_out = {
            task_id: taken.reason for (task_id, _), taken in self._taken.items() if self._is_left_out(task_id, taken)
        }
        for task_id in self._expected():
            if (task_id, self.round) not in self._taken:
                left_out[task_id] = "no update before the deadline"
        return Closing(self.round, [self._updates[key] for key in sorted(self._updates)], left_out)

    def committed(self, now: float) -> None:
        """The scheduler has committed the closing round."""
        if not self.is_closing:
            raise AssertionError(f"round {self.round} was not closed")
        self.round += 1
        self.is_closing = False
        self._deadline.opened(now)
        self._updates = {}
        oldest = self.round - REMEMBERED
        self._taken = {key: taken for key, taken in self._taken.items() if key[1] >= oldest}
        self._late = {key for key in self._late if key[1] >= oldest}

    def validate(self) -> None:
        """Raise AssertionError where an update counts twice or for nobody."""
        assert self._first <= self.round <= self.rounds, "a round that does not exist"
        for key, update in self._updates.items():
            taken = self._taken[key]
            assert not taken.reason, f"the update of {key} is both counted and refused"
            assert taken.round == self.round, f"the update of {key} counts in two rounds"
            assert taken.sha256 == update.contribution.sha256, f"the update of {key} is not the one counted"
            assert key == (update.contribution.task_id, update.contribution.from_round), f"{key} has another's update"

    def _expected(self) -> set[str]:
        return {member.task_id for member in self._members.values() if member.since_round <= self.round}

    def _is_left_out(self, task_id: str, taken: _Taken) -> bool:
        return bool(taken.reason) and taken.round == self.round and (task_id, self.round) not in self._updates

    def _check_header(self, header: AnnounceUpdate) -> None:
        if header.epoch != self.epoch:
            raise Refused("stale", f"the job is in epoch {self.epoch}, the update is of epoch {header.epoch}")
        if header.samples < 0 or header.size_bytes <= 0 or header.round < 0:
            raise Refused("invalid", "an update has a size and a round, and no negative number of samples")
        rows = sum(span.end - span.start for span in header.spans)
        if rows != header.samples or any(span.end <= span.start for span in header.spans):
            raise Refused("invalid", f"{header.samples} samples are announced, the spans hold {rows} rows")

    def _check_late(self, header: AnnounceUpdate, now: float) -> None:
        """May an update of a closed round still come? Raises `Refused`."""
        key = (header.task_id, header.round)
        if key not in self._late and header.round >= self.round - 1:
            self._late.add(key)
            if header.round == self.round:
                self._deadline.arrived(now)
            else:
                self._deadline.came_late(now)
        if not self._carries:
            raise Refused("stale", f"round {header.round} is closed")
        # What is older than our first round may be in a version that another parameter server made.
        if header.round < max(self._first, self.round - REMEMBERED) or self.is_over or header.samples == 0:
            raise Refused("stale", f"round {header.round} is over, round {self.round} takes nothing from it")
        if self.is_closing:
            raise Refused("busy", f"round {self.round} is being committed; the update can count in the next one")


def label(contribution: Contribution, round_: int) -> str:
    """What an update of round `round_` is called: by its task, and by its own round where that is another one."""
    task_id, from_round = contribution.task_id, contribution.from_round
    return task_id if from_round == round_ else f"{task_id}@{from_round}"


def contributors(closing: Closing) -> list[tuple[str, int]]:
    """Whose updates a round averages, and in which round each was made."""
    return [(update.contribution.task_id, update.contribution.from_round) for update in closing.updates]


def without(closing: Closing, left_out: Mapping[str, str]) -> Closing:
    """The same round without the updates of these labels, for these reasons."""
    kept = [update for update in closing.updates if label(update.contribution, closing.round) not in left_out]
    return replace(closing, updates=kept, left_out={**closing.left_out, **left_out})
