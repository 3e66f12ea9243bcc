"""Files of text: their bytes as tokens, or a tokenizer's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from node.data.sources.source import CHUNK_BYTES, Chunk, Piece, Source, in_chunks, read_bytes, size_of
from node.data.sources.tokens import FolderTokens, Tokens, token_column, tokens_of
from node.errors import DatasetError

UNIT_ROWS = 16
UNIT_BYTES = 256 << 10
"""What a tokenizer takes at once, about: cut after a line where one ends."""
LOOK_BYTES = 4 << 10


@dataclass(frozen=True, slots=True)
class _Bytes:
    """Units of as many bytes as `UNIT_ROWS` rows have."""

    step: int

    def read(self, chunk: Chunk) -> Iterator[bytes]:
        for piece in chunk.pieces:
            content = read_bytes(piece)
            for at in range(0, len(content), self.step):
                yield content[at : at + self.step]


@dataclass(frozen=True, slots=True)
class _Tokenized:
    """A unit is a piece."""

    tokens: Tokens
    ends: frozenset[tuple[Path, int]]
    """The pieces, by path and start, with which a file ends."""

    def read(self, chunk: Chunk) -> Iterator[bytes]:
        for piece in chunk.pieces:
            try:
                text = read_bytes(piece).decode()
            except UnicodeDecodeError as error:
                at = piece.start + error.start
                raise DatasetError(f"{piece.path}, byte {at:,}: not UTF-8, which a tokenizer needs") from error
            yield self.tokens.encode(text, ends=(piece.path, piece.start) in self.ends)


def text_source(files: Sequence[Path], length: int, tokenizer: Path | None, max_bytes: int | None) -> Source:
    """A source of text files, no more than their first `max_bytes` bytes."""
    tokens = tokens_of(tokenizer)
    spans = list(_spans(files, max_bytes))
    columns = token_column(tokens, length)
    if not isinstance(tokens, FolderTokens):
        step = UNIT_ROWS * length
        size = max(step, CHUNK_BYTES // step * step)
        parts = [(path, at, min(at + size, end)) for path, end in spans for at in range(0, end, size)]
        pieces = [(Piece(path, start, end), end - start, -(-(end - start) // step)) for path, start, end in parts]
        return Source(_Bytes(step), columns, in_chunks(pieces), is_stream=True)
    cut = [(path, start, end) for path, size in spans for start, end in _cut(path, size)]
    ends = {path: start for path, start, _ in cut}
    pieces = [(Piece(path, start, end), end - start, 1) for path, start, end in cut]
    return Source(_Tokenized(tokens, frozenset(ends.items())), columns, in_chunks(pieces), is_stream=True)


def _spans(files: Sequence[Path], max_bytes: int | None) -> Iterator[tuple[Path, int]]:
    left = max_bytes if max_bytes is not None else 1 << 62
    for path in files:
        if size := min(size_of(path), left):
            yield path, size
            left -= size


def _cut(path: Path, size: int) -> Iterator[tuple[int, int]]:
    """Where to cut a file: after a line, else after a character."""
    start = 0
    with path.open("rb") as file:
        while size - start > UNIT_BYTES + LOOK_BYTES:
            file.seek(start + UNIT_BYTES)
            ahead = file.read(LOOK_BYTES)
            at = ahead.find(b"\n") + 1
            if not at:
                at = next((index for index, byte in enumerate(ahead) if byte & 0xC0 != 0x80), 0)
            end = start + UNIT_BYTES + at
            yield start, end
            start = end
    yield start, size
