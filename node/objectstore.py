"""Object storage, through obstore where it is installed.

Credentials come from this process's environment (`AWS_*`, `GOOGLE_*`, `AZURE_*`, and the files that these name) and
from nowhere else. obstore's own texts hold whole addresses, so none of them is passed on.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import importlib.util
import os
import re
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, Final

from node.errors import DatasetError, ObjectMissing, ObjectStoreError
from node.storeurl import OBJECT_STORES

__all__ = ["OBJECT_STORES", "Bucket", "Entry", "open_bucket"]

CONNECT: Final = timedelta(seconds=5)
SILENCE_S: Final = 30.0
"""No answer, and no next piece of one, may take longer."""
WHOLE: Final = timedelta(hours=6)
RETRIES: Final = {
    "max_retries": 3,
    "retry_timeout": timedelta(seconds=60),
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=5), "base": 2},
}
PUT_S: Final = 3600.0
PART_BYTES: Final = 8 << 20
MOST_PARTS: Final = 9_000
PIECE_BYTES: Final = 2 << 20
EXIT_S: Final = 0.2
MOST_ENTRIES: Final = 1_000_000
ENDPOINTS: Final = (
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_ENDPOINT",
    "GOOGLE_BASE_URL",
    "AZURE_ENDPOINT",
    "AZURE_STORAGE_ENDPOINT",
)
NEEDS_OBSTORE: Final = "install it on this machine: pip install 'hypha-tui[s3]'"
CREDENTIALS: Final = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}
_METADATA: Final = ("169.254.169.254", "169.254.170.2", "metadata.google.internal")
_STATUS: Final = re.compile(r"status code: (\d{3} [A-Za-z ]+)")
_CODE: Final = re.compile(r"<Code>([A-Za-z]{1,60})</Code>")


@dataclass(frozen=True, slots=True)
class Entry:
    """An object: its name below the bucket's address, its size, and a tag that changes with its content."""

    name: str
    size_bytes: int
    tag: str


def is_installed() -> bool:
    """Whether addresses in object storage can be read on this machine."""
    return importlib.util.find_spec("obstore") is not None


def open_bucket(url: str) -> Bucket:
    """What lies below an address. Nothing is asked yet; raises `ObjectStoreError` where it can never work."""
    try:
        from obstore.store import from_url
    except ImportError:
        raise ObjectStoreError(f"{url} needs obstore", hint=NEEDS_OBSTORE, is_final=True) from None
    _outlive_threads()
    # Whoever names an endpoint without TLS means it.
    is_plain = any(os.environ.get(name, "").startswith("http://") for name in ENDPOINTS)
    options = {
        "connect_timeout": CONNECT,
        "read_timeout": timedelta(seconds=SILENCE_S),
        "timeout": WHOLE,
        "allow_http": is_plain,
    }
    try:
        return Bucket(url, from_url(url, client_options=options, retry_config=RETRIES))
    except Exception as error:
        hint = f"check the address, and {CREDENTIALS[url[:2]]} in the environment of this process"
        raise ObjectStoreError(f"{url} cannot be used: {type(error).__name__}", hint=hint, is_final=True) from None


class Bucket:
    """Objects below an address. Raises `ObjectStoreError`, `ObjectMissing` for what is not there."""

    def __init__(self, url: str, store: Any) -> None:
        self.url = url
        self._store = store

    async def about(self, name: str) -> Entry:
        """An object's size and tag."""
        import obstore

        with self._translated(name):
            async with asyncio.timeout(4 * SILENCE_S):
                return _entry(await obstore.head_async(self._store, name), name)

    async def read(self, name: str, limit_bytes: int) -> tuple[bytes, Entry]:
        """A small object as a whole; raises `DatasetError` where it is larger than it may be."""
        import obstore

        with self._translated(name):
            async with asyncio.timeout(4 * SILENCE_S):
                found = await obstore.get_async(self._store, name)
                about = _entry(found.meta, name)
                if about.size_bytes > limit_bytes:
                    raise DatasetError(f"{self.url}/{name} is larger than {limit_bytes:,} bytes")
                return bytes(await found.bytes_async()), about

    async def stream(self, name: str, start: int, size_bytes: int) -> AsyncIterator[memoryview]:
        """An object of this size from byte `start` on; raises `DatasetError` where it has another size."""
        import obstore

        with self._translated(name):
            async with asyncio.timeout(4 * SILENCE_S):
                options = {"range": {"offset": start}} if start else None
                found = await obstore.get_async(self._store, name, options=options)
            self._check_size(name, int(found.meta["size"]), size_bytes)
            pieces = aiter(found.stream(min_chunk_size=PIECE_BYTES))
        while True:
            with self._translated(name):
                async with asyncio.timeout(SILENCE_S):
                    piece = await anext(pieces, None)
            if piece is None:
                return
            yield memoryview(piece)

    async def part(self, name: str, start: int, end: int, *, tag: str = "") -> tuple[memoryview, Entry]:
        """Bytes `start` to `end` (not included) of an object, as far as it has them; `tag`: if it is still the same."""
        import obstore

        options: dict[str, Any] = {"range": (start, end)} | ({"if_match": tag} if tag else {})
        with self._translated(name):
            async with asyncio.timeout(4 * SILENCE_S + (end - start) / 1e6):
                found = await obstore.get_async(self._store, name, options=options)
                return memoryview(await found.bytes_async()), _entry(found.meta, name)

    async def entries(self, prefix: str = "", *, is_deep: bool = False) -> list[Entry]:
        """The objects, in name order; those of deeper folders where `is_deep`."""
        import obstore

        with self._translated(prefix):
            async with asyncio.timeout(PUT_S):
                if not is_deep:
                    found = (await obstore.list_with_delimiter_async(self._store, prefix or None))["objects"]
                    return sorted((_entry(one, str(one["path"])) for one in found), key=lambda one: one.name)
                deep: list[Entry] = []
                async for several in obstore.list(self._store, prefix=prefix or None):
                    deep += [_entry(one, str(one["path"])) for one in several]
                    if len(deep) > MOST_ENTRIES:
                        raise ObjectStoreError(f"{self.url} holds more than {MOST_ENTRIES:,} objects", is_final=True)
                return sorted(deep, key=lambda one: one.name)

    async def put(self, name: str, source: Path, sha256: str = "") -> None:
        """A file as an object, which appears when it is whole; raises where it has not arrived whole."""
        import obstore

        size = (await asyncio.to_thread(source.stat)).st_size
        with self._translated(name):
            async with asyncio.timeout(PUT_S):
                await obstore.put_async(
                    self._store,
                    name,
                    source,
                    attributes={"sha256": sha256} if sha256 else None,
                    chunk_size=max(PART_BYTES, -(-size // MOST_PARTS)),
                    max_concurrency=4,
                )
                found = int((await obstore.head_async(self._store, name))["size"])
        if found != size:
            raise ObjectStoreError(f"{name} at {self.url} has {found:,} of {size:,} bytes")

    async def put_new(self, name: str, content: bytes) -> None:
        """A small object, unless there is one of that name."""
        import obstore

        with self._translated(name):
            async with asyncio.timeout(4 * SILENCE_S):
                await obstore.put_async(self._store, name, content, mode="create")

    async def delete(self, names: Sequence[str]) -> None:
        """Remove objects, one after the other."""
        import obstore

        for name in names:
            with self._translated(name):
                async with asyncio.timeout(4 * SILENCE_S):
                    await obstore.delete_async(self._store, name)

    def _check_size(self, name: str, found: int, wanted: int) -> None:
        if found != wanted:
            raise DatasetError(f"{self.url}/{name} has {found:,} bytes, the manifest says {wanted:,}")

    @contextlib.contextmanager
    def _translated(self, name: str) -> Iterator[None]:
        where = f"{self.url}/{name}" if name else self.url
        try:
            yield
        except (ObjectStoreError, DatasetError):
            raise
        except TimeoutError:
            raise ObjectStoreError(f"{where} did not answer in time") from None
        except FileNotFoundError:
            raise ObjectMissing(f"{where} does not exist") from None
        except Exception as error:
            raise _explained(where, error) from None


@cache
def _outlive_threads() -> None:
    """obstore's threads hold Python objects for some moments after an answer, or after a cancellation, and abort the
    process where the interpreter ends meanwhile: let them finish before it does."""
    atexit.register(time.sleep, EXIT_S)


def _explained(where: str, error: Exception) -> ObjectStoreError:
    """What went wrong, in words that hold no address and no signature."""
    text, kind = str(error), type(error).__name__
    hint = f"check {CREDENTIALS[where[:2]]} in the environment of this process, and what they may do"
    if any(address in text for address in _METADATA):
        return ObjectStoreError(f"{where} cannot be read without credentials", hint=hint)
    code, status = _CODE.search(text), _STATUS.search(text)
    if kind in ("PermissionDeniedError", "UnauthenticatedError"):
        said = f" ({code[1]})" if code else ""
        return ObjectStoreError(f"{where} refuses these credentials{said}", hint=hint, is_final=True)
    if kind == "PreconditionError":
        return ObjectStoreError(f"{where} has changed meanwhile", is_final=True)
    if code or status:
        said = " ".join(match[1].strip() for match in (status, code) if match)
        is_final = status is not None and status[1].startswith("4") and status[1][:3] not in ("408", "429")
        return ObjectStoreError(f"{where} answered {said}", is_final=is_final)
    return ObjectStoreError(f"{where} cannot be reached ({kind})")


def _entry(found: Any, name: str) -> Entry:
    return Entry(name, int(found["size"]), str(found["e_tag"] or found["last_modified"]))
