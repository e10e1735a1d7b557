"""Traffic lights in SUMO: networks as they are read, phases, rewards, one simulation per process, controllers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ganglion.envs.sumo import NETWORKS, Light, SumoConfig, SumoGame, read_network, yellow
from ganglion.errors import EnvError, UserError

SMALL = """<net>
 <edge id="a"><lane id="a_0" length="75"/><lane id="a_1" length="150"/></edge>
 <tlLogic id="t"><phase duration="5" state="GrG"/><phase duration="2" state="yry"/>
 <phase duration="5" state="rGr"/></tlLogic>
 <tlLogic id="always"><phase duration="5" state="G"/></tlLogic>
 <connection from="a" to="b" fromLane="0" toLane="0" tl="t" linkIndex="0"/>
 <connection from="a" to="c" fromLane="1" toLane="0" tl="t" linkIndex="1"/>
 <connection from="a" to="b" fromLane="0" toLane="1" tl="t" linkIndex="2"/>
 <connection from="x" to="b" fromLane="0" toLane="1" tl="always" linkIndex="0"/>
</net>"""


def test_a_network_is_read(tmp_path: Path) -> None:
    (tmp_path / "small.net.xml").write_text(SMALL)
    network = read_network(tmp_path / "small.net.xml")
    (light,) = network.lights  # the other has no choice
    links = (("a_0", "b_0"), ("a_1", "c_0"), ("a_0", "b_1"))
    assert light == Light("t", ("GrG", "rGr"), links, ("a_0", "a_1"), ("b_0", "c_0", "b_1"))
    assert light.served(0) == (0,) and light.served(1) == (1,) and light.edges == ("a",)
    assert network.lengths["a_1"] == 150


def test_yellow_is_what_loses_green() -> None:
    assert yellow("GGrrg", "rGGrr") == "yGrry"


def test_a_name_that_is_none() -> None:
    with pytest.raises(UserError, match=r"env\.id: no network 'singel'.*Did you mean 'single'"):
        SumoConfig(id="singel").files()
    with pytest.raises(UserError, match=r"env\.yellow: 5 should be less than env\.delta"):
        SumoConfig(id="single", yellow=5).game()


# ------------------------------------------------------------ with SUMO

try:
    import libsumo  # noqa: F401
    import sumo_rl  # noqa: F401

    missing = ""
except Exception as error:
    missing = f"SUMO is not installed: pip install 'ganglion[traffic]' ({type(error).__name__})"
needs_sumo = pytest.mark.skipif(bool(missing), reason=missing)


def played(cfg: SumoConfig, seed: int, actions: Any) -> tuple[list[Any], dict[str, float]]:
    game = SumoGame(cfg)
    try:
        first = game.reset(seed)
        return [first, *(game.step(dict.fromkeys(game.names, action)) for action in actions)], game.told()
    finally:
        game.close()


@needs_sumo
def test_networks_are_there() -> None:
    for name in NETWORKS:
        net, routes = SumoConfig(id=name).files()
        assert net.exists() and routes.exists(), name
    assert [len(SumoGame(SumoConfig(id=name)).names) for name in ("single", "grid4x4", "cologne8")] == [1, 16, 8]


@needs_sumo
def test_an_episode_repeats_and_counts_waiting() -> None:
    cfg = SumoConfig(id="single", seconds=200)
    actions = np.random.default_rng(0).integers(4, size=40)
    one, told = played(cfg, 3, actions)
    two, again = played(cfg, 3, actions)
    assert told == again and told["waiting"] > 0 and told["cars"] > 50
    for a, b in zip(one, two, strict=True):
        assert a.reward == b.reward and np.array_equal(a.obs["t"], b.obs["t"])
    assert [any(step.truncated.values()) for step in one] == [False] * 40 + [True]
    assert one[-1].info == told and not one[1].info
    stood = -100 * sum(step.reward["t"] for step in one[1:])
    assert stood <= told["waiting"] * told["cars"] + 1e-3  # the rest stands at the gates
    assert all(step.obs["t"].dtype == np.float32 and (step.obs["t"] <= 1).all() for step in one)
    assert played(cfg, 4, actions)[1] != told


@needs_sumo
@pytest.mark.parametrize("reward", ["waiting", "queue", "speed", "pressure"])
def test_rewards_and_observations_by_name(reward: Any) -> None:
    steps, _ = played(SumoConfig(id="single", seconds=60, reward=reward, observation="waiting"), 0, [0] * 12)
    assert steps[1].obs["t"].shape == (4 + 1 + 3 * 8,)
    values = [step.reward["t"] for step in steps[1:]]
    assert np.isfinite(values).all() and len(set(values)) > 3
    assert all(0 <= value <= 1 for value in values) if reward == "speed" else min(values) < 0


@needs_sumo
def test_one_simulation_per_process() -> None:
    cfg = SumoConfig(id="single", seconds=60)
    first, second = SumoGame(cfg), SumoGame(cfg)
    first.reset(0)
    with pytest.raises(EnvError, match="one simulation per process"):
        second.reset(0)
    first.close()
    second.reset(0)
    second.close()


@needs_sumo
def test_copies_have_workers() -> None:
    env = SumoConfig(id="grid4x4", seconds=30, slots=32).build()
    try:
        step = env.reset(0)
        assert env.spec.slots == 32 and len(env.spec.agents) == 16 and step.valid.all()
        for _ in range(6):
            step = env.step(torch.zeros(32, dtype=torch.int64))
        assert step.truncated.all() and not step.terminated.any()
        episodes = env.episodes()
        assert len(episodes) == 32 and all(episode.info["cars"] > 0 for episode in episodes)
    finally:
        env.close()
    assert SumoConfig(id="grid4x4", slots=32).settled()[0].workers == 2


@needs_sumo
def test_choosing_the_longest_queue_beats_the_fixed_programme() -> None:
    from ganglion.envs.sumo_controllers import fixed_time, longest_queue, mean_waiting

    cfg = SumoConfig(id="single", seconds=400)
    assert mean_waiting(cfg, longest_queue, 0) < 0.7 * mean_waiting(cfg, fixed_time, 0)
