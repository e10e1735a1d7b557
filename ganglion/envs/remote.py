"""Environments that live in other processes or on other machines, a game engine's for example: each connects to a
server here and is a slot. All slots are asked for a step before the first answer is read.

A client that is lost, too late or sends garbage loses its connection. Its episode is cut as truncated and the row in
flight is not learned from, as with worker processes; the next client that connects plays on in its slot. Where an
episode repeats under its seed (`env.resume: replay`), another client replays it instead, and nothing is cut.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from copy import deepcopy
from time import monotonic, perf_counter
from typing import Any, Literal

import gymnasium
import numpy as np
from pydantic import Field

from ganglion.config import Count, register
from ganglion.core import Env
from ganglion.envs.configs import ShapedConfig
from ganglion.envs.gym import GymEnv
from ganglion.envs.gym_arrays import MASK, Array
from ganglion.envs.remote_server import Client, ClientError, EnvServer, garbage, leave, read_obs, server_at, size_of
from ganglion.envs.seeds import episode_seed
from ganglion.envs.slots import ActionLog, Slots, episode_of
from ganglion.errors import EnvError, UserError
from ganglion.faults import Faults

log = logging.getLogger(__name__)
GIVEN_UP = {"refused": "the connection is given up; connect again"}
BREATH = 1.0  # seconds to wait for a client where other slots have one


@register("env", "remote")
class RemoteConfig(ShapedConfig):
    """Environments that connect by a socket: one client a slot."""

    host: str = Field("127.0.0.1", min_length=1, max_length=253)  # beyond loopback with a token only
    port: int = Field(5757, ge=0, le=65_535)  # 0: any that is free
    timeout: float = Field(60.0, ge=0.001, le=86_400)  # seconds for an answer
    wait: float = Field(120.0, ge=0.001, le=86_400)  # seconds to wait for clients where no slot has one
    resume: Literal["replay", "restart"] = "restart"  # replay: for what repeats under its seed and actions
    max_failures: Count = Field(1000, ge=0)  # in the run, before it stops

    def build(self, slots: int | None = None, device: str = "cpu", render: bool = False) -> Env:
        return self.shape(RemoteEnv(self, slots or self.slots, device))


class RemoteGame(gymnasium.Env[Any, Any]):
    """The environment of one slot: whichever client plays in it."""

    def __init__(self, server: EnvServer, timeout: float, replays: bool, client: Client | None = None) -> None:
        assert server.form is not None
        self.server, self.timeout, self.replays, self.client = server, timeout, replays, client
        self.form = server.form
        self.observation_space, self.action_space = deepcopy(self.form[:2])
        self.size = size_of(self.form.obs)
        self.asked = False  # whether an answer is due
        self.broken: ClientError | None = None  # what went wrong while it was asked
        self.seed: int | None = None
        self.taken: list[Any] = []  # actions of this episode, where it can be replayed
        self.seen: Any = None
        self.recovered: list[tuple[ClientError, int, float]] = []  # what was lost, at which step, and for how long

    def ask(self, message: dict[str, Any]) -> None:
        """Sends a question whose answer is read later."""
        self.asked, self.broken = True, None
        try:
            if self.client is None:
                raise ClientError("lost", "there is no client")
            self.client.send(message, self.timeout)
        except ClientError as error:
            self.broken = error

    def ask_reset(self, seed: int) -> None:
        self.ask({"do": "reset", "seed": seed})

    def ask_step(self, action: Any) -> None:
        self.ask({"do": "step", "action": plain(action)})

    def answer(self) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.asked = False
        if self.broken is not None or self.client is None:
            raise self.broken or ClientError("lost", "there is no client")
        message, payload = self.client.receive(self.timeout, self.size)
        if message.get("id") != self.client.asked or type(message.get("id")) is not int:
            raise garbage(f"{self.client.where} answered {str(message.get('id'))[:20]}, not {self.client.asked}")
        if len(payload) != self.size:
            raise garbage(f"{self.client.where} sent {len(payload)} bytes of observation; {self.size} were expected")
        return read_obs(self.form.obs, payload), *self._numbers(message, self.client.where)

    def _numbers(self, message: dict[str, Any], where: str) -> tuple[float, bool, bool, dict[str, Any]]:
        reward, info = message.get("reward", 0.0), message.get("info", {})
        flags = message.get("terminated", False), message.get("truncated", False)
        if type(reward) not in (int, float) or type(info) is not dict or any(type(flag) is not bool for flag in flags):
            raise garbage(f"{where}: reward is a number, terminated and truncated true or false, info an object")
        kept = {k: v for k, v in info.items() if type(v) in (int, float, bool) and k != MASK and len(k) <= 64}
        if self.form.masks and not any(flags):  # nobody acts on a last observation
            kept[MASK] = read_mask(message.get("mask"), self.form.masks, where)
        return float(reward), *flags, kept

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Starts an episode; nothing is lost where it has to be asked for again."""
        self.seed, self.taken = seed or 0, []
        until = monotonic() + self.timeout
        while True:
            try:
                if not self.asked:
                    self.ask_reset(self.seed)
                obs, _, _, _, info = self.answer()
                self.seen = obs
                return obs, info
            except ClientError as error:
                self.drop()
                self.client = self.server.take(until)
                if self.client is None:
                    raise error

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        try:
            if not self.asked:
                self.ask_step(action)
            told = self.answer()
        except ClientError as error:
            self.drop()
            if not self.replays:
                raise
            told = self._again(error, action)
        if self.replays:
            self.taken.append(plain(action))
            self.seen = told[0]
        return told

    def _again(self, error: ClientError, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """The step that was lost, from another client that has been brought to where the lost one was."""
        began, until, known, told = perf_counter(), monotonic() + self.timeout, self.seen, None
        while told is None:
            self.client = self.server.take(until)
            if self.client is None:
                raise error
            try:
                self.ask_reset(self.seed or 0)
                obs = self.answer()[0]
                for past in self.taken:
                    self.ask_step(past)
                    obs = self.answer()[0]
                if not same(obs, known):
                    raise UserError("the episode did not repeat: env.resume should be restart")
                self.ask_step(action)
                told = self.answer()
            except ClientError:
                self.drop()
        self.recovered.append((error, len(self.taken), perf_counter() - began))
        return told

    def drop(self, farewell: dict[str, Any] = GIVEN_UP) -> None:
        """Ends the connection."""
        self.asked = False
        if self.client is not None:
            self.client.close(farewell)
            self.client = None

    def close(self) -> None:
        self.drop()


def plain(action: Any) -> Any:
    """An action as JSON has it."""
    return np.asarray(action).tolist()


def same(one: Any, other: Any) -> bool:
    if type(one) is dict:
        return all(np.array_equal(part, other[name]) for name, part in one.items())
    return np.array_equal(one, other)


def read_mask(mask: Any, count: int, where: str) -> Array:
    if type(mask) is not list or len(mask) != count or not any(flag in (1, True) for flag in mask):
        raise garbage(f"{where}: mask should be a list of {count} with a legal action among them")
    return np.array([flag in (1, True) for flag in mask])


class RemoteSlots(Slots):
    """Slots that are asked all at once; one whose client is gone stays where it is until another comes."""

    rows_in_flight = 0  # steps that were asked for when a client was lost

    def __init__(self, games: list[RemoteGame], cfg: RemoteConfig, server: EnvServer) -> None:
        self.cfg, self.server = cfg, server
        self.replaced: list[float] = []  # seconds without a client, of each time one was replaced
        self.gone: dict[int, float] = {}  # slots without a client, since when

        def make(slot: int) -> RemoteGame:
            return RemoteGame(server, cfg.timeout, cfg.resume == "replay")

        super().__init__(games, games[0].form.masks, cfg.time_limit or 0, make=make)

    def _walk(self, pairs: Iterable[tuple[int, Any]]) -> None:
        asked = list(pairs)
        idle = self._idle([slot for slot, _ in asked])
        here = [(slot, action) for slot, action in asked if slot not in idle]
        for slot, action in here:
            game: Any = self.envs[slot]
            if not self.ended[slot]:
                game.ask_step(action)
            elif game.client is not None:
                game.ask_reset(episode_seed(self.seed, self.first + slot, self.episode[slot] + 1))
        super()._walk(here)
        for slot in idle:
            self._stay(slot)
        for slot, _ in here:
            self._tell_recovered(slot)

    def _idle(self, slots: list[int]) -> set[int]:
        """Slots at an end for which no client is there. Where no slot has one, it is waited for."""
        for slot in slots:
            game: Any = self.envs[slot]
            if game.client is None and self.ended[slot]:
                self.gone.setdefault(slot, perf_counter())
                game.client = self.server.take(monotonic() + self._patience())
            if game.client is not None and slot in self.gone:
                self.replaced.append(perf_counter() - self.gone.pop(slot))
        if len(self.gone) == len(self.envs):
            raise EnvError(f"env.wait: no client came back to {self.server.host}:{self.server.port} in time.")
        return {slot for slot in slots if slot in self.gone}

    def _patience(self) -> float:
        """Seconds to wait for a client: none while others play, or a moment just after one was lost."""
        games: list[Any] = self.envs
        if any(game.client is not None for game in games):
            return max(0.0, BREATH - (perf_counter() - max(self.gone.values())))
        return self.cfg.wait

    def _stay(self, slot: int) -> None:
        """One more dead row of a slot without a client."""
        self.reward[slot] = 0.0
        self.valid[slot] = False
        self.marked = True

    def _fail(self, slot: int, error: BaseException) -> None:
        self.rows_in_flight += not self.ended[slot]
        super()._fail(slot, error)

    def _report(self, slot: int, error: BaseException) -> None:
        super()._report(slot, error)
        if type(error) is ClientError:
            self.failures[-1] |= {"kind": error.kind, "traceback": ""}

    def _tell_recovered(self, slot: int) -> None:
        """Reports clients whose episode another has taken over; nothing was cut."""
        game: Any = self.envs[slot]
        for error, step, seconds in game.recovered:
            own = episode_of(self.seed, self.first + slot, self.episode[slot], step, False)
            self.failures.append({**own, "kind": error.kind, "error": str(error), "traceback": "", "actions": None})
            self.rows_in_flight += 1
            self.replaced.append(seconds)
        game.recovered = []


class RemoteFaults(Faults):
    """With the clients that were refused."""

    def __init__(self, name: str, most: int, server: EnvServer) -> None:
        super().__init__(name, most)
        self.server = server

    def numbers(self) -> dict[str, float]:
        refused = {"env/refused": float(self.server.refused)} if self.server.refused else {}
        return {**super().numbers(), **refused}


class RemoteEnv(GymEnv):
    """Slots that clients of a server play in."""

    def __init__(self, cfg: RemoteConfig, slots: int, device: str) -> None:
        self.server = server_at(cfg.host, cfg.port)
        try:
            clients = self._gather(cfg, slots)
            games = [RemoteGame(self.server, cfg.timeout, cfg.resume == "replay", client) for client in clients]
            walked = RemoteSlots(games, cfg, self.server)
        except BaseException:
            leave(self.server)
            raise
        walked.log = ActionLog() if cfg.resume == "replay" else None
        self.slots, self.left = walked, False
        name, most, first = f"remote:{self.server.host}:{self.server.port}", cfg.max_failures, games[0]
        self._walk(walked, first.observation_space, first.action_space, name, device, cfg.resume, most)
        self.faults = RemoteFaults(name, most, self.server)
        self.faults.pool = walked

    def _gather(self, cfg: RemoteConfig, slots: int) -> list[Client]:
        """A client for every slot."""
        clients: list[Client] = []
        until = monotonic() + cfg.wait
        if len(self.server.waiting) < slots:
            log.warning("env: waiting for %d environments at %s:%d", slots, self.server.host, self.server.port)
        while len(clients) < slots:
            client = self.server.take(until)
            if client is None:
                for one in clients:
                    one.close({"do": "close"})
                where = f"{self.server.host}:{self.server.port}"
                raise EnvError(
                    f"env.wait: {len(clients)} of {slots} clients connected to {where} within {cfg.wait:g} s. "
                    "Each slot needs one; evaluation needs eval.slots more."
                )
            clients.append(client)
        return clients

    def close(self) -> None:
        if not self.left:
            self.left = True
            for game in self.slots.envs:
                game.drop({"do": "close"})
            leave(self.server)
