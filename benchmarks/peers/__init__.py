"""Other systems measured against Ganglion on equal work. `python -m benchmarks.peers --help`."""
