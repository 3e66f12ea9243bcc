"""AdamW that does not load torch's compiler.

torch's optimizers import `torch._dynamo` when one is made and in each step, to tell the compiler to leave them alone:
a second of processor time at the start of every executor, as much as torch itself takes. An executor compiles nothing,
so the same functions run here without that wrapping.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import unwrap
from typing import Any

import torch
from torch.optim import Optimizer


class AdamW(torch.optim.AdamW):  # type: ignore[misc, unused-ignore]  # torch is not read by the type checker
    """The same steps to the bit, with the same hooks."""

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step."""
        with torch.no_grad():
            return unwrap(torch.optim.AdamW.step)(self, closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients."""
        unwrap(Optimizer.zero_grad)(self, set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Take more parameters in."""
        unwrap(Optimizer.add_param_group)(self, param_group)
