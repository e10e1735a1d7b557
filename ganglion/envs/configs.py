"""The environments a config can name: kinds gym, torch and toy."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, field_validator

from ganglion.config import Count, EnvConfig, Positive, register
from ganglion.errors import UserError, nearest

if TYPE_CHECKING:
    import gymnasium
    from gymnasium.envs.registration import EnvSpec as GymSpec

    from ganglion.core import Env, Promise
    from ganglion.envs.pool import PoolEnv
    from ganglion.envs.slots import Make


OWN = {  # options of gymnasium.make that have a setting of their own
    "id": "env.id",
    "self": "nothing: it is the environment",
    "max_episode_steps": "env.time_limit",
    "render_mode": "the command that draws",
    "num_envs": "env.slots",
    "vectorization_mode": "env.vector",
    "disable_env_checker": "nothing: it is always off",
    "vector_kwargs": "nothing: it is not needed",
    "wrappers": "env.wrappers",
}


class ShapedConfig(EnvConfig):
    """A world whose observations may be changed on their way in; rewards are the processor's."""

    time_limit: Count | None = Field(default=None, ge=1)  # steps until truncation; None: the environment's own
    keep: tuple[int, ...] = ()  # places of a vector observation to keep; none named: all
    clip_obs: Positive | None = None  # observations within [-x, x]
    frame_stack: int = Field(default=1, ge=1, le=64)  # the last observations as one

    @field_validator("keep")
    @classmethod
    def _places(cls, keep: tuple[int, ...]) -> tuple[int, ...]:
        if any(place < 0 for place in keep) or len(set(keep)) < len(keep):
            raise ValueError("should name different places, counted from 0")
        return keep

    def shape(self, env: Env) -> Env:
        """The environment with what was asked for around it."""
        from ganglion.envs import wrappers

        if self.keep:
            env = wrappers.keep(env, self.keep)
        if self.clip_obs is not None:
            env = wrappers.clip_obs(env, self.clip_obs)
        if self.frame_stack > 1:
            env = wrappers.FrameStack(env, self.frame_stack)
        return env


class PooledConfig(EnvConfig):
    """A world whose copies worker processes may step."""

    workers: int | Literal["auto"] = "auto"  # processes that walk the slots; 0: this one; auto: what a step's cost says
    timeout: float = Field(default=60.0, ge=0.001, le=86_400)  # seconds for a step of a worker
    max_memory: Positive = Field(default=4096.0, ge=1)  # megabytes a worker may hold
    max_failures: Count = Field(default=100, ge=0)  # in the run, before it stops

    @field_validator("workers", mode="plain")
    @classmethod
    def _count(cls, workers: object) -> object:
        if workers != "auto" and (type(workers) is not int or not 0 <= workers <= 1024):
            raise ValueError("should be 'auto' or a number of processes, 0 to 1024")
        return workers

    @property
    def pooled(self) -> int:
        """How many workers, 0 for none; a choice that has not been made is none."""
        return 0 if self.workers == "auto" else self.workers

    def one(self, slot: int) -> gymnasium.Env[Any, Any]:
        """The environment of one slot, or of one copy of a game, in this process."""
        raise NotImplementedError(f"{type(self).__name__} makes no environment")

    def copies(self) -> int:
        """How many of them are stepped."""
        return self.slots

    def for_workers(self) -> bool:
        """Whether a worker can be told what to make."""
        return True

    def settled(self) -> tuple[Self, str]:
        if self.workers != "auto":
            return self, ""
        if sys.platform != "linux":  # where there are no workers
            return self.model_copy(update={"workers": 0}), ""
        from ganglion.envs.auto_workers import choose, measure, usable_cores
        from ganglion.faults import told

        if not self.for_workers():
            why = f"{self.named}: a worker could not import it, this process can"
            return self.model_copy(update={"workers": 0}), why
        try:
            cost, copies = measure(self.one), self.copies()
        except (Exception, SystemExit) as error:  # told again, like all that goes wrong, where it is walked
            why = f"{self.named}: no workers, for a trial of it failed: {told(error)}"
            return self.model_copy(update={"workers": 0}), why
        choice = choose(cost, copies, usable_cores())
        return self.model_copy(update={"workers": choice.workers}), f"{self.named}: {choice.why}"

    @property
    def named(self) -> str:
        """What messages call it."""
        return self.kind


# ------------------------------------------------------------ gymnasium


@register("env", "gym")
class GymConfig(PooledConfig, ShapedConfig):
    """A gymnasium environment by its registered id."""

    id: str = Field(min_length=1, max_length=200)
    options: Mapping[str, Any] = Field(default_factory=dict)  # given to the environment's own constructor
    vector: bool = False  # the vectorised version the environment ships
    wrappers: tuple[str | Mapping[str, Any], ...] = ()  # named wrappers around each slot, innermost first
    masks: bool | None = None  # info["action_mask"] is the action mask; None: where a first reset has it
    resume: Literal["replay", "restart"] = "replay"  # restart: for what does not repeat under a seed
    per_slot: tuple[Mapping[str, Any], ...] = ()  # options that take turns over the slots
    log_episodes: Count = Field(0, ge=0)  # one in so many of each slot's episodes is kept for replay; 0: failed ones

    @field_validator("id")
    @classmethod
    def _no_import(cls, value: str) -> str:
        if ":" in value:
            raise ValueError("should be a registered id; import the module that registers it by --import MODULE")
        return value

    @field_validator("options", "per_slot")
    @classmethod
    def _not_ours(cls, options: Any) -> Any:
        for name in [name for one in (options if isinstance(options, tuple) else [options]) for name in one]:
            if name in OWN:
                raise ValueError(f"{name} is set by {OWN[name]}")
        return options

    @field_validator("wrappers")
    @classmethod
    def _named(cls, wrappers: tuple[str | Mapping[str, Any], ...]) -> tuple[str | Mapping[str, Any], ...]:
        from ganglion.envs.gym_make import WRAPPERS, check_setting

        for one in wrappers:
            name = one if isinstance(one, str) else next(iter(one), "")
            if name not in WRAPPERS or (not isinstance(one, str) and len(one) != 1):
                close = nearest(name, WRAPPERS)
                raise ValueError(
                    f"should be names, or names with a setting ({{noop: 30}}), of {', '.join(WRAPPERS)}.{close}"
                )
            check_setting(name, () if isinstance(one, str) else tuple(one.values()))
        return wrappers

    # What is made and how: kinds of their own (atari) say it differently, and the rest is the same.

    def registered(self) -> str:
        """The id gymnasium knows."""
        return self.id

    def made_with(self) -> dict[str, Any]:
        """What the environment's constructor is given."""
        return dict(self.options)

    def layers(self) -> list[list[Any]]:
        """The wrappers around each slot, in plain values: [name, setting], innermost first."""
        return [[one] if isinstance(one, str) else list(next(iter(one.items()))) for one in self.wrappers]

    def build(self, slots: int | None = None, device: str = "cpu", render: bool = False) -> Env:
        from ganglion.envs.gym import GymEnv
        from ganglion.envs.gym_make import find_spec

        spec = find_spec(self.registered())
        if self.vector:
            return self.shape(self._vector(spec, slots or self.slots, device, render))
        count, limit, promise = slots or self.slots, self.limit(spec), self._promise(spec)
        if self.pooled and not render:
            env: GymEnv = self._pool(spec, count, device)
        else:
            make, masks = self.maker(spec, render), self._masks()
            env = GymEnv(make, count, self.id, device, masks, promise, limit, self.max_failures)
        env.log_every = self.log_episodes if promise == "replay" else 0
        return self.shape(env)

    def settled(self) -> tuple[Self, str]:
        if self.vector and self.workers == "auto":
            return self.model_copy(update={"workers": 0}), ""
        return super().settled()

    def one(self, slot: int) -> gymnasium.Env[Any, Any]:
        from ganglion.envs.gym_make import find_spec

        return self.maker(find_spec(self.registered()))(slot)

    @property
    def named(self) -> str:
        return self.id

    def for_workers(self) -> bool:
        from ganglion.envs.gym_make import carried, find_spec, plain

        spec = find_spec(self.registered())
        try:
            carried(spec)
            plain("env.options", [self.made_with(), self.per_slot])
        except UserError:
            return False
        return True

    def maker(self, spec: GymSpec, render: bool = False) -> Make:
        """What makes one slot's environment, in this process."""
        from ganglion.envs.gym_make import make_one, options_of, wrapped

        def make(slot: int) -> gymnasium.Env[Any, Any]:
            options = options_of(slot, self.made_with(), self.per_slot)
            return wrapped(make_one(spec, options, render and slot == 0), self.layers())

        return make

    def _pool(self, spec: GymSpec, slots: int, device: str) -> PoolEnv:
        from ganglion.envs.gym_make import carried
        from ganglion.envs.pool import Pool, PoolEnv

        arguments = {"spec": carried(spec), "options": self.made_with(), "per_slot": self.per_slot}
        pool = Pool(
            "ganglion.envs.gym_make:gym_slot",
            {**arguments, "layers": self.layers()},
            slots,
            self.pooled,
            masks=self._masks(),
            limit=self.limit(spec),
            timeout=self.timeout,
            max_memory=self.max_memory,
            replay=self._promise(spec) == "replay",
        )
        return PoolEnv(pool, self.id, device, self.max_failures)

    def limit(self, spec: GymSpec) -> int:
        """Steps until an episode is truncated, 0 for never."""
        return self.time_limit or spec.max_episode_steps or 0

    def _masks(self) -> bool | Literal["auto"]:
        return "auto" if self.masks is None else self.masks

    def _promise(self, spec: GymSpec) -> Promise:
        return "restart" if spec.nondeterministic else self.resume

    def _vector(self, spec: GymSpec, slots: int, device: str, render: bool) -> Env:
        import gymnasium

        from ganglion.envs.gym_make import explained
        from ganglion.envs.vector import VectorGymEnv

        if spec.vector_entry_point is None:
            raise UserError(f"env.vector: {self.id} ships no vectorised version; set it to false")
        if self.pooled or self.per_slot:
            raise UserError("env.vector: the vectorised version takes no env.workers or env.per_slot; set it to false")
        if self.wrappers:
            raise UserError("env.wrappers: they go around single environments; set env.vector to false")
        extra = self.made_with()
        if self.time_limit is not None:
            extra["max_episode_steps"] = self.time_limit
        if render:
            extra["render_mode"] = "rgb_array"
        try:
            env = gymnasium.make_vec(spec, slots, "vector_entry_point", **extra)
        except Exception as error:
            raise explained(spec, error) from error
        return VectorGymEnv(env, self.id, device)


# ------------------------------------------------------------ made of tensors


@register("env", "torch")
class TorchConfig(ShapedConfig):
    """Classic control as tensors, on the device of the run."""

    id: Literal["cartpole", "pendulum", "mountaincar", "acrobot"]

    def build(self, slots: int | None = None, device: str = "cpu", render: bool = False) -> Env:
        from ganglion.envs.classic_control import NATIVE

        env = NATIVE[self.id](slots or self.slots, self.id, device)
        if self.time_limit is not None:
            env.limit = self.time_limit
        return self.shape(env)


@register("env", "toy")
class ToyConfig(EnvConfig):
    """A small world whose best values are known; see envs/toys.py. What a toy has no use for must keep its default."""

    id: Literal["identity", "chain", "deepsea", "bandit", "memory", "masked", "truncation", "goal", "hybrid"]
    size: int | None = Field(default=None, ge=2, le=1024)  # symbols, places, rows, arms, cues, actions or axes
    limit: Count | None = Field(default=None, ge=1)  # steps until truncation
    delay: int | None = Field(default=None, ge=0, le=10_000)  # blank steps of memory
    continuous: bool | None = None  # identity, memory, truncation and goal with real actions

    def build(self, slots: int | None = None, device: str = "cpu", render: bool = False) -> Env:
        import inspect

        from ganglion.envs.toys import TOYS

        toy = TOYS[self.id]
        asked = {name: getattr(self, name) for name in ("size", "limit", "delay", "continuous")}
        asked = {name: value for name, value in asked.items() if value is not None}
        known = [name for name in inspect.signature(toy).parameters if name not in ("slots", "device")]
        for name in asked:
            if name not in known:
                raise UserError(f"env.{name}: toy {self.id!r} has no such setting. Accepted: {', '.join(known)}.")
        return toy(slots or self.slots, device=device, **asked)


@register("env", "atari")
class AtariConfig(GymConfig):
    """An Atari 2600 game by its name in small letters: pong, ms_pacman.

    Rewards are as the game gives them: `algo.processor.reward: sign` makes signs of them for learning.
    """

    noop: int = Field(30, ge=0, le=10_000)  # steps of doing nothing at the start, 1 to this; 0: none
    skip: int = Field(4, ge=1, le=1_000)  # frames an action lasts; the brighter of the last two is seen
    size: int = Field(84, ge=16, le=160)  # of the grey image, in pixels
    life: bool = True  # losing a life is an ending, scores are still of whole games
    fire: bool = True  # pressed at the start of each life, where the game waits for it
    sticky: float = Field(0.0, ge=0, lt=1)  # chance that a frame repeats the last action; Machado et al. (2018): 0.25
    full_actions: bool = False  # all 18, or those the game uses
    frames: Count = Field(108_000, ge=1, le=2**31 - 1)  # until truncation, skipped ones included
    frame_stack: int = Field(default=4, ge=1, le=64)

    def registered(self) -> str:
        try:
            from ale_py import roms
        except ImportError as error:
            raise UserError('env.kind: atari needs packages. Try pip install "ganglion[atari]"') from error
        games = roms.get_all_rom_ids()
        if self.id not in games:
            raise UserError(f"env.id: there is no Atari game {self.id!r}.{nearest(self.id, games)} Example: pong.")
        return f"ALE/{self.id.title().replace('_', '')}-v5"

    def made_with(self) -> dict[str, Any]:
        one = {"obs_type": "grayscale", "frameskip": 1, "repeat_action_probability": 0.0}
        limits = {"full_action_space": self.full_actions, "max_num_frames_per_episode": self.frames}
        return {**one, **limits, **self.options}

    def layers(self) -> list[list[Any]]:
        chosen: list[tuple[bool, list[Any]]] = [
            (True, ["rewind"]),
            (self.sticky > 0, ["sticky", self.sticky]),
            (self.noop > 0, ["noop", self.noop]),
            (self.skip > 1, ["skip", self.skip]),
            (self.life, ["life"]),
            (self.fire, ["fire"]),
            (True, ["warp", self.size]),
        ]
        return [layer for wanted, layer in chosen if wanted] + super().layers()

    def build(self, slots: int | None = None, device: str = "cpu", render: bool = False) -> Env:
        if self.vector and render:  # ALE's vector environment cannot be drawn; the same game, slot by slot, can
            return self.model_copy(update={"vector": False}).build(slots, device, render)
        return super().build(slots, device, render)

    def shape(self, env: Env) -> Env:
        stacked = env.spec.frame is not None  # by ALE itself
        return ShapedConfig.shape(self.model_copy(update={"frame_stack": 1}) if stacked else self, env)

    def _vector(self, spec: GymSpec, slots: int, device: str, render: bool) -> Env:
        """ALE's own: its threads do what the wrappers do."""
        from ganglion.envs.atari_vector import build
        from ganglion.envs.gym_make import explained

        if self.wrappers or self.pooled or self.per_slot:
            raise UserError("env.vector: ALE's takes no env.wrappers, env.workers or env.per_slot; set it to false")
        settings = {
            "stack_num": self.frame_stack,
            "frameskip": self.skip,
            "maxpool": self.skip > 1,
            "img_height": self.size,
            "img_width": self.size,
            "noop_max": self.noop,
            "life_loss_info": self.life,
            "reward_clipping": False,
            "use_fire_reset": self.fire,
            "repeat_action_probability": self.sticky,
            "full_action_space": self.full_actions,
            "max_num_frames_per_episode": self.frames,
        }
        if "autoreset_mode" in self.options:
            raise UserError("env.options: autoreset_mode is set by nothing: the next step is the only form here")
        try:
            return build(self.id, slots, {**settings, **self.options}, device)
        except TypeError as error:
            raise explained(spec, error) from error
