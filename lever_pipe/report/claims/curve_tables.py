"""Statistics of the published reward curves as tables."""

from __future__ import annotations

from collections.abc import Mapping

from lever_pipe.report.claims.book import RewardCurves
from lever_pipe.report.claims.claim_tables import SECTION
from lever_pipe.report.claims.reward_runs import RewardRuns
from lever_pipe.report.tables.intention.curve_shapes import STATISTICS, comparison_lines
from lever_pipe.report.tables.intention.published import RUNS, SET_UP
from lever_pipe.report.tables.table import Table, frame_of
from lever_pipe.report.tables.text import number, sentences
from lever_pipe.statistics.curve_tests import FlatNoise
from lever_pipe.statistics.curves import CurveStatistics, smallest_grid


def published_curve_tables(runs: RewardRuns, given: RewardCurves) -> list[Table]:
    """Return the statistics of each published curve, and the tests of one against the other."""
    curves = {run: runs.curve(run) for run in RUNS}
    return [_statistics(curves, given), _comparison(runs, curves, given)]


def _statistics(curves: Mapping[str, CurveStatistics], given: RewardCurves) -> Table:
    rows = [
        {"Statistic": name, **{RUNS[run]: show(curve) for run, curve in curves.items()}}
        for name, show in STATISTICS.items()
    ]
    for name, of in (("Mean", "mean"), ("Largest", "most")):
        shares = {RUNS[run]: number(100 * getattr(curve, of) / given.ceiling, 1) for run, curve in curves.items()}
        rows.append({"Statistic": f"{name} in percent of the ceiling", **shares})
    evaluations = next(iter(curves.values())).n
    return Table(
        "claims-curves",
        SECTION,
        "Statistics of the published curves",
        sentences(
            SET_UP,
            f"Validation reward of documents 003 and 004, {evaluations} evaluations a run, one run each.",
            "Estimated values are left out.",
            f"The ceiling is {given.ceiling:g}.",
        ),
        frame_of(rows, ["Statistic", *RUNS.values()]),
    )


def _comparison(runs: RewardRuns, curves: Mapping[str, CurveStatistics], given: RewardCurves) -> Table:
    rows = [*comparison_lines(runs.comparison), *_against_noise(runs.noise, curves)]
    values = [value for run in RUNS for value in runs.rewards(run)]
    n = smallest_grid(values, unit=given.reward_unit, rounding=0.0005)
    rows.append(("Fewest episodes whose mean can print every value", "none" if n is None else str(n)))
    return Table(
        "claims-curves-compared",
        SECTION,
        "The published curves against each other",
        sentences(
            SET_UP,
            f"{RUNS['kl']} minus {RUNS['nokl']} at the same steps.",
            "The tests take the evaluations as independent, so they are indicative.",
            "One run an arm allows no statement about training variance.",
            f"Flat runs: simulated values of one mean with standard deviation {given.noise_sd:g}.",
        ),
        frame_of([dict(zip(("Statistic", "Value"), row, strict=True)) for row in rows], ["Statistic", "Value"]),
    )


def _against_noise(noise: FlatNoise, curves: Mapping[str, CurveStatistics]) -> list[tuple[str, str]]:
    rows = [("Expected drawdown of a flat run", number(noise.expected_drawdown, 3))]
    for run, curve in curves.items():
        chance = number(noise.chance_of_drawdown(curve.drawdown), 3)
        rows.append((f"Chance that a flat run falls as far as {RUNS[run]}", chance))
    gap = abs(curves["kl"].most - curves["nokl"].most)
    return [*rows, ("Chance that the best of two flat runs differ as much", number(noise.chance_of_best_gap(gap), 3))]
