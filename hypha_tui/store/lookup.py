"""Finding objects by what a person calls them: id, name, or the beginning of an id that only one has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from hypha_tui.store.cluster import KINDS, ClusterStore

LEAST: Final = 4
"""So many characters of an id, at least, stand for it."""


def find(store: ClusterStore, word: str, kinds: Iterable[str] = KINDS) -> list[tuple[str, str]]:
    """Kinds and ids that `word` names: those with this very id, else this name, else an id that begins so."""
    if not word:
        return []
    exact: list[tuple[str, str]] = []
    named: list[tuple[str, str]] = []
    begun: list[tuple[str, str]] = []
    for kind in kinds:
        for id_, item in store.items(kind).items():
            if id_ == word:
                exact.append((kind, id_))
            elif getattr(item.view, "name", "") == word:
                named.append((kind, id_))
            elif len(word) >= LEAST and id_.startswith(word):
                begun.append((kind, id_))
    return exact or named or begun


def words(store: ClusterStore, kinds: Iterable[str] = KINDS) -> list[str]:
    """Names and ids of all objects of these kinds, for completion."""
    found: set[str] = set()
    for kind in kinds:
        for id_, item in store.items(kind).items():
            found.add(id_)
            name = getattr(item.view, "name", "")
            if isinstance(name, str) and name and " " not in name:
                found.add(name)
    return sorted(found)
