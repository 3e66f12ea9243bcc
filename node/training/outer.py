"""The outer optimizer of DiLoCo: SGD with Nesterov momentum on the mean pseudo-gradient (arXiv 2311.08105).

A pseudo-gradient here is `theta_after - theta_before`: it points downhill already, so the step is *added*.
"""

from __future__ import annotations

import torch


def nesterov(
    gradient: torch.Tensor, velocity: torch.Tensor, *, learning_rate: float, momentum: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(step, new velocity) for a mean pseudo-gradient. `velocity` is overwritten with the new velocity."""
    velocity.mul_(momentum).add_(gradient)
    step = torch.add(gradient, velocity, alpha=momentum).mul_(learning_rate)
    return step, velocity
