# mypy: ignore-errors
"""Reads an agent that `ganglion export RUN --to numpy` wrote. Needs numpy alone; copy this file wherever you like.

    policy = NumpyPolicy("cartpole.npz")
    action = policy(obs)                      # one observation, or for several parts policy(obs_a, obs_b, ...)
    outputs, names = policy.all(obs), policy.outputs      # everything it says: action, logits or values, ...

A memory is kept between calls; `policy.reset()` before the first observation of an episode. This file reads numbers and
names of operations, nothing that could be executed.
"""

import json

import numpy as np

SHAPES = ("view", "_unsafe_view", "reshape")


def conv(x, w, b, stride, padding, dilation, transposed, output_padding, groups):
    x = np.pad(x, ((0, 0), (0, 0), (padding[0],) * 2, (padding[1],) * 2))
    windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], (2, 3))[:, :, :: stride[0], :: stride[1]]
    y = np.einsum("nchwij,ocij->nohw", windows, w, optimize=True)
    return y if b is None else y + b[:, None, None]


def softmax(x, dim, half=False):
    e = np.exp(x - x.max(dim, keepdims=True))
    return e / e.sum(dim, keepdims=True)


def layer_norm(x, shape, w, b, eps):
    axes = tuple(range(-len(shape), 0))
    mean, scale = x.mean(axes, keepdims=True), 1 / np.sqrt(x.var(axes, keepdims=True) + eps)
    y = (x - mean) * scale
    return (y if w is None else y * w + b), mean, scale


def cut(x, dim=0, start=0, end=None, step=1):
    return x[(slice(None),) * (dim % x.ndim) + (slice(start, end, step),)]


def clamp(x, low=None, high=None):
    x = x if low is None else np.maximum(x, np.asarray(low, x.dtype))
    return x if high is None else np.minimum(x, np.asarray(high, x.dtype))


def reduced(fn):
    return lambda x, dim=None, keepdim=False, **_: fn(
        x, axis=tuple(dim) if type(dim) is list else dim, keepdims=keepdim
    )


def expand(x, shape):
    own = (1,) * (len(shape) - x.ndim) + x.shape
    return np.broadcast_to(x, [a if n < 0 else n for n, a in zip(shape, own)])


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


OPS = {
    **{name: lambda x, shape: x.reshape(shape) for name in SHAPES},
    "add": lambda x, y, alpha=1: x + y * alpha, "sub": lambda x, y, alpha=1: x - y * alpha, "mul": np.multiply,
    "div": np.true_divide, "neg": np.negative, "abs": np.abs, "exp": np.exp, "log": np.log, "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x), "pow": np.power, "round": np.round, "sign": np.sign, "tanh": np.tanh,
    "sigmoid": sigmoid, "relu": lambda x: np.maximum(x, 0), "silu": lambda x: x * sigmoid(x), "clamp": clamp,
    "elu": lambda x, a=1.0, s=1.0, i=1.0: s * np.where(x > 0, x, a * np.expm1(np.minimum(x, 0) * i)),
    "clamp_min": clamp, "maximum": np.maximum, "minimum": np.minimum, "where": np.where, "cumsum": np.cumsum,
    "ge": np.greater_equal, "gt": np.greater, "le": np.less_equal, "lt": np.less, "eq": np.equal, "ne": np.not_equal,
    "bitwise_not": np.invert, "logical_not": np.logical_not, "bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or,
    "logical_and": np.logical_and, "logical_or": np.logical_or, "any": reduced(np.any), "prod": reduced(np.prod),
    "sum": reduced(np.sum), "mean": reduced(np.mean), "amax": reduced(np.max), "amin": reduced(np.min),
    "argmax": lambda x, dim=None, keepdim=False: np.argmax(x, dim, keepdims=keepdim), "mm": np.matmul, "bmm": np.matmul,
    "addmm": lambda b, x, y: b + x @ y, "unsqueeze": np.expand_dims, "permute": np.transpose, "convolution": conv,
    "squeeze": lambda x, dim: np.squeeze(x, tuple(d for d in np.atleast_1d(dim) if x.shape[d] == 1)),
    "expand": expand,
    "slice": cut, "select": lambda x, dim, i: np.take(x, i, dim), "cat": lambda xs, dim=0: np.concatenate(xs, dim),
    "split_with_sizes": lambda x, sizes, dim=0: np.split(x, np.cumsum(sizes)[:-1], dim), "getitem": lambda x, i: x[i],
    "full": lambda shape, value, dtype=None: np.full(shape, value, dtype or type(value)), "_softmax": softmax,
    "_log_softmax": lambda x, dim, half=False: np.log(softmax(x, dim)), "native_layer_norm": layer_norm,
    "_to_copy": lambda x, dtype=None: x if dtype is None else x.astype(dtype),
    "arange": lambda *a, dtype=None: np.arange(*a, dtype=dtype),
    "scalar_tensor": lambda x, dtype=None: np.asarray(x, dtype),
    "gather": lambda x, dim, index, **_: np.take_along_axis(x, index, dim),
}  # fmt: skip


class NumpyPolicy:
    def __init__(self, path):
        with np.load(path, allow_pickle=False) as file:
            self.about = json.loads(bytes(file["about"]).decode())
            self.constants = {int(name[1:]): file[name] for name in file.files if name.startswith("c")}
        self.inputs, self.outputs = self.about["inputs"], self.about["outputs"]
        self.rows = self.about["batch"]
        self.reset()

    def reset(self):
        made = [np.zeros((self.rows, *i["shape"]), i["dtype"]) for i in self.inputs if i["name"].startswith("memory_")]
        self.memory, self.first = made, True

    def all(self, *observation):
        """All outputs [batch, ...]; the memory moves on."""
        start = [np.broadcast_to(self.first, self.rows)] if self.memory else []
        given = [*observation, *self.memory, *start]
        shaped = [np.asarray(x, i["dtype"]).reshape(self.rows, *i["shape"]) for x, i in zip(given, self.inputs)]
        values = {**self.constants, **dict(zip(self.about["places"], shaped))}

        def read(value):
            if type(value) is dict:
                return values[value["$"]]
            return [read(one) for one in value] if type(value) is list else value

        with np.errstate(over="ignore"):
            for name, args, named, out, dtype in self.about["ops"]:
                y = OPS[name](*map(read, args), **{key: read(value) for key, value in named.items()})
                values[out] = y.astype(dtype, copy=False) if dtype else y
        said = [values[place] for place in self.about["results"]]
        self.memory, self.first = said[len(said) - len(self.memory) :] if self.memory else [], False
        return said

    def __call__(self, *observation):
        """The action, without a batch of one; of several parts, a list of them."""
        names = [o["name"] for o in self.outputs]
        acts = [y for name, y in zip(names, self.all(*observation)) if name.split(".")[0] == "action"]
        acts = [y[0] for y in acts] if self.rows == 1 else acts
        return acts[0] if len(acts) == 1 else acts
