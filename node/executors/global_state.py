"""What an executor knows of the group: the newest committed weights, their momentum, and its own codec's residual."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from node.executors.bridge_client import Arrival
from node.training.files import TensorReader, check_layout
from node.training.fragments import fragments_of
from node.training.identity import identity_of
from node.training.traits import Traits
from node.training.updates import check_values, layout_of, write_changes
from node.training.versions import Outer, advanced, digest_of
from node.wire import OuterOptimizer, Sync

Tensors = dict[str, torch.Tensor]


class GlobalState:
    """Float32 tensors in main memory. A version is taken in as a whole or not at all; tensors are replaced, never
    written into."""

    def __init__(
        self,
        tensors: Mapping[str, torch.Tensor],
        traits: Traits,
        sync: Sync,
        outer: OuterOptimizer | None,
        *,
        is_checked: bool = True,
    ) -> None:
        self.base: Tensors = {
            name: value.to("cpu", torch.float32, copy=True).contiguous() for name, value in tensors.items()
        }
        self._momentum: Tensors = {}
        self._residual: Tensors = {}
        self._pending: Tensors = {}
        self._traits = traits
        self._sync = sync
        self._outer = Outer(outer.learning_rate, outer.momentum) if outer is not None else Outer(1.0, 0.0)
        self._is_checked = is_checked
        self._layout = layout_of(self.base)
        self._fragments = fragments_of(self._layout, sync.fragments)
        self._digests: list[str] = [""] * len(self._fragments)
        self._digest: _Digest | None = None
        self._expected = ""

    @property
    def bytes_to_come(self) -> int:
        """What momentum, residual and a new version beside the old one are going to occupy at most."""
        size: int = 4 * sum(value.numel() for value in self.base.values())
        return size * (1 if self._sync.codec == "none" else 4)

    def names_of(self, round_: int) -> Sequence[str]:
        """The tensors that a round exchanges."""
        return self._fragments[round_ % len(self._fragments)]

    def write_update(
        self, path: Path, names: Sequence[str], change: Callable[[str], torch.Tensor], codec: str
    ) -> float:
        """Writes the update of a round out of `change(name)`, what was learned; answers its norm. What the codec leaves
        out counts as left out once the update has counted."""
        written = write_changes(
            path,
            {name: self._layout[name] for name in names},
            change,
            buffers=self._traits.buffers,
            codec=codec,
            density=self._sync.density,
            residual=self._residual,
        )
        self._pending = written.residual
        return written.norm

    def advance(self, arrival: Arrival, version: int) -> Sequence[str]:
        """Takes in what leads to `version`; answers the tensors that are new."""
        if arrival.is_weights:
            self.load(arrival.path, arrival.momentum)
            names: Sequence[str] = list(self.base)
        else:
            names = self.names_of(version - 1)
            weights, momentum = advanced(
                arrival.path, self.base, self._momentum, names=names, traits=self._traits, outer=self._outer
            )
            self.base.update(weights)
            self._momentum.update(momentum)
        if arrival.counted:
            self._residual.update(self._pending)
        self._pending = {}
        self._expected = arrival.sha256
        if arrival.sha256 and self._is_checked:
            self._reckon(names)
        return names

    def load(self, path: Path, momentum: Path | None) -> None:
        """Takes a whole version from its files; without a second one there is no momentum."""
        weights = self._read(path)
        speeds = {} if momentum is None or self._sync.codec == "none" else self._read(momentum)
        self.base, self._momentum, self._digest = weights, speeds, None
        self._digests = [""] * len(self._fragments)

    def is_sound(self) -> bool:
        """Whether the weights are known by the digest that came with them; waits for it to be reckoned."""
        digest, self._digest = self._digest, None
        return digest is None or digest.result() == self._expected

    def _reckon(self, changed: Sequence[str]) -> None:
        """Begin to reckon what the weights are known by, now that these tensors are others."""
        if self._digest is not None:
            self._digest.result()
        stale = [
            number
            for number, names in enumerate(self._fragments)
            if not self._digests[number] or not set(names).isdisjoint(changed)
        ]
        parts = {number: {name: self.base[name] for name in self._fragments[number]} for number in stale}
        self._digest = _Digest(self._digests, parts, self._traits.metadata)

    def _read(self, path: Path) -> Tensors:
        with TensorReader(path) as reader:
            check_layout(reader, self._layout)
            check_values(reader)
            return {name: reader.tensor(name) for name in self._layout}


class _Digest:
    """What weights are known by, reckoned in a thread: `digests` of all fragments, once those of `parts` are new."""

    def __init__(self, digests: list[str], parts: Mapping[int, Tensors], metadata: Mapping[str, str]) -> None:
        self._digests = digests
        self._parts = dict(parts)
        self._metadata = metadata
        self._thread = threading.Thread(target=self._work, name="digest", daemon=True)
        self._thread.start()

    def result(self) -> str:
        """The digest, in hexadecimal."""
        self._thread.join()
        return identity_of(self._digests)

    def _work(self) -> None:
        while self._parts:
            number, tensors = self._parts.popitem()
            self._digests[number] = digest_of(tensors, self._metadata)
