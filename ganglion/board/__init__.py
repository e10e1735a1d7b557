"""A live page of runs for a browser on the same machine."""
