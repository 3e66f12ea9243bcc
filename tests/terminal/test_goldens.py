"""Every screen shows what it showed: as text at three sizes, in every theme, in ASCII and without colour.

After a change that is meant: `python -m tests.terminal.goldens --write`, and read the difference.
"""

from __future__ import annotations

import difflib
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.terminal import goldens
from tests.terminal.goldens import Golden
from tests.terminal.harness import SIZES

pytestmark = pytest.mark.asyncio
SIZE_NAMES = [f"{width}x{height}" for width, height in SIZES]


@pytest.fixture(autouse=True)
def steady() -> Iterator[None]:
    """As when they were written."""
    with goldens.steady():
        yield


@pytest.mark.parametrize("size", SIZES, ids=SIZE_NAMES)
async def test_every_screen_shows_what_it_showed(size: tuple[int, int]) -> None:
    await compare(goldens.of_size(size), f"*-{size[0]}x{size[1]}.txt")


async def test_every_theme_draws_with_the_styles_it_had() -> None:
    await compare(goldens.of_themes(), "theme-*.txt")


async def test_plain_terminals_show_what_they_showed() -> None:
    await compare(goldens.of_plain_terminals(), "ascii-*.txt", "no-colour.txt")


async def compare(found: AsyncIterator[Golden], *patterns: str) -> None:
    """Each with its file, and no file left over."""
    now = {name: text async for name, text in found}
    before = goldens.kept(file.name for pattern in patterns for file in goldens.FOLDER.glob(pattern))
    changes: list[str] = []
    for name in sorted(now.keys() | before.keys()):
        old, new = before.get(name, "").splitlines(), now.get(name, "").splitlines()
        changes += difflib.unified_diff(old, new, f"goldens/{name}", f"{name} now", lineterm="", n=1)
    hint = "`python -m tests.terminal.goldens --write` takes over what is meant"
    assert not changes, "\n".join([hint, *changes[:60]])
