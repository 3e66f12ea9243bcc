"""What the commands, the client and the store import, and what they do not (measured in another interpreter)."""

from __future__ import annotations

import subprocess
import sys

import pytest


def modules_after(statement: str) -> set[str]:
    """Top-level packages that are loaded after a statement."""
    code = f"{statement}\nimport sys\nprint(' '.join(sorted({{name.split('.')[0] for name in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    "module",
    [
        "hypha_tui.store.cluster",
        "hypha_tui.store.summary",
        "hypha_tui.store.glyphs",
        "hypha_tui.twin.jobs",
        "hypha_tui.twin.lists",
        "hypha_tui.twin.reports",
    ],
)
def test_store_and_commands_never_import_textual(module: str) -> None:
    assert "textual" not in modules_after(f"import {module}")


def test_the_store_imports_no_transport() -> None:
    assert not modules_after("import hypha_tui.store.cluster") & {"aiohttp", "textual", "torch", "numpy"}


def test_the_client_imports_no_textual() -> None:
    found = modules_after("import hypha_tui.client.api, hypha_tui.client.follow, hypha_tui.client.jobfile")
    assert not found & {"textual", "torch", "numpy"}


def test_version_imports_neither_textual_nor_aiohttp() -> None:
    """T59."""
    found = modules_after("from hypha_tui.cli import run; assert run(['--version']) == 0")
    assert not found & {"textual", "aiohttp", "torch", "numpy", "cryptography"}
