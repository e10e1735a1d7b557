"""Training from Python: a run is a stream of what happens in it.

python examples/train_from_python.py
"""

from __future__ import annotations

import ganglion

EVAL = "eval={every: 5k steps, episodes: 10}"
SETTINGS = ["algo=ppo", "env={kind: torch, id: cartpole}", "train.budget=10k steps", EVAL]


def main() -> dict[str, float]:
    # 1. To the end. A preset's name ("cartpole/dqn"), a file, YAML text, or None and settings alone.
    agent = ganglion.train(None, [*SETTINGS, "log=[jsonl]", "run.dir=runs/whole"])
    print(agent.folder, agent.act([0.0, 0.1, 0.0, -0.1]))

    # 2. Event by event: collect, learn, evaluate, record, save. Leaving early keeps everything; asking again continues.
    run = ganglion.Run.create(ganglion.load_config(None, [*SETTINGS, "log=[]", "run.dir=runs/parts"]))
    for log in run.stream():
        if log.at.env_steps >= 4_000:
            break
    print(f"left at {log.at.env_steps} steps")
    for log in run.stream():
        if log.kind == "evaluate":
            print(f"{log.at.env_steps} steps: mean return {log.metrics['eval/return_mean']:.1f}")

    # 3. What was saved: a deterministic score on seeds of its own, and the agent itself.
    score = ganglion.evaluate(run.folder, episodes=20, seed=1)
    print(f"mean {score['mean']:.1f}, 95 % interval {score['interval']}")
    return {"mean": score["mean"]}


if __name__ == "__main__":
    main()
