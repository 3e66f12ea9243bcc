"""What Tab makes of a begun `:` line. No I/O: what there is to complete with comes in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hypha_tui.keys.keymap import COMMANDS, find_command

Offer = Callable[[str, str], Sequence[str]]
"""The words for an argument: its kind (`Command.completes`) and what is written of it."""


@dataclass(frozen=True, slots=True)
class Completion:
    """The line as far as it is certain, and what it could become."""

    line: str
    choices: tuple[str, ...] = ()


def complete(line: str, offer: Offer) -> Completion:
    """Complete the name of a command, or else its argument; never chooses among several."""
    word, space, rest = line.partition(" ")
    if not space:
        names = sorted(command.name for command in COMMANDS if command.name.startswith(word))
        if not names:
            return Completion(line)
        return Completion(f"{names[0]} " if len(names) == 1 else common(names), tuple(names))
    command, _ = find_command(word)
    if command is None or not command.completes:
        return Completion(line)
    words = list(offer(command.completes, rest))
    matching = [one for one in words if one.lower().startswith(rest.lower())]
    matching = matching or [one for one in words if rest.lower() in one.lower()]
    if not matching:
        return Completion(line)
    begun = common(matching)
    keeps = len(begun) >= len(rest) and begun.lower().startswith(rest.lower())
    return Completion(f"{word} {begun if keeps or len(matching) == 1 else rest}", tuple(matching))


def common(words: Sequence[str]) -> str:
    """The longest beginning that all have."""
    shortest, longest = min(words), max(words)
    for number, character in enumerate(shortest):
        if longest[number] != character:
            return shortest[:number]
    return shortest
