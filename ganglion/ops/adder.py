"""nerveX's Adder: from the transitions of one slot, as a list of mappings, to what a learner trains on.

A facade for code that thinks in lists. Each transition has `obs`, `action`, `reward`, `terminated`, `truncated`
and where needed `value` and `next_obs`; nothing given is changed, new mappings come back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from ganglion.ops.returns import gae, n_step
from ganglion.ops.trees import stack, zeros

Transitions = Sequence[Mapping[str, Any]]


def _column(data: Transitions, key: str) -> Tensor:
    """One number of every transition, [T, 1]."""
    return torch.stack([torch.as_tensor(t[key]).reshape(()) for t in data]).unsqueeze(1)


def _floats(data: Transitions, key: str) -> Tensor:
    """The same, floating: whole numbers would round gamma to 0."""
    column = _column(data, key)
    return column if column.is_floating_point() else column.to(torch.get_default_dtype())


def _ends(data: Transitions, gamma: float, like: Tensor) -> tuple[Tensor, Tensor]:
    """discount, as precise as `like`, and cut, [T, 1]."""
    terminated = _column(data, "terminated").bool()
    discount = torch.where(terminated, 0.0, torch.full_like(like, gamma))
    return discount, terminated | _column(data, "truncated").bool()


class Adder:
    """Static functions, as nerveX has them."""

    @staticmethod
    def get_gae(data: Transitions, last_value: Tensor, gamma: float, lam: float) -> list[dict[str, Any]]:
        """The transitions with `adv`; `last_value` is the value after the last one.

        Where an earlier one was truncated, the next in the list belongs to another episode: it must hold `next_value`.
        """
        value, reward = _floats(data, "value"), _floats(data, "reward")
        after = [*value[1:], last_value.reshape(1)]
        for i, t in enumerate(data):
            if "next_value" in t:
                after[i] = torch.as_tensor(t["next_value"]).reshape(1)
            elif bool(t["truncated"]) and i < len(data) - 1:
                raise ValueError(f"get_gae: transition {i} was truncated before the last one and needs `next_value`")
        advantage = gae(reward, value, torch.stack(after), *_ends(data, gamma, reward), lam)
        return [{**t, "adv": a} for t, a in zip(data, advantage[:, 0], strict=True)]

    @staticmethod
    def get_gae_with_default_last_value(data: Transitions, gamma: float, lam: float) -> list[dict[str, Any]]:
        """`get_gae` of a list without the value after its end: 0 where that terminated, else the last row only serves
        as that value and is left out."""
        if bool(data[-1]["terminated"]):
            return Adder.get_gae(data, torch.zeros_like(_floats(data, "value")[-1]), gamma, lam)
        return Adder.get_gae(data[:-1], _floats(data, "value")[-1], gamma, lam)

    @staticmethod
    def get_nstep_return_data(
        data: Transitions, nstep: int, gamma: float, cum_reward: bool = False
    ) -> list[dict[str, Any]]:
        """The transitions with `next_n_obs`, their rewards of up to `nstep` steps, and `discount` for the bootstrap.

        `reward` becomes the sum where `cum_reward`, else [nstep] padded with 0. The target is always
        sum_k gamma^k r_k + discount * V(next_n_obs): `discount` is gamma^m with m the rewards held, 0 if terminated.
        """
        reward = _floats(data, "reward")
        discount, cut = _ends(data, gamma, reward)
        folded = n_step(reward, discount, cut, nstep)
        items = []
        for i, t in enumerate(data):
            last = int(folded.ahead[i, 0])
            rewards = torch.cat([reward[i:last, 0], reward.new_zeros(nstep - (last - i))])
            item = {**t, "reward": folded.reward[i, 0] if cum_reward else rewards, "discount": folded.discount[i, 0]}
            items.append({**item, "next_n_obs": data[last - 1]["next_obs"], "terminated": data[last - 1]["terminated"]})
        return items

    @staticmethod
    def get_train_sample(
        data: Transitions,
        unroll_len: int = 1,
        last: Literal["last", "drop", "null_padding"] = "last",
        null: Mapping[str, Any] | None = None,
    ) -> list[dict[str, Any]]:
        """Sequences of `unroll_len` transitions, stacked to [unroll_len, ...]; of length 1, the transitions themselves.

        What does not fill the last sequence is filled up from before it ("last": the sequence overlaps, or the data is
        too short and is repeated), left out ("drop"), or followed by null rows ("null_padding"; zeros, terminated).
        """
        if unroll_len == 1:
            return [dict(t) for t in data]
        whole, rest = divmod(len(data), unroll_len)
        pieces = [list(data[i * unroll_len : (i + 1) * unroll_len]) for i in range(whole)]
        if rest and last == "last":
            pieces.append(_overlapping(data, unroll_len))
        elif rest and last == "null_padding":
            row = null if null is not None else _null(data[-1])
            pieces.append([*data[-rest:], *[row] * (unroll_len - rest)])
        elif last not in ("last", "drop", "null_padding"):
            raise ValueError(f"get_train_sample: last is 'last', 'drop' or 'null_padding', not {last!r}")
        return [stack([_tensors(t) for t in piece]) for piece in pieces]

    @staticmethod
    def get_traj(cache: Transitions, traj_len: int, return_num: int = 0) -> tuple[list[Any], list[Any]]:
        """The first `traj_len` transitions, and what stays in the cache: their last `return_num`, and all after."""
        if len(cache) < traj_len:
            return [], list(cache)
        return list(cache[:traj_len]), list(cache[traj_len - return_num :])


def _overlapping(data: Transitions, length: int) -> list[Mapping[str, Any]]:
    """The last `length` transitions; a shorter list is repeated from its start."""
    if len(data) >= length:
        return list(data[-length:])
    return [data[i % len(data)] for i in range(length)]


def _tensors(t: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v if isinstance(v, (Mapping, tuple)) else torch.as_tensor(v) for k, v in t.items()}


def _null(like: Mapping[str, Any]) -> dict[str, Any]:
    return {**zeros(_tensors(like)), "terminated": torch.as_tensor(True)}
