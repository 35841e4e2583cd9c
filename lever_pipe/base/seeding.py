"""Independent named random streams, so that order and parallelism never change a sample."""

from __future__ import annotations

import hashlib

import numpy as np


def stream_seed(seed: int, *names: str | int) -> int:
    """Return a 63-bit seed that depends on `seed` and on every name, in order."""
    # The separator keeps ("a", "bc") and ("ab", "c") different. A shift leaves 63 bits, which fit torch's signed seed.
    text = "\x1f".join([str(seed), *(str(name) for name in names)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, *names: str | int) -> np.random.Generator:
    """Return the numpy generator of one named stream, for example `generator(0, "pools", 17)`."""
    return np.random.default_rng(stream_seed(seed, *names))
