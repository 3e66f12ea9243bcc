"""The outer optimizer of DiLoCo: SGD with Nesterov momentum on the mean pseudo-gradient (arXiv 2311.08105).

A pseudo-gradient here is `theta_after - theta_before`: it points downhill already, so the step is *added*.

Everything is float32, one rounding after each multiplication, addition and division, in the order written here. That is
what makes the parameter server, every executor and whoever replays a job's journal hold the same bytes.
"""

from __future__ import annotations

import numpy as np

from node.training.files import Array

CLEARED_EVERY = 127
"""Versions. A prime number, so that each of several fragments has its turn."""
CLEARED_BELOW = np.float32(1e-30)


def move(gradient: Array, velocity: Array, scratch: Array, *, learning_rate: float, momentum: float) -> None:
    """Turns `velocity` into the new velocity and `gradient` into the step: v' = mu v + g, step = lr (g + mu v')."""
    np.multiply(velocity, np.float32(momentum), out=velocity)
    np.add(velocity, gradient, out=velocity)
    np.multiply(velocity, np.float32(momentum), out=scratch)
    np.add(gradient, scratch, out=gradient)
    np.multiply(gradient, np.float32(learning_rate), out=gradient)


def velocity_after(step: Array, velocity: Array, scratch: Array, *, learning_rate: float, momentum: float) -> None:
    """Turns `velocity` into the one that belongs to a step: v' = (step / lr + mu v) / (1 + mu).

    Where only the step travels this is the definition of momentum, for the parameter server too.
    """
    np.multiply(velocity, np.float32(momentum), out=velocity)
    np.divide(step, np.float32(learning_rate), out=scratch)
    np.add(velocity, scratch, out=velocity)
    np.divide(velocity, np.float32(1) + np.float32(momentum), out=velocity)


def move_by_step(gradient: Array, velocity: Array, scratch: Array, *, learning_rate: float, momentum: float) -> None:
    """`move`, and then `velocity_after` in place of its velocity; the same bytes in fewer passes."""
    np.multiply(velocity, np.float32(momentum), out=velocity)
    np.add(velocity, gradient, out=scratch)
    np.multiply(scratch, np.float32(momentum), out=scratch)
    np.add(gradient, scratch, out=gradient)
    np.multiply(gradient, np.float32(learning_rate), out=gradient)
    np.divide(gradient, np.float32(learning_rate), out=scratch)
    np.add(velocity, scratch, out=velocity)
    np.divide(velocity, np.float32(1) + np.float32(momentum), out=velocity)


def clear(velocity: Array, scratch: Array, version: int) -> None:
    """The velocity of what has not moved for long becomes nothing, in every so manieth version.

    Else it decays to the smallest numbers there are and stays there, since 0.9 of 4 of them is 4 of them; arithmetic
    with these takes up to thirty times as long.
    """
    if version % CLEARED_EVERY == 0:
        velocity[np.abs(velocity, out=scratch) < CLEARED_BELOW] = 0
