"""DAgger (Ross et al. 2011): whoever learns acts, and an expert says what it would have done where that led. The labels
are copied by another algorithm, behaviour cloning by default; all that was ever labelled is kept and learned from.

The expert is a saved run. Rows of a dataset (`data.path`) are labelled as well: with the expert's own rows there, the
first steps are taken by somebody who has seen them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pydantic import Field

from ganglion import ops
from ganglion.bonuses.around import Around
from ganglion.buffers.demonstrated import LABEL
from ganglion.config import AlgoConfig, ProcessorConfig, register
from ganglion.core import EnvSpec, Recipe, Sample, Transition
from ganglion.errors import UserError


@register("algo", "dagger")
class DAggerConfig(AlgoConfig):
    """Imitation of an expert that can be asked."""

    lacks = {"bonus": "it copies actions, and rewards take no part in that"}
    inner: AlgoConfig = Field(default_factory=lambda: "bc")  # type: ignore[assignment]  # what copies the labels
    expert: str = ""  # the folder of a run, whose agent labels what is seen; "": algo.inner.processor does

    def build(self, spec: EnvSpec) -> DAgger:
        return DAgger(self.inner.whole(spec))

    def recipe(self, spec: EnvSpec) -> Recipe:
        """What is around the algorithm within, and who labels its rows."""
        recipe = self.inner.recipe(spec)
        if not self.expert:
            return recipe
        labelled = {"kind": "labelled", "expert": self.expert, "inner": recipe.processor}
        return replace(recipe, processor=ProcessorConfig.model_validate(labelled))


class DAgger(Around[Any]):
    """Another algorithm, whose rows say what the expert would have done."""

    def prepare(self, item: Sample[Transition]) -> Any:
        data = item.data
        said = {name: x for name, x in data.extras.items() if name.split("/")[0] == LABEL}
        if not said:
            raise UserError("algo.expert: should name the folder of a run, whose agent labels what is seen.")
        return self.inner.prepare(item._replace(data=data._replace(action=ops.nest(said)[LABEL])))
