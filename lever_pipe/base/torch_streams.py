"""Named random streams of torch; apart from `base/seeding.py`, so that stages without torch do not depend on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from lever_pipe.base.seeding import stream_seed


def torch_generator(seed: int, *names: str | int) -> torch.Generator:
    """Return the torch CPU generator of one named stream."""
    return torch.Generator().manual_seed(stream_seed(seed, *names))


@contextmanager
def ambient_stream(seed: int, *names: str | int) -> Iterator[None]:
    """Run a block with torch's global stream (used by dropout) set to a named one, then restore it."""
    with torch.random.fork_rng():
        torch.manual_seed(stream_seed(seed, *names))
        yield
