"""Algorithms computed by another array library than torch."""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")  # one thread, as torch has; JAX reads it once
