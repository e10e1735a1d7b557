"""Gymnasium's classic control as tensors: CartPole-v1, Pendulum-v1, MountainCar-v0 and Acrobot-v1.

The same equations, constants, starts and time limits; tests hold them against gymnasium step by step. Physics is
float64, as there; observations are float32.
"""

from __future__ import annotations

from math import inf, pi

import torch
from torch import Tensor

from ganglion.core import Box, Discrete
from ganglion.envs.torch_env import TorchEnv


class CartPole(TorchEnv):
    """Keep a pole upright on a cart (Barto, Sutton and Anderson 1983): 1 per step, at most 500."""

    size, starts, limit = 4, 4, 500  # position, velocity, angle, angular velocity
    obs_space = Box((4,), low=(-4.8, -inf, -24 * pi / 180, -inf), high=(4.8, inf, 24 * pi / 180, inf))
    action_space = Discrete(2)

    def first(self, dice: Tensor) -> Tensor:
        return dice * 0.1 - 0.05

    def advance(self, world: Tensor, action: Tensor, dice: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, speed, angle, spin = world.unbind(-1)
        force = action.to(world.dtype) * 20.0 - 10.0
        cos, sin = angle.cos(), angle.sin()
        push = (force + 0.05 * spin.square() * sin) / 1.1
        twist = (9.8 * sin - cos * push) / (0.5 * (4.0 / 3.0 - 0.1 * cos.square() / 1.1))
        after = world + 0.02 * torch.stack((speed, push - 0.05 * twist * cos / 1.1, spin, twist), -1)
        terminated = (after[..., 0].abs() > 2.4) | (after[..., 2].abs() > 12 * 2 * pi / 360)
        return after, torch.ones_like(x), terminated

    def observe(self, world: Tensor) -> Tensor:
        return world.to(torch.float32)


class Pendulum(TorchEnv):
    """Swing a pendulum up and hold it: 200 steps, each costing angle, speed and torque."""

    size, starts, limit = 2, 2, 200  # angle, angular velocity
    obs_space = Box((3,), low=(-1.0, -1.0, -8.0), high=(1.0, 1.0, 8.0))
    action_space = Box((1,), low=(-2.0,), high=(2.0,))

    def first(self, dice: Tensor) -> Tensor:
        angle, spin = (dice * 2.0 - 1.0).unbind(-1)
        return torch.stack((angle * pi, spin), -1)

    def advance(self, world: Tensor, action: Tensor, dice: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        angle, spin = world.unbind(-1)
        torque = action.squeeze(-1).clamp(-2.0, 2.0).to(world.dtype)
        upright = (angle + pi).remainder(2 * pi) - pi
        cost = upright.square() + 0.1 * spin.square() + 0.001 * torque.square()
        spin = (spin + (15.0 * angle.sin() + 3.0 * torque) * 0.05).clamp(-8.0, 8.0)
        return torch.stack((angle + spin * 0.05, spin), -1), -cost, torch.zeros_like(angle, dtype=torch.bool)

    def observe(self, world: Tensor) -> Tensor:
        angle, spin = world.unbind(-1)
        return torch.stack((angle.cos(), angle.sin(), spin), -1).to(torch.float32)


class MountainCar(TorchEnv):
    """Rock a weak car out of a valley (Moore 1990): -1 per step, at most 200."""

    size, starts, limit = 2, 1, 200  # position, velocity
    obs_space = Box((2,), low=(-1.2, -0.07), high=(0.6, 0.07))
    action_space = Discrete(3)

    def first(self, dice: Tensor) -> Tensor:
        return torch.cat((dice * 0.2 - 0.6, torch.zeros_like(dice)), -1)

    def advance(self, world: Tensor, action: Tensor, dice: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        position, velocity = world.unbind(-1)
        velocity = velocity + (action.to(world.dtype) - 1.0) * 0.001 - 0.0025 * (3.0 * position).cos()
        velocity = velocity.clamp(-0.07, 0.07)
        position = (position + velocity).clamp(-1.2, 0.6)
        velocity = velocity.masked_fill((position == -1.2) & (velocity < 0.0), 0.0)  # the wall on the left stops it
        terminated = (position >= 0.5) & (velocity >= 0.0)
        return torch.stack((position, velocity), -1), torch.full_like(position, -1.0), terminated

    def observe(self, world: Tensor) -> Tensor:
        return world.to(torch.float32)


class Acrobot(TorchEnv):
    """Swing a two-link pendulum above a line (Sutton 1996): -1 per step, at most 500."""

    size, starts, limit = 4, 4, 500  # two angles, two angular velocities
    obs_space = Box((6,), low=(-1.0, -1.0, -1.0, -1.0, -4 * pi, -9 * pi), high=(1.0, 1.0, 1.0, 1.0, 4 * pi, 9 * pi))
    action_space = Discrete(3)

    def first(self, dice: Tensor) -> Tensor:
        return (dice * 0.2 - 0.1).to(torch.float32).to(dice.dtype)  # gymnasium's start is float32

    def advance(self, world: Tensor, action: Tensor, dice: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        torque = action.to(world.dtype) - 1.0
        k1 = _swing(world, torque)  # fourth-order Runge-Kutta over 0.2 s
        k2 = _swing(world + 0.1 * k1, torque)
        k3 = _swing(world + 0.1 * k2, torque)
        k4 = _swing(world + 0.2 * k3, torque)
        one, two, spin_one, spin_two = (world + 0.2 / 6.0 * (k1 + 2.0 * k2 + 2.0 * k3 + k4)).unbind(-1)
        one, two = _wrapped(one), _wrapped(two)
        spin_one, spin_two = spin_one.clamp(-4 * pi, 4 * pi), spin_two.clamp(-9 * pi, 9 * pi)
        terminated = -one.cos() - (two + one).cos() > 1.0
        return torch.stack((one, two, spin_one, spin_two), -1), terminated.to(world.dtype) - 1.0, terminated

    def observe(self, world: Tensor) -> Tensor:
        one, two, spin_one, spin_two = world.unbind(-1)
        return torch.stack((one.cos(), one.sin(), two.cos(), two.sin(), spin_one, spin_two), -1).to(torch.float32)


def _wrapped(angle: Tensor) -> Tensor:
    """An angle within one turn of [-pi, pi], brought back into it."""
    return angle - 2 * pi * (angle > pi).to(angle.dtype) + 2 * pi * (angle < -pi).to(angle.dtype)


def _swing(world: Tensor, torque: Tensor) -> Tensor:
    """The time derivative of the acrobot: links of length and mass 1, centres of mass at 0.5, moments of inertia 1."""
    one, two, spin_one, spin_two = world.unbind(-1)
    cos, sin = two.cos(), two.sin()
    d1 = 3.5 + cos
    d2 = 1.25 + 0.5 * cos
    phi2 = 0.5 * 9.8 * (one + two).sin()  # cos(x - pi / 2) is sin(x)
    phi1 = -0.5 * spin_two.square() * sin - spin_two * spin_one * sin + 1.5 * 9.8 * one.sin() + phi2
    gain = torque + d2 / d1 * phi1 - 0.5 * spin_one.square() * sin - phi2
    turn_two = gain / (1.25 - d2.square() / d1)
    turn_one = -(d2 * turn_two + phi1) / d1
    return torch.stack((spin_one, spin_two, turn_one, turn_two), -1)


NATIVE: dict[str, type[TorchEnv]] = {
    "cartpole": CartPole,
    "pendulum": Pendulum,
    "mountaincar": MountainCar,
    "acrobot": Acrobot,
}
