"""Where rows are kept: replay, prioritised replay, rollouts; how steps become rows; how many updates they allow."""

from ganglion.buffers.limiter import RatioConfig, WhenReady
from ganglion.buffers.prioritised import Prioritised, PrioritisedConfig
from ganglion.buffers.processors import Rows, RowsConfig
from ganglion.buffers.replay import Replay, ReplayConfig
from ganglion.buffers.rollout import RolloutBuffer, rollout
from ganglion.buffers.sumtree import SumTree
from ganglion.buffers.transitions import Fold

__all__ = [
    "Fold", "Prioritised", "PrioritisedConfig", "RatioConfig", "Replay", "ReplayConfig", "RolloutBuffer",
    "Rows", "RowsConfig", "SumTree", "WhenReady", "rollout",
]  # fmt: skip
