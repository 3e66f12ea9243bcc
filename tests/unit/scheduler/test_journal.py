from __future__ import annotations

import random

import pytest

from node.scheduler.journal import DELTA, DELTAS_ALLOWED, MOMENTUM, WEIGHTS, Chain, file_name
from node.wire import VersionFile


def file(kind: str, number: int, size: int = 100) -> VersionFile:
    return VersionFile(kind=kind, number=number, sha256=f"{kind}{number}", size_bytes=size)


def base(number: int, size: int = 100) -> list[VersionFile]:
    return [file(WEIGHTS, number, size), *([file(MOMENTUM, number, size)] if number else [])]


def test_a_chain_is_one_whole_version_and_every_delta_since() -> None:
    chain = Chain()
    assert (chain.version, chain.files()) == (None, [])
    chain.rebase(base(0))
    for number in (1, 2):
        chain.add(file(DELTA, number, 1))
        chain.validate()
    assert chain.version == 2
    assert [file_name(entry) for entry in chain.files()] == [
        "weights-0.safetensors",
        "delta-1.safetensors",
        "delta-2.safetensors",
    ]
    assert chain.find(DELTA, 2) == file(DELTA, 2, 1)
    assert chain.find(WEIGHTS, 2) is None


def test_a_new_base_ends_the_chain_before_it_and_keeps_the_deltas_after_it() -> None:
    chain = Chain()
    chain.rebase(base(0))
    for number in range(1, 6):
        chain.add(file(DELTA, number))
    chain.rebase(base(4))
    chain.validate()
    assert [entry.number for entry in chain.files()] == [4, 4, 5]
    assert chain.version == 5


def test_a_new_base_is_due_when_the_deltas_outweigh_it_or_are_many() -> None:
    chain = Chain()
    chain.rebase(base(0, size=100))
    chain.add(file(DELTA, 1, 60))
    assert not chain.is_base_due()
    chain.add(file(DELTA, 2, 60))
    assert chain.is_base_due()
    small = Chain()
    small.rebase(base(0, size=10**9))
    for number in range(1, DELTAS_ALLOWED + 1):
        assert not small.is_base_due()
        small.add(file(DELTA, number, 1))
    assert small.is_base_due()


def test_a_gap_is_not_accepted() -> None:
    chain = Chain()
    with pytest.raises(AssertionError, match="gap"):
        chain.add(file(DELTA, 1))
    chain.rebase(base(3))
    with pytest.raises(AssertionError, match="gap"):
        chain.add(file(DELTA, 5))


@pytest.mark.parametrize("seed", range(10))
def test_a_chain_that_is_read_again_in_any_order_is_the_same(seed: int) -> None:
    rng = random.Random(seed)
    chain = Chain()
    chain.rebase(base(7))
    for number in range(8, 8 + rng.randrange(6)):
        chain.add(file(DELTA, number))
    files = chain.files()
    rng.shuffle(files)
    assert Chain.of(files) == chain
