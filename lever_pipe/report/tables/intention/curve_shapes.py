"""How the statistics of a curve, and of one curve against another, are called and printed."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lever_pipe.report.tables.evidence import p_text
from lever_pipe.report.tables.text import number, signed
from lever_pipe.statistics.curve_tests import CurveComparison
from lever_pipe.statistics.curves import CurveStatistics

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


def comparison_lines(found: CurveComparison) -> list[tuple[str, str]]:
    """Return name and text of every comparison of two curves."""
    return [
        ("Mean paired difference", signed(found.mean, 4)),
        ("95 % t interval", f"{signed(found.low, 3)} to {signed(found.high, 3)}"),
        ("Standard deviation of paired differences", number(found.sd, 4)),
        ("Paired t", number(found.t, 2)),
        ("Paired t, p", p_text(found.p_t)),
        ("Wilcoxon, p", p_text(found.p_wilcoxon)),
        ("Steps above and below", f"{found.above} and {found.below}"),
        ("Sign test, p", p_text(found.p_sign)),
        ("Sign flips of differences, p", p_text(found.p_flip)),
        ("Variance ratio of changes", number(found.variance_ratio_of_changes, 3)),
        ("F test of changes, p", p_text(found.p_f_of_changes)),
        ("Levene test of changes, p", p_text(found.p_levene_of_changes)),
        ("Label swaps of changes, p", p_text(found.p_swap_of_changes)),
        ("F test of levels, p", p_text(found.p_f_of_levels)),
    ]
