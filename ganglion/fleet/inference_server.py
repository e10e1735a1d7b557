"""Central inference: explorers send what they see, and one Predictor answers all that wait, in one batch. What is
random stays with the explorers: with the same weights they do what they would have done by themselves."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Condition, Thread
from time import sleep
from typing import Any

import torch
from torch import Tensor

from ganglion import ops
from ganglion.config import RunConfig
from ganglion.core import Algorithm, Noise, Obs, Past
from ganglion.fleet.explorer_process import TakenBoard, read_brief
from ganglion.fleet.inference_client import Answer, pack_answer, unpack_question
from ganglion.fleet.ray_actor import WEIGHTS, Brief
from ganglion.fleet.remote_explorer import NAP, Board, lighten
from ganglion.fleet.shared_memory import SharedBoard
from ganglion.fleet.wire import Bytes, unpack_weights
from ganglion.runtime.agent import PLAYER, Agent, enter
from ganglion.runtime.build import build_agent, build_env

MOMENT = 0.001  # seconds that a question waits for those of other explorers


class InferenceRequest:
    """What some slots see, and what becomes of it."""

    def __init__(self, obs: Obs, past: Past, noise: Noise) -> None:
        self.obs, self.past, self.noise = obs, past, noise
        self.answer: Answer | BaseException | None = None


class Predictor:
    """An Agent with the newest weights, asked by many threads at once."""

    def __init__(self, agent: Agent, board: Board, explorers: int, agents: int = 1) -> None:
        self.agent, self.board, self.explorers, self.agents = agent, board, explorers, agents
        self.version = -1
        self.knobs: Mapping[str, float] = {}
        self.asked: list[InferenceRequest] = []
        self.changed, self.closed = Condition(), False
        self.by_slot: dict[str, bool] = {}  # which leaves of a prediction have a row for each slot
        Thread(target=self.run, daemon=True, name="predictor").start()

    def ask(self, obs: Obs, past: Past, noise: Noise) -> Answer:
        question = InferenceRequest(obs, past, noise)
        with self.changed:
            self.asked.append(question)
            self.changed.notify_all()
            self.changed.wait_for(lambda: question.answer is not None or self.closed)
        if not isinstance(question.answer, Answer):
            raise question.answer or RuntimeError("the predictor is closed")
        return question.answer

    def run(self) -> None:
        while not self.closed:
            with self.changed:
                self.changed.wait_for(lambda: bool(self.asked) or self.closed)
                self.changed.wait_for(lambda: len(self.asked) >= self.explorers or self.closed, MOMENT)
                asked, self.asked = self.asked, []
            try:
                answers: Sequence[Answer | BaseException] = self.answer(asked) if asked else ()
            except BaseException as error:  # told by those who asked
                answers = [error] * len(asked)
            with self.changed:
                for question, answer in zip(asked, answers, strict=True):
                    question.answer = answer
                self.changed.notify_all()

    @torch.no_grad()
    def answer(self, asked: Sequence[InferenceRequest]) -> list[Answer]:
        """All at once: slots of several explorers side by side."""
        self.obey()
        agent, sizes = self.agent, [len(question.past.start[0]) for question in asked]
        obs = agent.here(beside([question.obs for question in asked], self.agents, 0))
        past = ops.to_device(beside([question.past for question in asked], self.agents, 1), agent.device)
        dice = beside([(question.noise.uniform, question.noise.normal) for question in asked], self.agents, 1)
        noise = Noise(*ops.to_device(dice, agent.device))
        if not self.by_slot:
            self.by_slot = depends(agent.algo, obs, past, self.agents)
        named = tensors(agent.algo.predict(enter(obs), past, noise))
        parts = {
            k: apart(x.cpu(), sizes, self.agents) if self.by_slot[k] else [x.cpu()] * len(sizes)
            for k, x in named.items()
        }
        return [Answer(self.version, self.knobs, {k: x[i] for k, x in parts.items()}) for i in range(len(sizes))]

    def obey(self) -> None:
        """Takes over newer weights; waits for the first."""
        while True:
            weights = self.board.latest(PLAYER, self.version)
            if weights is not None:
                self.agent.obey(weights)
                self.version, self.knobs = weights.version, weights.knobs
            if self.version >= 0 or self.closed:
                return
            sleep(NAP)

    def close(self) -> None:
        with self.changed:
            self.closed = True
            self.changed.notify_all()


def beside(trees: Sequence[Any], agents: int, dim: int) -> Any:
    """The slots of several explorers as those of one: agent by agent, and for each the copies of all explorers."""
    by_agent = [ops.map_tree(lambda x: x.unflatten(dim, (agents, -1)), tree) for tree in trees]
    return ops.map_tree(lambda x: x.flatten(dim, dim + 1), ops.concat(by_agent, dim=dim + 1))


def apart(x: Tensor, sizes: Sequence[int], agents: int) -> list[Tensor]:
    """What is each explorer's of [T, B, ...], in the order of its own slots."""
    copies = x.unflatten(1, (agents, -1)).split([size // agents for size in sizes], 2)
    return [part.flatten(1, 2) for part in copies]


def depends(algo: Algorithm[Any, Any], obs: Obs, past: Past, agents: int) -> dict[str, bool]:
    """Which leaves of a prediction grow with the slots: parameters and bounds do not."""

    def shapes(count: int) -> dict[str, torch.Size]:
        many = lambda x: x[:1].expand(count, *x.shape[1:])  # noqa: E731
        wide = lambda x: x[:, :1].expand(x.shape[0], count, *x.shape[2:])  # noqa: E731
        then = ops.map_tree(wide, past)
        made = algo.predict(enter(ops.map_tree(many, obs)), then, algo.neutral(then.start))
        return {name: x.shape for name, x in tensors(made).items()}

    one, two = shapes(agents), shapes(2 * agents)
    return {name: shape != two[name] for name, shape in one.items()}


def tensors(tree: Any) -> dict[str, Tensor]:
    """Leaves by name; what else is in a prediction (sizes) is the same in all of them."""
    return {name: x for name, x in ops.flatten_names(tree).items() if isinstance(x, Tensor)}


def build_predictor(cfg: RunConfig, board: Board) -> Predictor:
    """On the learner's device, with all slots of a run at a time at most."""
    env = build_env(cfg)
    env.close()
    agent = build_agent(cfg, env.spec)
    lighten(agent)
    return Predictor(agent, board, cfg.fleet.explorers, len(env.spec.agents))


class InferenceServer:
    """A Predictor as an actor. Ray starts it anew where it dies, and asks again what was not answered."""

    def __init__(self, brief: Sequence[Any]) -> None:
        cfg = read_brief(given := Brief(*brief))
        folder, self.taken = Path(given.folder), TakenBoard()
        near = (folder / given.cookie).exists()
        self.predictor = build_predictor(cfg, SharedBoard(folder / WEIGHTS) if near else self.taken)

    def ask(self, question: Any) -> Bytes:
        return pack_answer(self.predictor.ask(*unpack_question(question)))

    def take(self, weights: Any) -> None:
        """Weights for one that does not share the learner's memory."""
        self.taken.weights = unpack_weights(weights)

    def pid(self) -> int:
        return os.getpid()
