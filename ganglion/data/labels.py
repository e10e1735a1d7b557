"""What an expert would have done, beside the rows of whoever acts."""

from __future__ import annotations

from typing import Any

import torch

from ganglion import ops
from ganglion.buffers import RowsConfig
from ganglion.buffers.demonstrated import LABEL
from ganglion.config import ProcessorConfig, register
from ganglion.core import Acted, EnvSpec, Past, Processor, Row, State, Step, join, under
from ganglion.data.dataset import check_spaces
from ganglion.errors import UserError
from ganglion.runtime.agent import Agent
from ganglion.runtime.run import load_trained


@register("processor", "labelled")
class LabelledConfig(ProcessorConfig):
    """Another processor, of whose rows an expert says what it would have done, in extras."""

    expert: str  # the folder of a run
    inner: ProcessorConfig = RowsConfig()

    def build(self, spec: EnvSpec, device: torch.device) -> Processor:
        return LabelledRows(self.inner.build(spec, device), saved_expert(self.expert, spec), spec.slots)


def saved_expert(folder: str, spec: EnvSpec) -> Agent:
    """The best agent of a run, for the same spaces."""
    threads = torch.get_num_threads()
    trained = load_trained(folder, "best")
    torch.set_num_threads(threads)  # those of this run
    if len(trained.made) > 1:
        raise UserError(f"algo.expert: a run of one player is asked, and {folder} has {len(trained.made)}.")
    check_spaces(trained.spec, spec, "algo.expert")
    return trained.made[0][1]


class LabelledRows:
    """Asks the expert about every row; its memory runs beside the slots."""

    def __init__(self, inner: Processor, agent: Agent, slots: int) -> None:
        self.inner, self.agent = inner, agent
        self.past = agent.start(slots)
        self.remembers = agent.algo.model.recurrent or bool(self.past.carried)

    @torch.no_grad()
    def __call__(self, before: Step, past: Past, acted: Acted, after: Step) -> Row:
        label = self.in_turn(before, past.start) if self.remembers else self.at_once(before, past.start)
        extras = ops.flatten_names({LABEL: ops.to_device(label, past.start.device)})
        return self.inner(before, past, acted._replace(extras={**acted.extras, **extras}), after)

    def at_once(self, before: Step, start: torch.Tensor) -> Any:
        """Rows [T, B, ...] as so many slots."""
        rows, slots = start.shape
        flat = ops.map_tree(lambda x: x.flatten(0, 1), before.obs)
        chosen = self.agent.predict(flat, Past((), start.reshape(1, -1).to(self.agent.device))).action
        return ops.map_tree(lambda x: x.unflatten(0, (rows, slots)), chosen)

    def in_turn(self, before: Step, start: torch.Tensor) -> Any:
        """One row after the other, each with what was remembered and brought before."""
        labels = []
        for t, begun in enumerate(start.to(self.agent.device)):
            past = self.agent.paid(self.past._replace(start=begun[None]), before.reward[t])
            chosen = self.agent.predict(ops.select(before.obs, t), past)
            self.past = Past(chosen.memory, past.start, chosen.carried)
            labels.append(chosen.action)
        return ops.stack(labels)

    def close(self) -> None:
        self.inner.close()

    def state(self) -> State:
        held = {f"memory/{k}": x for k, x in enumerate(self.past.memory)}
        held |= {f"carried/{k}": x for k, x in enumerate(self.past.carried)}
        return join({"inner": self.inner.state(), "expert": State(held)})

    def restore(self, state: State) -> None:
        self.inner.restore(under(state, "inner"))
        own = under(state, "expert").tensors
        memory, carried = (
            tuple(own[f"{name}/{k}"].to(self.agent.device) for k in range(len(held)))
            for name, held in (("memory", self.past.memory), ("carried", self.past.carried))
        )
        self.past = self.past._replace(memory=memory, carried=carried)
