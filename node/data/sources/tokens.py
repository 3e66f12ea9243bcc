"""Text as tokens: its bytes, or what a tokenizer in a folder makes of it."""

from __future__ import annotations

import json
from array import array
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from node.data.sources.source import Column
from node.errors import DatasetError

TOKENS = "input_ids"
SMALL_VOCABULARY = 1 << 16


class Tokens(Protocol):
    """Makes tokens of text."""

    dtype: str

    def encode(self, text: str, *, ends: bool) -> bytes:
        """The tokens of a text; `ends`: the document ends with it."""
        ...


class ByteTokens:
    """UTF-8 bytes are the tokens; a document ends with a line feed."""

    dtype = "U8"

    def encode(self, text: str, *, ends: bool) -> bytes:
        """The tokens of a text."""
        return text.encode() + (b"\n" if ends else b"")


class FolderTokens:
    """The fast tokenizer of a Hugging Face folder (`tokenizer.json`); a document ends with its end-of-text token."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        vocabulary = self._tokenizer.get_vocab_size(with_added_tokens=True)
        self.dtype = "U16" if vocabulary <= SMALL_VOCABULARY else "I32"
        self._end = self._end_of_text()

    def __getstate__(self) -> dict[str, Any]:
        """Without the tokenizer: another process loads it anew."""
        return {key: value for key, value in self.__dict__.items() if key != "_tokenizer"}

    def encode(self, text: str, *, ends: bool) -> bytes:
        """The tokens of a text."""
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        return array("H" if self.dtype == "U16" else "i", ids + self._end if ends else ids).tobytes()

    @cached_property
    def _tokenizer(self) -> Any:
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise DatasetError("a tokenizer needs tokenizers", hint="pip install 'hypha-tui[train]'") from error
        path = self._folder / "tokenizer.json"
        try:
            return Tokenizer.from_file(str(path))
        except Exception as error:  # whatever its Rust side raises
            raise DatasetError(f"{path} is not a tokenizer: {error}") from error

    def _end_of_text(self) -> list[int]:
        try:
            found = json.loads((self._folder / "tokenizer_config.json").read_bytes()).get("eos_token")
        except (OSError, ValueError, AttributeError):
            return []
        name = found.get("content") if isinstance(found, dict) else found
        number = self._tokenizer.token_to_id(name) if isinstance(name, str) else None
        return [] if number is None else [number]


def tokens_of(tokenizer: Path | None) -> Tokens:
    """Byte tokens, or those of a tokenizer's folder."""
    return ByteTokens() if tokenizer is None else FolderTokens(tokenizer)


def token_column(tokens: Tokens, length: int) -> dict[str, Column]:
    """The columns of a dataset of text."""
    return {TOKENS: Column(tokens.dtype, (length,))}
