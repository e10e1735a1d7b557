"""The sides of benchmarks/replay.py: one replay buffer each, filled, then sampled on request (see versus.py).

    python benchmarks/replay_sides.py SIDE TASK      SIDE memory: what a million frames take

TASK is small (256 rows of 17 floats, 6 actions), atari (256 rows of four 84 x 84 frames) or prioritised (256 small rows
by priority, and new priorities for them). Every sample holds observations, actions, rewards, endings and next
observations. Runs in the environment of its side: only numpy is there for sure.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks import versus

BATCH, OBS, ACTION, FRAME, STACK = 256, 17, 6, (84, 84), 4
ROWS = {"small": 1_000_000, "prioritised": 1_000_000, "atari": 64_000}
EPISODE = 1_000  # rows
Sampler = Callable[[], Any]  # takes one batch; prioritised ones also set new priorities
Data = dict[str, np.ndarray[Any, Any]]


def made(task: str) -> Data:
    """Rows of one long walk: endings every thousand rows; images as single frames."""
    rows, rng = ROWS[task], np.random.default_rng(0)
    ends = np.arange(1, rows + 1) % EPISODE == 0
    if task == "atari":
        few = rng.integers(0, 255, (1_000, *FRAME), dtype=np.uint8)
        obs = few[np.arange(rows) % 1_000]
        obs[:, 0, :4] = np.arange(rows, dtype="<u4").view(np.uint8).reshape(rows, 4)  # no two alike
        action = rng.integers(0, 6, rows)
    else:
        obs = rng.standard_normal((rows, OBS), dtype=np.float32)
        action = rng.standard_normal((rows, ACTION), dtype=np.float32)
    return {"obs": obs, "action": action, "reward": rng.standard_normal(rows, dtype=np.float32), "terminated": ends}


def stacked(obs: np.ndarray[Any, Any], index: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The four frames that end at each row, an episode's first repeated."""
    first = index - index % EPISODE
    return np.stack([obs[np.maximum(index - k, first)] for k in reversed(range(STACK))], 1)


def following(data: Data) -> np.ndarray[Any, Any]:
    return np.roll(data["obs"], -1, 0)


def urgencies() -> np.ndarray[Any, Any]:
    return np.random.default_rng(1).random(BATCH).astype(np.float32)


# ------------------------------------------------------------ ganglion


def ganglion(task: str) -> Sampler:
    """Torch tensors out; single frames stored once. 8 slots; one row is pushed, the others are written at once."""
    import torch

    from ganglion import ops
    from ganglion.buffers import PrioritisedConfig, ReplayConfig
    from ganglion.buffers.storage import derive
    from ganglion.core import Box, Discrete, EnvSpec, Past, Progress, Row

    data, image, slots = made(task), task == "atari", 8
    frame = Box((1, *FRAME), torch.uint8)
    obs = Box((STACK, *FRAME), torch.uint8) if image else Box((OBS,))
    spec = EnvSpec(obs, Discrete(6) if image else Box((ACTION,)), slots, frame=frame if image else None)
    kind = PrioritisedConfig if task == "prioritised" else ReplayConfig
    buffer = kind(capacity=ROWS[task], batch=BATCH).folded(1, 0.99, False).build(spec, torch.device("cpu"))
    off = torch.zeros(slots, dtype=torch.bool)
    time_major = np.arange(ROWS[task]).reshape(slots, -1).T  # each slot walks a part of its own
    seen = torch.from_numpy(stacked(data["obs"], time_major[0]) if image else data["obs"][time_major[0]])
    action, reward = torch.from_numpy(data["action"][time_major[0]]), torch.zeros(slots)
    row = ops.map_tree(lambda x: x[None], Row(seen, action, reward, off, off, ~off, ~off, {}, ()))
    buffer.push(row, (seen, Past((), off[None])), Progress())
    held = buffer.ring.held
    arrays = {held.obs: data["obs"], held.action: data["action"], held.reward: data["reward"]}
    for leaf, array in {**arrays, held.terminated: data["terminated"]}.items():
        for slot in range(slots):
            leaf[:, slot] = torch.from_numpy(array[time_major[:, slot]]).view(leaf[:, slot].shape)
    held.valid.fill_(True)
    if image:
        held.extras["back"].copy_(torch.from_numpy(np.minimum(time_major % EPISODE, STACK - 1)))
    derive(held, buffer.ring.derived, buffer.ring.gamma)
    buffer.ring.pushed = buffer.ring.length
    if task == "prioritised":
        buffer.tree.rebuild(torch.ones(ROWS[task], dtype=torch.float64))
        buffer.tree.set(torch.arange(ROWS[task] - slots, ROWS[task]), torch.zeros(slots, dtype=torch.float64))
    g, urgency, at_start = torch.Generator().manual_seed(0), torch.from_numpy(urgencies()), Progress()

    def take() -> Any:
        sample = buffer.take(torch.rand(BATCH, generator=g, dtype=torch.float64), at_start)
        if task == "prioritised":
            buffer.feedback(sample.index, urgency)
        return sample

    shape = take().data.next_obs.shape
    assert shape == (1, BATCH, *(obs.shape)), shape
    return take


# ------------------------------------------------------------ peers


def cpprb(task: str) -> Sampler:
    """Numpy arrays out; single frames stored once by its own compression."""
    from cpprb import PrioritizedReplayBuffer, ReplayBuffer

    data, rows = made(task), ROWS[task]
    if task == "atari":
        env = {"obs": {"shape": (*FRAME, STACK), "dtype": np.uint8}, "act": {"dtype": np.int64}, "rew": {}, "done": {}}
        buffer = ReplayBuffer(rows, env, next_of="obs", stack_compress="obs")
        for t in range(rows - 1):
            now, then = (stacked(data["obs"], np.array([t + k]))[0].transpose(1, 2, 0) for k in (0, 1))
            end = data["terminated"][t]
            buffer.add(obs=now, act=data["action"][t], rew=data["reward"][t], next_obs=then, done=end)
            if end:
                buffer.on_episode_end()
    else:
        env = {"obs": {"shape": OBS}, "act": {"shape": ACTION}, "rew": {}, "next_obs": {"shape": OBS}, "done": {}}
        kind = PrioritizedReplayBuffer if task == "prioritised" else ReplayBuffer
        buffer = kind(rows, env)
        after, ends = following(data), data["terminated"]
        buffer.add(obs=data["obs"], act=data["action"], rew=data["reward"], next_obs=after, done=ends)
    urgency = urgencies()

    def take() -> Any:
        if task != "prioritised":
            return buffer.sample(BATCH)
        sample = buffer.sample(BATCH, beta=0.4)
        buffer.update_priorities(sample["indexes"], urgency)
        return sample

    shape = take()["next_obs"].shape
    assert shape == (BATCH, *((*FRAME, STACK) if task == "atari" else (OBS,))), shape
    return take


def sb3(task: str) -> Sampler:
    """Torch tensors out; stacks are stored whole, the next one as the next row's (optimize_memory_usage)."""
    from gymnasium import spaces
    from stable_baselines3.common.buffers import ReplayBuffer

    data, rows, image = made(task), ROWS[task], task == "atari"
    shape = (STACK, *FRAME) if image else (OBS,)
    obs = spaces.Box(0, 255, shape, np.uint8) if image else spaces.Box(-9, 9, shape, np.float32)
    action = spaces.Discrete(6) if image else spaces.Box(-9, 9, (ACTION,), np.float32)
    single = {"optimize_memory_usage": True, "handle_timeout_termination": False} if image else {}
    buffer = ReplayBuffer(rows, obs, action, device="cpu", **single)
    for t in range(0, rows, 1_000) if image else ():
        buffer.observations[t : t + 1_000, 0] = stacked(data["obs"], np.arange(t, t + 1_000))
    if not image:
        buffer.observations[:, 0], buffer.next_observations[:, 0] = data["obs"], following(data)
    buffer.actions[:, 0] = data["action"].reshape(rows, -1)
    buffer.rewards[:, 0], buffer.dones[:, 0] = data["reward"], data["terminated"]
    buffer.pos, buffer.full = 0, True
    assert buffer.sample(BATCH).next_observations.shape == (BATCH, *shape)
    return lambda: buffer.sample(BATCH)


def tianshou(task: str) -> Sampler:
    """Numpy arrays out; single frames stored once, stacked when sampled (stack_num, ignore_obs_next)."""
    from tianshou.data import Batch, PrioritizedReplayBuffer, ReplayBuffer

    data, rows, image = made(task), ROWS[task], task == "atari"
    if image:
        buffer = ReplayBuffer(rows, stack_num=STACK, ignore_obs_next=True, save_only_last_obs=False)
    elif task == "prioritised":
        buffer = PrioritizedReplayBuffer(rows, alpha=0.6, beta=0.4)
    else:
        buffer = ReplayBuffer(rows)
    after, ends = following(data), data["terminated"]
    for t in range(rows if image else min(rows, 3_000)):  # the rest is written at once below: adding is slow
        step = {"obs": data["obs"][t], "act": data["action"][t], "rew": data["reward"][t], "terminated": ends[t]}
        more = {"truncated": False, "obs_next": after[t], "info": {}}
        buffer.add(Batch(**step, **more))
    if not image:
        held = buffer._meta
        held.obs[:], held.act[:], held.rew[:] = data["obs"], data["action"], data["reward"]
        held.obs_next[:], held.terminated[:], held.done[:] = after, ends, ends
        buffer._size, buffer._insertion_idx = rows, 0
        if task == "prioritised":
            buffer.init_weight(np.arange(rows))
    urgency = urgencies()

    def take() -> Any:
        sample, index = buffer.sample(BATCH)
        if task == "prioritised":
            buffer.update_weight(index, urgency)
        return sample

    shape = take().obs_next.shape
    assert shape == (BATCH, *((STACK, *FRAME) if image else (OBS,))), shape
    return take


def torchrl(task: str) -> Sampler:
    """Torch tensors out; stacks are stored whole."""
    import torch
    from tensordict import TensorDict
    from torchrl.data import LazyTensorStorage, TensorDictPrioritizedReplayBuffer, TensorDictReplayBuffer

    data, rows, image = made(task), ROWS[task] // (4 if task == "atari" else 1), task == "atari"
    storage = LazyTensorStorage(rows)
    if task == "prioritised":
        buffer = TensorDictPrioritizedReplayBuffer(
            alpha=0.6, beta=0.4, storage=storage, batch_size=BATCH, priority_key="td_error"
        )
    else:
        buffer = TensorDictReplayBuffer(storage=storage, batch_size=BATCH)
    chunk = 1_000 if image else rows
    for t in range(0, rows, chunk):
        at = np.arange(t, t + chunk)
        obs, after = (
            (stacked(data["obs"], at), stacked(data["obs"], np.minimum(at + 1, len(data["obs"]) - 1)))
            if image
            else (data["obs"][at], data["obs"][(at + 1) % rows])
        )
        then = {
            "observation": after,
            "reward": data["reward"][at][:, None],
            "terminated": data["terminated"][at][:, None],
        }
        whole = TensorDict({"observation": obs, "action": data["action"][at], "next": then}, [chunk])
        buffer.extend(whole)
    urgency = torch.from_numpy(urgencies())

    def take() -> Any:
        sample = buffer.sample()
        if task == "prioritised":
            sample["td_error"] = urgency
            buffer.update_tensordict_priority(sample)
        return sample

    shape = take()["next", "observation"].shape
    assert shape == (BATCH, *((STACK, *FRAME) if image else (OBS,))), shape
    return take


# ------------------------------------------------------------ limits


def limit(task: str) -> Sampler:
    """Nothing but numpy's gathers of the same rows into reused memory: one per array, positions drawn beforehand."""
    data, rng = made(task), np.random.default_rng(2)
    width = STACK if task == "atari" else 1
    source = [data["obs"].reshape(len(data["obs"]), -1), data["action"], data["reward"], data["terminated"]]
    places = [rng.integers(0, len(data["obs"]) - 8, BATCH) for _ in range(64)]
    spans = [(p[:, None] + np.arange(width)).ravel() for p in places]  # the frames of a stack lie side by side
    outs = [np.zeros((BATCH * width, source[0].shape[1]), source[0].dtype) for _ in range(2)]
    rest = [np.zeros((BATCH, *x.shape[1:]), x.dtype) for x in source[1:]]
    turn = iter(())

    def take() -> None:
        nonlocal turn
        k = next(turn, None)
        if k is None:
            turn, k = iter(range(1, 64)), 0
        np.take(source[0], spans[k], 0, outs[0], "clip")
        np.take(source[0], spans[k] + 1, 0, outs[1], "clip")
        for array, out in zip(source[1:], rest, strict=True):
            np.take(array, places[k], 0, out, "clip")

    return take


def memory() -> str:
    """What a replay of a million Atari frames takes: before its first row, with it, and with every page written."""
    import torch

    from ganglion import ops
    from ganglion.buffers import PrioritisedConfig
    from ganglion.core import Box, Discrete, EnvSpec, Past, Progress, Row

    def resident() -> float:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4_096 / 1e9

    slots, rows = 8, 1_000_000
    frame, stack = Box((1, *FRAME), torch.uint8), Box((STACK, *FRAME), torch.uint8)
    spec, began = EnvSpec(stack, Discrete(6), slots, frame=frame), resident()
    buffer = PrioritisedConfig(capacity=rows, batch=BATCH).folded(1, 0.99, False).build(spec, torch.device("cpu"))
    obs, off = torch.zeros(slots, STACK, *FRAME, dtype=torch.uint8), torch.zeros(slots, dtype=torch.bool)
    row = Row(obs, torch.zeros(slots, dtype=torch.int64), torch.zeros(slots), off, off, ~off, ~off, {}, ())
    buffer.push(ops.map_tree(lambda x: x[None], row), (obs, Past((), off[None])), Progress())
    empty = resident() - began
    for leaf in (*buffer.ring.leaves, buffer.usage.counts, buffer.usage.born, *buffer.tree.tensors):
        leaf.fill_(1)
    full = resident() - began
    return f"1,000,000 Atari frames, prioritised: {empty:.2f} GB with one row, {full:.2f} GB full (aim: 7.5)"


SIDES = {"ganglion": ganglion, "cpprb": cpprb, "sb3": sb3, "tianshou": tianshou, "torchrl": torchrl, "limit": limit}


def main(side: str, task: str) -> None:
    if side == "memory":
        print(memory())
        return
    desk = versus.Desk()  # first: some sides print while they are filled
    take = SIDES[side](task)
    for _ in range(20):
        take()
    desk.ready()
    while (n := desk.request()) is not None:
        began = time.perf_counter()
        for _ in range(n):
            take()
        desk.answer(time.perf_counter() - began, {"samples": n, "rows": n * BATCH})


if __name__ == "__main__":
    main(*sys.argv[1:])
