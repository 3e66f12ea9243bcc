"""Which rows of the data a task has in hand, has trained on, waits to hear of, and gives back. No clock, no I/O.

Every row that was granted is in exactly one of these places until it is counted or returned.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from node.wire import Span


@dataclass(slots=True)
class Outstanding:
    """The rows of an update whose fate is not known. `counts_in`: the round that its receiver will count it in."""

    spans: list[Span]
    counts_in: int | None = None


class Rows:
    """The rows of one training task."""

    def __init__(self) -> None:
        self.open: list[Span] = []
        self.outstanding: dict[int, Outstanding] = {}
        self._hand: Span | None = None
        self._returns: list[list[Span]] = []
        self._answered = 0

    @property
    def in_hand(self) -> Span | None:
        """Rows the executor has been given and has not used."""
        return self._hand

    @property
    def returned(self) -> tuple[int, list[Span]]:
        """Number and rows of what is being given back; no rows where nothing is. The same until it is answered."""
        return (self._answered + 1, self._returns[0]) if self._returns else (self._answered, [])

    def take(self, span: Span) -> None:
        """The executor has a slice in its hands."""
        self.finish()
        if span.start < span.end:
            self._hand = span

    def finish(self) -> None:
        """It asks for the next one: what was left of this one is used."""
        if self._hand is not None:
            self.use(self._hand.end - self._hand.start)

    def use(self, rows: int) -> int:
        """It has trained on the next rows of its slice; how many, which is less where the slice has no more."""
        hand = self._hand
        if hand is None or rows <= 0:
            return 0
        end = min(hand.end, hand.start + rows)
        last = self.open[-1] if self.open else None
        if last is not None and (last.pass_, last.index, last.end) == (hand.pass_, hand.index, hand.start):
            self.open[-1] = Span(last.pass_, last.index, last.start, end)
        else:
            # In the order of use: that is what a record of the training tells.
            self.open.append(Span(hand.pass_, hand.index, hand.start, end))
        self._hand = Span(hand.pass_, hand.index, end, hand.end) if end < hand.end else None
        return end - hand.start

    def freeze(self, round_: int) -> list[Span]:
        """The rows used so far are those of this round's update."""
        if round_ in self.outstanding:
            raise AssertionError(f"round {round_} has its rows already")
        spans, self.open = self.open, []
        self.outstanding[round_] = Outstanding(spans)
        return spans

    def drop(self) -> None:
        """What was learned from the rows used so far is thrown away."""
        spans, self.open = self.open, []
        self.give_back(spans)

    def taken(self, round_: int, counts_in: int) -> None:
        """A parameter server has the update of `round_`, for the round `counts_in`."""
        if round_ in self.outstanding:
            self.outstanding[round_].counts_in = counts_in

    def late(self, round_: int) -> None:
        """It will not take it. What was committed before may hold it all the same."""
        if round_ in self.outstanding:
            self.outstanding[round_].counts_in = None

    def learn(self, version: int, counted: Iterable[int]) -> None:
        """`version` is committed and holds this task's updates of the rounds `counted`. The others that could have been
        in it, or in one before, are not in any: they are given back."""
        for round_ in counted:
            self.outstanding.pop(round_, None)
        lost = [
            round_
            for round_, update in self.outstanding.items()
            if (round_ if update.counts_in is None else update.counts_in) < version
        ]
        self.give_back([span for round_ in lost for span in self.outstanding.pop(round_).spans])

    def give_back(self, spans: Sequence[Span]) -> None:
        """These rows are for others to train on."""
        if spans:
            self._returns.append(merged(spans))

    def answered(self, number: int) -> None:
        """The scheduler has heard of the returned rows with this number."""
        if self._returns and number == self._answered + 1:
            self._returns.pop(0)
            self._answered = number

    def validate(self) -> None:
        """Raise AssertionError where a row is in two places."""
        # Those that are being returned may have been heard of, and granted to this task again.
        places = [self.open, *(update.spans for update in self.outstanding.values()), *self._returns[1:]]
        spans = [span for place in places for span in place]
        if self._hand is not None:
            spans.append(self._hand)
        if count(spans) != count(merged(spans)):
            raise AssertionError(f"rows in two places: {sorted(spans)}")


def merged(spans: Sequence[Span]) -> list[Span]:
    """The same rows in order, in as few spans as possible; a row that is in two of them is there once."""
    found: list[Span] = []
    for span in sorted(spans):
        last = found[-1] if found else None
        if last is not None and (last.pass_, last.index) == (span.pass_, span.index) and span.start <= last.end:
            found[-1] = Span(last.pass_, last.index, last.start, max(last.end, span.end))
        else:
            found.append(span)
    return found


def count(spans: Iterable[Span]) -> int:
    """How many rows these are."""
    return sum(span.end - span.start for span in spans)
