"""Between gymnasium's spaces and Ganglion's: what a space is inside, and tensors for batches of its values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from ganglion.core import Action, Box, Composite, Discrete, MultiBinary, MultiDiscrete, Obs, Space, Step
from ganglion.envs.gym_arrays import MASK, Acts, Array, Leaf, leaves, named
from ganglion.errors import UserError

DTYPES = {"float32": torch.float32, "uint8": torch.uint8, "int64": torch.int64, "bool": torch.bool}


def mask_space(n: int) -> Box:
    """The space of an action mask over n actions."""
    return Box((n,), torch.bool, (0.0,), (1.0,))


def from_gym(space: spaces.Space[Any]) -> Space:
    """A gymnasium space as Ganglion sees it."""
    if isinstance(space, spaces.Dict):
        return Composite({named(k): _mask(part) if k == MASK else from_gym(part) for k, part in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return Composite({str(i): from_gym(part) for i, part in enumerate(space.spaces)})
    leaf = leaves(space)[0]  # refuses what is not supported
    match space:
        case spaces.Discrete():
            return Discrete(int(space.n))
        case spaces.MultiDiscrete():
            return MultiDiscrete(tuple(int(n) for n in space.nvec.reshape(-1)))
        case spaces.MultiBinary():
            return MultiBinary(leaf.shape[0])
        case spaces.Box():
            return Box(leaf.shape, DTYPES[np.dtype(leaf.dtype).name], _bound(space.low), _bound(space.high))
    raise AssertionError(space)


def _mask(space: spaces.Space[Any]) -> Space:
    """A mask, or one for each of some parts of an action."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        items = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        return Composite({named(k): _mask(part) for k, part in items})
    if not isinstance(space, spaces.Box | spaces.MultiBinary | spaces.MultiDiscrete):
        raise UserError(f"env: {MASK} is {space}; accepted are MultiBinary, Box, and a Dict or Tuple of these")
    return mask_space(int(np.prod(space.shape)))


def _bound(bound: Array) -> tuple[float, ...]:
    """One number where all elements share it, else one per element."""
    flat = bound.reshape(-1)
    if flat.size and (flat == flat[0]).all():
        return (float(flat[0]),)
    return tuple(float(x) for x in flat)


def to_gym(space: Space) -> spaces.Space[Any]:
    """A Ganglion space as gymnasium spells it; `from_gym` of it is the same space again."""
    match space:
        case Box(shape, dtype, low, high):
            name = next(name for name, kind in DTYPES.items() if kind == dtype)
            low_array, high_array = (np.broadcast_to(np.reshape(x, _spread(x, shape)), shape) for x in (low, high))
            if name == "bool":
                return spaces.MultiBinary(shape[0])
            return spaces.Box(low_array.astype(name), high_array.astype(name), shape, np.dtype(name).type)
        case Discrete(n):
            return spaces.Discrete(n)
        case MultiDiscrete(nvec):
            return spaces.MultiDiscrete(list(nvec))
        case MultiBinary(n):
            return spaces.MultiBinary(n)
        case Composite(items):
            return spaces.Dict([(key, to_gym(part)) for key, part in items.items()])  # pairs keep their order


def _spread(bound: tuple[float, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    return (1,) * len(shape) if len(bound) == 1 else shape


# ------------------------------------------------------------ tensors


def send(step: Step, device: torch.device) -> Step:
    """A step made on the CPU, on its device."""
    if device.type == "cpu":
        return step
    obs, *flat = step[:5]
    return Step(_send_tree(obs, device), *(x.to(device) for x in flat))


def _send_tree(tree: Obs, device: torch.device) -> Obs:
    if isinstance(tree, dict):
        return {key: _send_tree(part, device) for key, part in tree.items()}
    return tree.to(device)


def grow(parts: Sequence[Leaf], tensors: Sequence[Tensor]) -> Obs:
    """The tree whose leaves these tensors are: nested dicts, or the one tensor of a plain space."""
    if len(parts) == 1 and not parts[0].path:
        return tensors[0]
    tree: dict[str, Any] = {}
    for leaf, tensor in zip(parts, tensors, strict=True):
        place = tree
        for key in leaf.path[:-1]:
            place = place.setdefault(key, {})
        place[leaf.path[-1]] = tensor
    return tree


class Actions(Acts):
    """Turns a tree of action tensors into what gymnasium environments take."""

    def columns(self, action: Action) -> list[Array]:
        """The action's leaves, [B, ...] each, in memory of their own: what a log keeps."""
        if self.plain:
            return [self.numbers(action)]
        return [_host(_pick(action, leaf.path)).astype(leaf.dtype) for leaf in self.leaves]

    def ready(self, action: Action) -> Any:
        """A tensor or tree of them as a vector environment takes it, in memory of its own."""
        if self.plain:
            return self.numbers(action)
        if isinstance(self.space, spaces.Box):
            return self.changes[0](_host(action))  # clipping makes a copy
        return self.batched(self.columns(action))

    def numbers(self, action: Action) -> Array:
        """Of a Discrete from 0: one by one, for a few slots cheaper than an array that shares memory, then a copy."""
        values = action.tolist()
        if min(values) < 0 or max(values) >= self.count:
            raise UserError(f"the actions {values} are not all within {self.space}: the algorithm chose wrong ones.")
        return np.array(values, np.int64)

    def batched(self, columns: Sequence[Array]) -> Any:
        """One action for all slots, as a vector environment takes it."""
        return _regrow(self.space, iter(self.outward(columns)))


def _host(tensor: Tensor) -> Array:
    still = tensor.detach() if tensor.requires_grad else tensor
    return still.numpy() if still.is_cpu else still.cpu().numpy()


def _pick(action: Action, path: Sequence[str]) -> Tensor:
    for key in path:
        action = action[key]
    tensor: Tensor = action
    return tensor


def _regrow(space: spaces.Space[Any], columns: Any) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _regrow(part, columns) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_regrow(part, columns) for part in space.spaces)
    return next(columns)
