"""Rows given as values by field: numbers, equal lists of numbers, classes by name, or one field of text."""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from node.data.sources.source import LABELS, Column
from node.data.sources.tokens import Tokens, token_column, tokens_of
from node.errors import DatasetError

MAX_CLASSES = 65_536
MAX_NUMBER = {False: 1 << 63, True: 3.4e38}
"""Bounds of a whole number (I64) and of a fraction (F32)."""


@dataclass(slots=True)
class Fields:
    """Which fields of the rows are taken, and what has been found in them so far: look at all rows, then `encoder`.

    `label`: a field of classes, by name or number; its column is `labels`. Raises `DatasetError` naming the row.
    """

    names: list[str]
    label: str
    tokenizer: Path | None
    length: int
    is_text: bool | None = None
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    floats: set[str] = field(default_factory=set)
    classes: set[str] = field(default_factory=set)

    def look(self, where: str, values: Mapping[str, Any]) -> None:
        """See what a row is like."""
        self.check(where, values)
        is_text = len(self.names) == 1 and not self.label and isinstance(values[self.names[0]], str)
        if self.is_text is None:
            self.is_text = is_text
        if self.is_text and is_text:
            return
        for name in self.names:
            self._look_at(where, name, values[name])
        if self.label and isinstance(found := values[self.label], str):
            self.classes.add(found)
            if len(self.classes) > MAX_CLASSES:
                raise DatasetError(f"{where}: more than {MAX_CLASSES:,} classes in {self.label!r}")
        elif self.label:
            self._look_at(where, self.label, found)

    def check(self, where: str, values: Mapping[str, Any]) -> None:
        """Raise `DatasetError` unless a row has all the fields."""
        for name in (*self.names, *([self.label] if self.label else [])):
            if name not in values:
                known = ", ".join(sorted(map(str, values)))[:200]
                raise DatasetError(f"{where}: no field {name!r}", hint=f"choose with --field from: {known}")

    def encoder(self) -> Encoder:
        """What makes records of rows like those that were looked at."""
        if self.is_text:
            tokens = tokens_of(self.tokenizer)
            return Encoder(tokens, self.names, token_column(tokens, self.length), {})
        if self.tokenizer is not None:
            raise DatasetError("a tokenizer is for one field of text", hint="choose it with --field, without --label")
        columns = {name: Column("F32" if name in self.floats else "I64", self.shapes[name]) for name in self.names}
        names = dict(zip(self.names, self.names, strict=True))
        if self.label and self.classes and self.label in self.shapes:
            raise DatasetError(f"field {self.label!r} has names of classes in some rows and numbers in others")
        if self.label and self.label in self.floats:
            raise DatasetError(f"field {self.label!r} has fractions, which number no class")
        if self.label:
            columns[LABELS] = Column("I64", self.shapes.get(self.label, ()))
            names[LABELS] = self.label
        classes = {LABELS: sorted(self.classes)} if self.classes else {}
        return Encoder(None, [names[column] for column in columns], columns, classes)

    def _look_at(self, where: str, name: str, value: Any) -> None:
        numbers = flat(value)
        if self.is_text or not all(type(number) in (int, float) for number in numbers):
            hint = "" if self.is_text else "choose others with --field; --label names a field of classes"
            raise DatasetError(f"{where}: field {name!r} is not {'text' if self.is_text else 'numbers'}", hint=hint)
        shape = shape_of(value)
        if shape is None or self.shapes.setdefault(name, shape) != shape:
            raise DatasetError(f"{where}: field {name!r} has the shape {shape}, before it was {self.shapes.get(name)}")
        if any(type(number) is float for number in numbers):
            self.floats.add(name)
        if not all(abs(number) < MAX_NUMBER[name in self.floats] for number in numbers):
            raise DatasetError(f"{where}: field {name!r} has a number that does not fit")


class Encoder:
    """Makes records of rows that are alike."""

    def __init__(
        self, tokens: Tokens | None, fields: Sequence[str], columns: dict[str, Column], classes: dict[str, list[str]]
    ) -> None:
        self.columns = columns
        self.classes = classes
        self.is_stream = tokens is not None
        self._tokens = tokens
        self._fields = list(fields)
        self._numbers = {name: number for names in classes.values() for number, name in enumerate(names)}

    def encode(self, values: Mapping[str, Any]) -> bytes:
        """A row's record, or the tokens of its text."""
        if self._tokens is not None:
            return self._tokens.encode(values[self._fields[0]], ends=True)
        record = b""
        for column, name in zip(self.columns.values(), self._fields, strict=True):
            value = values[name]
            if isinstance(value, str):
                value = self._numbers[value]
            record += array("f" if column.dtype == "F32" else "q", flat(value)).tobytes()
        return record


def flat(value: Any) -> list[Any]:
    """The numbers of nested lists."""
    if not isinstance(value, list):
        return [value]
    return [number for item in value for number in flat(item)]


def shape_of(value: Any) -> tuple[int, ...] | None:
    """The shape of nested lists; None where they are ragged."""
    if not isinstance(value, list):
        return ()
    shapes = {shape_of(item) for item in value}
    inner = shapes.pop() if len(shapes) == 1 else None
    return None if inner is None else (len(value), *inner)


def class_names(text: Any) -> dict[str, list[str]]:
    """The names of classes by column in what `datasets` writes about features; empty where there are none."""
    try:
        features = json.loads(text)["info"]["features"]
        return {name: list(map(str, kind["names"])) for name, kind in features.items() if "names" in kind}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}
