"""Names of torch that are not public, for all but `fast` and `nn.kernels`: what to look at when torch changes."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._C import _functorch as functorch
from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack as temporarily_pop_interpreter_stack
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode

# One call for all tensors of a list.
foreach_add_ = torch._foreach_add_
foreach_addcmul_ = torch._foreach_addcmul_
foreach_copy_ = torch._foreach_copy_
foreach_div = torch._foreach_div
foreach_div_ = torch._foreach_div_
foreach_lerp_ = torch._foreach_lerp_
foreach_mul = torch._foreach_mul
foreach_mul_ = torch._foreach_mul_
foreach_norm = torch._foreach_norm
foreach_sqrt = torch._foreach_sqrt
foreach_sub_ = torch._foreach_sub_

# Tensors inside vmap.
vmap_level = functorch.maybe_current_level  # None outside
vmap_level_of = functorch.maybe_get_level
is_batched = functorch.is_batchedtensor
add_batch_dim = functorch._add_batch_dim
unbatched = functorch.get_unwrapped
batch_dim = functorch.maybe_get_bdim

read_on_the_host = torch.ops.aten._local_scalar_dense.default  # what .item() and float() are to a dispatch mode


def all_reduce_in_a_graph(x: Tensor, group: list[int]) -> Tensor:
    """The sum over a group of processes, as a collective that returns what it makes."""
    from torch.distributed._functional_collectives import all_reduce, wait_tensor

    return wait_tensor(all_reduce(x, "sum", group))
