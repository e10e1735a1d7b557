"""Made-up worlds over any spaces, and the cases every algorithm is put through."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isinf
from typing import Any

import torch

from ganglion import ops, registry
from ganglion.core import (
    Box,
    Composite,
    Discrete,
    Env,
    EnvSpec,
    Episode,
    MultiBinary,
    MultiDiscrete,
    Past,
    Space,
    State,
    Step,
)  # fmt: skip
from ganglion.runtime.agent import Agent
from ganglion.runtime.engine import Engine
from ganglion.runtime.explorer import Explorer, Seat
from ganglion.runtime.learner import Learner
from ganglion.runtime.randomness import Stream

CPU = torch.device("cpu")


def draw(space: Space, slots: int, g: torch.Generator, mask: bool = False) -> Any:
    """A random element per slot."""
    match space:
        case Box() if space.dtype == torch.uint8:
            return torch.randint(0, 256, (slots, *space.shape), generator=g, dtype=torch.uint8)
        case Box():
            return torch.randn(slots, *space.shape, generator=g)
        case Discrete():
            return torch.randint(0, space.n, (slots,), generator=g)
        case MultiDiscrete():
            return torch.stack([torch.randint(0, n, (slots,), generator=g) for n in space.nvec], -1)
        case MultiBinary():
            bits = torch.randint(0, 2, (slots, space.n), generator=g)
            bits[:, 0] = 1  # as a mask, it leaves something legal
            return bits.bool() if mask else bits
        case Composite():
            return {k: draw(s, slots, g, mask=k == "action_mask") for k, s in space.items.items()}


class RandomWorld(Env):
    """Random observations, rewards and endings; says when an action does not fit its space."""

    promise = "state"

    def __init__(self, spec: EnvSpec) -> None:
        self.spec = spec

    def reset(self, seed: int) -> Step:
        self.g = torch.Generator().manual_seed(seed % 2**31)
        slots = self.spec.slots
        off = torch.zeros(slots, dtype=torch.bool)
        self.now = Step(draw(self.spec.obs, slots, self.g), torch.zeros(slots), off, off, ~off)
        return self.now

    def step(self, action: Any) -> Step:
        action = ops.to_device(action, CPU)
        self.check(self.spec.action, action)
        self.check_legal(action)
        slots, alive = self.spec.slots, self.now.valid
        ends = torch.rand(slots, generator=self.g)
        terminated, truncated = (ends < 0.1) & alive, (ends > 0.9) & alive
        reward = torch.randn(slots, generator=self.g) * alive
        self.now = Step(draw(self.spec.obs, slots, self.g), reward, terminated, truncated, ~(terminated | truncated))
        return self.now

    def check(self, space: Space, action: Any) -> None:
        slots = self.spec.slots
        match space:
            case Discrete():
                assert action.shape == (slots,) and action.dtype == torch.int64
                assert ((action >= 0) & (action < space.n)).all()
            case MultiDiscrete():
                assert action.shape == (slots, len(space.nvec)) and (action < torch.tensor(space.nvec)).all()
            case MultiBinary():
                assert action.shape == (slots, space.n) and ((action == 0) | (action == 1)).all()
            case Box():
                assert action.shape == (slots, *space.shape) and action.dtype == torch.float32
                assert action.isfinite().all()
            case Composite():
                assert list(action) == list(space.items)
                for name, part in space.items.items():
                    self.check(part, action[name])

    def check_legal(self, action: Any) -> None:
        obs = self.now.obs
        if isinstance(obs, dict) and "action_mask" in obs and isinstance(self.spec.action, Discrete):
            assert obs["action_mask"].gather(-1, action[:, None]).all(), "an illegal action was taken"

    def episodes(self) -> list[Episode]:
        return []

    def render(self) -> None:
        return None

    def close(self) -> None: ...

    def state(self) -> State:
        return State()

    def restore(self, state: State) -> None: ...


@dataclass(frozen=True)
class Case:
    name: str
    algo: str
    action: Space
    obs: Space = Box((4,))
    settings: dict[str, Any] = field(default_factory=dict)
    slots: int = 6

    def spec(self) -> EnvSpec:
        return EnvSpec(self.obs, self.action, self.slots, self.name)


TWO, THREE = Discrete(2), Discrete(3)
ARM = Box((2,), low=(-1.0, -2.0), high=(1.0, 2.0))
MASKED = Composite({"obs": Box((3,)), "action_mask": MultiBinary(3)})
MIXED = Composite(
    {"pixels": Box((1, 36, 36), torch.uint8), "speed": Box((2,)), "gear": Discrete(3), "lamps": MultiBinary(2)}
)
GRID = Composite({"cells": Box((10, 10, 4), torch.uint8, (0.0,), (1.0,)), "action_mask": MultiBinary(3)})
HYBRID = Composite({"steer": ARM, "gear": THREE, "lamps": MultiBinary(2), "keys": MultiDiscrete((2, 3))})
SMALL_REPLAY = {"capacity": 600, "batch": 16}
DQN = {"replay": SMALL_REPLAY, "limiter": {"warmup": 50, "opt_interval": 6}, "net": {"hidden": [16]}, "target_every": 3}
PPO = {"horizon": 8, "epochs": 2, "minibatches": 2, "net": {"hidden": [16, 16]}}
IMPALA = {"horizon": 8, "net": {"hidden": [16, 16]}}
SAC = {"replay": SMALL_REPLAY, "limiter": {"warmup": 50, "opt_interval": 6}, "net": {"hidden": [16]}}


def over(settings: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Settings with others laid over them, one level deep."""
    return settings | {k: settings[k] | v if isinstance(v, dict) and k in settings else v for k, v in more.items()}


CASES = [
    Case("dqn", "dqn", TWO, settings=DQN),
    Case("dqn-all", "dqn", THREE, MASKED, over(DQN, dueling=True, n_step=3,
         replay={"kind": "prioritised", "sequence": 4}, net={"memory": "lstm", "memory_size": 8, "normalise": True})),
    Case("dqn-mixed", "dqn", TWO, MIXED, over(DQN, n_step=2, double=False, loss="mse", net={"memory": "gru"})),
    Case("dqn-grid", "dqn", THREE, GRID, over(DQN, net={"grid": "conv"})),
    Case("dqn-noisy", "dqn", THREE, MASKED, over(DQN, noisy=0.5, epsilon=0.1, dueling=True, tau=0.01,
         net={"memory": "gru", "memory_size": 8})),
    Case("dqn-munchausen", "dqn", THREE, MASKED, over(DQN, munchausen=0.9, n_step=2)),
    Case("c51", "c51", TWO, settings=over(DQN, low=-5, high=5)),
    Case("c51-all", "c51", THREE, MASKED, over(DQN, dueling=True, n_step=3, atoms=11, double=False,
         replay={"kind": "prioritised", "sequence": 4}, net={"memory": "lstm", "memory_size": 8, "normalise": True})),
    Case("qrdqn", "qrdqn", TWO, settings=DQN),
    Case("qrdqn-all", "qrdqn", THREE, MASKED, over(DQN, dueling=True, n_step=3, quantiles=7, kappa=0.5,
         replay={"kind": "prioritised", "sequence": 4}, net={"memory": "lstm", "memory_size": 8, "normalise": True})),
    Case("iqn", "iqn", TWO, settings=DQN),
    Case("iqn-all", "iqn", THREE, MASKED, over(DQN, dueling=True, n_step=3, double=False,
         percentiles={"sample": "const"}, target_percentiles={"sample": "median"},
         act_percentiles={"sample": "uniform", "count": 5},
         replay={"kind": "prioritised", "sequence": 4}, net={"memory": "lstm", "memory_size": 8, "normalise": True})),
    Case("fqf", "fqf", TWO, settings=DQN),
    Case("fqf-all", "fqf", THREE, MASKED, over(DQN, dueling=True, n_step=3, double=False, fractions=5,
         replay={"kind": "prioritised", "sequence": 4}, net={"memory": "gru", "memory_size": 8, "normalise": True})),
    Case("rainbow", "rainbow", TWO, settings=DQN),
    Case("rainbow-all", "rainbow", THREE, MASKED, over(DQN, atoms=11, epsilon=0.1,
         replay={"kind": "prioritised", "sequence": 4}, net={"memory": "lstm", "memory_size": 8, "normalise": True})),
    Case("pqn", "pqn", TWO, settings=PPO),
    Case("pqn-all", "pqn", THREE, MASKED, over(PPO, dueling=True, lam=0.9,
         net={"memory": "lstm", "memory_size": 8, "normalise": True, "norm": "layer"})),
    Case("pqn-bfloat16", "pqn", TWO, MIXED, over(PPO, net={"precision": "bfloat16", "norm": "layer"})),
    Case("r2d2", "r2d2", TWO, settings=over(DQN, replay={"sequence": 6, "burn_in": 2}, net={"memory_size": 8})),
    Case("r2d2-all", "r2d2", THREE, MASKED, over(DQN, ladder=7.0, epsilon=0.9, dueling=False,
         replay={"kind": "replay", "sequence": 4, "burn_in": 0}, net={"memory": "gru", "normalise": True})),
    Case("ppo", "ppo", TWO, settings=PPO),
    Case("ppo-box", "ppo", ARM, settings=over(PPO, normalise_reward=True, net={"normalise": True}, clip_value=0.2)),
    Case("ppo-hybrid", "ppo", HYBRID, MIXED, PPO),
    Case("ppo-shared", "ppo", TWO, Box((4, 36, 36), torch.uint8), over(PPO, shared=True)),
    Case("ppo-all", "ppo", THREE, MASKED, over(PPO, max_kl=0.5,
         net={"memory": "lstm", "memory_size": 8, "normalise": True})),
    Case("dqn-apex", "dqn", THREE, MASKED, over(DQN, ladder=7.0, epsilon=0.9, n_step=3,
         replay={"kind": "prioritised", "initial": "error"})),
    Case("impala", "impala", TWO, settings=IMPALA),
    Case("impala-hybrid", "impala", HYBRID, MIXED, over(IMPALA, normalise_advantage=True)),
    Case("impala-own", "impala", ARM, Box((4, 36, 36), torch.uint8), over(IMPALA, shared=False, horizon=3)),
    Case("impala-all", "impala", THREE, MASKED, over(IMPALA, epochs=2, minibatches=2,
         net={"memory": "lstm", "memory_size": 8, "normalise": True})),
    Case("sac", "sac", ARM, settings=SAC),
    Case("sac-all", "sac", ARM, MIXED, over(SAC, n_step=3, max_norm=5.0,
         replay={"kind": "prioritised"}, net={"normalise": True})),
    Case("sac-fixed", "sac", ARM, settings=over(SAC, temperature=0.2)),
    Case("td3", "td3", ARM, settings=SAC),
    Case("td3-all", "td3", ARM, MIXED, over(SAC, n_step=3, max_norm=5.0, delay=3, hold=2.0,
         replay={"kind": "prioritised"}, net={"normalise": True})),
    Case("sac-wide", "sac", ARM, settings=over(SAC, replay={"batch": 64}, net={"hidden": [128, 136]})),
    Case("td3-wide", "td3", ARM, settings=over(SAC, replay={"batch": 64}, net={"hidden": [128, 136]})),
    Case("ppo-wide", "ppo", TWO, settings=over(PPO, horizon=24, net={"hidden": [64, 72]})),
    Case("ppo-bfloat16", "ppo", HYBRID, MIXED, over(PPO, net={"precision": "bfloat16", "memory": "gru"})),
    Case("td3-bfloat16", "td3", ARM, MIXED, over(SAC, net={"precision": "bfloat16", "normalise": True})),
]  # fmt: skip


def one_graph(fn: Any) -> Any:
    """A function as one graph, traced as inductor would."""
    import torch._dynamo.config as dynamo

    dynamo.trace_autograd_ops = True
    return torch.compile(fn, fullgraph=True, backend="aot_eager")


class Bench:
    """An algorithm with everything around it, in a made-up world."""

    def __init__(self, case: Case, seed: int = 0, wrap: Any = None, device: torch.device = CPU) -> None:
        cfg = registry.lookup("algo", case.algo).model_validate(case.settings)
        spec = case.spec()
        with torch.random.fork_rng(), device:
            torch.manual_seed(seed)
            self.algo = cfg.build(spec)
        self.agent = Agent(self.algo, Engine(device, wrap))
        recipe = cfg.recipe(spec)
        buffer, limiter = recipe.buffer.build(spec, device), recipe.limiter.build(spec, device)
        self.learner = Learner(self.agent, buffer, limiter, seed)
        seat = Seat(self.agent, recipe.processor.build(spec, device), self.learner, seed, spec.slots)
        self.explorer = Explorer(RandomWorld(spec), [seat], seed)

    @property
    def now(self) -> tuple[Step, Past]:
        """What the slots see and remember."""
        return self.explorer.begin(), self.explorer.seats[0].past

    @property
    def stream(self) -> Stream:
        return self.explorer.seats[0].stream

    def train(self, updates: int, at: Any) -> Any:
        """Runs in turn until so many more updates are made."""
        goal = at.opt_steps + updates
        while at.opt_steps < goal:
            at = (self.learner.step(at) if self.learner.owes(at) else self.explorer.step(at)).at
        return at

    def parameters(self) -> dict[str, torch.Tensor]:
        return {k: v.clone() for k, v in self.agent.state().tensors.items()}


def finite(bounds: tuple[float, ...]) -> bool:
    return not any(isinf(b) for b in bounds)
