"""The filter language: words that a row must all match. Screens and twin commands read it alike.

    ams !lost job:diloco-7 ttl<10s rtt>100 gpu:h100 /w-\\d+/ "two words"

A filter is parsed against the columns of one kind. What cannot be parsed is a `FilterError`; the caller keeps the
filter it has. Matching takes bounded time whatever the pattern: see `checked_pattern`.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from hypha_tui.store.columns import Column, Look
from node.errors import ConfigError
from node.schema import nearest

LONG_IDS: Final = frozenset({"id", "digest", "task"})
ID_PART: Final = 6
"""Random ids contain every short word: only so many characters of one are looked for in it."""
LONGEST_CELL: Final = 64
"""A pattern sees so many characters of a cell."""
LONGEST_PATTERN: Final = 100
MOST_REPEATS: Final = 3

_TOKEN: Final = re.compile(r'(?:"[^"]*"?|/(?:\\.|[^/\\])*/(?=\s|$)|[^\s"])+')
_COMPARED: Final = re.compile(r"([A-Za-z][\w-]*)(>=|<=|>|<|=|:)(.*)", re.DOTALL)
_AMOUNT: Final = re.compile(r"([-+]?\d+(?:\.\d*)?|[-+]?\.\d+)\s*([A-Za-z/%]*)")
_QUANTIFIER: Final = re.compile(r"[*+?]|\{\d*,?\d*\}")

_TIMES: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_SIZES: Final = {
    f"{prefix}{end}": base**power
    for power, prefix in enumerate(("", "k", "m", "g", "t"))
    for end, base in (("", 1000), ("b", 1000), ("ib", 1024))
    if prefix or end == "b"
}
_FACTORS: Final[dict[str, dict[str, float]]] = {
    "": {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9},
    "s": {"": 1.0, **_TIMES},
    "ms": {"": 1.0, **{unit: factor * 1_000 for unit, factor in _TIMES.items()}},
    "d": {"": 1.0, "d": 1.0, "h": 1 / 24},
    "B": {"": 1.0, **_SIZES},
    "B/s": {"": 1.0, **_SIZES, **{f"{unit}/s": factor for unit, factor in _SIZES.items()}},
    "%": {"": 0.01, "%": 0.01},
}
"""What a unit stands for, by the measure of a column; durations of minutes and sizes in M share the letter."""
_ORDERS: Final[dict[str, Callable[[float, float], bool]]] = {
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
    "=": operator.eq,
}


class FilterError(ConfigError):
    """A filter that cannot be understood."""


Test = Callable[[Any, Look, str], bool]
"""Whether an object matches; the last argument is its text (`hay`)."""


@dataclass(frozen=True, slots=True)
class Term:
    """One word of a filter. `is_live`: time alone may change its answer."""

    test: Test
    is_live: bool = False


class Filter:
    """Terms that must all match."""

    def __init__(self, words: str, columns: Sequence[Column[Any]], terms: Sequence[Term]) -> None:
        self.words = words
        self._columns = [column for column in columns if column.key not in LONG_IDS and not column.is_live]
        self._state = next((column for column in columns if column.key == "state"), None)
        self._terms = terms

    @property
    def is_live(self) -> bool:
        """Whether time alone may change what matches."""
        return any(term.is_live for term in self._terms)

    def hay(self, view: Any, look: Look) -> str:
        """The text of an object that plain words are looked for in: what only changes when the object does."""
        return "\n".join(column.cell(view, look)[0][:LONGEST_CELL] for column in self._columns).casefold()

    def matches(self, view: Any, look: Look, hay: str | None = None) -> bool:
        """Whether an object matches. `hay`: its text, where the caller kept it."""
        text = self.hay(view, look) if hay is None else hay
        if self._state is not None and self._state.is_live:
            text = f"{self._state.cell(view, look)[0]}\n{text}"
        return all(term.test(view, look, text) for term in self._terms)


def parse(words: str, columns: Sequence[Column[Any]]) -> Filter:
    """A filter over objects with these columns; FilterError says what is wrong with it."""
    state_is_live = any(column.key == "state" and column.is_live for column in columns)
    terms = [_term(token, columns, state_is_live) for token in _TOKEN.findall(words)]
    return Filter(words.strip(), columns, [term for term in terms if term is not None])


def checked_pattern(source: str) -> re.Pattern[str]:
    """A pattern that cannot take long on a cell: no repeat of a group that itself repeats or has alternatives, no
    reference back, few repeats. Together with `LONGEST_CELL` that bounds the steps of a match."""
    if len(source) > LONGEST_PATTERN:
        raise FilterError(f"/{source[:20]}../ is longer than {LONGEST_PATTERN} characters")
    try:
        pattern = re.compile(source, re.IGNORECASE)
    except (re.error, OverflowError, RecursionError) as error:
        raise FilterError(f"/{source}/ is no regular expression: {error}") from None
    problem = _slow_part(source)
    if problem:
        raise FilterError(f"/{source}/ could take very long: {problem}")
    return pattern


def _slow_part(source: str) -> str:
    bare = re.sub(r"\[\^?\]?(?:\\.|[^\]\\])*\]", "a", source)
    if re.search(r"(?<!\\)(?:\\\\)*(?:\\[1-9]|\(\?P=)", bare):
        return "it refers back to a group"
    bare = re.sub(r"\\.", "a", bare)
    repeats = 0
    holds = [False]
    """For each open group: whether it repeats something or has alternatives."""
    at = 0
    while at < len(bare):
        character = bare[at]
        quantifier = _QUANTIFIER.match(bare, at)
        if character == "(":
            holds.append(False)
            at += 2 if bare.startswith("(?", at) else 0
        elif character == "|":
            holds[-1] = True
        elif quantifier is not None and quantifier[0] != "{}":
            repeats += quantifier[0] != "?"
            holds[-1] = True
            at = quantifier.end() - 1
        elif character == ")" and len(holds) > 1:
            inner = holds.pop()
            following = _QUANTIFIER.match(bare, at + 1)
            if inner and following is not None and following[0] != "?":
                return "a repeated group repeats or has alternatives"
            holds[-1] = holds[-1] or inner
        at += 1
    return f"it has more than {MOST_REPEATS} repeats" if repeats > MOST_REPEATS else ""


def _term(token: str, columns: Sequence[Column[Any]], state_is_live: bool) -> Term | None:
    is_inverse = token.startswith("!") and len(token) > 1
    body = token[1:] if is_inverse else token
    compared = _COMPARED.fullmatch(body)
    if compared is not None:
        column = _column(compared[1], columns)
        term = _column_term(column, compared[2], compared[3])
    elif body.startswith("/"):
        term = Term(_search(_pattern(body)), state_is_live)
    else:
        term = _word_term(_unquoted(body).casefold(), state_is_live)
    if term is None or not is_inverse:
        return term
    test = term.test
    return Term(lambda view, look, hay: not test(view, look, hay), term.is_live)


def _word_term(word: str, state_is_live: bool) -> Term | None:
    if not word:
        return None
    is_id_part = len(word) >= ID_PART

    def test(view: Any, _look: Look, hay: str) -> bool:
        return word in hay or (is_id_part and word in str(getattr(view, "id", "")).casefold())

    return Term(test, state_is_live)


def _column_term(column: Column[Any], sign: str, value: str) -> Term | None:
    if sign == ":" or (sign == "=" and not column.is_number):
        if not value:
            return None  # it is still being written
        if sign == ":" and value.startswith("/"):
            pattern = _pattern(value)
            return Term(lambda view, look, _: bool(pattern.search(_cell(column, view, look))), column.is_live)
        wanted = _unquoted(value).casefold()
        if sign == ":":
            return Term(lambda view, look, _: wanted in column.cell(view, look)[0].casefold(), column.is_live)
        return Term(lambda view, look, _: wanted == _bare(column, view, look).casefold(), column.is_live)
    if not column.is_number:
        raise FilterError(f"{column.key} is not a number", hint=f"write {column.key}:{value}")
    if not value:
        return None
    amount = _amount(column, value)
    compare = _ORDERS[sign]

    def test(view: Any, look: Look, _hay: str) -> bool:
        found = column.number(view, look)
        return found is not None and compare(found, amount)

    return Term(test, column.is_live)


def _amount(column: Column[Any], value: str) -> float:
    found = _AMOUNT.fullmatch(_unquoted(value))
    factors = _FACTORS[column.measure]
    if found is None or found[2].lower() not in factors:
        units = ", ".join(unit for unit in factors if unit)
        hint = f"units are {units}" if units else "write a number"
        raise FilterError(f"{value!r} is no value of {column.key}", hint=hint)
    return float(found[1]) * factors[found[2].lower()]


def _column(name: str, columns: Sequence[Column[Any]]) -> Column[Any]:
    wanted = name.casefold()
    for column in columns:
        if wanted in (column.key, column.title.casefold(), *column.aliases):
            return column
    names = [name for column in columns for name in (column.key, *column.aliases)]
    close = nearest(wanted, names)
    hint = f"did you mean {close}?" if close else f"there are {', '.join(column.key for column in columns)}"
    raise FilterError(f"there is no column {name!r}", hint=hint)


def _pattern(body: str) -> re.Pattern[str]:
    if len(body) < 2 or not body.endswith("/"):
        raise FilterError(f"{body} has no / at its end", hint='quote text that begins with /: "/ip4"')
    return checked_pattern(body[1:-1])


def _search(pattern: re.Pattern[str]) -> Test:
    return lambda _view, _look, hay: any(pattern.search(cell) for cell in hay.split("\n"))


def _cell(column: Column[Any], view: Any, look: Look) -> str:
    return column.cell(view, look)[0][:LONGEST_CELL]


def _bare(column: Column[Any], view: Any, look: Look) -> str:
    """The text of a cell; of a state without its sign."""
    shown = column.cell(view, look)[0]
    return shown.partition(" ")[2] if column.key == "state" and " " in shown else shown


def _unquoted(text: str) -> str:
    return text.replace('"', "")
