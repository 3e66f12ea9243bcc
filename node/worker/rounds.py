"""When a round of the parameter server closes, and what it averages. No clock, no I/O.

An update counts once per round and task. A round closes when every expected member has answered, or, once one update
is in, at a deadline with at least `min_members`. Who comes later is told that the round is over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from node.errors import Refused
from node.wire import Contribution, Member, UpdateHeader

GRACE_S = 15.0


class Admission(Enum):
    """Whether an upload's bytes are wanted."""

    RECEIVE = "receive"
    HAVE = "have"


@dataclass(frozen=True, slots=True)
class Update:
    """One update that passed the check, and the file it lies in."""

    contribution: Contribution
    path: str


@dataclass(frozen=True, slots=True)
class Closing:
    """A round that takes no more updates. Without updates it is void: the version advances by a step of zeros."""

    round: int
    updates: list[Update]
    left_out: dict[str, str]


class Rounds:
    """The rounds of one job on its parameter server."""

    def __init__(
        self, job_id: str, epoch: int, rounds: int, members: Sequence[Member], min_members: int, now: float
    ) -> None:
        self.job_id = job_id
        self.epoch = epoch
        self.rounds = rounds
        self.round = 0
        self.is_closing = False
        self._members = {member.task_id: member for member in members}
        self._min_members = max(1, min_members)
        self._opened_at = now
        self._first_at: float | None = None
        self._updates: dict[str, Update] = {}
        self._refused: dict[str, str] = {}
        self._counted: dict[tuple[int, str], str] = {}

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

    def admit(self, header: UpdateHeader, peer_id: str) -> Admission:
        """Decide on an upload before its bytes are read. Raises `Refused`."""
        member = self.check_member(header.task_id, peer_id)
        if header.epoch != self.epoch:
            raise Refused("stale", f"the job is in epoch {self.epoch}, the update is of epoch {header.epoch}")
        counted = self._counted.get((header.round, header.task_id))
        if counted is not None:
            if counted == header.sha256:
                return Admission.HAVE
            raise Refused("conflict", f"round {header.round} already has another update of task {header.task_id}")
        if header.round < self.round or (header.round == self.round and self.is_closing):
            raise Refused("stale", f"round {header.round} is closed")
        if header.round > self.round:
            raise Refused("busy", f"round {header.round} is not open yet, round {self.round} is")
        if header.round < member.since_round:
            raise Refused("stale", f"task {header.task_id} is expected from round {member.since_round} on")
        refused = self._refused.get(header.task_id)
        if refused is not None:
            raise Refused("invalid", refused)
        if header.samples < 0 or header.size_bytes <= 0:
            raise Refused("invalid", "an update has a size, and no negative number of samples")
        return Admission.RECEIVE

    def record(self, header: UpdateHeader, peer_id: str, path: str, norm: float, now: float) -> None:
        """Count an update that arrived whole and passed the check. Raises `Refused` if the round closed meanwhile."""
        if self.admit(header, peer_id) is Admission.HAVE:
            return
        if header.samples == 0:
            self.quarantine(header, "0 samples")
            return
        contribution = Contribution(
            task_id=header.task_id, peer_id=peer_id, samples=header.samples, sha256=header.sha256, norm=norm
        )
        self._updates[header.task_id] = Update(contribution, path)
        self._counted[(header.round, header.task_id)] = header.sha256
        if self._first_at is None:
            self._first_at = now

    def quarantine(self, header: UpdateHeader, reason: str) -> None:
        """An update that cannot be used: its task counts as having answered, and the round goes on without it."""
        if header.round == self.round and not self.is_closing:
            self._refused[header.task_id] = reason

    def closes_at(self, now: float) -> float | None:
        """When to close the open round: `now` if everybody has answered, a deadline, or None (not foreseeable)."""
        if self.is_over or self.is_closing:
            return None
        expected = {m.task_id for m in self._members.values() if m.since_round <= self.round}
        answered = self._updates.keys() | self._refused.keys()
        if answered and expected <= answered:
            return now
        if self._first_at is None or len(self._updates) < self._min_members:
            return None
        return self._first_at + max(GRACE_S, self._first_at - self._opened_at)

    def close(self) -> Closing:
        """Take no more updates for the open round; `committed` opens the next."""
        if self.is_closing or self.is_over:
            raise AssertionError(f"round {self.round} is not open")
        self.is_closing = True
        left_out = dict(self._refused)
        for member in self._members.values():
            known = member.task_id in self._updates or member.task_id in left_out
            if member.since_round <= self.round and not known:
                left_out[member.task_id] = "no update before the deadline"
        updates = [self._updates[task_id] for task_id in sorted(self._updates)]
        return Closing(self.round, updates, left_out)

    def committed(self, now: float) -> None:
        """The closing round's new version is on disk."""
        if not self.is_closing:
            raise AssertionError(f"round {self.round} was not closed")
        self.round += 1
        self.is_closing = False
        self._opened_at = now
        self._first_at = None
        self._updates = {}
        self._refused = {}
        self._counted = {key: digest for key, digest in self._counted.items() if key[0] >= self.round - 3}

    def validate(self) -> None:
        """Raise AssertionError where an update counts twice or for nobody."""
        if self._updates.keys() & self._refused.keys():
            raise AssertionError("a task's update is both counted and refused")
        if self.round > self.rounds:
            raise AssertionError("more rounds than there are")
        for task_id, update in self._updates.items():
            if self._counted.get((self.round, task_id)) != update.contribution.sha256:
                raise AssertionError(f"update of {task_id} is not the one counted")
