"""Where rows are kept: replay, prioritised replay, rollouts; how steps become rows; how many updates they allow."""

from ganglion.buffers.limiter import AlwaysConfig, RatioConfig, ReadyConfig
from ganglion.buffers.prioritised import Prioritised, PrioritisedConfig
from ganglion.buffers.processors import Rows, RowsConfig
from ganglion.buffers.replay import Replay, ReplayConfig
from ganglion.buffers.rollout import RolloutBuffer, RolloutConfig, rollout_of
from ganglion.buffers.sumtree import SumTree

__all__ = [
    "AlwaysConfig", "Prioritised", "PrioritisedConfig", "RatioConfig", "ReadyConfig", "Replay", "ReplayConfig",
    "RolloutBuffer", "RolloutConfig", "Rows", "RowsConfig", "SumTree", "rollout_of",
]  # fmt: skip
