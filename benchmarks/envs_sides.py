"""The sides of benchmarks/envs.py: 8 slots of one world each, stepped with random actions on request (see versus.py).

    python benchmarks/envs_sides.py SIDE WORLD [SETTINGS]

SIDE is ganglion (SETTINGS: its `env` section, as in a config), sync or async (gymnasium's), subproc (SB3's), ale or
envpool (their own vector environments), or a limit: raw (ALE without pre-processing, a thread per core), rollout
(MuJoCo's own, a thread per core), c (CartPole as a C loop, one thread). WORLD is cartpole, pong or halfcheetah.
Runs in the environment of its side: only numpy is there for sure.

An env step is an action that an environment acted on: rows that only bring the next episode's first observation are not
counted, whichever way a side resets.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks import versus

SLOTS = 8
ROWS = 2_000  # of random actions, made once and taken round and round
WARM = 50  # steps before the first turn
IDS = {"cartpole": "CartPole-v1", "pong": "PongNoFrameskip-v4", "halfcheetah": "HalfCheetah-v5"}
Work = Callable[[int], versus.Counts]  # takes n steps of every slot


def random_actions(world: str) -> np.ndarray[Any, Any]:
    """[rows, slots, ...]"""
    rng = np.random.default_rng(0)
    if world == "halfcheetah":
        return rng.uniform(-1, 1, (ROWS, SLOTS, 6)).astype(np.float32)
    return rng.integers(0, {"cartpole": 2, "pong": 6}[world], (ROWS, SLOTS))


def counted(steps: int, resets: int = 0) -> dict[str, float]:
    return {"env_steps": steps * SLOTS - resets}


# ------------------------------------------------------------ ganglion


def ganglion(world: str, settings: str) -> Work:
    """At the level of its contract: tensors in, tensors of their own out, episodes scored."""
    import torch

    from ganglion.config.files import load

    torch.set_num_threads(1)
    env = load(None, ["algo=ppo", f"env={settings}", f"env.slots={SLOTS}"]).env.build()
    env.reset(0)
    actions = itertools.cycle(torch.from_numpy(random_actions(world)).unbind(0))

    def work(n: int) -> dict[str, float]:
        for action in itertools.islice(actions, n):
            env.step(action)
        return counted(n, len(env.episodes()))

    return work


# ------------------------------------------------------------ vector environments of others


def gymnasium_like(env: Any, world: str) -> Work:
    """Anything with gymnasium's vector interface and next-step resets."""
    env.reset()
    actions = itertools.cycle(list(random_actions(world).astype(env.action_space.dtype)))

    def work(n: int) -> dict[str, float]:
        ends = []
        for action in itertools.islice(actions, n):
            _, _, terminated, truncated, _ = env.step(action)
            ends.append((terminated, truncated))
        return counted(n, int(np.logical_or.reduce(np.array(ends), 1).sum()))

    return work


def sync(world: str) -> Work:
    import gymnasium

    return gymnasium_like(gymnasium.make_vec(IDS[world], SLOTS, "sync"), world)


def async_(world: str) -> Work:
    import gymnasium

    return gymnasium_like(gymnasium.make_vec(IDS[world], SLOTS, "async"), world)


def ale(world: str) -> Work:
    """ALE's own vector environment with its own pre-processing: noop, skip 4 and max, 84 x 84, stack 4."""
    import ale_py
    import gymnasium

    gymnasium.register_envs(ale_py)
    return gymnasium_like(gymnasium.make_vec("ALE/Pong-v5", SLOTS), world)


def envpool(world: str) -> Work:
    import envpool as pool

    env = pool.make(IDS[world], env_type="gymnasium", num_envs=SLOTS, seed=0)
    return gymnasium_like(env, world)


def subproc(world: str) -> Work:
    """Stable-Baselines3: a process per slot; it resets in the same step."""
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import SubprocVecEnv, VecFrameStack

    if world == "pong":
        env: Any = VecFrameStack(SubprocVecEnv([sb3_pong] * SLOTS), 4)
    else:
        env = make_vec_env(IDS[world], SLOTS, vec_env_cls=SubprocVecEnv)
    env.reset()
    actions = itertools.cycle(list(random_actions(world)))

    def work(n: int) -> dict[str, float]:
        for action in itertools.islice(actions, n):
            env.step(action)
        return counted(n)

    return work


def sb3_pong() -> Any:
    """Pong with SB3's own standard pre-processing, made inside a worker."""
    import ale_py
    import gymnasium
    from stable_baselines3.common.atari_wrappers import AtariWrapper

    gymnasium.register_envs(ale_py)
    return AtariWrapper(gymnasium.make(IDS["pong"]))


# ------------------------------------------------------------ limits of the machine


def raw(world: str) -> Work:
    """ALE alone, an agent step being 4 frames: slots shared out over threads, screens never read."""
    from concurrent.futures import ThreadPoolExecutor

    import ale_py
    from ale_py.roms import get_rom_path

    games = []
    for slot in range(SLOTS):
        game = ale_py.ALEInterface()
        game.setInt("random_seed", slot)
        game.setFloat("repeat_action_probability", 0.0)
        game.loadROM(get_rom_path("pong"))
        games.append((game, game.getMinimalActionSet()))
    actions, threads = random_actions(world), os.cpu_count() or 1

    def play(slots: range, n: int) -> None:
        for t in range(n):
            for slot in slots:
                game, legal = games[slot]
                for _ in range(4):
                    game.act(legal[actions[t % ROWS, slot]])
                if game.game_over():
                    game.reset_game()

    with_threads = ThreadPoolExecutor(threads)

    def work(n: int) -> dict[str, float]:
        list(with_threads.map(lambda k: play(range(k, SLOTS, threads), n), range(threads)))
        return counted(n)

    return work


def rollout(world: str) -> Work:
    """MuJoCo's own multi-threaded rollout of the same model: 5 physics steps per env step, no rewards."""
    import gymnasium
    import mujoco
    from mujoco import rollout as physics

    env: Any = gymnasium.make(IDS[world]).unwrapped
    env.reset(seed=0)
    threads = os.cpu_count() or 1
    data = [mujoco.MjData(env.model) for _ in range(threads)]
    first = np.zeros((SLOTS, mujoco.mj_stateSize(env.model, mujoco.mjtState.mjSTATE_FULLPHYSICS)))
    mujoco.mj_getState(env.model, env.data, first[0], mujoco.mjtState.mjSTATE_FULLPHYSICS)
    first[:] = first[0]
    actions = random_actions(world).transpose(1, 0, 2).astype(np.float64)  # [slots, rows, 6]
    runner = physics.Rollout(nthread=threads)

    def work(n: int) -> dict[str, float]:
        for start in range(0, n, ROWS):
            control = actions[:, : min(ROWS, n - start)].repeat(env.frame_skip, 1)
            runner.rollout([env.model] * SLOTS, data, first, control)
        return counted(n)

    return work


C = r"""
#include <math.h>
#include <stdint.h>
/* CartPole-v1 in doubles, Euler steps, random actions and resets: how many of `steps` ended an episode. */
long play(long steps, double *s, uint64_t *seed) {
  long ends = 0;
  for (long i = 0; i < steps; i++) {
    *seed ^= *seed << 13; *seed ^= *seed >> 7; *seed ^= *seed << 17;
    double force = (*seed & 1) ? 10.0 : -10.0, c = cos(s[2]), n = sin(s[2]);
    double temp = (force + 0.05 * s[3] * s[3] * n) / 1.1;
    double spin = (9.8 * n - c * temp) / (0.5 * (4.0 / 3.0 - 0.1 * c * c / 1.1));
    double push = temp - 0.05 * spin * c / 1.1;
    s[0] += 0.02 * s[1]; s[1] += 0.02 * push; s[2] += 0.02 * s[3]; s[3] += 0.02 * spin;
    if (fabs(s[0]) > 2.4 || fabs(s[2]) > 12 * 2 * M_PI / 360) {
      ends++;
      for (int k = 0; k < 4; k++) s[k] = ((*seed >> (16 * k)) & 0xffff) / 65535.0 * 0.1 - 0.05;
    }
  }
  return ends;
}
"""


def c(world: str) -> Work:
    """A plain C loop on one thread: what Python's part of a CartPole step is measured against."""
    import ctypes

    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder) / "cartpole.c", Path(folder) / "cartpole.so"
        source.write_text(C)
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, source, "-lm"], check=True)
        play = ctypes.CDLL(str(library)).play
    play.argtypes, play.restype = [ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p], ctypes.c_long
    state, seed = np.zeros(4), np.array([88172645463325252], np.uint64)

    def work(n: int) -> dict[str, float]:
        play(n * SLOTS, state.ctypes.data, seed.ctypes.data)
        return counted(n)

    return work


SIDES: dict[str, Callable[..., Work]] = {
    "ganglion": ganglion,
    "sync": sync,
    "async": async_,
    "subproc": subproc,
    "ale": ale,
    "envpool": envpool,
    "raw": raw,
    "rollout": rollout,
    "c": c,
}

if __name__ == "__main__":
    side, world, *settings = sys.argv[1:]
    work = SIDES[side](world, *settings)
    work(WARM)
    versus.serve(work)
