"""Decision Transformer (Chen et al. 2021): the actions of a dataset as labels, of which a transformer is shown the last
rows and how much each of their episodes still brought. Asked for a return, it does what usually brought as much.

All tensors are [T, B, ...]; a window of T rows is learned from, and a row sees those before it in its own episode.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from ganglion import buffers, nn, ops
from ganglion.buffers.demonstrated import TO_GO
from ganglion.config import (
    AlgoConfig, Count, LimiterConfig, Positive, ProcessorConfig, Rate, Real, register,
)  # fmt: skip
from ganglion.config.model import Fold, Folded
from ganglion.core import (
    Acted, Action, Algorithm, Carried, Draws, EnvSpec, Knobs, Noise, Obs, Past, Prediction, Recipe, Row, Sample,
    Stateful, Transition, Update,
)  # fmt: skip
from ganglion.errors import UserError
from ganglion.nn.attention import TransformerLayer


@register("algo", "decision_transformer")
class DecisionTransformerConfig(AlgoConfig):
    """Behaviour that is asked for a return."""

    offline: ClassVar[bool] = True
    lacks = dict.fromkeys(("n_step", "bonus"), "it is shown what an episode brings to its end, and values nothing")
    lr: Rate = 3e-4
    optim: nn.OptimConfig = nn.OptimConfig()
    asked: Real | None = None  # the return it is to bring; None: the best of the dataset
    window: Count = Field(20, ge=1, le=1_000)  # rows that it sees
    size: Count = Field(64, ge=1, le=4_096)  # of a token
    layers: Count = Field(2, ge=1, le=64)
    heads: Count = Field(2, ge=1, le=64)
    max_norm: Positive = 1.0
    log_std: float = Field(0.0, ge=-5, le=2)  # of Box actions, at the start
    net: nn.MLPConfig = nn.MLPConfig(hidden=(64,), normalise=True)
    replay: buffers.ReplayConfig = buffers.ReplayConfig(capacity=1_000_000, batch=64)
    limiter: LimiterConfig = buffers.RatioConfig(opt_interval=1, warmup=1_000)
    processor: ProcessorConfig = buffers.RowsConfig()

    def build(self, spec: EnvSpec) -> DecisionTransformer:
        return DecisionTransformer(self, spec)

    def recipe(self, spec: EnvSpec) -> Recipe:
        """What to plug around the algorithm: read here, built by runtime.build."""
        windows = Folded(self.replay, self.replay.fitted(Fold(1.0, length=self.window)))
        return Recipe(self.processor, windows, self.limiter)


class Context(NamedTuple):
    """What a slot carries: what it is still asked for, and the last rows, those of now last. Laid out flat."""

    asked: Tensor  # [1, B, 1]
    to_go: Tensor  # [1, B, window]
    seen: Tensor  # [1, B, window features]
    action: Tensor  # [1, B, window numbers]
    there: Tensor  # [1, B, 1], how many of these rows there are


class ReturnTransformer(nn.Encoded):
    """Rows of returns to go, features and actions -> raw parameters of each row's action."""

    asked: Tensor
    largest: Tensor

    def __init__(self, cfg: DecisionTransformerConfig, spec: EnvSpec) -> None:
        super().__init__(cfg.net, spec.obs)
        nn.check_mask(spec)
        self.recurrent = True  # a row alone says too little
        self.window, self.numbers = cfg.window, nn.flat_size(spec.action)
        self.of_return, self.of_obs = torch.nn.Linear(1, cfg.size), torch.nn.Linear(self.encoder.out, cfg.size)
        self.of_action = torch.nn.Linear(self.numbers, cfg.size)
        self.layers = torch.nn.ModuleList(TransformerLayer(cfg.size, cfg.heads, cfg.window) for _ in range(cfg.layers))
        self.first, self.last = torch.nn.LayerNorm(cfg.size), torch.nn.LayerNorm(cfg.size)
        body = cfg.net.body(cfg.size)
        self.net = nn.Net(body, nn.PolicyHead(body, spec.action, cfg.net.init, cfg.log_std))
        self.register_buffer("asked", torch.tensor(-torch.inf))  # the largest return of an episode that was seen
        self.register_buffer("largest", torch.tensor(1e-6))  # of all returns to go, without their signs

    def forward(self, to_go: Tensor, seen: Tensor, action: Tensor, same: Tensor) -> Tensor:
        """Rows [B, T, ...], and which of them belong together [B, T, T] -> [T, B, numbers]."""
        rows = to_go.shape[1]
        parts = self.of_return(to_go[..., None] / self.largest), self.of_obs(seen), self.of_action(action)
        x = self.first(torch.stack(parts, 2).flatten(1, 2))  # [B, 3 T, size]: return, observation, action, return, ...
        place = torch.arange(3 * rows, device=x.device)
        back = place[:, None] // 3 - place // 3  # rows, from each token to each
        each = torch.arange(self.window, device=x.device)
        near = (back.clamp(0, self.window - 1)[..., None] == each).to(x.dtype)
        earlier = (place[:, None] >= place) & (back < self.window)
        visible = (same.repeat_interleave(3, 1).repeat_interleave(3, 2) & earlier)[:, None]
        for layer in self.layers:
            x = layer(x, near, visible)
        said: Tensor = self.net(self.last(x[:, 1::3].transpose(0, 1)))
        return said

    def watch(self, to_go: Tensor, start: Tensor, valid: Tensor) -> None:
        """Takes note of returns to go, [T, B]."""
        own, begun = to_go.float(), start & valid
        self.asked.copy_(torch.maximum(self.asked, torch.where(begun, own, -torch.inf).amax()))
        self.largest.copy_(torch.maximum(self.largest, (own.abs() * valid).amax()))


class DecisionTransformer(Algorithm[Sample[Transition], Sample[Transition]]):
    """Maximum likelihood of what was done, given what came of it."""

    model: ReturnTransformer

    def __init__(self, cfg: DecisionTransformerConfig, spec: EnvSpec) -> None:
        if cfg.size % cfg.heads:
            raise UserError(f"algo.size: should be a multiple of heads = {cfg.heads}, not {cfg.size}.")
        if cfg.net.recurrent:
            raise UserError("algo.net.memory: decision_transformer has no recurrent form; accepted: none. See window.")
        self.cfg, self.space = cfg, spec.action
        self.model = ReturnTransformer(cfg, spec)
        self.optim = nn.optimiser(cfg.optim, self.model, lr=cfg.lr, max_norm=cfg.max_norm)

    # ------------------------------------------------------------ acting

    def draws(self) -> Draws:
        return Draws(explore=ops.dist_draws(self.space))

    def carry(self, slots: int) -> Carried:
        model, rows = self.model, (1, slots)
        best = model.asked if self.cfg.asked is None else torch.full_like(model.asked, self.cfg.asked)
        asked = best.nan_to_num(neginf=0.0).expand(*rows, 1).clone()
        sizes = model.window, model.window * model.encoder.out, model.window * model.numbers, 1
        return asked, *(asked.new_zeros(*rows, size) for size in sizes)

    def paid(self, carried: Carried, reward: Tensor) -> Carried:
        asked, *rows = carried
        return asked - reward[None, :, None], *rows

    def predict(self, obs: Obs, past: Past, noise: Noise) -> Prediction:
        model, before = self.model, Context(*past.carried)
        seen = pushed(before.seen, model.encoder(obs, past)[0])
        action = pushed(before.action, torch.zeros_like(before.action[..., : model.numbers]))
        count = (before.there + 1).clamp(max=model.window)
        now = Context(before.asked, pushed(before.to_go, before.asked), seen, action, count)
        there = torch.arange(model.window, device=count.device) >= model.window - count[0]  # [B, window]
        rows = (part[0].unflatten(-1, (model.window, -1)) for part in (now.seen, now.action))
        raw = model(now.to_go[0], *rows, there[:, None] & there[:, :, None])[-1:]
        dist = ops.dist(raw, self.space, ops.mask(obs))
        return Prediction(dist, ops.empty(raw), past.memory, tuple(now))

    def explore(self, prediction: Prediction, knobs: Knobs, noise: Noise) -> Acted:
        action = prediction.dist.sample(noise)
        now = self.acted(prediction, action)
        extras = {"logp": prediction.dist.log_prob(action), TO_GO: now.asked[..., 0]}
        return Acted(action, extras, prediction.memory, tuple(now))

    def exploit(self, prediction: Prediction) -> Acted:
        action = prediction.dist.mode()
        return Acted(action, {}, prediction.memory, tuple(self.acted(prediction, action)))

    def acted(self, prediction: Prediction, action: Action) -> Context:
        """What is carried, once the action is known."""
        now, numbers = Context(*prediction.carried), nn.flatten(action, self.space)
        return now._replace(action=torch.cat([now.action[..., : -numbers.shape[-1]], numbers], -1))

    # ------------------------------------------------------------ learning

    def learn(self, mini: Sample[Transition], knobs: Knobs, noise: Noise) -> Update:
        t, w = mini.data, mini.weight
        episode = t.past.start.to(torch.int64).cumsum(0).t()  # [B, T]
        seen, action = self.model.encoder(t.obs, t.past)[0], nn.flatten(t.action, self.space)
        rows = (x.transpose(0, 1) for x in (t.extras[TO_GO], seen, action))
        raw = self.model(*rows, episode[:, :, None] == episode[:, None])
        dist: Any = ops.dist(raw, self.space, ops.mask(t.obs))
        logp = dist.log_prob(t.action)
        likelihood, entropy = ops.weighted_mean(logp, w), ops.weighted_mean(dist.entropy(), w)
        norm = self.optim.step(-likelihood)
        metrics = {"loss": -likelihood, "entropy": entropy, "grad_norm": norm}
        return Update({k: v.detach() for k, v in metrics.items()}, ops.sequence_priority(logp.detach(), w))

    def observe(self, rows: Row) -> None:
        self.model.observe(rows.obs, rows.valid)
        self.model.watch(rows.extras[TO_GO], rows.start, rows.valid)

    def parts(self) -> Mapping[str, Stateful]:
        return {"model": self.model, "optim": self.optim}


def pushed(rows: Tensor, new: Tensor) -> Tensor:
    """The last rows with another one after them, the oldest gone."""
    return torch.cat([rows[..., new.shape[-1] :], new], -1)
