"""Networks and what trains them: encoders, perceptrons, heads, memories, lagged targets, Adam, normalisers."""

from ganglion.nn.heads import PolicyHead, QHead, ValueHead, ValueHeads, check_mask
from ganglion.nn.inputs import flat_size, flatten
from ganglion.nn.layers import MLP, Last
from ganglion.nn.nets import Encoded, Encoder, MLPConfig
from ganglion.nn.normalisers import ObsNormaliser, RewardScale, RunningMoments
from ganglion.nn.optim import Adam
from ganglion.nn.targets import Lagged

__all__ = [
    "MLP", "Adam", "Encoded", "Encoder", "Lagged", "Last", "MLPConfig", "ObsNormaliser", "PolicyHead",
    "QHead", "RewardScale", "RunningMoments", "ValueHead", "ValueHeads", "check_mask", "flat_size", "flatten",
]  # fmt: skip
