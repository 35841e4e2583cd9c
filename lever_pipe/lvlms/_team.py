"""The processes that share one job: each computes a shard, and the answer ledger carries the rows between them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Protocol


class Team(Protocol):
    """This process among those of its job."""

    rank: int
    size: int
    device: str

    def wait(self) -> None:
        """Return when all processes have come here."""
        ...

    def total(self, counts: Counter[str], names: Sequence[str]) -> Counter[str]:
        """Return the sum of the named counts over all processes."""
        ...


class SingleProcess:
    """A job of one process."""

    rank = 0
    size = 1

    def __init__(self, device: str) -> None:
        self.device = device

    def wait(self) -> None:
        """Return at once."""

    def total(self, counts: Counter[str], names: Sequence[str]) -> Counter[str]:
        """Return the named counts."""
        return Counter({name: counts[name] for name in names})


class AcceleratedTeam:
    """Processes that one launcher started, one a device."""

    def __init__(self, device: str) -> None:
        from accelerate import PartialState

        # Shards may end hours apart; the usual ten minutes would end the job of those who wait.
        self._state: Any = PartialState(cpu=device == "cpu", timeout=timedelta(days=7))
        self.rank = int(self._state.process_index)
        self.size = int(self._state.num_processes)
        self.device = str(self._state.device)

    def wait(self) -> None:
        """Return when all processes have come here."""
        self._state.wait_for_everyone()

    def total(self, counts: Counter[str], names: Sequence[str]) -> Counter[str]:
        """Return the sum of the named counts over all processes."""
        import torch
        from accelerate.utils import reduce

        # Double precision holds every integer up to 2**53, more than the work of a job.
        own = torch.tensor([counts[name] for name in names], dtype=torch.float64, device=self._state.device)
        return Counter(dict(zip(names, map(int, reduce(own, reduction="sum").tolist()), strict=True)))


def join_team(device: str) -> Team:
    """Return the team of this process: those of its launcher, a device each, or itself alone on `device`."""
    return AcceleratedTeam(device) if int(os.environ.get("WORLD_SIZE", "1")) > 1 else SingleProcess(device)
