"""PPO on CartPole with worlds made of tensors, on one GPU: Ganglion and PureJaxRL in turns A B B A.

    git clone https://github.com/luchris429/purejaxrl
    python benchmarks/purejaxrl.py --peer purejaxrl/purejaxrl                 # needs jax, flax, optax, gymnax
    python benchmarks/purejaxrl.py --peer DIR --slots 2048 8192 --precision float32 tf32

Both do the same work: 128 steps of every slot, 4 epochs of 4 minibatches, an actor and a critic of 2 x 64 tanh. The
peer's `ppo.py` is run as it is, with what it imports and does not need here (brax, navix) left empty, the one class it
needs of distrax written below, and gymnax's two endings put together as it expects. Its products are of tf32 by jax's
default; ours are asked for by `--precision`. Both are measured after they have been compiled.
"""

from __future__ import annotations

import argparse
import sys
import types
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import versus

HORIZON, EPOCHS, MINIBATCHES = 128, 4, 4
ROUNDS = 20  # rollouts in one call of the peer's program


def ours(slots: int, precision: str) -> None:
    """`run n`: n times ROUNDS rollouts and the updates that follow them."""
    import torch

    from ganglion import load_config
    from ganglion.runtime.build import build

    words = [f"algo.horizon={HORIZON}", f"algo.epochs={EPOCHS}", f"algo.minibatches={MINIBATCHES}", "algo.lr=2.5e-4"]
    words += [f"env={{kind: torch, id: cartpole, slots: {slots}}}", f"algo.net.precision={precision}"]
    words += ["algo=ppo", "train.budget=1000000M steps", "eval=never", "run.device=cuda", "run.fast=graph"]
    trainer = build(load_config(None, sorted(words, key=lambda word: word != "algo=ppo")))
    events = trainer()

    def work(n: int) -> dict[str, float]:
        before, updates = trainer.at, n * ROUNDS * EPOCHS * MINIBATCHES
        while trainer.at.opt_steps < before.opt_steps + updates:
            next(events)
        torch.cuda.synchronize()
        # rows of slots that begin anew are computed like the others; the peer counts every row
        return {"env_steps": n * ROUNDS * HORIZON * slots, "updates": trainer.at.opt_steps - before.opt_steps}

    work(1)
    versus.serve(work)


def theirs(slots: int, folder: Path) -> None:
    """The same of the peer: one call of its compiled program is ROUNDS rollouts."""
    import jax

    stand_in()
    sys.path.insert(0, str(folder))
    import gymnax
    import ppo  # type: ignore[import-not-found]

    make = gymnax.make

    def made(name: str) -> tuple[Any, Any]:
        env, params = make(name)
        return OneEnding(env), params

    gymnax.make = made
    config = {"LR": 2.5e-4, "NUM_ENVS": slots, "NUM_STEPS": HORIZON, "TOTAL_TIMESTEPS": ROUNDS * HORIZON * slots,
              "UPDATE_EPOCHS": EPOCHS, "NUM_MINIBATCHES": MINIBATCHES, "GAMMA": 0.99, "GAE_LAMBDA": 0.95,
              "CLIP_EPS": 0.2, "ENT_COEF": 0.01, "VF_COEF": 0.5, "MAX_GRAD_NORM": 0.5, "ACTIVATION": "tanh",
              "ENV_NAME": "CartPole-v1", "ANNEAL_LR": False, "DEBUG": False}  # fmt: skip
    train, keys = jax.jit(ppo.make_train(config)), iter(jax.random.split(jax.random.PRNGKey(0), 100_000))

    def work(n: int) -> dict[str, float]:
        for _ in range(n):
            jax.block_until_ready(train(next(keys)))
        rollouts = n * ROUNDS
        return {"env_steps": rollouts * HORIZON * slots, "updates": rollouts * EPOCHS * MINIBATCHES}

    work(1)
    versus.serve(work)


class OneEnding:
    """A gymnax environment whose step has one flag for both endings."""

    def __init__(self, env: Any) -> None:
        self._env = env

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def step(self, key: Any, state: Any, action: Any, params: Any) -> tuple[Any, ...]:
        obs, state, reward, *ends, info = self._env.step(key, state, action, params)
        return obs, state, reward, ends[0] if len(ends) == 1 else ends[0] | ends[1], info


def stand_in() -> None:
    """Puts what the peer imports, and does not use here, in place."""
    import jax
    import jax.numpy as jnp

    class Categorical:
        def __init__(self, logits: Any) -> None:
            self.logits = jax.nn.log_softmax(logits)

        def sample(self, seed: Any) -> Any:
            return jax.random.categorical(seed, self.logits)

        def log_prob(self, value: Any) -> Any:
            return jnp.take_along_axis(self.logits, value[..., None], -1)[..., 0]

        def entropy(self) -> Any:
            return -(jnp.exp(self.logits) * self.logits).sum(-1)

    empty = {"brax": ["envs"], "brax.envs": [], "brax.envs.wrappers": [], "navix": []}
    empty["brax.envs.wrappers.training"] = ["EpisodeWrapper", "AutoResetWrapper"]
    for name, inside in empty.items():
        sys.modules[name] = types.ModuleType(name)
        for item in inside:
            setattr(sys.modules[name], item, None)
    distrax: Any = types.ModuleType("distrax")
    distrax.Categorical = Categorical
    sys.modules["distrax"] = distrax


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=Path, required=True, metavar="DIR", help="where its ppo.py is")
    parser.add_argument("--slots", type=int, nargs="+", default=[2048, 8192])
    parser.add_argument("--precision", nargs="+", default=["tf32"], help="of our products: float32, tf32, bfloat16")
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--side", nargs=3, metavar="", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.side:
        side, slots, precision = asked.side
        ours(int(slots), precision) if side == "ours" else theirs(int(slots), asked.peer)
        return 0
    command, missed = [sys.executable, __file__, "--peer", str(asked.peer), "--side"], 0
    shared = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}  # both are on one card
    rows = []
    for slots in asked.slots:
        for precision in asked.precision:
            one, two = ([*command, side, str(slots), precision] for side in ("ours", "theirs"))
            with versus.Worker("ours", one) as a, versus.Worker("theirs", two, shared) as b:
                got = versus.compare(a, b, 2, asked.pairs)
            missed += got.ratio.low < 1
            rows.append([str(slots), precision, versus.number(got.a), versus.number(got.b), str(got.ratio)])
            print(*rows[-1], flush=True)
    head = ["slots", "our products", "Ganglion, env steps/s", "PureJaxRL, env steps/s", "ratio"]
    print("\n".join(["", versus.machine("ganglion", "torch", "numpy", "jax"), "", versus.table(head, rows)]))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
