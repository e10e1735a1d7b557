"""Two learners, in two processes, that make the update of one with all the rows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from ganglion import ops
from ganglion.buffers import PrioritisedConfig
from ganglion.core import Box, EnvSpec, Past, Progress, Row
from ganglion.errors import UserError
from ganglion.fast.compile import can_compile
from ganglion.fleet.learner_group import Group
from ganglion.ops.across import Learners, across
from tests.docs.blocks import ROOT
from tests.learners.pair import CASES, learned

CPU = torch.device("cpu")


def pair(folder: Path, *words: str) -> list[dict[str, Tensor]]:
    """What two processes were left with."""
    assert started(folder, *words) == [0, 0]
    return [load_file(folder / f"{rank}.safetensors") for rank in range(2)]


def started(folder: Path, *words: str) -> list[int]:
    """How two processes ended."""
    folder.mkdir(parents=True, exist_ok=True)
    env = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    what, *more = words
    command = [sys.executable, "-m", "tests.learners.pair", what]
    outs = [folder / f"{rank}.safetensors" for rank in range(2)]
    both = [
        subprocess.Popen([*command, str(rank), "2", str(folder / "meet"), str(out), *more], cwd=ROOT, env=env)
        for rank, out in enumerate(outs)
    ]
    return [process.wait(200) for process in both]


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Tensor]]:
    return pair(tmp_path_factory.mktemp("pair"), "half")


def check(
    name: str, found: list[dict[str, Tensor]], whole: dict[str, Tensor], rtol: float = 1e-6, atol: float = 0
) -> None:
    for rank in found:
        mine = {k.partition("/")[2]: v for k, v in rank.items() if k.startswith(f"{name}/")}
        assert mine.keys() == whole.keys()
        for key, value in whole.items():
            scale = float(value.abs().max()) if value.is_floating_point() and value.numel() else 1.0
            torch.testing.assert_close(
                mine[key], value, rtol=rtol, atol=max(rtol * scale, atol, 1e-12), msg=f"{name} {key}"
            )


@pytest.mark.parametrize("name", CASES)
def test_two_learners_with_a_part_each_are_one_with_the_whole(name: str, halves: list[dict[str, Tensor]]) -> None:
    """Also where most rows of one do not count, with normalised advantages, priority weights and clipped gradients."""
    before = torch.get_default_dtype()
    try:
        check(name, halves, learned(name, None))
    finally:
        torch.set_default_dtype(before)


def test_both_are_the_same_to_the_bit(halves: list[dict[str, Tensor]]) -> None:
    one, two = halves
    assert all(torch.equal(one[k], two[k]) for k in one if "/metric" not in k)


@pytest.mark.skipif(not can_compile(), reason="this torch cannot compile an update with its gradients")
def test_an_update_of_two_learners_is_one_graph(tmp_path: Path) -> None:
    """Collectives included. aot_eager traces all that inductor would."""
    before = torch.get_default_dtype()
    try:
        found = pair(tmp_path, "half", "compile")
        check("ppo", found, learned("ppo", None, "single"), rtol=2e-4, atol=1e-5)
    finally:
        torch.set_default_dtype(before)


def test_learners_with_worlds_of_their_own_stay_one(tmp_path: Path) -> None:
    """Over whole runs: statistics of normalisers are those of all rows, phases end early together."""
    one, two = pair(tmp_path, "run")
    for rank in range(2):
        waiting = (tmp_path / f"{rank}.net").read_text().split()
        assert set(waiting) == {"0100007F"}, "nothing listens beyond this machine"
    for key in one:
        if "scale/total" not in key and not key.endswith("/at"):  # running returns belong to slots
            assert torch.equal(one[key], two[key]), key
    for name in ("ppo", "dqn"):
        (begun, *here), (none, *there) = one[f"{name}/at"].tolist(), two[f"{name}/at"].tolist()
        assert begun > 50 and none == 0 and here[:2] == there[:2], "one begins where the other is"
        steps = here[0]
        slots = 4 if name == "dqn" else 3
        assert 1500 <= steps < 1600 and steps <= begun + 3 * here[2] + slots * there[2] < 1.2 * steps
    rows = one["dqn/model/encoder.norm.moments.count"]
    assert rows == one["dqn/at"][1], "statistics are of all rows"


def test_all_go_on_from_what_the_first_one_saved(tmp_path: Path) -> None:
    one, two = pair(tmp_path, "saved")
    begun, stopped, again, ended = one.pop("steps").tolist()
    assert begun == 0 and 500 <= stopped < 520 and again == stopped and 1200 <= ended < 1220
    assert two.pop("steps").tolist() == [stopped, ended]
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_all_stop_when_one_is_told_to_and_hear_when_one_is_lost(tmp_path: Path) -> None:
    codes = started(tmp_path, "lost")
    assert codes == [0, 0]
    assert load_file(tmp_path / "0.safetensors").keys() == {"heard"}


def test_alone_a_mean_is_a_mean() -> None:
    x, valid = torch.randn(4, 3), torch.rand(4, 3) > 0.5
    torch.testing.assert_close(ops.masked_mean(x, valid), x[valid].mean())
    twice = Learners(2, 0, lambda both: 2 * both)  # somebody else with the same rows
    with across(twice):
        torch.testing.assert_close(ops.masked_mean(x, valid), x[valid].mean())
    assert ops.masked_mean(x, torch.zeros_like(valid)) == 0


def test_a_learner_that_is_none_of_them(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="learner 2 of 2: should be between 0 and 1"):
        Group(2, 2, tmp_path / "meet")


def test_weights_of_two_replays_are_those_of_their_union() -> None:
    """Each draws as many rows from its own: a row's weight goes by how often that is, and the largest of all is 1."""
    rows, taken = torch.arange(6.0), []
    others = torch.zeros(2, dtype=torch.float64)
    for final in (False, True):  # first what each would say, then with what the other said
        for rank, priorities in enumerate(([1.0, 2.0, 3.0, 4.0], [1.0, 1.0, 10.0, 20.0])):
            cfg = PrioritisedConfig(capacity=6, batch=400, alpha=1.0, beta={"kind": "constant", "value": 1.0})
            buffer = cfg.folded(1, 0.9, False).build(EnvSpec(Box((1,)), Box(()), 1), CPU)
            for x in rows:
                flags = [torch.zeros(1, 1, dtype=torch.bool)] * 2
                row = Row(x.view(1, 1, 1), x.view(1, 1), x.view(1, 1), *flags, ~flags[0], flags[0], {}, ())
                buffer.push(row, (x.view(1, 1), Past((), flags[0])), Progress())
            buffer.feedback(torch.arange(4)[None], torch.tensor(priorities))
            buffer.tree.set(torch.tensor([4]), torch.zeros(1, dtype=torch.float64))

            def add(said: Tensor, rank: int = rank, final: bool = final) -> Tensor:
                others[rank] = said[rank]
                return others.clone() if final else said + (1 - torch.eye(2, dtype=said.dtype)[rank])

            uniform = torch.rand(400, dtype=torch.float64, generator=torch.Generator().manual_seed(rank))
            with across(Learners(2, rank, add)):
                sample = buffer.take(uniform, Progress())
            if final:
                chance = torch.tensor(priorities).double() / sum(priorities)
                taken.append((sample.weight[0].double(), 1 / chance[sample.index[0]]))
    weight, wanted = (torch.cat(x) for x in zip(*taken, strict=True))
    torch.testing.assert_close(weight, wanted / wanted.max(), rtol=1e-4, atol=1e-6)
