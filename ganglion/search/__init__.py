"""Tree search as pure functions of tensors: all slots' trees grow beside each other, one network call a simulation.

    from ganglion import search
    found = search.gumbel(root, dynamics, legal, noise, search.GumbelRule(simulations=16))

docs/search.md has the equations.
"""

from ganglion.search.dirichlet import dirichlet, dirichlet_draws
from ganglion.search.gumbel import GumbelRule, gumbel_from_uniform
from ganglion.search.mppi import MppiPlan, MppiRule, Worth, mppi, shifted, spread
from ganglion.search.policies import Planned, Planner, calm, entropy, gumbel, puct, with_noise
from ganglion.search.puct import PuctRule
from ganglion.search.tree import Dynamics, Found, Outcome, Root, Tree

__all__ = [
    "Dynamics", "Found", "GumbelRule", "MppiPlan", "MppiRule", "Outcome", "Planned", "Planner", "PuctRule", "Root",
    "Tree", "Worth", "calm", "dirichlet", "dirichlet_draws", "entropy", "gumbel", "gumbel_from_uniform", "mppi", "puct",
    "shifted", "spread", "with_noise",
]  # fmt: skip
