"""Values of runs by unit and cell: accuracies by question and shot count, rewards by task and endpoint."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from lever_pipe.base.policy_names import PolicyName, values_in

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Block:
    """The S runs of one group over the same N units, at C cells.

    In study `lever` a unit is a question, and a cell is a shot count or `mean`. In study `intention` a unit is a task,
    and the only cell is an endpoint; the value of a whole run has one unit.
    """

    name: str
    runs: tuple[str, ...]
    cells: tuple[str, ...]
    values: Array
    """[S, N, C] by run, unit and cell."""

    @property
    def n_units(self) -> int:
        """Return N."""
        return int(self.values.shape[1])

    @property
    def is_trained(self) -> bool:
        """Return whether the runs were trained; baselines are untrained."""
        return bool(self.seeds)

    @property
    def seeds(self) -> tuple[str, ...]:
        """Return the seed of each run; empty for baselines, whose draws are unrelated to seeds."""
        return tuple(seed for run in self.runs if (seed := values_in(run).get("seed")))

    def over(self, units: slice | NDArray[np.bool_]) -> Block:
        """Return the same runs over some of the units."""
        return replace(self, values=self.values[:, units])

    def at(self, cells: Sequence[str]) -> Block:
        """Return the same runs at these cells, or at all cells if none is named."""
        positions = [self.cells.index(cell) for cell in cells or self.cells]
        return replace(self, cells=tuple(self.cells[k] for k in positions), values=self.values[..., positions])

    def of_runs(self, positions: Sequence[int]) -> Block:
        """Return the runs at these positions, in their order."""
        return replace(self, runs=tuple(self.runs[run] for run in positions), values=self.values[list(positions)])

    def of_seeds(self, seeds: Iterable[str]) -> Block:
        """Return the runs of these seeds, in their order."""
        return self.of_runs([self.seeds.index(seed) for seed in seeds])

    def shares_seeds_with(self, other: Block) -> bool:
        """Return whether run s of both groups has the same seed, or is the same draw of one baseline, for every s."""
        return self.runs == other.runs or (self.is_trained and self.seeds == other.seeds)


def on_common_seeds(left: Block, right: Block) -> tuple[Block, Block]:
    """Return two trained groups restricted to their common seeds, so that runs pair; other groups stay unchanged."""
    common = [seed for seed in left.seeds if seed in right.seeds]
    return (left.of_seeds(common), right.of_seeds(common)) if common else (left, right)


def mean_block(name: str, blocks: Sequence[Block]) -> Block | None:
    """Return the mean of several trained groups, seed by seed over their common seeds; None without one.

    Args:
        name: of the mean group, to which each run adds its seed.
        blocks: over the same units and cells.
    """
    common = [seed for seed in blocks[0].seeds if all(seed in block.seeds for block in blocks)]
    if not common:
        return None
    runs = tuple(str(replace(PolicyName.parse(name), seed=int(seed))) for seed in common)
    return Block(name, runs, blocks[0].cells, np.mean([block.of_seeds(common).values for block in blocks], axis=0))
