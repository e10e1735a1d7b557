"""Installs each peer in a virtual environment of its own: `python -m benchmarks.peers.install [sb3 cleanrl ...]`.

Versions are pinned, so that a table can be made again. CleanRL is scripts rather than a package: its repository is
checked out beside the environments at one commit and its scripts are run as they are.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEFAULT = ROOT / ".peers"
TORCH = "torch==2.13.0"
MUJOCO = ["gymnasium[mujoco]==1.4.0", "mujoco==4.0.0"]
OLD_ATARI = ["ale-py==0.8.1", "shimmy==1.3.0", "opencv-python-headless<4.12"]  # what gymnasium 0.29 works with
PACKAGES = {
    "sb3": [TORCH, "stable-baselines3==2.9.2", *MUJOCO, "ale-py==0.12.1", "opencv-python-headless==5.0.0.93"],
    "tianshou": [TORCH, "tianshou==2.0.1", *MUJOCO],
    "cleanrl": [TORCH, "gymnasium[mujoco]==0.29.1", "mujoco==4.0.0", "numpy<2", "tyro", "tensorboard", *OLD_ATARI],
    "di-engine": ["torch==2.12.1", "DI-engine==0.5.3", "numpy<2"],
}
ALONE = {  # compared by programs of their own
    "rllib": [TORCH, "ray[rllib]==2.60.0", "ale-py", "opencv-python-headless"],
}
CLEANRL = "https://github.com/vwxyzjn/cleanrl"
COMMIT = "fe8d8a03c41a7ef5b523e2e354bd01c363e786bb"


def install(peers: Path, name: str, cleanrl: str) -> None:
    folder = peers / name
    if not (folder / "bin" / "pip").exists():
        call(sys.executable, "-m", "venv", str(folder))
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "-q"]
    packages = {**PACKAGES, **ALONE}[name]
    for package in packages[:1]:  # torch first: a resolver left alone may choose another build of it
        call(*pip, package)
    call(*pip, *packages)
    source = peers / "cleanrl-src"
    if name == "cleanrl" and not source.exists():
        call("git", "clone", "-q", cleanrl, str(source))
        call("git", "-C", str(source), "checkout", "-q", COMMIT)
    if name == "cleanrl":  # its ALE brings no games; a newer one in another environment does
        games = sorted(peers.glob("sb3/lib/python*/site-packages/ale_py/roms"))
        if games:
            call(str(folder / "bin" / "ale-import-roms"), str(games[0]))


def call(*command: str) -> None:
    subprocess.run(command, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*PACKAGES, *ALONE, []], help="which; all unless named")
    parser.add_argument("--peers", type=Path, default=DEFAULT, help="where the environments go (.peers)")
    parser.add_argument("--cleanrl", default=CLEANRL, help="where CleanRL is cloned from")
    given = parser.parse_args()
    for name in given.names or PACKAGES:
        print(f"installing {name} in {given.peers / name}", flush=True)
        install(given.peers, name, given.cleanrl)


if __name__ == "__main__":
    main()
