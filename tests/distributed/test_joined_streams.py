"""StreamJoiner: whatever the order of items, nothing is ever learned across two streams."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ganglion import load_config, ops
from ganglion.buffers import PrioritisedConfig, ReplayConfig
from ganglion.buffers.replay import Replay
from ganglion.core import Box, EnvSpec, Origin, Past, Progress, Row
from ganglion.fleet.in_process import LocalBroker
from ganglion.fleet.remote_explorer import ExplorerPlace, Item, ItemSize, RemoteExplorer, Sender, read
from ganglion.fleet.stream_joiner import StreamJoiner

B, CPU, GAMMA = 2, torch.device("cpu"), 0.5
SPEC = EnvSpec(Box((3,)), Box(()), B)
ENDS = 7  # rows of an episode, its dead row included


class World:
    """An explorer whose observations say where they were made: [explorer, row, three frames]."""

    def __init__(self, explorer: int, rows: int) -> None:
        self.explorer, self.t = explorer, 0
        self.sender = Sender(ItemSize(rows), Origin("main", explorer, 0, 0, 0))

    def obs(self, t: int) -> torch.Tensor:
        first = t - t % ENDS
        frames = [max(t - k, first) for k in (2, 1, 0)]
        return torch.tensor([[self.explorer * 1000.0 + f for f in frames]] * B)

    def item(self) -> Item:
        while not self.sender.full:
            t = self.t % ENDS
            flag = lambda on: torch.full((B,), on)  # noqa: E731
            reward = torch.full((B,), float(self.t)) * (t != ENDS - 1)
            row = Row(
                self.obs(self.t), torch.zeros(B), reward, flag(t == ENDS - 2),
                flag(False), flag(t != ENDS - 1), flag(t == 0), {}, (),
            )  # fmt: skip
            self.t += 1
            row = ops.map_tree(lambda x: x[None], row)
            self.sender.push(row, (self.obs(self.t), Past((), flag(self.t % ENDS == 0)[None])), Progress())
        return read(self.sender.seal([], {})[0])


class Memory(list):  # type: ignore[type-arg]
    def push(self, rows: Row, ahead: object, at: Progress) -> None:
        self.extend(ops.unstack(rows))


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("order", ["0101010101", "0011100101", "0000000000"])
@pytest.mark.parametrize("n", [1, 3])
def test_every_sample_is_of_one_stream(n: int, order: str, stacked: bool) -> None:
    spec = replace(SPEC, frame=Box((1,))) if stacked else SPEC
    buffer = ReplayConfig(capacity=400, batch=512).folded(n, GAMMA, False).build(spec, CPU)
    assert buffer.history == (2 if stacked else 0)
    seams, worlds = StreamJoiner(buffer, buffer.restarted), [World(0, 5), World(1, 4)]
    for name in order:
        seams.push(worlds[int(name)].item(), Progress())
    got = buffer.take(torch.rand(512, dtype=torch.float64, generator=torch.Generator().manual_seed(0)), Progress())
    live = got.weight[0] > 0
    t, obs, after = got.data, got.data.obs[0], ops.at(got.data.next_obs, got.data.ahead)[0]
    assert live.sum() > 200
    steps = after[live, -1] - obs[live, -1]
    assert ((steps >= 1) & (steps <= n)).all()  # the same explorer, a few rows on
    for i in live.nonzero().flatten().tolist():
        explorer, row = divmod(int(obs[i, -1]), 1000)
        count = int(after[i, -1] - obs[i, -1])
        assert torch.equal(obs[i], worlds[explorer].obs(row)[0]) and torch.equal(
            after[i], worlds[explorer].obs(row + count)[0]
        )
        assert t.reward[0, i] == sum(GAMMA**k * (row + k) for k in range(count))
        ended = (row + count) % ENDS == ENDS - 1
        assert t.discount[0, i] == (0 if ended else GAMMA**count)
        assert count == n or ended or order != "0000000000"


Seen = tuple[float, ...]


def transitions(buffer: Replay) -> dict[tuple[Seen, int], tuple[float, float, Seen]]:
    """Every transition that may be sampled, by where it starts: reward, discount, and where it leads."""
    count = (buffer.ring.filled - buffer.fold.reach) * B
    got = buffer.gather(torch.arange(count)[None], None, Progress())
    t, live = got.data, got.weight[0] > 0
    after = ops.at(t.next_obs, t.ahead)
    found = {}
    for i in live.nonzero().flatten().tolist():
        leads = tuple(after[0, i].tolist()) if t.discount[0, i] else ()
        found[tuple(t.obs[0, i].tolist()), int(t.action[0, i])] = float(t.reward[0, i]), float(t.discount[0, i]), leads
    return found


@pytest.mark.parametrize("n", [1, 3])
def test_streams_in_turns_give_the_transitions_of_streams_apart(n: int) -> None:
    """Two explorers of CartPole, as one stream of items in any order, and each in a replay of its own: transitions are
    the same, but for sums over fewer steps where an item ended, which lead where they should."""
    cfg = load_config(None, ["algo=dqn", f"env={{kind: gym, id: CartPole-v1, slots: {B}, time_limit: 30}}"])
    make = lambda m: ReplayConfig(capacity=8_000).folded(m, 0.99, False).build(SPEC, CPU)  # noqa: E731
    both, broker, remote_explorers, last = make(n), LocalBroker(1), [], [set(), set()]
    apart = [[make(m) for m in range(1, n + 1)] for _ in range(2)]
    seams, streams = StreamJoiner(both), [[StreamJoiner(own) for own in each] for each in apart]
    for explorer in range(2):
        remote_explorers.append(RemoteExplorer(cfg, ItemSize(8), broker))
        broker.publish(remote_explorers[-1].agent.command(Progress()), "main")
        remote_explorers[-1].begin(ExplorerPlace(explorer, 0))
    for turn in torch.randint(0, 2, (80,), generator=torch.Generator().manual_seed(3)).tolist():
        made = remote_explorers[turn].item()
        assert made is not None
        last[turn] = {tuple(seen) for seen in read(made[0]).rows.obs.flatten(0, 1).tolist()}
        for each in (seams, *streams[turn]):
            each.push(read(made[0]), Progress())
    for remote_explorer in remote_explorers:
        remote_explorer.close()
    known = [{k: v for each in apart for k, v in transitions(each[m]).items()} for m in range(n)]
    found = {key: told for key, told in transitions(both).items() if key[0] not in last[0] | last[1]}  # known in whole
    steps = [next(m for m in range(n, 0, -1) if known[m - 1].get(key) == told) for key, told in found.items()]
    assert len(found) > 1_000 and steps.count(n) > 0.8 * len(steps)


def test_a_stream_that_goes_on_is_not_touched() -> None:
    kept, world = Memory(), World(0, 5)
    seams = StreamJoiner(kept)
    for _ in range(4):
        seams.push(world.item(), Progress())
    assert [int(row.obs[0, -1]) for row in kept] == list(range(19))  # the last one waits
    assert not any(bool(row.truncated.any()) for row in kept)


def test_what_waits_is_saved() -> None:
    kept, world, other = Memory(), World(0, 5), World(1, 5)
    seams = StreamJoiner(kept)
    seams.push(world.item(), Progress())
    again = StreamJoiner(kept)
    again.restore(seams.state())
    again.push(other.item(), Progress())
    rows = [(int(row.obs[0, -1]), bool(row.valid[0]), bool(row.truncated[0])) for row in kept]
    assert rows[3:7] == [(3, True, False), (4, True, True), (5, False, False), (1000, True, False)]


def test_beside_a_seam_a_row_is_as_urgent_as_the_most_urgent() -> None:
    """Nobody has said what follows it: its error is not known."""
    cfg = PrioritisedConfig(capacity=400, initial="error", alpha=1.0)
    buffer = cfg.folded(1, GAMMA, False).build(SPEC, CPU)
    seams = StreamJoiner(buffer)
    for explorer in (0, 1):
        item = World(explorer, 4).item()
        known = {"q": torch.full((4, B), 0.5), "value": torch.zeros(4, B)}
        seams.push(item._replace(rows=item.rows._replace(reward=torch.ones(4, B), extras=known)), Progress())
    buffer.largest.fill_(9.0)
    seams.cut(Progress())
    mass = buffer.tree.mass[: buffer.ring.pushed * B].view(-1, B)[:, 0]
    inside, last = 0.5 + cfg.floor, [1.0, 9.0]  # the first cut came when the largest was 1
    torch.testing.assert_close(
        mass, torch.tensor([*[inside] * 3, last[0], 0, *[inside] * 3, last[1], 0]).double(), rtol=1e-6, atol=1e-6
    )


def test_remote_explorers_divide_the_ladder() -> None:
    settings = ["algo={kind: dqn, ladder: 7}", "env={kind: toy, id: identity, slots: 2}", "fleet.explorers=3"]
    cfg, shares = load_config(None, settings), []
    for explorer in (0, 2, 4):
        remote_explorer = RemoteExplorer(cfg, ItemSize(4), LocalBroker(1))
        remote_explorer.begin(ExplorerPlace(explorer, 0))
        shares.append(remote_explorer.agent.algo.share)
        remote_explorer.close()
    assert shares == [(0, 3), (2, 3), (4, 5)]
