"""The config of Atari games: standard pre-processing, each part a setting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from ganglion.config import Count, register
from ganglion.envs.configs import GymConfig, ShapedConfig
from ganglion.errors import UserError, nearest

if TYPE_CHECKING:
    from gymnasium.envs.registration import EnvSpec as GymSpec

    from ganglion.core import Env


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
        from ganglion.envs.ale import build
        from ganglion.envs.making import explained

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
