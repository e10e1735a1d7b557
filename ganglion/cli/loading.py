"""Imports torch sooner than it would be by itself."""

from __future__ import annotations

import gc
import sys


def load_torch() -> None:
    """Without looking for garbage, which imports do not leave: a tenth of the time that torch takes."""
    if "torch" in sys.modules:
        return
    looks = gc.isenabled()
    gc.disable()
    try:
        import torch  # noqa: F401
    finally:
        gc.freeze()  # what was imported is never looked through
        if looks:
            gc.enable()
