"""Start-up times above a bare interpreter's: `import ganglion` and `ganglion --help`.

Rounds are interleaved, so that a busy machine disturbs all three alike, and medians are compared.
Aims: 100 ms for the import, 200 ms for the help.

    python benchmarks/startup.py [rounds]
"""

from __future__ import annotations

import subprocess
import sys
import time
from statistics import median, quantiles

COMMANDS = {
    "bare interpreter": "pass",
    "import ganglion": "import ganglion",
    "ganglion --help": "import sys; sys.argv = ['ganglion', '--help']; from ganglion.cli import main; sys.exit(main())",
    "ganglion list": "import sys; sys.argv = ['ganglion', 'list']; from ganglion.cli import main; sys.exit(main())",
}
BARE = "bare interpreter"


def seconds(code: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def measure(rounds: int) -> dict[str, list[float]]:
    for code in COMMANDS.values():
        seconds(code)  # fills the caches of the disk and of Python
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(rounds):
        for name, code in COMMANDS.items():
            times[name].append(seconds(code))
    return times


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    times = measure(rounds)
    floor = median(times[BARE])
    print(f"median of {rounds} interleaved rounds, ms (quartiles)")
    for name, taken in times.items():
        low, _, high = quantiles(taken, n=4)
        above = "" if name == BARE else f"  above bare: {1000 * (median(taken) - floor):6.1f}"
        print(f"{name:18} {1000 * median(taken):7.1f} ({1000 * low:.1f} to {1000 * high:.1f}){above}")


if __name__ == "__main__":
    main()
