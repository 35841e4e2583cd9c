"""Our curves in the shape of the published statistics: every seed of the documents' pair of arms."""

from __future__ import annotations

import math

from lever_pipe.report.tables.intention.agent_runs import GREEDY, SAMPLED
from lever_pipe.report.tables.intention.arms import SECTION
from lever_pipe.report.tables.intention.curve_rows import FEWEST
from lever_pipe.report.tables.intention.curve_shapes import STATISTICS, comparison_lines
from lever_pipe.report.tables.intention.run_measures import ceiling
from lever_pipe.report.tables.intention.shown import SHARED_DRAWS, UPPER_BOUND, Shown
from lever_pipe.report.tables.table import Table, frame_of
from lever_pipe.report.tables.text import number, sentences
from lever_pipe.statistics.curves import CurveStatistics

RATIO_OF_MEANS = (
    "Percent of the ceiling: the ratio of the means; the table of checkpoints has the mean over tasks of their shares."
)


def tables(shown: Shown) -> list[Table]:
    """Return statistics and comparisons, greedy and sampled; a table of nothing is left out."""
    found = [make(shown, mode) for mode in (SAMPLED, GREEDY) for make in (_statistics, _comparison)]
    return [table for table in found if not table.frame.empty]


def _statistics(shown: Shown, mode: str) -> Table:
    curves: dict[str, CurveStatistics] = {}
    tops: dict[str, float] = {}
    for arm in shown.pair.values():
        for seed in shown.runs.seeds(arm):
            curve = shown.found.curve(arm, seed, mode)
            if curve is not None:
                curves[f"`{arm}` {seed}"] = curve
                tops[f"`{arm}` {seed}"] = ceiling(shown.runs, arm, seed, mode)
    rows = (
        [
            {"Statistic": name, **{column: show(curve) for column, curve in curves.items()}}
            for name, show in STATISTICS.items()
        ]
        if curves
        else []
    )
    for name, of in (("Mean", "mean"), ("Largest", "most")):
        shares = {
            column: number(100 * getattr(curve, of) / tops[column], 1)
            for column, curve in curves.items()
            if tops[column]
        }
        rows += [{"Statistic": f"{name} in percent of the ceiling", **shares}] if any(shares.values()) else []
    return Table(
        id=f"arms-statistics-{mode}",
        document=SECTION,
        title=f"Statistics of our curves, {mode}",
        caption=sentences(
            f"Ours: {shown.size}.",
            "A column is one run: its arm and seed.",
            "The same statistics of the published curves stand with the claims.",
            f"Evaluations after the start; curves of fewer than {FEWEST} have no statistics.",
            SHARED_DRAWS if shown.shares_draws else "",
            RATIO_OF_MEANS,
        ),
        frame=frame_of(rows, ["Statistic", *curves]),
    )


def _comparison(shown: Shown, mode: str) -> Table:
    reference, document = shown.pair.values()
    cells: dict[str, dict[str, str]] = {}
    columns = []
    for seed in shown.runs.common_seeds(document, reference):
        found = shown.found.pair(document, reference, seed, mode)
        if found is None:
            continue
        column = f"Seed {seed}"
        columns.append(column)
        for name, text in comparison_lines(found):
            cells.setdefault(name, {})[column] = text
        for name, text in _flat(shown, seed, mode).items():
            cells.setdefault(name, {})[column] = text
    rows = [{"Statistic": name, **by_seed} for name, by_seed in cells.items()]
    return Table(
        id=f"arms-compared-{mode}",
        document=SECTION,
        title=f"Our curves against each other, {mode}",
        caption=sentences(
            f"Ours: {shown.size}.",
            f"Arm `{document}` minus arm `{reference}` at the same steps, seed by seed.",
            "The tests take the evaluations as independent, so they are indicative.",
            "Flat runs: simulated values of one mean with the noise of an evaluation on the same tasks.",
            UPPER_BOUND if shown.shares_draws else "",
        ),
        frame=frame_of(rows, ["Statistic", *columns]),
    )


def _flat(shown: Shown, seed: int, mode: str) -> dict[str, str]:
    reference, document = shown.pair.values()
    found = shown.found
    values = {
        "Standard deviation of a flat run": found.statistic(reference, "", seed, mode, "flat_sd"),
        "Expected drawdown of a flat run": found.statistic(reference, "", seed, mode, "flat_expected_drawdown"),
        **{
            f"Chance that a flat run falls as far as `{arm}`": found.statistic(
                arm, "", seed, mode, "flat_chance_of_drawdown"
            )
            for arm in (reference, document)
        },
        "Chance that the best of two flat runs differ as much": found.statistic(
            document, reference, seed, mode, "flat_chance_of_best_gap"
        ),
    }
    return {name: number(value, 3) for name, value in values.items() if not math.isnan(value)}
