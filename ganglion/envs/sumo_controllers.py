"""Controllers of traffic lights that learn nothing: what an agent should be ahead of. No torch.

from ganglion.envs.sumo_controllers import longest_queue, mean_waiting
mean_waiting(SumoConfig(id="single"), longest_queue, seed=0)  # seconds that a car stands
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ganglion.envs.sumo import SumoConfig, SumoGame

Controller = Callable[[SumoGame], Mapping[str, int] | None]  # the phase of each light; None: their own programmes


def fixed_time(game: SumoGame) -> None:
    """The programme that the network's file gives each light: nothing is chosen."""


def longest_queue(game: SumoGame) -> dict[str, int]:
    """The phase whose lanes have most cars that stand."""
    phases = {}
    for light, seen in zip(game.network.lights, game.seen, strict=True):
        standing = [float(seen.halting[list(light.served(phase))].sum()) for phase in range(len(light.greens))]
        phases[light.name] = int(np.argmax(standing))
    return phases


def round_robin(game: SumoGame) -> dict[str, int]:
    """Every phase in turn, for six decisions."""
    turn = game.seconds // (6 * game.cfg.delta)
    return {light.name: turn % len(light.greens) for light in game.network.lights}


CONTROLLERS: dict[str, Controller] = {
    "fixed time": fixed_time,
    "round robin": round_robin,
    "longest queue": longest_queue,
}


def mean_waiting(cfg: SumoConfig, controller: Controller, seed: int) -> float:
    """Seconds that a car stands in an episode, those at the gates of the network among them."""
    game = SumoGame(cfg)
    game.reset(seed)
    if controller(game) is None:
        for light in game.network.lights:
            game.sim.trafficlight.setProgram(light.name, game.own[light.name])
    while game.seconds < cfg.seconds:
        phases = controller(game)
        if phases is None:
            game.stood = [0.0] * len(game.names)
            game.run(cfg.delta)
            game.count()
        else:
            game.step(phases)
    waiting = game.told()["waiting"]
    game.close()
    return waiting
