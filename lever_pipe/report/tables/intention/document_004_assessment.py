"""Document 004: how steady the two runs are, and who wins by a test instead of by eye."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy import stats

from lever_pipe.base.seeding import generator
from lever_pipe.report.tables.intention.agent_runs import Series
from lever_pipe.report.tables.intention.pairs import CurvePair, Measure, curve_pairs, verdicts, within
from lever_pipe.report.tables.intention.published import KL, NO_KL, RUNS
from lever_pipe.report.tables.intention.run_measures import best_step
from lever_pipe.report.tables.intention.shown import Shown, steps_listed
from lever_pipe.report.tables.table import Table, frame_of
from lever_pipe.report.tables.text import number, sentences
from lever_pipe.statistics.curve_tests import f_test, flat_noise
from lever_pipe.statistics.curves import drawdowns

DOCUMENT = "004"
EARLY, MIDDLE, LATE = within(5, 15), within(20, 35), within(40, 45)
PublishedTest = Callable[[Shown, CurvePair], float]


@dataclass(frozen=True, slots=True)
class Dimension:
    """A row of the assessment: what is compared, who wins in the document, and how published numbers are tested."""

    name: str
    winner: str
    measure: Measure
    test: PublishedTest
    digits: int = 3


def mean_of(values: list[float]) -> float:
    """Return the mean; NaN of none."""
    return math.fsum(values) / len(values) if values else math.nan


def sd_of_changes(curve: Series) -> float:
    """Return the standard deviation of the changes; NaN of fewer than two."""
    changes = np.diff(list(curve.values()))
    return float(changes.std(ddof=1)) if changes.size > 1 else math.nan


def range_of(values: list[float]) -> float:
    """Return the largest minus the smallest value; NaN of fewer than two."""
    return max(values) - min(values) if len(values) > 1 else math.nan


def _best_gap_p(shown: Shown, pair: CurvePair) -> float:
    best = pair.means(lambda curve: max(curve.values()))
    noise = flat_noise(len(pair.kl[0]), shown.given.noise_sd, generator(shown.config.evaluation.seed, "assessment"))
    return noise.chance_of_best_gap(abs(best[KL] - best[NO_KL]))


def _no_test(_: Shown, __: CurvePair) -> float:
    return math.nan


def _changes_p(_: Shown, pair: CurvePair) -> float:
    return f_test(*(np.diff(list(curve.values())) for curve in (pair.kl[0], pair.no_kl[0])))


def _middle_p(_: Shown, pair: CurvePair) -> float:
    return f_test(MIDDLE(pair.kl[0]), MIDDLE(pair.no_kl[0]))


def _window_p(window: Callable[[Series], list[float]]) -> PublishedTest:
    """Return the t test of a mean over a few steps, with the standard deviation of all paired differences."""

    def p(_: Shown, pair: CurvePair) -> float:
        kl, no_kl = pair.kl[0], pair.no_kl[0]
        gaps = {step: kl[step] - no_kl[step] for step in kl if step in no_kl}
        chosen = window(gaps)
        if not chosen or len(gaps) < 2:
            return math.nan
        error = float(np.std(list(gaps.values()), ddof=1)) / math.sqrt(len(chosen))
        return float(2 * stats.t.sf(abs(mean_of(chosen)) / error, len(gaps) - 1))

    return p


DIMENSIONS = (
    Dimension("Best reward", "no KL (+3.6 %)", lambda curve: max(curve.values()), _best_gap_p),
    Dimension("Step of the best reward", "KL bundle (5 steps sooner)", best_step, _no_test),
    Dimension("Stability: sd of change", "KL bundle", sd_of_changes, _changes_p, 4),
    Dimension("Early: mean of steps 5 to 15", "no KL", lambda curve: mean_of(EARLY(curve)), _window_p(EARLY)),
    Dimension("Middle: range of steps 20 to 35", "KL bundle", lambda curve: range_of(MIDDLE(curve)), _middle_p),
    Dimension("Late: mean of steps 40 and 45", "no KL (+3.6 %)", lambda curve: mean_of(LATE(curve)), _window_p(LATE)),
)
"""Names and winners as the document has them."""

STATISTICS: Mapping[str, tuple[Measure, int]] = {
    "Largest change (%)": (lambda curve: 100 * max(map(abs, _relative(curve)), default=math.nan), 1),
    "Standard deviation of changes": (sd_of_changes, 4),
    "Total variation": (lambda curve: float(np.abs(np.diff(list(curve.values()))).sum()), 3),
    "Sign changes": (lambda curve: float(_turns(curve)), 1),
    "Largest drawdown": (lambda curve: float(drawdowns(np.array([list(curve.values())]))[0]), 3),
}


def stability(shown: Shown) -> Table:
    """Return statistics of steadiness of both runs with the test of their difference."""
    rows: list[dict[str, str]] = []
    for name, (measure, digits) in STATISTICS.items():
        for pair in curve_pairs(shown):
            cells = {RUNS[run]: number(value, digits) for run, value in pair.means(measure).items()}
            if name.startswith("Largest change") and not pair.is_ours:
                said = {run: shown.published.text(run, "max_abs_change_pct") for run in RUNS}
                cells = {RUNS[run]: f"{cells[RUNS[run]]} (printed: {said[run]})" for run in RUNS}
            p = pair.p(measure) if pair.is_ours else _changes_p(shown, pair) if measure is sd_of_changes else math.nan
            rows.append({"Statistic": name, **pair.keys, **cells, "p": number(p, 3)})
    return Table(
        id="004-stability",
        document=DOCUMENT,
        title="Stability of training",
        caption=sentences(
            shown.origin(),
            "Of each run's curve after the start, ours the mean over seeds of what each run shows.",
            "p of the published pair by an F test; of ours by a paired t test over seeds.",
            "The document's largest changes leave step 10 out.",
        ),
        frame=frame_of(rows, ["Statistic", "Source", "Curve", *RUNS.values(), "p"]),
    )


def assessment(shown: Shown) -> Table:
    """Return every dimension of the document's assessment, with its winner as printed and by a test."""
    pairs = curve_pairs(shown)
    tested = [_tested(shown, pair) for pair in pairs]
    rows: list[dict[str, str]] = []
    for dimension in DIMENSIONS:
        for index, pair in enumerate(pairs):
            means = pair.means(dimension.measure)
            if any(map(math.isnan, means.values())):
                continue
            cells = {RUNS[run]: number(value, dimension.digits) for run, value in means.items()}
            if dimension.measure is best_step:
                cells = {RUNS[run]: steps_listed(of, 0) for run, of in pair.values(best_step).items()}
            winner = {} if pair.is_ours else {"Winner as printed": dimension.winner}
            verdict = tested[index][dimension.name]
            rows.append({"Dimension": dimension.name, **pair.keys, **cells, **winner, "By the test": verdict})
    return Table(
        id="004-assessment",
        document=DOCUMENT,
        title="Assessment: who wins",
        caption=sentences(
            shown.origin(),
            "A winner needs a test that separates the two runs; p is adjusted for the rows of one source and curve "
            "(Holm).",
            "Published: the chance that the best of two flat runs differ as much, an F test of changes and of the "
            "middle, and t tests of the early and late means; steps of the best have no test.",
            "Ours: a paired t test over the common seeds.",
            "Steps of ours: of each seed in order, once where all agree.",
        ),
        frame=frame_of(rows, ["Dimension", "Source", "Curve", *RUNS.values(), "Winner as printed", "By the test"]),
    )


def _tested(shown: Shown, pair: CurvePair) -> dict[str, str]:
    if pair.is_ours:
        return verdicts({dimension.name: pair.p(dimension.measure) for dimension in DIMENSIONS})
    found = {dimension.name: dimension.test(shown, pair) for dimension in DIMENSIONS}
    texts = verdicts(found)
    steps = pair.means(best_step)
    spacing = max(np.diff(list(pair.kl[0])), default=0)
    if abs(steps[KL] - steps[NO_KL]) <= spacing:
        texts["Step of the best reward"] = "not separated (one evaluation apart)"
    return texts


def _relative(curve: Series) -> list[float]:
    values = list(curve.values())
    return [(after - before) / before for before, after in pairwise(values) if before]


def _turns(curve: Series) -> int:
    changes = np.diff(list(curve.values()))
    return int(np.sum(changes[1:] * changes[:-1] < 0))
