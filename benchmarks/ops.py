"""Recursions along time: a Python loop, ops, and their ratio.

    python benchmarks/ops.py [--device cuda] [--rows 128 256 512 1024] [--slots 64] [--compile]

Needs torch alone. On CUDA a column for a captured graph is added: what a captured `prepare` pays. Medians of repeated
runs in microseconds, on one thread (--threads changes it). Published anchors: DI-engine's CUDA kernels on a V100 at
T = 1024, B = 64, loop / fused in ms: GAE 65.9 / 0.24, V-trace 11.1 / 0.46, UPGO 13.4 / 0.27.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from ganglion import ops

LAM = 0.95
Data = dict[str, Tensor]
Fn = Callable[[Data], object]


def make(rows: int, slots: int, device: str) -> Data:
    g = torch.Generator().manual_seed(0)
    d = {k: torch.randn(rows, slots, generator=g) for k in ("reward", "value", "after", "log_ratio")}
    d["discount"] = torch.where(torch.rand(rows, slots, generator=g) < 0.01, 0.0, 0.99)
    d["cut"] = d["discount"] == 0
    return {k: v.to(device) for k, v in d.items()}


def tail(d: Data) -> tuple[Tensor, ...]:
    return d["reward"], d["value"], d["after"], d["discount"], d["cut"]


# ------------------------------------------------------------ loops, as they are usually written


def loop_gae(d: Data) -> Tensor:
    reward, value, after, discount, cut = tail(d)
    out, last = torch.zeros_like(reward), torch.zeros_like(reward[0])
    for t in reversed(range(len(reward))):
        delta = reward[t] + discount[t] * after[t] - value[t]
        last = delta + discount[t] * LAM * ~cut[t] * last
        out[t] = last
    return out


def loop_gae_lean(d: Data) -> Tensor:
    """All that can be done for all rows at once is done before the loop."""
    reward, value, after, discount, cut = tail(d)
    delta, factor = reward + discount * after - value, discount * LAM * ~cut
    out, last = torch.zeros_like(reward), torch.zeros_like(reward[0])
    for t in reversed(range(len(reward))):
        last = delta[t] + factor[t] * last
        out[t] = last
    return out


def loop_lambda(d: Data) -> Tensor:
    reward, _, after, discount, cut = tail(d)
    out, last = torch.zeros_like(reward), after[-1]
    for t in reversed(range(len(reward))):
        ahead = torch.where(cut[t], after[t], (1 - LAM) * after[t] + LAM * last)
        last = reward[t] + discount[t] * ahead
        out[t] = last
    return out


def loop_vtrace(d: Data) -> tuple[Tensor, Tensor]:
    reward, value, after, discount, cut = tail(d)
    rho = d["log_ratio"].exp().clamp(max=1.0)
    gap, last = torch.zeros_like(reward), torch.zeros_like(reward[0])
    advantage = torch.zeros_like(reward)
    for t in reversed(range(len(reward))):
        passing = ~cut[t] * last
        advantage[t] = rho[t] * (reward[t] + discount[t] * (after[t] + passing) - value[t])
        last = rho[t] * (reward[t] + discount[t] * after[t] - value[t]) + discount[t] * rho[t] * passing
        gap[t] = last
    return value + gap, advantage


def loop_upgo(d: Data) -> Tensor:
    reward, value, after, discount, cut = tail(d)
    better = reward + discount * after >= value
    out, last = torch.zeros_like(reward), after[-1]
    for t in reversed(range(len(reward))):
        follow = better[t + 1] & ~cut[t] if t + 1 < len(reward) else torch.zeros_like(cut[t])
        last = reward[t] + discount[t] * torch.where(follow, last, after[t])
        out[t] = last
    return out


def loop_retrace(d: Data) -> Tensor:
    reward, q, after, discount, cut = tail(d)
    c = d["log_ratio"].exp().clamp(max=1.0)
    out, gap = torch.zeros_like(reward), torch.zeros_like(reward[0])
    for t in reversed(range(len(reward))):
        out[t] = reward[t] + discount[t] * (after[t] + ~cut[t] * gap)
        gap = c[t] * (out[t] - q[t])
    return out


def loop_sum(d: Data) -> Tensor:
    out, last = torch.zeros_like(d["reward"]), torch.zeros_like(d["reward"][0])
    for t in reversed(range(len(out))):
        last = d["reward"][t] + d["discount"][t] * last
        out[t] = last
    return out


def loop_n_step(d: Data, n: int = 5) -> tuple[Tensor, Tensor]:
    reward, _, _, discount, cut = tail(d)
    total, product = torch.zeros_like(reward), torch.ones_like(reward)
    for t in range(len(reward)):
        alive = torch.ones_like(cut[t])
        for k in range(t, min(t + n, len(reward))):
            total[t] += torch.where(alive, product[t] * reward[k], 0.0)
            product[t] = torch.where(alive, product[t] * discount[k], product[t])
            alive = alive & ~cut[k]
    return total, product


CASES: dict[str, tuple[Fn, Fn]] = {
    "gae": (loop_gae, lambda d: ops.gae(*tail(d), LAM)),
    "gae, lean loop": (loop_gae_lean, lambda d: ops.gae(*tail(d), LAM)),
    "lambda_returns": (
        loop_lambda,
        lambda d: ops.lambda_returns(d["reward"], d["after"], d["discount"], d["cut"], LAM),
    ),
    "vtrace": (loop_vtrace, lambda d: ops.vtrace(d["log_ratio"], *tail(d))),
    "upgo_returns": (loop_upgo, lambda d: ops.upgo_returns(*tail(d))),
    "retrace": (loop_retrace, lambda d: ops.retrace(d["log_ratio"], *tail(d))),
    "discounted_sum": (loop_sum, lambda d: ops.discounted_sum(d["reward"], d["discount"])),
    "n_step (n = 5)": (loop_n_step, lambda d: ops.n_step(d["reward"], d["discount"], d["cut"], 5)[:2]),
}

# ------------------------------------------------------------ measuring


def microseconds(fn: Callable[[], object], device: str, budget: float = 0.3) -> float:
    """The median of single runs, each waited for, over about `budget` seconds."""
    wait = torch.cuda.synchronize if device == "cuda" else (lambda: None)
    fn(), wait()
    times: list[float] = []
    start = time.perf_counter()
    while len(times) < 5 or (time.perf_counter() - start < budget and len(times) < 2_000):
        before = time.perf_counter()
        fn(), wait()
        times.append(time.perf_counter() - before)
    return 1e6 * median(times)


def captured(fn: Fn, d: Data) -> Callable[[], object]:
    """The function as a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            fn(d)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fn(d)
    return graph.replay


def agree(slow: Fn, fast: Fn, d: Data) -> None:
    pairs = zip(*(x if isinstance(x, tuple) else (x,) for x in (slow(d), fast(d))), strict=True)
    for expected, ours in pairs:
        torch.testing.assert_close(ours, expected, rtol=1e-3, atol=1e-3)


def measure(slow: Fn, fast: Fn, d: Data, device: str, compiled: bool) -> list[float]:
    """Microseconds of the loop, of ours, then captured and compiled where asked for."""
    agree(slow, fast, d)
    times = [microseconds(lambda: slow(d), device), microseconds(lambda: fast(d), device)]
    if device == "cuda":
        times.append(microseconds(captured(fast, d), device))
    if compiled:
        torch._dynamo.reset()
        graph = torch.compile(fast, fullgraph=True)
        times.append(microseconds(lambda: graph(d), device))
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rows", type=int, nargs="+", default=[128, 256, 512, 1024])
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--compile", action="store_true", help="add a column for torch.compile(fullgraph=True)")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    device = torch.device(args.device).type
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    print(f"torch {torch.__version__}, {name}, B = {args.slots}; microseconds, ratio = loop / ours")
    extra = ["captured"] * (device == "cuda") + ["compiled"] * args.compile
    print(f"{'':16}{'T':>6}{'loop':>12}{'ours':>10}{'ratio':>8}" + "".join(f"{c:>10}" for c in extra))
    for case in CASES:
        for rows in args.rows:
            d = make(rows, args.slots, args.device)
            loop, ours, *more = measure(*CASES[case], d, device, args.compile)
            print(f"{case:16}{rows:6}{loop:12.0f}{ours:10.0f}{loop / ours:8.1f}" + "".join(f"{m:10.0f}" for m in more))


if __name__ == "__main__":
    main()
