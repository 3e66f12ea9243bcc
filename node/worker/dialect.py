"""Steps in the names of who asks for them: upstream's executor adds what it finds under the names of its own update.

Those are the ones that safetensors saves a model under. Of tied weights that may be another than ours, and there are
counters among them that other executors do not send.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from node.errors import TensorFileError
from node.tensorfile import copy_tensors, read_header
from node.training.traits import tied_in


def names_in(update: Path) -> frozenset[str]:
    """The names in an update; none where it is no sound file, which its receiver will say."""
    try:
        return frozenset(read_header(update).tensors)
    except TensorFileError:
        return frozenset()


def in_names_of(names: frozenset[str], step: Path, target: Path) -> bool:
    """Write `step` to `target` in these names; False, and nothing written, where it is in them already.

    Raises TensorFileError where the step lacks one of them.
    """
    header = read_header(step)
    if not names or names == header.tensors.keys():
        return False
    try:
        tied = tied_in(header.metadata)
    except ValueError as error:
        raise TensorFileError(f"{step.name}: {error}") from error
    copy_tensors(step, target, {name: _held(name, header.tensors, tied) for name in sorted(names)})
    return True


def _held(name: str, held: Mapping[str, object], tied: Mapping[str, str]) -> str:
    """What the step has this tensor under; where it has it not, its own name, which will not be found."""
    return name if name in held else tied.get(name, name)
