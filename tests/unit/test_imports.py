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
    "hypha_tui.client.api": ["torch", "numpy", "textual", "aiohttp"],
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


def test_a_training_step_in_one_process_loads_neither_a_compiler_nor_distributed_tensors() -> None:
    """They would double the time that an executor takes to start."""
    pytest.importorskip("accelerate")
    program = (
        "import sys, torch, accelerate\n"
        "from node.executors.job import Optimizer\n"
        "from node.executors.models import LoadedModel\n"
        "from node.executors.trainer import Trainer\n"
        "model = LoadedModel(torch.nn.Linear(3, 3), lambda m, batch: m(batch['x']).square().mean(), None, 'torch')\n"
        "Trainer(accelerate.Accelerator(), model, Optimizer(learning_rate=1e-3), None).train({'x': torch.ones(2, 3)})\n"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not set(done.stdout.split()) & {"torch._dynamo", "torch._inductor", "torch.distributed.tensor", "sympy"}
