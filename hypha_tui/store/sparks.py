"""The last values of the one thing that moves in an object, for the sparklines in tables. Bounded: some per object."""

from __future__ import annotations

import math
from array import array
from typing import Final

from node.views import AnyView, JobView, PeerView, TransferView

KEPT: Final = 16


class Sparks:
    """Last values by kind and id."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, str], array[float]] = {}

    def put(self, view: AnyView) -> None:
        """Note the value of an object as it is told."""
        self.note(view.kind, view.id, moving_value(view))

    def note(self, kind: str, id_: str, value: float | None) -> None:
        """Note a value, if there is one."""
        if value is None or not math.isfinite(value):
            return
        values = self._values.setdefault((kind, id_), array("d"))
        values.append(value)
        if len(values) > KEPT:
            del values[0]

    def drop(self, kind: str, id_: str) -> None:
        """The object is gone."""
        self._values.pop((kind, id_), None)

    def of(self, kind: str, id_: str) -> list[float]:
        """The last values, the newest at the end."""
        return list(self._values.get((kind, id_), ()))


def moving_value(view: AnyView) -> float | None:
    """What a sparkline of this object shows."""
    match view:
        case PeerView():
            return view.rtt_ms
        case TransferView():
            return view.bytes_per_s
        case JobView():
            return view.loss
        case _:
            return None
