"""What a state's tensors are beside float32 parameters, as its weights file says in its metadata. Without NumPy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

BUFFERS = "hypha.buffers"
COUNTERS = "hypha.counters"
TIED = "hypha.tied"


@dataclass(frozen=True, slots=True)
class Traits:
    """`buffers` bypass the outer optimizer; those of them that count in whole numbers are `counters`. `tied` leads from
    the other names of a tensor to the one that it travels under."""

    buffers: frozenset[str] = frozenset()
    counters: frozenset[str] = frozenset()
    tied: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, metadata: Mapping[str, str]) -> Traits:
        """As a file says."""
        return cls(
            frozenset(json.loads(metadata.get(BUFFERS, "[]"))),
            frozenset(json.loads(metadata.get(COUNTERS, "[]"))),
            tied_in(metadata),
        )

    @property
    def metadata(self) -> dict[str, str]:
        """Metadata of a weights file. `format` is what Transformers asks for."""
        counters = {COUNTERS: json.dumps(sorted(self.counters))} if self.counters else {}
        return {"format": "pt", BUFFERS: json.dumps(sorted(self.buffers)), **counters, **self.tied_metadata}

    @property
    def tied_metadata(self) -> dict[str, str]:
        """Metadata of a delta, for those who know tensors by other names."""
        return {TIED: json.dumps(dict(sorted(self.tied.items())))} if self.tied else {}


def tied_in(metadata: Mapping[str, str]) -> dict[str, str]:
    """The other names that a file tells of. Raises ValueError for anything else than a table of names."""
    tied = json.loads(metadata.get(TIED, "{}"))
    if not isinstance(tied, dict) or not all(isinstance(name, str) for name in tied.values()):
        raise ValueError(f"{TIED} is not a table of names")
    return tied
