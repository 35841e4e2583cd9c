"""Document 004: is the KL run worse, when is it best, step by step, how steady, and who wins."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import pairwise

import numpy as np

from lever_pipe.report.tables.evidence import ALPHA, p_text
from lever_pipe.report.tables.intention import published as theirs
from lever_pipe.report.tables.intention.agent_runs import GREEDY, MODES, SAMPLED, Series, after_start
from lever_pipe.report.tables.intention.curve_rows import FEWEST
from lever_pipe.report.tables.intention.document_003 import REWARD_COLUMNS, SAMPLED_COLUMNS, our_rewards
from lever_pipe.report.tables.intention.document_004_assessment import assessment, stability
from lever_pipe.report.tables.intention.endpoint_cells import difference_text, endpoint_text
from lever_pipe.report.tables.intention.pairs import CurvePair, curve_pairs, published_pair, remarks
from lever_pipe.report.tables.intention.published import KL, NO_KL, RUNS
from lever_pipe.report.tables.intention.run_measures import best_step
from lever_pipe.report.tables.intention.shown import Shown, change_text, reward_text, steps_listed
from lever_pipe.report.tables.table import Table, frame_of
from lever_pipe.report.tables.text import sentences, signed
from lever_pipe.statistics.curve_tests import compare_curves

DOCUMENT = "004"
STARS = {NO_KL: "5 of 5 stars", KL: "4 of 5 stars", theirs.DIFFERENCE: "slightly lower, acceptable"}
"""The document's rating; text, so no row of the reference holds it."""
CHANGE_COLUMNS = tuple(f"{name}, change (%)" for name in RUNS.values())
SAMPLED_CHANGES = tuple(f"{name}, sampled change (%)" for name in RUNS.values())


def tables(shown: Shown) -> list[Table]:
    """Return the document's tables in its order."""
    return [
        _answer(shown),
        _steps_to_best(shown),
        _step_by_step(shown),
        _changes(shown),
        stability(shown),
        assessment(shown),
    ]


def _answer(shown: Shown) -> Table:
    rows: list[dict[str, str]] = []
    for pair in curve_pairs(shown):
        best = pair.means(lambda curve: max(curve.values()))
        share = 100 * (best[KL] - best[NO_KL]) / best[NO_KL] if best[NO_KL] else math.nan
        gap = change_text(best[KL] - best[NO_KL]) + ("" if math.isnan(share) else f" ({signed(share, 1)} %)")
        cells = {RUNS[run]: reward_text(value) for run, value in best.items()}
        rows.append({"Quantity": "Best reward", **pair.keys, **cells, "Difference": gap})
    rows.append(
        {
            "Quantity": "Rating",
            "Source": theirs.SOURCE,
            **{RUNS[run]: STARS[run] for run in RUNS},
            "Difference": STARS[theirs.DIFFERENCE],
        }
    )
    rows += [{"Quantity": "Mean over evaluations", **pair.keys, **_mean_cells(pair)} for pair in curve_pairs(shown)]
    rows += _primary_row(shown)
    return Table(
        id="004-answer",
        document=DOCUMENT,
        title="Is the KL run worse, or about the same?",
        caption=sentences(
            shown.origin(),
            shown.mode_names,
            "Best reward: mean over seeds of each run's best evaluation after the start, which is one of many noisy "
            "ones.",
            "Mean over evaluations: p of the published pair by a paired t test that takes evaluations as independent; "
            "of ours by a paired t test over seeds.",
            "Primary endpoint: fixed before the runs; in brackets its 95 % interval.",
        ),
        frame=frame_of(rows, ["Quantity", "Source", "Curve", *RUNS.values(), "Difference", "p"]),
        lead=answer(shown),
    )


def answer(shown: Shown) -> str:
    """Return whether the two runs are told apart, by the published numbers and by ours."""
    published = _published_p(shown)
    said = ""
    if not math.isnan(published):
        verdict = "" if published < ALPHA else "not "
        said = f"Published: {verdict}separated (paired t over evaluations, p {p_text(published)})."
    row = next((of for of in shown.found.family(is_primary=True) if of.arm == shown.config.document_arm), None)
    if row is None or math.isnan(row.p):
        return said
    verdict = "" if row.p_holm < ALPHA else "not "
    ours = f"Ours: {verdict}separated at the primary endpoint ({row.test}, Holm p {p_text(row.p_holm)})."
    return sentences(said, ours)


def _mean_cells(pair: CurvePair) -> dict[str, str]:
    means = pair.means(lambda curve: float(np.mean(list(curve.values()))))
    cells = {RUNS[run]: reward_text(value) for run, value in means.items()}
    p = pair.p(lambda curve: float(np.mean(list(curve.values())))) if pair.is_ours else _paired_p(pair)
    return cells | {"Difference": change_text(means[KL] - means[NO_KL]), "p": "" if math.isnan(p) else p_text(p)}


def _paired_p(pair: CurvePair) -> float:
    steps = [step for step in pair.no_kl[0] if step in pair.kl[0]]
    if len(steps) < FEWEST:
        return math.nan
    return compare_curves([pair.kl[0][step] for step in steps], [pair.no_kl[0][step] for step in steps]).p_t


def _published_p(shown: Shown) -> float:
    return _paired_p(published_pair(shown))


def _primary_row(shown: Shown) -> Iterator[dict[str, str]]:
    primary = shown.found.primary
    if not primary:
        return
    cells = {RUNS[run]: endpoint_text(shown.found.mean(arm, primary)) for run, arm in shown.pair.items()}
    row = next((of for of in shown.found.family(is_primary=True) if of.arm == shown.config.document_arm), None)
    found = {} if row is None else {"Difference": difference_text(row), "p": p_text(row.p) if row.p == row.p else ""}
    mode = shown.config.evaluation.primary.modes[0]
    yield {"Quantity": "Primary endpoint", "Source": shown.source, "Curve": mode, **cells, **found}


def _steps_to_best(shown: Shown) -> Table:
    rows: list[dict[str, str]] = []
    pairs = curve_pairs(shown)
    for run, name in RUNS.items():
        for pair in pairs:
            of = pair.no_kl if run == NO_KL else pair.kl
            value = math.fsum(max(curve.values()) for curve in of) / len(of)
            rows.append(
                {
                    "Run": name,
                    **pair.keys,
                    "Step of the best reward": steps_listed([best_step(curve) for curve in of], 0),
                    "Best reward": reward_text(value),
                }
            )
    for pair in pairs:
        steps, best = pair.means(best_step), pair.means(lambda curve: max(curve.values()))
        rows.append(
            {
                "Run": theirs.LABELS[theirs.DIFFERENCE],
                **pair.keys,
                "Step of the best reward": signed(steps[KL] - steps[NO_KL], 0 if not pair.is_ours else 1),
                "Best reward": change_text(best[KL] - best[NO_KL]),
            }
        )
    return Table(
        id="004-steps-to-best",
        document=DOCUMENT,
        title="Steps to the best reward",
        caption=sentences(
            shown.origin(),
            "Ours: the step of each seed in order, once where all agree, and the mean difference over seeds.",
            f"Ours are evaluated every {shown.config.evaluation.every} steps, the published runs every 5: no smaller "
            "difference can be seen.",
        ),
        frame=frame_of(rows, ["Run", "Source", "Curve", "Step of the best reward", "Best reward"]),
    )


def _step_by_step(shown: Shown) -> Table:
    ours = {mode: {run: shown.runs.mean_validation(arm, mode) for run, arm in shown.pair.items()} for mode in MODES}
    measured = {run: shown.published.measured(run) for run in RUNS}
    shown_steps = {step for of in ours.values() for curve in of.values() for step in curve}
    said = dict(remarks(measured[NO_KL], measured[KL]))
    curve = ours[GREEDY] if all(ours[GREEDY].values()) else ours[SAMPLED]
    own = dict(remarks(after_start(curve[NO_KL]), after_start(curve[KL])))
    rows: list[dict[str, str]] = []
    for step in sorted(shown_steps | {step for of in measured.values() for step in of}):
        if step in shown_steps:
            cells = our_rewards(ours, step)
            rows.append({"Step": str(step), "Source": shown.source, **cells, "Remark": own.get(step, "")})
        values = {run: of[step] for run, of in measured.items() if step in of}
        if values:
            cells = {RUNS[run]: reward_text(value) for run, value in values.items()}
            cells["Difference"] = change_text(values[KL] - values[NO_KL]) if len(values) == len(RUNS) else ""
            rows.append({"Step": str(step), "Source": theirs.SOURCE, **cells, "Remark": said.get(step, "")})
    return Table(
        id="004-step-by-step",
        document=DOCUMENT,
        title="Rewards step by step",
        caption=sentences(
            shown.origin(),
            shown.mode_names,
            "Difference: KL bundle minus no KL.",
            "Remark: computed from the greedy curve of the row's source; the document's own remarks are judged as "
            "claims.",
        ),
        frame=frame_of(rows, ["Step", "Source", *REWARD_COLUMNS, *SAMPLED_COLUMNS, "Remark"]),
    )


def _changes(shown: Shown) -> Table:
    ours = {mode: {run: shown.runs.mean_validation(arm, mode) for run, arm in shown.pair.items()} for mode in MODES}
    measured = {run: shown.published.measured(run) for run in RUNS}
    own = {**_by_step(ours[GREEDY], CHANGE_COLUMNS)}
    for step, cells in _by_step(ours[SAMPLED], SAMPLED_CHANGES).items():
        own[step] = {**own.get(step, {}), **cells}
    said = _by_step(measured, CHANGE_COLUMNS)
    rows: list[dict[str, str]] = []
    for step in sorted({*own, *said}):
        rows += [{"Step": str(step), "Source": shown.source, **own[step]}] if step in own else []
        rows += [{"Step": str(step), "Source": theirs.SOURCE, **said[step]}] if step in said else []
    return Table(
        id="004-changes",
        document=DOCUMENT,
        title="Changes from evaluation to evaluation, in percent",
        caption=sentences(
            shown.origin(),
            "Each change is relative to the evaluation before; ours is of the mean over seeds.",
            "The document begins its list behind step 10 and so leaves out the largest change of both runs.",
        ),
        frame=frame_of(rows, ["Step", "Source", *CHANGE_COLUMNS, *SAMPLED_CHANGES]),
    )


def _by_step(curves: Mapping[str, Series], names: tuple[str, ...]) -> dict[int, dict[str, str]]:
    found: dict[int, dict[str, str]] = {}
    for name, curve in zip(names, (after_start(curves[run]) for run in RUNS), strict=True):
        steps = list(curve)
        for before, step in pairwise(steps):
            if curve[before]:
                share = 100 * (curve[step] - curve[before]) / curve[before]
                found.setdefault(step, {})[name] = signed(share, 1)
    return found
