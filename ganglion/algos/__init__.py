"""Algorithms, one file each. Their names are in ganglion/registry.py; nothing is imported before it is asked for."""
