"""Traffic lights in SUMO's simulator (Lopez et al. 2018) by libsumo: each traffic light is an agent that chooses which
of its green phases comes next. The networks are those that the package sumo-rl ships.

libsumo runs one simulation per process, so every copy has a worker of its own. What a network looks like is read from
its file; a simulation starts with the first episode. No torch.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self
from xml.etree import ElementTree

import numpy as np
from gymnasium import spaces
from pydantic import Field

from ganglion.config import Count, register
from ganglion.envs.agent_games import AgentGamesConfig, Game, GameStep
from ganglion.envs.gym_arrays import Array
from ganglion.errors import EnvError, UserError, nearest

NETWORKS = {  # name -> network, routes, in sumo-rl's folder of networks
    "single": ("2way-single-intersection/single-intersection.net.xml", "single-intersection-vhvh.rou.xml"),
    "single-gen": ("2way-single-intersection/single-intersection.net.xml", "single-intersection-gen.rou.xml"),
    "single-small": ("single-intersection/single-intersection.net.xml", "single-intersection.rou.xml"),
    "double": ("double/network.net.xml", "flow.rou.xml"),
    "grid2x2": ("2x2grid/2x2.net.xml", "2x2.rou.xml"),
    "grid3x3": ("3x3grid/3x3Grid2lanes.net.xml", "routes14000.rou.xml"),
    "grid4x4": ("RESCO/grid4x4/grid4x4.net.xml", "grid4x4_1.rou.xml"),
    "lucas4x4": ("4x4-Lucas/4x4.net.xml", "4x4c1c2c1c2.rou.xml"),
    "arterial4x4": ("RESCO/arterial4x4/arterial4x4.net.xml", "arterial4x4_1.rou.xml"),
    "cologne1": ("RESCO/cologne1/cologne1.net.xml", "cologne1.rou.xml"),
    "cologne3": ("RESCO/cologne3/cologne3.net.xml", "cologne3.rou.xml"),
    "cologne8": ("RESCO/cologne8/cologne8.net.xml", "cologne8.rou.xml"),
    "ingolstadt1": ("RESCO/ingolstadt1/ingolstadt1.net.xml", "ingolstadt1.rou.xml"),
    "ingolstadt7": ("RESCO/ingolstadt7/ingolstadt7.net.xml", "ingolstadt7.rou.xml"),
    "ingolstadt21": ("RESCO/ingolstadt21/ingolstadt21.net.xml", "ingolstadt21.rou.xml"),
}
BEGINS = {"cologne": 25_200, "ingolstadt": 57_600}  # seconds of the day at which their traffic begins
SPACE = 7.5  # metres that a waiting car takes up

Phase = str  # a colour per link: G, g, y, r


class Light(NamedTuple):
    """A traffic light: its green phases, and the lanes that it controls."""

    name: str
    greens: tuple[Phase, ...]
    links: tuple[tuple[str, str], ...]  # per colour of a phase: lane in, lane out
    lanes: tuple[str, ...]
    out: tuple[str, ...]

    @property
    def edges(self) -> tuple[str, ...]:
        """The roads of its lanes."""
        return tuple(dict.fromkeys(lane.rpartition("_")[0] for lane in self.lanes))

    def served(self, phase: int) -> tuple[int, ...]:
        """Which lanes have green in a phase."""
        green = {lane for colour, (lane, _) in zip(self.greens[phase], self.links, strict=True) if colour in "Gg"}
        return tuple(i for i, lane in enumerate(self.lanes) if lane in green)


class Network(NamedTuple):
    """What the file of a network says."""

    lights: tuple[Light, ...]
    lengths: Mapping[str, float]


def read_network(path: Path) -> Network:
    """The traffic lights that have a choice, and how long lanes are."""
    root = ElementTree.parse(path).getroot()
    lengths = {lane.get("id", ""): float(lane.get("length", 1)) for lane in root.iter("lane")}
    links: dict[str, dict[int, tuple[str, str]]] = {}
    for link in root.iter("connection"):
        if link.get("tl") is not None:
            lanes = (f"{link.get('from')}_{link.get('fromLane')}", f"{link.get('to')}_{link.get('toLane')}")
            links.setdefault(link.get("tl", ""), {})[int(link.get("linkIndex", 0))] = lanes
    lights = [
        made_light(logic, links[logic.get("id", "")]) for logic in root.iter("tlLogic") if logic.get("id") in links
    ]
    return Network(tuple(light for light in lights if len(light.greens) > 1), lengths)


def made_light(logic: ElementTree.Element, links: Mapping[int, tuple[str, str]]) -> Light:
    phases = [phase.get("state", "") for phase in logic.iter("phase")]
    greens = tuple(dict.fromkeys(p for p in phases if "y" not in p and ("G" in p or "g" in p)))
    each = tuple(links.get(i, ("", "")) for i in range(len(greens[0]) if greens else 0))
    lanes = tuple(dict.fromkeys(lane for lane, _ in each if lane))
    return Light(logic.get("id", ""), greens, each, lanes, tuple(dict.fromkeys(out for _, out in each if out)))


def yellow(before: Phase, after: Phase) -> Phase:
    """Between two green phases: what loses its green is yellow."""
    return "".join("y" if a in "Gg" and b not in "Gg" else a for a, b in zip(before, after, strict=True))


# ------------------------------------------------------------ what is seen, and what it is worth


class LaneCounts(NamedTuple):
    """The lanes of a light now."""

    cars: Array
    halting: Array
    waiting: Array  # seconds that cars have stood by now, summed
    room: Array  # cars that a lane can hold


class Decided(NamedTuple):
    """What a reward is made of."""

    stood: float  # seconds that cars stood on its lanes since the last decision
    before: LaneCounts
    now: LaneCounts
    speed: float  # mean on its lanes, as a part of what is allowed
    out: float  # cars on the lanes that lead away


def queues(seen: LaneCounts) -> tuple[Array, ...]:
    return np.minimum(seen.cars / seen.room, 1), np.minimum(seen.halting / seen.room, 1)


def waits(seen: LaneCounts) -> tuple[Array, ...]:
    return *queues(seen), np.minimum(seen.waiting / 300, 1)


READY, NOT_READY = np.ones(1, np.float32), np.zeros(1, np.float32)
OBSERVATIONS: dict[str, tuple[Callable[[LaneCounts], tuple[Array, ...]], int]] = {
    "queues": (queues, 2),
    "waiting": (waits, 3),
}
REWARDS: dict[str, Callable[[Decided], float]] = {
    "stood": lambda moment: -moment.stood / 100,  # the sum is the waiting time of all cars, but for its scale
    "waiting": lambda moment: float(moment.before.waiting.sum() - moment.now.waiting.sum()) / 100,
    "queue": lambda moment: -float(moment.now.halting.sum()) / 10,
    "speed": lambda moment: moment.speed,
    "pressure": lambda moment: (moment.out - float(moment.now.cars.sum())) / 10,
}


class SumoGame:
    """A simulation of a network; an agent per traffic light, which decides every `delta` seconds."""

    turns = False
    running: SumoGame | None = None  # the one of this process

    def __init__(self, cfg: SumoConfig) -> None:
        self.cfg = cfg
        self.net, self.routes = cfg.files()
        self.network = read_network(self.net)
        if not self.network.lights:
            raise UserError(f"env.id: {cfg.id} has no traffic light with a choice.")
        self.names = tuple(light.name for light in self.network.lights)
        self.look, self.per_lane = OBSERVATIONS[cfg.observation]
        self.worth = REWARDS[cfg.reward]
        self.waits = "waiting" in (cfg.observation, cfg.reward)
        self.room = {light.name: self.cars_held(light) for light in self.network.lights}
        self.edges = [(i, light.edges) for i, light in enumerate(self.network.lights)]
        self.phases = [np.eye(len(light.greens), dtype=np.float32) for light in self.network.lights]
        self.sim: Any = None

    def cars_held(self, light: Light) -> Array:
        return np.array([max(self.network.lengths[lane] / SPACE, 1.0) for lane in light.lanes], np.float32)

    def spaces(self, agent: str) -> tuple[Any, Any]:
        light = self.network.lights[self.names.index(agent)]
        size = len(light.greens) + 1 + self.per_lane * len(light.lanes)
        return spaces.Box(0.0, 1.0, (size,), np.float32), spaces.Discrete(len(light.greens))

    def central(self) -> Any:
        return None

    # ------------------------------------------------------------ the simulation

    def start(self, seed: int) -> None:
        """A simulation from its beginning."""
        if SumoGame.running not in (None, self):
            raise EnvError("env.workers: libsumo runs one simulation per process; each copy needs a worker of its own.")
        sim = self.sim = libsumo()
        options = ["-n", str(self.net), "-r", str(self.routes), "--seed", str(seed), "--begin", str(self.cfg.start())]
        options += ["--no-step-log", "--no-warnings", "--waiting-time-memory", "10000", "--time-to-teleport", "-1"]
        if SumoGame.running is None:
            sim.start(["sumo", *options])
            SumoGame.running = self
        else:
            sim.load(options)
        self.seconds = self.departed = 0
        self.stood_by_all = 0.0

    def reset(self, seed: int) -> GameStep:
        self.start(seed)
        self.phase = [0] * len(self.names)
        self.since = [self.cfg.min_green] * len(self.names)  # seconds of green
        self.stood = [0.0] * len(self.names)
        self.own = {light.name: self.sim.trafficlight.getProgram(light.name) for light in self.network.lights}
        for light in self.network.lights:
            self.sim.trafficlight.setRedYellowGreenState(light.name, light.greens[0])
        self.seen = [self.lanes(light) for light in self.network.lights]
        return GameStep(self.shown(), {}, {}, {})

    def step(self, actions: Mapping[str, Any]) -> GameStep:
        cfg, lights = self.cfg, self.network.lights
        self.stood = [0.0] * len(lights)
        changed = []
        for i, light in enumerate(lights):
            wanted = int(actions[light.name])
            if wanted != self.phase[i] and self.since[i] >= cfg.min_green:
                colours = yellow(light.greens[self.phase[i]], light.greens[wanted])
                self.sim.trafficlight.setRedYellowGreenState(light.name, colours)
                self.phase[i], self.since[i] = wanted, -cfg.yellow
                changed.append(i)
        soon = cfg.yellow if changed else 0
        self.run(soon)
        for i in changed:
            self.sim.trafficlight.setRedYellowGreenState(lights[i].name, lights[i].greens[self.phase[i]])
        self.run(cfg.delta - soon)
        self.count()
        before, self.seen = self.seen, [self.lanes(light) for light in lights]
        reward = {light.name: self.worth(self.moment(i, before[i])) for i, light in enumerate(lights)}
        late = self.seconds >= cfg.seconds
        over, cut = dict.fromkeys(self.names, False), dict.fromkeys(self.names, late)
        return GameStep(self.shown(), reward, over, cut, info=self.told() if late else {})

    def run(self, seconds: int) -> None:
        """So many seconds of traffic."""
        step, departed = self.sim.simulationStep, self.sim.simulation.getDepartedNumber
        halting, edges, stood = self.sim.edge.getLastStepHaltingNumber, self.edges, self.stood
        for _ in range(seconds):
            step()
            self.departed += departed()
            for i, own in edges:
                for edge in own:
                    stood[i] += halting(edge)
        self.seconds += seconds
        self.since = [green + seconds for green in self.since]

    def count(self) -> None:
        """Adds what all cars stood since the last decision, those that wait at the gates among them."""
        self.stood_by_all += sum(self.stood) + self.cfg.delta * len(self.sim.simulation.getPendingVehicles())

    def told(self) -> dict[str, float]:
        """What an episode came to: seconds that a car stood, those at the gates among them."""
        return {"waiting": self.stood_by_all / max(self.departed, 1), "cars": float(self.departed)}

    def lanes(self, light: Light) -> LaneCounts:
        lane, names = self.sim.lane, light.lanes
        cars, halting = map(lane.getLastStepVehicleNumber, names), map(lane.getLastStepHaltingNumber, names)
        waiting = map(lane.getWaitingTime, names) if self.waits else [0.0] * len(names)
        rows = np.array([*cars, *halting, *waiting], np.float32).reshape(3, -1)
        return LaneCounts(rows[0], rows[1], rows[2], self.room[light.name])

    def moment(self, i: int, before: LaneCounts) -> Decided:
        light, now, lane = self.network.lights[i], self.seen[i], self.sim.lane
        if self.cfg.reward in ("stood", "waiting", "queue"):  # which read nothing else
            return Decided(self.stood[i], before, now, 0.0, 0.0)
        speed = sum(
            lane.getLastStepMeanSpeed(name) / lane.getMaxSpeed(name) * cars
            for name, cars in zip(light.lanes, now.cars.tolist(), strict=True)
        )
        out = float(sum(lane.getLastStepVehicleNumber(name) for name in light.out))
        return Decided(self.stood[i], before, now, float(speed / max(now.cars.sum(), 1)), out)

    def shown(self) -> dict[str, Array]:
        """What each light sees: its phase, whether it may change, its lanes."""
        rows = {}
        for i, light in enumerate(self.network.lights):
            ready = READY if self.since[i] >= self.cfg.min_green else NOT_READY
            rows[light.name] = np.concatenate([self.phases[i][self.phase[i]], ready, *self.look(self.seen[i])])
        return rows

    def close(self) -> None:
        if SumoGame.running is self:
            self.sim.close()
            SumoGame.running = None


def libsumo() -> Any:
    """The library; the package sumo tells it where SUMO is."""
    try:
        sumo = importlib.import_module("sumo")
        os.environ.setdefault("SUMO_HOME", sumo.SUMO_HOME)
        return importlib.import_module("libsumo")
    except ImportError as error:
        raise UserError('env.kind: sumo needs packages. Try pip install "ganglion[traffic]"') from error


@register("env", "sumo")
class SumoConfig(AgentGamesConfig):
    """Traffic lights of a network: single, grid4x4, cologne8."""

    slots: int = Field(default=1, ge=1, le=65_536)  # traffic lights times copies of the network
    seconds: Count = Field(3_600, ge=10, le=1_000_000)  # of an episode
    delta: int = Field(5, ge=1, le=600)  # seconds between two decisions
    yellow: int = Field(2, ge=0, le=60)
    min_green: int = Field(5, ge=1, le=600)  # seconds before which a phase does not end
    observation: Literal["queues", "waiting"] = "queues"
    reward: Literal["stood", "waiting", "queue", "speed", "pressure"] = "stood"

    def game(self) -> Game:
        if self.yellow >= self.delta:
            raise UserError(f"env.yellow: {self.yellow} should be less than env.delta, {self.delta}.")
        return SumoGame(self)

    def start(self) -> int:
        """The second at which its traffic begins."""
        return next((second for name, second in BEGINS.items() if self.id.startswith(name)), 0)

    def files(self) -> tuple[Path, Path]:
        """Network and routes."""
        if self.id not in NETWORKS:
            known = ", ".join(NETWORKS)
            raise UserError(f"env.id: no network {self.id!r}. Accepted: {known}.{nearest(self.id, NETWORKS)}")
        found = importlib.util.find_spec("sumo_rl")
        if found is None or not found.submodule_search_locations:
            raise UserError('env.kind: sumo needs packages. Try pip install "ganglion[traffic]"')
        net, routes = NETWORKS[self.id]
        path = Path(found.submodule_search_locations[0]) / "nets" / net
        return path, path.parent / routes

    def settled(self) -> tuple[Self, str]:
        """A worker for each copy: there is no other way."""
        if self.workers == "auto":
            return self.model_copy(update={"workers": self.copies()}), ""
        return self, ""

    def build(self, slots: int | None = None, device: str = "cpu", render: bool = False) -> Any:
        cfg = self.model_copy(update={"slots": slots or self.slots})
        return super(SumoConfig, cfg.model_copy(update={"workers": cfg.copies()})).build(slots, device, render)
