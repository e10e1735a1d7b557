"""Ganglion: deep reinforcement learning from one readable file to a cluster."""

from __future__ import annotations

__version__ = "0.1.0"
