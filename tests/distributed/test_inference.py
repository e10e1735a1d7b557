"""Central inference: one predictor for all explorers; what they do is what they would have done themselves."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from ganglion import ops
from ganglion.config import RunConfig
from ganglion.core import Past, Progress
from ganglion.errors import UserError
from ganglion.fleet.in_process import LocalBroker
from ganglion.fleet.inference_client import RemoteAgent, pack_answer, pack_question, unpack_answer, unpack_question
from ganglion.fleet.inference_server import Predictor, build_predictor
from ganglion.fleet.remote_explorer import lighten
from ganglion.runtime.build import build, build_agent, build_env
from ganglion.runtime.randomness import SlotNoise, Stream
from tests.equal.runs import SORTS

EAGER = {"log": {"writers": []}, "eval": "never", "save": "never"}


def config(sort: str, **more: Any) -> RunConfig:
    fleet = {"inference": "central", "explorers": 3, "rows": 10}
    run = {"mode": "threads", "fast": "eager"}
    return RunConfig.model_validate({**SORTS[sort], **EAGER, "run": run, "fleet": fleet, **more})


@pytest.mark.parametrize("sort", sorted(SORTS.keys() - {"league"}))
def test_actions_are_those_of_an_agent_of_ones_own(sort: str) -> None:
    """Asked by three explorers at once, over the form that travels, with memories and whatever else there is."""
    cfg, broker = config(sort), LocalBroker(1)
    env = build_env(cfg)
    own = build_agent(cfg, env.spec)
    with torch.no_grad():
        for parameter in own.algo.model.parameters():
            parameter.add_(0.01)  # not what an explorer would have without being told
    broker.publish(own.command(Progress(opt_steps=7)), "main")
    own.start(env.spec.slots)
    predictor = build_predictor(cfg, broker)

    def ask(*question: Any) -> Any:
        return unpack_answer(pack_answer(predictor.ask(*unpack_question(pack_question(*question)))))

    found: list[tuple[int, Any, Any]] = []

    def walk(explorer: int) -> None:
        agent = RemoteAgent(build_agent(cfg, env.spec).algo, ask)
        lighten(agent)
        slots = env.spec.slots
        dice = SlotNoise(Stream(explorer, "explore", own.device), own.draws, slots)
        obs, past = build_env(cfg).reset(explorer).obs, agent.start(slots)
        for _ in range(3):
            noise = dice.next()
            got, wanted = (
                agent.sample(obs, past, noise, Progress()),
                own.sample(obs, past, noise, Progress(opt_steps=7)),
            )
            past = Past(wanted.memory, torch.zeros(1, slots, dtype=torch.bool), wanted.carried)
            found.append((agent.version, got, wanted))

    threads = [threading.Thread(target=walk, args=(explorer,)) for explorer in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    predictor.close()
    env.close()
    assert [version for version, _, _ in found] == [7] * 9
    for _, got, wanted in found:
        for mine, theirs in zip(ops.leaves(got), ops.leaves(wanted), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


def test_what_waits_together_is_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    answer = Predictor.answer
    monkeypatch.setattr(Predictor, "answer", lambda self, asked: (seen.append(len(asked)), answer(self, asked))[1])
    made = build(config("ppo", train={"budget": "1000 steps"}))
    for _ in made():
        pass
    told = made.source.numbers()  # type: ignore[union-attr]
    made.close()
    assert made.at.env_steps >= 1_000 and made.at.opt_steps > 0 and max(seen) == 3
    assert told["fleet/lost"] == told["fleet/duplicated"] == 0 and told["fleet/received"] > 0


def test_what_goes_wrong_in_the_predictor_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Predictor, asked: Any) -> Any:
        raise RuntimeError("no crystal ball")

    monkeypatch.setattr(Predictor, "answer", broken)
    made = build(config("dqn", train={"budget": "1000 steps"}))
    with pytest.raises(RuntimeError, match="no crystal ball"):
        for _ in made():
            pass
    made.close()


def test_where_explorers_have_agents_of_their_own_it_is_refused() -> None:
    with pytest.raises(UserError, match=r"fleet\.inference: central is for run\.mode threads or ray"):
        build(config("dqn", run={"mode": "sync"}))
