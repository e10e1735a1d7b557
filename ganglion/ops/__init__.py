"""The mathematics of reinforcement learning: pure functions on time-major tensors, usable alone.

    from ganglion import ops
    advantage = ops.gae(reward, value, after, discount, cut, 0.95)

docs/ops.md lists every function with its formula, shapes and paper.
"""

# ruff: noqa: I001
# fmt: off
from ganglion.ops.actions import anywhere, bounds, decisions, dist, dist_draws, dist_size
from ganglion.ops.adder import Adder, Transitions
from ganglion.ops.losses import hamming, levenshtein
from ganglion.ops.distributions import (
    Bernoulli, BranchGreedy, Categorical, Dist, Greedy, MultiCategorical, Normal, Product, Sure, TanhNormal, add_draws,
    inverse_cdf, uniform_legal,
)
from ganglion.ops.exploration import (
    adapt_sigma, coloured, epsilon_distance, epsilon_ladder, factorised, gaussian, ou_step, perturb, pink_step,
)
from ganglion.ops.gradients import (
    Grads, clip_momentum, clip_momentum_norm, clip_norm, clip_value, grad_norm, ignore_momentum,
    ignore_momentum_norm, ignore_norm, ignore_value, pcgrad, second_moment,
)
from ganglion.ops.hashing import hash_bits, hash_normal, hash_uniform
from ganglion.ops.losses import (
    acer_policy, acer_weights, clipped_surrogate, counterfactual, huber, info_nce, kl_k1, kl_k2, kl_k3, label_smoothed,
    multi_logits, penalty, policy_gradient, ppg_joint, soft_focal, trust_region, upgo_loss, value_loss,
)
from ganglion.ops.returns import (
    NStep, VTrace, discounted_sum, gae, importance, lambda_returns, n_step, retrace, td_lambda_error, upgo_returns,
    vtrace,
)
from ganglion.ops.rows import (
    above, alike, at, best, blocked, empty, mask, masked_mean, masked_means, normalise, pick, sequence_priority,
    shuffle_draws, shuffled, weighted_mean, within,
)
from ganglion.ops.scan import scan
from ganglion.ops.td import (
    atoms, branching_td, categorical_td, expected_value, fraction_loss, fractions, margin, midpoints,
    munchausen_bonus, pick_atoms, project, q_td, q_td_rescaled, quantile_huber, soft_value, td_goal, v_td,
)
from ganglion.ops.transforms import (
    Moments, from_two_hot, merge_moments, moments, popart, rescale, symexp, symlog, two_hot, unrescale,
)
from ganglion.ops.trees import (
    Tree, concat, detach, first, flatten_names, fold, leaves, map_tree, merge, nest, put, put_, same_shape, select,
    split, stack, take, to_device, to_dtype, to_list, to_numpy, to_tensor, unflatten, unfold, unstack,
    zeros,
)

__all__ = [
    "Adder", "Bernoulli", "BranchGreedy", "Categorical", "Dist", "Grads", "Greedy", "Moments", "MultiCategorical",
    "NStep", "Normal", "Product", "Sure", "TanhNormal", "Transitions", "Tree", "VTrace", "above", "acer_policy",
    "acer_weights", "adapt_sigma", "add_draws",  "alike", "anywhere", "at", "atoms", "best", "blocked", "bounds",
    "branching_td",
    "categorical_td", "clip_momentum", "clip_momentum_norm", "clip_norm", "clip_value", "clipped_surrogate",
    "coloured", "concat", "counterfactual", "decisions", "detach", "discounted_sum", "dist", "dist_draws", "dist_size",
    "empty",     "epsilon_distance", "epsilon_ladder", "expected_value", "factorised", "first", "flatten_names", "fold",
    "fraction_loss", "fractions", "from_two_hot", "gae", "gaussian", "grad_norm", "hamming", "hash_bits", "hash_normal",
    "hash_uniform", "huber", "ignore_momentum", "ignore_momentum_norm", "ignore_norm", "ignore_value", "importance",
    "info_nce", "inverse_cdf", "kl_k1", "kl_k2", "kl_k3", "label_smoothed", "lambda_returns", "leaves",
    "levenshtein", "map_tree", "margin", "mask", "masked_mean", "masked_means", "merge", "merge_moments", "midpoints",
    "moments", "multi_logits", "munchausen_bonus", "n_step", "nest", "normalise", "ou_step", "pcgrad", "penalty",
    "perturb", "pick", "pick_atoms", "pink_step", "policy_gradient", "popart", "ppg_joint", "project", "put", "put_",
    "q_td", "q_td_rescaled", "quantile_huber", "rescale", "retrace", "same_shape", "scan", "second_moment", "select",
    "sequence_priority", "shuffle_draws", "shuffled", "soft_focal", "soft_value", "split", "stack",
    "symexp", "symlog", "take", "td_goal", "td_lambda_error", "to_device", "to_dtype", "to_list", "to_numpy",
    "to_tensor", "trust_region", "two_hot", "unflatten", "unfold", "uniform_legal", "unrescale", "unstack", "upgo_loss",
    "upgo_returns", "v_td", "value_loss", "vtrace", "weighted_mean", "within", "zeros",
]
# fmt: on
