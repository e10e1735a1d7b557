"""An Agent whose predictions are made by a central inference server; and how requests and answers are sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ganglion import ops
from ganglion.buffers.storage import tree_of
from ganglion.core import Acted, Algorithm, Knobs, Noise, Obs, Past
from ganglion.fleet.wire import Bytes, pack, unpack
from ganglion.runtime.agent import Agent, carrying, enter, leave
from ganglion.runtime.engine import Engine


class Answer(NamedTuple):
    """A prediction by its leaves, and the weights it was made with."""

    version: int
    knobs: Mapping[str, float]
    tensors: Mapping[str, Tensor]


Ask = Callable[[Obs, Past, Noise], Answer]


class RemoteAgent(Agent):
    """An Agent whose predictions are made by a server; it draws actions from them itself."""

    def __init__(self, algo: Algorithm[Any, Any], ask: Ask) -> None:
        super().__init__(algo, Engine(torch.device("cpu")))
        self.ask, self.version = ask, -1
        self.like: Any = None  # a prediction of its own, for its structure alone
        self.leaves: dict[str, Any] = {}

    @torch.no_grad()
    def act(self, obs: Obs, past: Past, knobs: Knobs, noise: Noise) -> Acted:
        first, second = self.parted(noise)
        past = self.begun(past)
        if self.like is None:
            self.like = self.algo.predict(enter(obs), past, first)
            self.leaves = ops.flatten_names(self.like)
        answer = self.ask(obs, past, first)
        self.version = answer.version
        prediction = carrying(ops.unflatten(self.like, {**self.leaves, **answer.tensors}), past)
        return leave(self.algo.explore(prediction, self.held.at(answer.knobs), second), past)


# ------------------------------------------------------------ over a line


def pack_question(obs: Obs, past: Past, noise: Noise) -> Bytes:
    dice = {"uniform": noise.uniform, "normal": noise.normal}
    named = {"obs": obs, "start": past.start, "memory": past.memory, "carried": past.carried, **dice}
    return pack({}, ops.flatten_names(named))


def unpack_question(body: Any) -> tuple[Obs, Past, Noise]:
    tree = tree_of(unpack(body)[1])
    past = Past(tree["memory"], tree["start"], tuple(tree.get("carried", {}).values()))
    return tree["obs"], past, Noise(tree["uniform"], tree["normal"])


def pack_answer(answer: Answer) -> Bytes:
    return pack({"version": answer.version, "knobs": dict(answer.knobs)}, answer.tensors)


def unpack_answer(body: Any) -> Answer:
    about, tensors = unpack(body)
    return Answer(about["version"], about["knobs"], tensors)
