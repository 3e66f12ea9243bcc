"""Fragments of a model: the groups of tensors that synchronise in turn."""

from __future__ import annotations

from node.training.files import Layout, size_of


def fragments_of(layout: Layout, count: int) -> list[list[str]]:
    """The names of each of `count` fragments, of about the same number of bytes.

    Largest tensor first, each to the fragment that has least so far; ties by name and by number, so that everybody
    comes to the same answer. With more fragments than tensors some are empty.
    """
    loads = [0] * count
    fragments: list[list[str]] = [[] for _ in range(count)]
    for name in sorted(layout, key=lambda name: (-size_of(layout[name]), name)):
        lightest = min(range(count), key=lambda number: (loads[number], number))
        loads[lightest] += size_of(layout[name])
        fragments[lightest].append(name)
    return [sorted(names) for names in fragments]


def fragment_in(layout: Layout, round_number: int, count: int) -> list[str]:
    """The names that a round exchanges."""
    return fragments_of(layout, count)[round_number % count]
