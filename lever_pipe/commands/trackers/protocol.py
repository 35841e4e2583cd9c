"""What every tracker's module offers: `write`, offline, and `read` by the tracker's own library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

Values = dict[str, dict[tuple[int, str], float]]
"""Run -> (step or epoch, metric) -> value."""


class TrackedRun(NamedTuple):
    """A policy's training or an arm's run as trackers hold it.

    Attributes:
        name: the policy without its epoch, `preset~world/rce/seed~0`, or the arm with its seed.
        kind: what it is, as `rce` or `agent`; trackers call it a tag or group.
        facts: configuration, inputs, code and lineage, each as text.
        values: step or epoch, and metric -> value.
    """

    name: str
    kind: str
    facts: Mapping[str, str]
    values: Mapping[tuple[int, str], float]

    def by_step(self) -> dict[int, dict[str, float]]:
        """Return the metrics of each step, in order."""
        steps: dict[int, dict[str, float]] = {}
        for (step, metric), value in sorted(self.values.items()):
            steps.setdefault(step, {})[metric] = value
        return steps


class Tracker(Protocol):
    """A module of this folder, named as its library and extra are; it imports the library when it is called."""

    def write(self, runs: Sequence[TrackedRun], folder: Path, project: str) -> None:
        """Write runs into an empty folder, without a network."""

    def read(self, folder: Path, project: str) -> Values:
        """Return the values of all runs of a folder."""
