"""Several models as one: the tensors of K algorithms side by side, [K, ...], and functions of one as functions of all.

Each algorithm keeps its own tensors, which are now rows of larger ones: what is done to all is done to each, and what
is done to one alone (restored, scored, saved) is done to its row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import inf
from typing import Any

import torch
from torch import Tensor, nn

from ganglion.core import Algorithm
from ganglion.errors import UserError
from ganglion.nn.optim import Adam, Optimiser, RMSprop, correction, gradients, root_of
from ganglion.ops import map_tree
from ganglion.torch_private import (
    add_batch_dim,
    batch_dim,
    foreach_mul_,
    foreach_sub_,
    is_batched,
    temporarily_pop_interpreter_stack,
    unbatched,
    vmap_level,
    vmap_level_of,
)

Fn = Callable[..., Any]
Place = tuple[dict[str, Any], str]  # where an object keeps a tensor
Algos = Sequence[Algorithm[Any, Any]]  # of one run


def joined(tensors: Sequence[Tensor]) -> Tensor:
    """One tensor [K, ...] of which each of these is a row from now on."""
    whole = torch.stack([tensor.detach() for tensor in tensors])
    for tensor, row in zip(tensors, whole.unbind(), strict=True):
        tensor.data = row  # the object stays: whoever holds it sees the change
    return whole


def numbers(part: Any) -> dict[str, Any]:
    """What an object keeps beside its tensors and parts: numbers, words."""
    return {name: value for name, value in vars(part).items() if isinstance(value, bool | int | float | str)}


def alike(own: list[Any], theirs: list[list[Any]]) -> Iterator[tuple[Any, list[Any]]]:
    """Each part of the first algorithm, with the same part of all others: settings, networks, normalisers."""
    seen: set[int] = set()
    while own:
        part, others = own.pop(), [each.pop() for each in theirs]
        if id(part) in seen or isinstance(part, Tensor | Optimiser | JointOptimiser) or not hasattr(part, "__dict__"):
            continue
        seen.add(id(part))
        yield part, others
        for name, inner in vars(part).items():
            if isinstance(inner, dict):  # modules keep theirs so
                own += inner.values()
                for each, other in zip(theirs, others, strict=True):
                    each += vars(other)[name].values()
            elif not isinstance(inner, bool | int | float | str | type):
                own.append(inner)
                for each, other in zip(theirs, others, strict=True):
                    each.append(vars(other)[name])


def nested(algos: Algos) -> list[Algorithm[Any, Any]]:
    """A run's algorithms and those that they hold."""
    held = [part for algo in algos for part in vars(algo).values() if isinstance(part, Algorithm)]
    return [*algos, *(nested(held) if held else ())]


def places(algos: Algos) -> list[Place]:
    """Where the networks and normalisers of a run's algorithms keep their tensors, in a fixed order."""
    modules = [part for own in nested(algos) for part in vars(own).values() if isinstance(part, nn.Module)]
    inner = [module for part in modules for module in part.modules()]
    kept = [(held, name) for m in inner for held in (m._parameters, m._buffers) for name in held]
    return [(held, name) for held, name in kept if held[name] is not None]


class Stack:
    """The algorithms of K runs, one for each player, alike in all but their numbers; those of a further run, the
    template, are read with all of theirs at once."""

    def __init__(self, algos: Sequence[Algos], template: Algos) -> None:
        self.count = len(algos)
        self.places: list[tuple[Place, int]] = []  # of the template, and which of the tensors belongs there
        self.tensors: list[Tensor] = []
        self.own: list[Any] = []  # the template's
        known: dict[int, int] = {}  # what several modules share (statistics) is one tensor
        theirs = [places(algo) for algo in algos]
        for i, (held, name) in enumerate(places(template)):
            tensor = held[name]
            if id(tensor) not in known:
                known[id(tensor)] = len(self.tensors)
                self.tensors.append(joined([kept[i][0][kept[i][1]] for kept in theirs]))
                self.own.append(tensor)
            self.places.append(((held, name), known[id(tensor)]))
        self.optims: list[JointOptimiser] = []
        for own, *others in zip(nested(template), *map(nested, algos), strict=True):
            for name, part in list(vars(own).items()):
                if isinstance(part, Optimiser):
                    params = [self.tensors[known[id(param)]].requires_grad_() for param in part.params]
                    self.optims.append(joint(part)([vars(other)[name] for other in others], params))
                    setattr(own, name, self.optims[-1])
        self.vary(algos, template)

    def vary(self, algos: Sequence[Algos], template: Algos) -> None:
        """Numbers in which the algorithms differ, in their settings or kept by their parts, become tensors [K]."""
        device = self.tensors[0].device
        for own, theirs in alike([*template], [[*own] for own in algos]):
            for name in numbers(own):
                values = [numbers(other).get(name) for other in theirs]
                if all(value == values[0] for value in values):
                    continue
                if not all(isinstance(value, float) for value in values):
                    what = f"{type(own).__name__}.{name}"
                    raise UserError(f"{what} differs between runs that train together, and is no real number: {values}")
                self.add(own.__dict__, name, torch.tensor(values, device=device))

    def add(self, held: dict[str, Any], name: str, whole: Tensor) -> None:
        """Something else the template reads, where it keeps it: [K, ...] in place of one."""
        self.places.append(((held, name), len(self.tensors)))
        self.tensors.append(whole)
        self.own.append(held[name])

    def all(self, fn: Fn) -> Fn:
        """A function that reads the template, as one of all K: each tensor of its arguments and results is [K, ...]."""

        def one(tensors: list[Tensor], args: tuple[Any, ...]) -> Any:
            self.put(tensors)
            return fn(*args)

        batched = torch.func.vmap(one)

        def run(*args: Any) -> Any:
            before = [held[name] for (held, name), _ in self.places]  # the template's own, or of a function around this
            try:
                return batched(self.tensors, args)
            finally:
                for ((held, name), _), was in zip(self.places, before, strict=True):
                    held[name] = was

        return run

    def put(self, tensors: Sequence[Any]) -> None:
        for (held, name), i in self.places:
            held[name] = tensors[i]

    # ------------------------------------------------------------ what may not change

    def changing(self) -> list[Tensor]:
        """All that learning changes, [K, ...] each."""
        return [*self.tensors, *(tensor for optim in self.optims for tensor in optim.tensors())]

    @contextmanager
    def sparing(self, rows: Sequence[int]) -> Iterator[None]:
        """Inside, these of the K may be changed; afterwards they are as they were."""
        changing = [tensor.detach() for tensor in self.changing()]
        which = torch.tensor(rows, dtype=torch.int64, device=changing[0].device)
        before = [tensor[which] for tensor in changing]
        yield
        for tensor, kept in zip(changing, before, strict=True):
            tensor.index_copy_(0, which, kept)


class JointOptimiser(ABC):
    """The optimisers of K algorithms, for a loss inside `Stack.all`: each its own norm, count and learning rate."""

    def __init__(self, optims: Sequence[Optimiser], params: Sequence[Tensor]) -> None:
        self.params = list(params)  # each [K, ...]
        self.names, self.allow_unused = optims[0].names, optims[0].allow_unused
        self.sizes = [param[0].numel() for param in params]
        self.kept = {kind: self.flat([o.kept()[kind] for o in optims]) for kind in optims[0].kept()}
        self.count = joined([optim.count for optim in optims])
        self.lr, self.max_norm = self.column([o.lr for o in optims]), self.column([o.max_norm for o in optims])
        self.clips = any(optim.max_norm < inf for optim in optims)
        self.rules, self.forgets = optims[0].rules, optims[0].forgets
        self.decay_of, self.decays = self.column([o.weight_decay for o in optims]), optims[0].weight_decay > 0
        if any(optim.rules != self.rules for optim in optims):
            raise UserError("algo.optim: differs between runs that train together. Accepted: the same in all of them.")

    def column(self, numbers: Sequence[float]) -> Tensor:
        """A number of each, [K, 1]."""
        return torch.tensor(numbers, dtype=self.params[0].dtype, device=self.count.device)[:, None]

    def flat(self, lists: Sequence[Sequence[Tensor]]) -> Tensor:
        """The tensors of each as one row [K, all of them]: a step takes as many operations as for one tensor."""
        whole = torch.stack([torch.cat([tensor.flatten() for tensor in own]) for own in lists])
        for own, row in zip(lists, whole, strict=True):
            for tensor, part in zip(own, row.split(self.sizes), strict=True):
                tensor.data = part.view_as(tensor)
        return whole

    def tensors(self) -> list[Tensor]:
        return [*self.kept.values(), self.count]

    def step(self, loss: Tensor, lr: Tensor | None = None) -> Tensor:
        """One step down the gradient of each loss; their norms before clipping."""
        losses, level = bare(loss), vmap_level_of(loss)
        rate = self.lr if lr is None else bare(lr)[:, None]
        with temporarily_pop_interpreter_stack():  # out of vmap, where gradients are those of ordinary tensors
            grads = gradients(losses.sum(), self.params, self.names, self.allow_unused)
            with torch.no_grad():
                norm = self.apply(torch.cat([grad.reshape(len(grad), -1) for grad in grads], 1), rate)
        return add_batch_dim(norm, 0, level)

    def apply(self, grad: Tensor, lr: Tensor) -> Tensor:
        """A step of all rows [K, all parameters]."""
        norm = torch.linalg.vector_norm(grad, dim=1)
        if self.rules.ruled:
            root = root_of(self.kept["square"], self.forgets, self.count)
            grad = self.rules.treated(grad, root, self.count, self.max_norm)
        elif self.clips:
            grad = grad * (self.max_norm / (norm[:, None] + 1e-6)).clamp(max=1.0)
        self.count.add_(1)
        if self.decays:
            keep = (1 - lr * self.decay_of)[:, 0]
            foreach_mul_(self.params, [keep.view(-1, *(1,) * (own.dim() - 1)) for own in self.params])
        change = self.change(grad, lr)
        parts = [part.view_as(own) for part, own in zip(change.split(self.sizes, 1), self.params, strict=True)]
        foreach_sub_(self.params, parts)
        return norm

    @abstractmethod
    def change(self, grad: Tensor, lr: Tensor) -> Tensor:
        """What parameters are lowered by; what is kept moves."""


class JointAdam(JointOptimiser):
    """Adams."""

    def __init__(self, optims: Sequence[Any], params: Sequence[Tensor]) -> None:
        super().__init__(optims, params)
        self.eps, self.beta1 = self.column([o.eps for o in optims]), optims[0].beta1

    def change(self, grad: Tensor, lr: Tensor, beta2: float = 0.999) -> Tensor:
        beta1 = self.beta1
        mean, square, count = self.kept["mean"], self.kept["square"], self.count[:, None]
        mean.lerp_(grad, 1 - beta1)
        square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        scale = square.sqrt() / correction(beta2, count).sqrt() + self.eps
        return (mean / scale) * (lr / correction(beta1, count))


class JointRMSprop(JointOptimiser):
    """RMSprops."""

    def __init__(self, optims: Sequence[Any], params: Sequence[Tensor]) -> None:
        super().__init__(optims, params)
        self.eps, self.decay = self.column([o.eps for o in optims]), self.column([o.decay for o in optims])

    def change(self, grad: Tensor, lr: Tensor) -> Tensor:
        square = self.kept["square"]
        square.mul_(self.decay).add_(grad.square() * (1 - self.decay))
        return grad / (square.sqrt() + self.eps) * lr


JOINT: dict[type[Optimiser], type[JointOptimiser]] = {Adam: JointAdam, RMSprop: JointRMSprop}


def joint(optim: Optimiser) -> type[JointOptimiser]:
    """What steps for several optimisers like this one."""
    found = next((JOINT[kind] for kind in type(optim).__mro__ if kind in JOINT), None)
    if found is None:
        known = ", ".join(kind.__name__ for kind in JOINT)
        raise UserError(f"optimiser: {type(optim).__name__} cannot train several runs together. Accepted: {known}.")
    return found


class Inner:
    """A part of a function inside `Stack.all`, which is a function of all K by itself: compiled for them."""

    def __init__(self, fn: Fn) -> None:
        self.fn, self.whole, self.count = fn, fn, 0

    def batch(self, whole: Fn, count: int) -> None:
        """From now on computed by `whole`, of [K, ...]."""
        self.whole, self.count = whole, count

    def __call__(self, *args: Any) -> Any:
        level = vmap_level()
        if level is None or not self.count:
            return self.fn(*args)
        given = map_tree(lambda x: bare(x) if is_batched(x) else x.expand(self.count, *x.shape), args)
        with temporarily_pop_interpreter_stack():
            gave = self.whole(*given)
        return map_tree(lambda x: add_batch_dim(x, 0, level), gave)


def bare(x: Tensor) -> Tensor:
    """A tensor inside vmap as the [K, ...] that it is."""
    whole: Tensor = unbatched(x)
    return whole.movedim(batch_dim(x), 0)


def side_by_side(trees: Sequence[Any]) -> Any:
    """`stack`, without a copy of what lies side by side already: the result may share memory with the trees."""
    return map_tree(lambda *xs: _beside(xs), *trees)


def _beside(xs: tuple[Tensor, ...]) -> Tensor:
    first, size = xs[0], xs[0].element_size()
    apart = xs[1].data_ptr() - first.data_ptr() if len(xs) > 1 else 0
    if apart <= 0 or apart % size or any(b.data_ptr() - a.data_ptr() != apart for a, b in zip(xs, xs[1:])):
        return torch.stack(xs)
    whole = first.untyped_storage().data_ptr()
    alike = all(x.untyped_storage().data_ptr() == whole and x.stride() == first.stride() for x in xs)
    return first.as_strided((len(xs), *first.shape), (apart // size, *first.stride())) if alike else torch.stack(xs)
