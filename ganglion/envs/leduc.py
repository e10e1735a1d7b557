"""Leduc poker (Southey et al. 2005) for two as tensors: six cards of three ranks, one each and one for both, two rounds
of bets of 2 and then 4 chips, two raises in each at most."""

from __future__ import annotations

from itertools import permutations

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from ganglion.config import EnvConfig, register
from ganglion.core import Box, Composite, Discrete, MultiBinary, Obs, Space
from ganglion.envs.torch_env import TorchGame

FOLD, CALL, RAISE = range(3)  # calling is checking where nothing was bet
RAISES, LONGEST = 2, 4  # of a round; decisions in it
ROUND, TURN, SAID, RAISED, PAID = 3, 4, 5, 6, 7  # where in a world: after the cards of both and of the table
PAST = PAID + 2  # what was said, by round: 0 nothing, else the action


@register("env", "leduc")
class LeducConfig(EnvConfig):
    """Leduc poker, as tensors; action 0 folds, 1 checks or calls, 2 raises."""

    def build(self, slots: int | None = None, device: str = "cpu", render: bool = False) -> Leduc:
        return Leduc(slots or self.slots, "leduc", device)


class Leduc(TorchGame):
    """The cards (0 to 5, two of each rank), the round, whose turn it is, and what was said and paid."""

    agents, turns = ("first", "second"), True
    size, starts = PAST + 2 * LONGEST, 1
    obs_space: Space = Composite({"obs": Box((24,), low=(0.0,), high=(1.0,)), "action_mask": MultiBinary(3)})
    action_space: Space = Discrete(3)

    def deals(self) -> Tensor:
        cards = torch.tensor(list(permutations(range(6), 3)), dtype=torch.float64)  # [120, 3]
        rest = torch.zeros(len(cards), self.size - 3, dtype=torch.float64)
        rest[:, PAID - 3 : PAID - 1] = 1.0
        return torch.cat((cards, rest), 1)

    def begin(self, dice: Tensor) -> Tensor:
        deals = self.deals().to(dice.device)
        return deals[(dice[:, 0] * len(deals)).long()]

    def play(self, world: Tensor, action: Tensor, dice: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        turn, number = world[:, TURN].long(), world[:, ROUND].long()
        legal = self.legal(world)
        said = action.gather(0, turn[None])[0]
        said = torch.where(legal.gather(1, said[:, None])[:, 0], said, CALL)
        after, index = world.clone(), torch.arange(len(world), device=world.device)
        paid = world[:, PAID : PAID + 2]
        own = paid.amax(1).masked_fill(said == FOLD, 0.0) + (said == RAISE) * 2.0 * (number + 1)
        after[index, PAID + turn] = torch.maximum(own, paid.gather(1, turn[:, None])[:, 0])
        place = world[:, SAID].long().clamp(max=LONGEST - 1)  # a world that is over takes one more step
        after[index, PAST + LONGEST * number + place] = said.double()
        over = (said == CALL) & (world[:, SAID] >= 1)  # of the round: all have said something, and nobody raised since
        second = over & (number == 0)
        after[:, ROUND] = torch.where(second, 1.0, world[:, ROUND])
        after[:, TURN] = torch.where(second, 0.0, 1.0 - world[:, TURN])
        after[:, SAID] = torch.where(second, 0.0, world[:, SAID] + 1)
        after[:, RAISED] = torch.where(second, 0.0, world[:, RAISED] + (said == RAISE))
        folds, shows = said == FOLD, over & (number == 1)
        sign = torch.where(folds, torch.where(turn == 0, -1.0, 1.0), self.better(world))
        won = torch.where(folds | shows, sign * after[:, PAID : PAID + 2].amin(1), 0.0)
        return after, torch.stack((won, -won)), folds | shows

    def better(self, world: Tensor) -> Tensor:
        """1 where the first holds the better hand, 0 where they are equal, else -1."""
        first, second, table = (world[:, :3] // 2).unbind(1)
        strength = [rank + 3.0 * (rank == table) for rank in (first, second)]
        return torch.sign(strength[0] - strength[1])

    def legal(self, world: Tensor) -> Tensor:
        """What may be said by who decides, [C, 3]: no fold without a bet to answer."""
        unequal = world[:, PAID] != world[:, PAID + 1]
        return torch.stack((unequal, torch.ones_like(unequal), world[:, RAISED] < RAISES), 1)

    def acting(self, world: Tensor) -> Tensor:
        return torch.stack((world[:, TURN] == 0, world[:, TURN] == 1))

    def show(self, world: Tensor) -> Obs:
        ranks = one_hot((world[:, :3] // 2).long(), 3).float()  # [C, 3, 3]
        table = ranks[:, 2] * (world[:, ROUND] == 1).float()[:, None]
        said = one_hot(world[:, PAST:].long(), 3)[..., 1:].flatten(1).float()  # calls and raises; a fold ends it
        who = torch.eye(2, device=world.device)[:, None].expand(2, len(world), 2)
        both = torch.cat((table, said), 1).expand(2, -1, -1)
        waits = torch.tensor([False, True, False], device=world.device)
        mask = torch.where(self.acting(world)[..., None], self.legal(world), waits)
        return {"obs": torch.cat((who, ranks[:, :2].transpose(0, 1), both), -1), "action_mask": mask}
