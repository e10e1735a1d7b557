"""Trained agents as files that run without Ganglion."""
