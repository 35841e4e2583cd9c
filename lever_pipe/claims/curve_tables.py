"""Statistics of the published reward curves as tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lever_pipe.claims.book import RewardCurves
from lever_pipe.claims.claim_tables import INTENTION, SECTION
from lever_pipe.claims.curve_statistics import CurveStatistics, smallest_grid
from lever_pipe.claims.curve_tests import CurveComparison, FlatNoise
from lever_pipe.claims.reward_runs import RUNS, RewardRuns
from lever_pipe.tables.evidence import p_text
from lever_pipe.tables.table import Table, frame_of
from lever_pipe.tables.text import number, sentences, signed

Row = Callable[[CurveStatistics], str]

STATISTICS: Mapping[str, Row] = {
    "Mean": lambda c: number(c.mean, 4),
    "Standard deviation": lambda c: number(c.sd, 4),
    "Standard deviation in percent of the mean": lambda c: number(100 * c.variation, 2),
    "Median": lambda c: number(c.median, 3),
    "Smallest": lambda c: number(c.least, 3),
    "Largest": lambda c: number(c.most, 3),
    "Range": lambda c: number(c.value_range, 3),
    "Step of the largest": lambda c: f"{c.best_step:g}",
    "Changes": lambda c: ", ".join(signed(change, 3) for change in c.changes),
    "Changes in percent": lambda c: ", ".join(signed(100 * change, 1) for change in c.relative_changes),
    "Standard deviation of changes": lambda c: number(c.sd_of_changes, 4),
    "Root mean square of changes": lambda c: number(c.rms_of_changes, 4),
    "Mean size of changes": lambda c: number(c.mean_size_of_changes, 4),
    "Largest size of changes": lambda c: number(c.largest_change, 3),
    "Total variation": lambda c: number(c.total_variation, 3),
    "Sign changes": lambda c: str(c.sign_changes),
    "Falls": lambda c: str(c.falls),
    "Largest drawdown": lambda c: number(c.drawdown, 3),
    "Largest drawdown in percent": lambda c: number(100 * c.relative_drawdown, 1),
    "Steps of the largest drawdown": lambda c: f"{c.drawdown_from:g} to {c.drawdown_to:g}",
    "Slope for 100 steps": lambda c: number(100 * c.slope, 3),
    "Standard error of the slope": lambda c: number(100 * c.slope_error, 3),
    "t of the slope": lambda c: number(c.slope_t, 2),
    "Residual standard deviation": lambda c: number(c.residual_sd, 4),
    "R squared": lambda c: number(c.r_squared, 2),
    "Von Neumann ratio": lambda c: number(c.von_neumann, 2),
    "Lag-1 correlation": lambda c: number(c.lag_one, 2),
    "Trapezoid mean": lambda c: number(c.trapezoid_mean, 4),
    "Mean of the last 3": lambda c: number(c.mean_of_last_3, 3),
    "Mean of the last 5": lambda c: number(c.mean_of_last_5, 3),
}


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
            INTENTION,
            f"Validation reward of documents 003 and 004, {evaluations} evaluations a run, one run each.",
            "Estimated values are left out.",
            f"The ceiling is {given.ceiling:g}.",
        ),
        frame_of(rows, ["Statistic", *RUNS.values()]),
    )


def _comparison(runs: RewardRuns, curves: Mapping[str, CurveStatistics], given: RewardCurves) -> Table:
    rows = [*_tests(runs.comparison), *_against_noise(runs.noise, curves)]
    values = [value for run in RUNS for value in runs.rewards(run)]
    n = smallest_grid(values, unit=given.reward_unit, rounding=0.0005)
    rows.append(("Fewest episodes whose mean can print every value", "none" if n is None else str(n)))
    return Table(
        "claims-curves-compared",
        SECTION,
        "The published curves against each other",
        sentences(
            INTENTION,
            f"{RUNS['kl']} minus {RUNS['nokl']} at the same steps.",
            "The tests take the evaluations as independent, so they are indicative.",
            "One run an arm allows no statement about training variance.",
            f"Flat runs: simulated values of one mean with standard deviation {given.noise_sd:g}.",
        ),
        frame_of([dict(zip(("Statistic", "Value"), row, strict=True)) for row in rows], ["Statistic", "Value"]),
    )


def _tests(found: CurveComparison) -> list[tuple[str, str]]:
    return [
        ("Mean paired difference", signed(found.mean, 4)),
        ("95 % t interval", f"{signed(found.low, 3)} to {signed(found.high, 3)}"),
        ("Standard deviation of paired differences", number(found.sd, 4)),
        ("Paired t", number(found.t, 2)),
        ("Paired t, p", p_text(found.p_t)),
        ("Wilcoxon, p", p_text(found.p_wilcoxon)),
        ("Steps above and below", f"{found.above} and {found.below}"),
        ("Sign test, p", p_text(found.p_sign)),
        ("Variance ratio of changes", number(found.variance_ratio_of_changes, 3)),
        ("F test of changes, p", p_text(found.p_f_of_changes)),
        ("Levene test of changes, p", p_text(found.p_levene_of_changes)),
        ("Label swaps of changes, p", p_text(found.p_swap_of_changes)),
        ("F test of levels, p", p_text(found.p_f_of_levels)),
    ]


def _against_noise(noise: FlatNoise, curves: Mapping[str, CurveStatistics]) -> list[tuple[str, str]]:
    rows = [("Expected drawdown of a flat run", number(noise.expected_drawdown, 3))]
    for run, curve in curves.items():
        chance = number(noise.chance_of_drawdown(curve.drawdown), 3)
        rows.append((f"Chance that a flat run falls as far as {RUNS[run]}", chance))
    gap = abs(curves["kl"].most - curves["nokl"].most)
    return [*rows, ("Chance that the best of two flat runs differ as much", number(noise.chance_of_best_gap(gap), 3))]
