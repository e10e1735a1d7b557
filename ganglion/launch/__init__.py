"""Runs that are kept alive: restarted when their process dies, on one machine or in an allocation of Slurm."""
