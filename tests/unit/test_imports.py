"""What must not be imported is not: torch, numpy and Textual stay out of the base programs."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAMS = {
    "node.cli": ["torch", "numpy", "textual", "aiohttp", "cryptography"],
    "node.daemon": ["torch", "numpy", "textual"],
    "node.scheduler.service": ["torch", "numpy", "textual", "tensorboardX"],
    "hypha_tui.cli": ["torch", "numpy", "textual", "aiohttp"],
    "hypha_tui.client": ["torch", "numpy", "textual"],
    "hypha_tui.store": ["torch", "numpy", "textual"],
}


@pytest.mark.parametrize("module", PROGRAMS)
def test_a_base_module_imports_nothing_heavy(module: str) -> None:
    program = f"import importlib, sys; importlib.import_module({module!r}); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert not loaded & set(PROGRAMS[module])


@pytest.mark.parametrize("module", ["node.cli", "hypha_tui"])
def test_version_is_printed_without_heavy_imports(module: str) -> None:
    program = (
        "import runpy, sys\nsys.argv = ['x', '--version']\n"
        f"try: runpy.run_module({module!r}, run_name='__main__')\n"
        "finally: print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.strip().split()[-1][0].isdigit()
    loaded = {name.split(".")[0] for name in done.stderr.split()}
    assert not loaded & {"torch", "numpy", "textual", "aiohttp", "cryptography"}
