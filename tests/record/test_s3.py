"""Runs in a bucket, spoken to by the S3 protocol: a server of moto's on loopback."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from ganglion import cli
from ganglion.core import Origin, Weights
from ganglion.errors import UserError
from ganglion.fleet.files_broker import FileBroker
from ganglion.record.checkpoint import Checkpoints, load
from ganglion.record.stores import Remote, located
from ganglion.runtime.run import Run, evaluate
from tests.equal.runs import config, fingerprint, finish, metrics
from tests.record.states import example, same

SECRET = "s3cr3t-" + secrets.token_hex(8)
KEYS = {
    "AWS_ACCESS_KEY_ID": "someone",
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    if find_spec("moto") is None or find_spec("s3fs") is None:
        pytest.skip("needs the packages moto and s3fs: pip install 'ganglion[dev]'")
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    with pytest.MonkeyPatch.context() as patch:
        host, port = server.get_host_and_port()
        for name, value in {**KEYS, "AWS_ENDPOINT_URL": f"http://{host}:{port}"}.items():
            patch.setenv(name, value)
        place("s3://runs/x").fs.mkdir("runs")
        yield f"s3://runs/{secrets.token_hex(4)}"
    server.stop()


def place(url: str) -> Remote:
    found = located(url, "test")
    assert isinstance(found, Remote)
    return found


def test_checkpoints_come_and_go(bucket: str) -> None:
    folder = place(f"{bucket}/checkpoints")
    store = Checkpoints(folder, keep=2)
    for step in (1, 2, 3):
        store.save(example(step, pushed=step * 9), step, {})
        store.save_best(example(step), step, {})
    fresh = Checkpoints(folder, keep=2)
    newest, best = fresh.newest(), fresh.best()
    assert newest == folder / "3-0" and best == folder / "best"
    assert same(load(newest)[0], example(3, pushed=27)) and same(load(best)[0], example(3)._replace(rings={}))
    assert set(folder.names()) == {"2-0", "3-0", "best", "chunks"} and len((folder / "best").names()) == 3


def test_items_and_weights_pass_through_it(bucket: str) -> None:
    learner, explorer = (FileBroker(place(f"{bucket}/fleet"), 1) for _ in range(2))
    learner.publish(Weights(3, {}, {"w": torch.arange(3.0)}), "main")
    weights = explorer.latest("main", -1)
    assert weights is not None and weights.version == 3
    assert explorer.push(b"item", Origin("main", 0, 0, 0, 3)) and learner.waiting() == 1
    packet = learner.pull(1.0)
    assert packet is not None and bytes(packet.body) == b"item" and learner.waiting() == 0


def test_a_run_in_a_bucket_is_one_on_a_disk(bucket: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Left and continued from the bucket alone; scored from the command line; and nothing there holds a secret."""
    url = f"{bucket}/run"
    eager = {"fast": "eager"}
    whole = finish(Run.create(config("dqn", tmp_path / "a", 400, run={**eager, "dir": str(tmp_path / "a")})))
    left = Run.create(config("dqn", tmp_path, 400, run={**eager, "dir": url}))
    for log in left.stream():
        if log.kind == "save" and log.at.env_steps > 150:
            break
    left.close()
    again = finish(Run.open(url))
    again.close()
    assert fingerprint(again.trainer.state()) == fingerprint(whole.trainer.state())
    folder = place(url)
    (tmp_path / "metrics.jsonl").write_bytes((folder / "metrics.jsonl").read_bytes())
    assert metrics(tmp_path) == metrics(tmp_path / "a")
    assert not (folder / ".lock").exists()
    assert cli.main(["eval", url, "--episodes", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["checkpoint"] == f"{url}/checkpoints/best"
    assert cli.main(["show", url, "run.seed=7"]) == 0 and "seed: 7" in capsys.readouterr().out
    with pytest.raises(UserError, match=r"run\.dir: s3://.* is there already"):
        Run.create(config("dqn", tmp_path, 400, run={**eager, "dir": url}))
    for path in folder.fs.find(url):
        assert SECRET.encode() not in folder.fs.cat_file(path), path


@pytest.mark.soak
def test_learner_and_explorer_meet_in_a_bucket(bucket: str) -> None:
    """In two processes, as a user would start them; the second leaves when the run is over."""
    words = ["train", "cartpole/dqn", "--mode", "files", "--explorers", "1", f"fleet.path={bucket}/meet"]
    words += [f"run.dir={bucket}/met", "train.budget=1k steps", "eval=never", "log=[jsonl]"]
    started = [
        subprocess.Popen([sys.executable, "-m", "ganglion", *each], stdout=subprocess.PIPE, text=True)
        for each in (words, ["explore", f"{bucket}/meet"])
    ]
    told = [process.communicate(timeout=120)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0], told
    assert "0 lost, 0 duplicated" in told[0] and told[1].endswith("The run is over.\n")
    assert evaluate(f"{bucket}/met", 1, 1)["episodes"] == 1


# ------------------------------------------------------------ what is refused


def told(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert cli.main(words) == 2
    return capsys.readouterr().err


def test_what_is_not_there_is_named(bucket: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "is not the folder of a run: it has no config.yaml" in told(["resume", f"{bucket}/nosuch"], capsys)
    text = told(["train", "cartpole/dqn", "run.dir=s3://no-such-bucket/x"], capsys)
    assert "run.dir: s3://no-such-bucket/x/" in text and "cannot write it" in text
    words = ["train", "cartpole/dqn", f"run.dir={bucket}/other", "--mode", "files", "fleet.path=s3://no-such-bucket/x"]
    assert "fleet.path: s3://no-such-bucket/x cannot be used" in told(words, capsys)


def test_a_server_that_is_away_is_named(bucket: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        patch.setenv("AWS_MAX_ATTEMPTS", "1")
        text = told(["train", "cartpole/dqn", f"run.dir={bucket}/away"], capsys)
    assert "run.dir: " in text and "127.0.0.1:9" in text and SECRET not in text


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import fsspec

    assert fsspec.available_protocols()
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, "s3", raising=False)
    monkeypatch.setitem(sys.modules, "s3fs", None)
    text = told(["train", "cartpole/dqn", "run.dir=s3://bucket/run"], capsys)
    assert "run.dir: s3:// needs a package that is not installed. Try: pip install 'ganglion[s3]'" in text


def test_secrets_do_not_belong_into_urls(capsys: pytest.CaptureFixture[str]) -> None:
    for key in (SECRET, f"a/{SECRET}", f"{SECRET}/b"):  # Amazon's hold slashes
        text = told(["train", "cartpole/dqn", f"run.dir=s3://someone:{key}@bucket/run"], capsys)
        assert "run.dir: the URL holds a password" in text and SECRET not in text
        assert SECRET not in told(["resume", f"s3://someone:{key}@bucket/run"], capsys)
    assert SECRET not in told(["resume", f"simplecache::s3://someone:{SECRET}@bucket/run"], capsys)


def test_a_run_on_a_disk_needs_none_of_this(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("fsspec", "s3fs"):
        monkeypatch.setitem(sys.modules, name, None)  # importing it fails
    finish(Run.create(config("dqn", tmp_path / "run", 200, run={"fast": "eager", "dir": f"file://{tmp_path}/run"})))
    assert evaluate(str(tmp_path / "run"), 1, 1)["episodes"] == 1
