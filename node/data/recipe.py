"""What a dataset is built from, and how; opened, it is a source of rows."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from node.data.checked import stamp_of
from node.data.datasets import read_manifest
from node.data.sources.images import PATTERN, Fit
from node.data.sources.source import Source, files_of, first_units
from node.data.sources.values import Fields
from node.errors import DatasetError

Format = Literal["text", "jsonl", "csv", "parquet", "numpy", "saved", "images", "function", "slices"]
FILES: dict[Format, str] = {
    "text": "*",
    "jsonl": "*.jsonl",
    "csv": "*.csv|*.tsv",
    "parquet": "*.parquet",
    "numpy": "*.npy|*.npz",
    "images": PATTERN,
}
ROWS_PER_SLICE = 4_096
SEQUENCE_LENGTH = 128


@dataclass(frozen=True, slots=True)
class Recipe:
    """What to build a dataset from, and how.

    `splits`: endings of the names of the datasets to make, with the share of each; without them there is one, and one
    more, `-validation`, where a fraction is for validation.
    """

    sources: Sequence[Path | str]
    format: Format
    glob: str = ""
    fields: Sequence[str] = ()
    label: str = ""
    tokenizer: Path | None = None
    sequence_length: int = SEQUENCE_LENGTH
    image_size: str = ""
    fit: Fit = "crop"
    is_gray: bool = False
    rows_per_slice: int = ROWS_PER_SLICE
    slice_bytes: int | None = None
    validation_fraction: float = 0.0
    splits: tuple[tuple[str, float], ...] = ()
    is_shuffled: bool = True
    seed: int = 0
    max_bytes: int | None = None

    def check(self) -> None:
        """Raise `DatasetError` for what cannot be."""
        if self.sequence_length < 1 or self.rows_per_slice < 1 or not 0 <= self.validation_fraction < 1:
            raise DatasetError("lengths are at least 1, and the validation fraction is from 0 to below 1")
        if self.slice_bytes is not None and self.slice_bytes < 1:
            raise DatasetError("a slice has at least one byte")
        if self.tokenizer is not None and not (self.tokenizer / "tokenizer.json").is_file():
            raise DatasetError(f"{self.tokenizer} has no tokenizer.json", hint="save_pretrained of a fast tokenizer")
        if any(not 0 < share < 1e9 for _, share in self.splits):
            raise DatasetError("shares are numbers above 0")

    def parts(self) -> tuple[tuple[str, float], ...]:
        """The endings of the datasets' names, with the share of each."""
        if self.splits:
            return self.splits
        held = self.validation_fraction
        return (("", 1 - held), ("-validation", held)) if held else (("", 1.0),)

    def files(self) -> list[Path]:
        """The files it is built from; raises `DatasetError`."""
        if self.format == "function":
            from node.data.sources.function import file_and_name

            return [file_and_name(str(source))[0] for source in self.sources]
        paths = [Path(source) for source in self.sources]
        if self.format == "saved":
            from node.data.sources.arrow import saved_files

            return [path for folder in paths for path in saved_files(folder)]
        if self.format == "slices":
            return [
                dataset.path_of(info) for folder in paths for dataset in [read_manifest(folder)]
                for info in dataset.manifest.slices
            ]  # fmt: skip
        return files_of(paths, self.glob or FILES[self.format])

    def key(self, files: Sequence[Path], names: Sequence[str]) -> str:
        """12 hexadecimal digits that stand for these settings and the files as they are now."""
        digest = hashlib.sha256(repr([(field.name, getattr(self, field.name)) for field in fields(self)]).encode())
        digest.update(repr(list(names)).encode())
        tokenizer = [self.tokenizer / "tokenizer.json"] if self.tokenizer else []
        for path in [*files, *tokenizer]:
            try:
                digest.update(f"{path.absolute()} {stamp_of(path)}".encode())
            except OSError as error:
                raise DatasetError(f"{path} cannot be read: {error.strerror}") from error
        return digest.hexdigest()[:12]

    def open(self, files: Sequence[Path], folder: Path) -> Source:
        """Look through the input. A function is called, and its rows are kept in `folder`. Raises `DatasetError`."""
        source = self._source(files, folder)
        if self.max_bytes is not None and self.format in ("parquet", "saved", "images", "slices"):
            limited = first_units(source.chunks, self.max_bytes // max(1, source.record_bytes))
            return Source(source.reader, source.columns, limited, source.is_stream, source.classes)
        return source

    def _source(self, files: Sequence[Path], folder: Path) -> Source:
        found = Fields(list(self.fields), self.label, self.tokenizer, self.sequence_length)
        match self.format:
            case "text":
                from node.data.sources.text import text_source

                return text_source(files, self.sequence_length, self.tokenizer, self.max_bytes)
            case "jsonl":
                from node.data.sources.lines import json_source

                return json_source(files, found, self.max_bytes)
            case "csv":
                from node.data.sources.lines import csv_source

                return csv_source(files, found, self.max_bytes)
            case "numpy":
                from node.data.sources.arrays import numpy_source

                return numpy_source(files, self.fields, self.max_bytes)
            case "images":
                from node.data.sources.images import image_source

                sources = [Path(source) for source in self.sources]
                return image_source(sources, files, self.image_size, self.fit, self.is_gray)
            case "function":
                from node.data.sources.function import function_source

                if len(self.sources) != 1:
                    raise DatasetError("one function at a time")
                return function_source(str(self.sources[0]), found, folder, self.max_bytes)
            case "slices":
                from node.data.sources.slices import slice_source

                if len(self.sources) != 1:
                    raise DatasetError("one dataset at a time")
                return slice_source(read_manifest(Path(self.sources[0])))
            case "parquet" | "saved":
                return self._arrow(files)

    def _arrow(self, files: Sequence[Path]) -> Source:
        from node.data.sources.arrow import Choice, parquet_source, saved_source
        from node.data.sources.images import Pictures, parse_size
        from node.data.sources.tokens import tokens_of

        pictures = Pictures(*parse_size(self.image_size), self.fit, self.is_gray) if self.image_size else None
        choice = Choice(tuple(self.fields), self.label, tokens_of(self.tokenizer), self.sequence_length, pictures)
        if self.format == "parquet":
            return parquet_source(files, choice)
        return saved_source([Path(source) for source in self.sources], choice)
