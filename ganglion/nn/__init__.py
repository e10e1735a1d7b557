"""Networks and what trains them: encoders, perceptrons, heads, memories, lagged targets, optimisers, normalisers."""

from ganglion.nn.heads import PolicyHead, QHead, ValueHead, ValueHeads, check_mask, discrete_actions
from ganglion.nn.inputs import flat_size, flatten
from ganglion.nn.layers import MLP, Body, LinearHead, NoisyLinear
from ganglion.nn.modes import Modes
from ganglion.nn.nets import ActorCritic, Encoded, Encoder, Ensemble, MLPConfig, Net, ObsEncoder, QNet
from ganglion.nn.normalisers import ObsNormaliser, RewardScale, RunningMoments
from ganglion.nn.optim import Adam, OptimConfig, Optimiser, RMSprop, optimiser
from ganglion.nn.targets import Lagged

__all__ = [
    "MLP", "ActorCritic", "Adam", "Body", "Encoded", "Encoder", "Ensemble", "Lagged", "LinearHead", "MLPConfig",
    "Modes", "Net", "NoisyLinear", "ObsEncoder", "ObsNormaliser", "OptimConfig", "Optimiser", "PolicyHead", "QHead",
    "QNet", "RMSprop",
    "RewardScale", "RunningMoments", "ValueHead", "ValueHeads", "check_mask", "discrete_actions", "flat_size",
    "flatten", "optimiser",
]  # fmt: skip
