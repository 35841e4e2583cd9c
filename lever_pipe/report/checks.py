"""Evaluate each published sentence by its kind: with the published numbers and with ours.

A claim is not tested if a number is missing. A claim with a `cause` is also not tested if the runs differ in more than
the settings that it is `about`.

Our curves are tested over the seeds with a paired t test. Of several differences the largest p counts, and Holm's
method adjusts the p values of all claims about curves. Our accuracies have their own paired comparisons. Agents are
validated greedily, as in the documents. Published accuracies have binomial errors; published curves have the test of
their measure (`measures`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import fmean
from typing import Any

import numpy as np

from lever_pipe.base.sums import sum_in_order
from lever_pipe.experiment.agent_training import AgentArm
from lever_pipe.report.agent.runs import (
    KL,
    MODES,
    NO_KL,
    REWARD_DIGITS,
    RUN_NAMES,
    STUDY,
    AgentView,
    Curve,
    after_start,
    as_printed,
    run_of,
    tested,
    values_of,
)
from lever_pipe.report.cells import (
    Cell,
    Estimate,
    average,
    code,
    derived,
    gap,
    message,
    minus,
    p_value,
)
from lever_pipe.report.cells import holm as holm_of
from lever_pipe.report.claims import Check, Claim, EvaluatedClaim, Finding, Run, verdict
from lever_pipe.report.context import DOCUMENT_SAMPLES, ReportContext
from lever_pipe.report.evidence import BY_SHOTS, MEAN, OF_ONE_RUN
from lever_pipe.report.lineage import UNKNOWN, Fields, published_key
from lever_pipe.report.measures import AT_STEPS, FEWEST, MEASURES, noise_and_p
from lever_pipe.report.selector import patterns
from lever_pipe.report.selector.documents import long_runs, printed_statistic
from lever_pipe.report.selector.sides import Side
from lever_pipe.report.verdicts import OPEN, UNANSWERED, UNTESTED
from lever_pipe.statistics.comparison import holm
from lever_pipe.statistics.curves import paired_t

SHOTS, EPOCH = (1, 2, 3, 4), 1
"""Shot counts and epoch of the accuracies that claims are about."""
NORMAL_95 = 1.959964
IDENTITY = frozenset(("kl_beta", "epoch", "base_rce_epoch"))
"""Lineage fields that name a selector or repeat its base checkpoint."""
TRAINING = {
    "pg_loss": "pg_loss",
    "kl_loss": "kl",
    "entropy": "entropy",
    "mean_sequence_length_tokens_as_labelled": "sequence_length",
}
"""Published metric of an agent -> our metric. Our KL is measured before the update, because every arm logs it."""
STATED = {"kl": "kl_loss_coef", "entropy": "entropy_coeff", "schedule": "lr_schedule"}
"""Setting of an arm -> published metric with its value in the documents."""
SETTINGS = [name for name in AgentArm.model_fields if name not in ("name", "seeds")]
"""Settings in which two arms may differ."""
KL_SCHEDULE = "kl_schedule"
NOT_FACTORS = {"learning_rate", "trajectory_score"}
"""Settings that are ignored when arms differ in one factor alone."""


class NotTested(Exception):  # noqa: N818 - it is an outcome, not an error
    """A number that a claim needs is missing; the message names it."""


@dataclass(frozen=True, slots=True)
class OverSeeds:
    """The numbers of a claim's runs in each of our seeds, before the p values are adjusted."""

    claim: Claim
    seeds: Sequence[Mapping[Run, Sequence[Estimate]]]
    names: Mapping[Run, str]
    where: Cell
    differs: Sequence[Cell] = ()

    @property
    def tests(self) -> list[tuple[float, float, float]]:
        """Return the mean over the seeds, the p value and half the interval of each difference."""
        by_difference = zip(*(_gaps(self.claim, seed) for seed in self.seeds), strict=True)
        return [(fmean(values), *paired_t(values)[1:]) for values in by_difference]

    @property
    def comparison(self) -> str:
        """Return the identity of the comparison; claims with the same comparison share a test."""
        return " ".join((self.claim.metric, *self.claim.measure, json.dumps(self.claim.where), *self.names.values()))

    @property
    def p(self) -> float:
        """Return the largest p of the differences; NaN for one seed."""
        return max(p for _, p, _ in self.tests)

    @property
    def is_tested(self) -> bool:
        """Return whether the claim counts in the family of tests."""
        return len(self.seeds) > 1 and self.claim.kind != "equal" and not (self.claim.cause and self.differs)


def evaluate_claims(claims: Sequence[Claim], context: ReportContext) -> list[EvaluatedClaim]:
    """Return the claims about the run's studies, each with its two verdicts."""
    agents = context.config.agents
    view = None if agents is None else AgentView(context, agents)
    compared = [claim for claim in claims if claim.table == "claims" and context.has(claim.study)]
    published = {claim.id: _or_reason(_published, claim, context, view) for claim in compared}
    ours = {claim.id: _or_reason(_ours, claim, context, view) for claim in compared}
    # By comparison: claims that share a test count once in the Holm family.
    tests = {of.comparison: of.p for of in ours.values() if isinstance(of, OverSeeds) and of.is_tested}
    family = dict(zip(tests, map(float, holm(list(tests.values()))), strict=True))
    found = {name: _tested(of, family) if isinstance(of, OverSeeds) else of for name, of in ours.items()}
    evaluated = [EvaluatedClaim(claim, published[claim.id], found[claim.id]) for claim in compared]
    for claim in claims:
        if claim.kind in patterns.PATTERNS:
            pattern = patterns.evaluate(claim, context)
            evaluated += [pattern] if pattern else []
        elif claim.table != "claims" and context.has(claim.study):
            # The published test is of the sentence itself, ours that of the claim that answers it.
            theirs = _or_reason(_published, claim, context, view) if claim.left and claim.right else Finding(None, None)
            theirs = replace(theirs, numbers=_reason(claim, view))
            evaluated.append(EvaluatedClaim(claim, theirs, _answered(claim, view, found)))
    return evaluated


def _or_reason(evaluate: Callable[..., Any], *args: Any) -> Any:
    # A claim that cannot be tested must not stop the others.
    try:
        return evaluate(*args)
    except NotTested as lack:
        return Finding(UNTESTED, *lack.args)


def _finding(
    claim: Claim, checks: Sequence[Check], numbers: Sequence[Cell], differs: Sequence[Cell], p: Estimate | None = None
) -> Finding:
    """Return the verdict on differences; except for orders, also name the other settings that differ."""
    also = [message("also different: {fields}", fields=differs)] if differs and claim.kind != "order" else []
    return Finding(UNTESTED if claim.cause and differs else verdict(claim, checks), (*numbers, *also), p)


def _published(claim: Claim, context: ReportContext, view: AgentView | None) -> Finding:
    if claim.metric == "accuracy":
        return _of_accuracies(claim, Side(context, claim.document, is_ours=False))
    names = {run: _name(run) for run in claim.runs}
    if claim.study == "lever":
        measured = {run: [_statistic(context, run, claim.metric, name) for name in claim.measure] for run in names}
        return _finding(claim, list(map(Check, _gaps(claim, measured))), _measure_texts(claim, measured, names), ())
    assert view is not None
    quoted = "" if claim.metric == "val_reward" else claim.document
    curves = {run: view.published(str(run), claim.metric, quoted) for run in claim.runs}
    measured = _measured(claim, curves)
    checks, texts, p = list(map(Check, _gaps(claim, measured))), _measure_texts(claim, measured, names), None
    if claim.kind != "order":
        values = [values_of(curve) for curve in curves.values()]
        checks = [
            Check(checks[0].value, *noise_and_p(claim.measure[0], checks[0].value, values, _inside(claim, curves)))
        ]
        p = None if checks[0].p is None else p_value(checks[0].p)
        texts += [message("p {p}", p=p)] if p else []
    rows = [{name: view.stated(run, metric) for name, metric in STATED.items()} for run in (NO_KL, KL)]
    settings = ({name: row.printed if row else "" for name, row in of_run.items()} for of_run in rows)
    return _finding(claim, checks, texts, _settings_apart(claim, *settings), p)


def _ours(claim: Claim, context: ReportContext, view: AgentView | None) -> Finding | OverSeeds:
    if claim.metric == "accuracy":
        return _of_accuracies(claim, Side(context, claim.document, is_ours=True))
    if claim.study == "lever":
        seeds = [_measured(claim, curves) for curves in _long_curves(claim, context)]
        return OverSeeds(claim, seeds, {run: f"{run:g}" for run in claim.runs}, message("training"))
    assert view is not None
    arms = dict(view.pair)
    settings = {arm.name: {name: getattr(arm, name) for name in SETTINGS} for arm in view.config.arms}
    if claim.cause:
        arms[KL] = arm_for(claim.about or (), arms, settings)
    common = view.common(*arms.values())
    if not common:
        raise NotTested(message("The two arms have no seed in common."))
    names, mode = {run: arms[str(run)] for run in claim.runs}, _mode(view)
    curves = ({run: _of_arm(claim, view, run_of(arm, seed)) for run, arm in names.items()} for seed in common)
    where = message("training") if claim.metric in TRAINING else message("{mode} validation", mode=message(mode))
    differs = _settings_apart(claim, *(settings[arm] for arm in arms.values()))
    return OverSeeds(claim, [_measured(claim, of_seed) for of_seed in curves], names, where, differs)


def _long_curves(claim: Claim, context: ReportContext) -> list[dict[Run, Curve]]:
    """Return the curves of the longest selector runs, for each seed that all runs have."""
    runs, get = long_runs(context), context.evidence.get
    by_run = [runs.get(float(run), {}) for run in claim.runs]
    curves: list[dict[Run, Curve]] = []
    for seed in by_run[0]:
        policies = [of_run.get(seed, {}) for of_run in by_run]
        if min(map(len, policies)) >= FEWEST:
            of_seed = [{epoch: get(name, claim.metric) for epoch, name in names.items()} for names in policies]
            curves.append(dict(zip(claim.runs, of_seed, strict=True)))
    if not curves:
        raise NotTested(message("There is no training curve of {run}.", run=list(map(_name, claim.runs))))
    return curves


def arm_for(cause: Sequence[str], pair: Mapping[str, str], settings: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the arm that differs from the reference arm in exactly these settings.

    Prefer an arm with the documents' values of these settings. Without a fitting arm, return the documents' arm.
    """
    reference, document = settings[pair[NO_KL]], settings[pair[KL]]
    fitting = [n for n, arm in settings.items() if {key for key in arm if arm[key] != reference[key]} == {*cause}]
    alike = [name for name in fitting if all(settings[name][key] == document[key] for key in cause)]
    return next(iter((*alike, *fitting)), pair[KL])


def _of_arm(claim: Claim, view: AgentView, subject: str) -> Curve:
    """Return a curve after the start; of training metrics only the first and evaluated steps, as documents print."""
    rewards = after_start(view.curve(subject, _mode(view)))
    if claim.metric == "val_reward":
        return rewards
    return {step: row for step, row in view.training(subject, TRAINING[claim.metric]).items() if step in {1, *rewards}}


def _mode(view: AgentView) -> str:
    """Return the decoding of the validations behind the claims: greedy if any validation was greedy."""
    # "greedy" sorts before "sampled".
    return min({row.mode for row in view.evidence.where(metric="reward", study=STUDY, subset="val")}, default="greedy")


def _settings_apart(claim: Claim, left: Mapping[str, Any], right: Mapping[str, Any]) -> list[Cell]:
    """Return the settings in which two agents differ, except those that the claim is about."""
    return [code(key) for key in left if claim.about is not None and key not in claim.about and left[key] != right[key]]


def _measured(claim: Claim, curves: Mapping[Run, Curve]) -> dict[Run, list[Estimate]]:
    """Return the measures of every run over their common steps."""
    steps, inside, numbers = _steps(curves), _inside(claim, curves), dict[Run, list[Estimate]]()
    for name, (run, curve) in product(claim.measure, curves.items()):
        lack = NotTested(message("Too few common steps: {what}.", what=code(claim.metric)))
        if len(steps) < MEASURES[name].least or not {*inside} <= {*steps}:
            raise lack
        rows = [curve[step] for step in inside]
        # A fall of the left run at a given step is compared with the largest fall of the right run.
        where = () if name == "sharp_fall" and run in claim.right else claim.where
        values = MEASURES[name].compute(np.array(inside, dtype=float), np.array([row.value for row in rows]), where)
        for i, value in enumerate(np.atleast_1d(values)):
            operands, how = (rows[i : i + 1], "value") if name == "each" else (rows, name)
            digits = 0 if abs(value) > 100 else MEASURES[name].digits
            if claim.study == "lever":  # six significant digits
                digits = max(0, min(12, 5 - math.floor(math.log10(abs(value))))) if value else 1
            if (number := derived(value, digits, operands, how)) is None:
                raise lack
            numbers.setdefault(run, []).append(number)
    return numbers


def _steps(curves: Mapping[Run, Curve]) -> list[int]:
    return sorted(set.intersection(*(set(curve) for curve in curves.values())))


def _inside(claim: Claim, curves: Mapping[Run, Curve]) -> list[int]:
    """Return the steps of `where` for a measure of named steps, else all common steps."""
    is_named = claim.where and claim.measure[0] in AT_STEPS
    return [int(step) for step in claim.where] if is_named else _steps(curves)


def _gaps(claim: Claim, measured: Mapping[Run, Sequence[Estimate]]) -> list[float]:
    """Return left minus right of every measure, or the measure itself for a claim about single runs."""
    if not claim.right:
        return [number.value for run in claim.left for number in measured[run]]
    pair = zip(measured[claim.left[0]], measured[claim.right[0]], strict=True)
    return [left.value - right.value for left, right in pair]


def _tested(ours: OverSeeds, family: Mapping[str, float]) -> Finding:
    """Return the verdict on the means over seeds, from their p value, or from their interval if the claim has a margin.

    One seed separates nothing. `family` contains the adjusted p values by comparison.
    """
    claim = ours.claim
    if len(ours.seeds) < 2:
        names = {run: code(name) for run, name in ours.names.items()}
        numbers = (*_measure_texts(claim, ours.seeds[0], names), "one seed: no inference about runs")
        return Finding(UNTESTED if claim.cause and ours.differs else OPEN, numbers)
    texts, test = [_intervals(ours)], None
    if ours.is_tested:
        test = p_value(family[ours.comparison], how=f"paired t over seeds, adjusted: {ours.comparison}")
        texts.append(message("adjusted p {p}", p=test))
    elif claim.margin is not None:
        texts.append(message("margin {value}", value=claim.margin))
    elif claim.kind == "equal":
        test = p_value(ours.p, how=f"paired t over seeds: {ours.comparison}")
        texts.append(message("p {p}", p=test))
    checks = [Check(mean, half, None if test is None else test.value) for mean, _, half in ours.tests]
    return _finding(claim, checks, texts, ours.differs, test)


def _intervals(ours: OverSeeds) -> Cell:
    """Return the mean with its interval over the seeds; of several differences, the smallest and the largest."""
    operands = [number for seed in ours.seeds for numbers in seed.values() for number in numbers]
    digits = REWARD_DIGITS + 1 if max(abs(mean) for mean, *_ in ours.tests) < 1 else 1
    cells = []
    for mean, half in sorted((mean, half) for mean, _, half in ours.tests):
        number = derived(mean, digits, operands, "mean over seeds, in the claim's favour", sign=True)
        assert number is not None
        cells.append(replace(number, low=mean - half, high=mean + half, interval_digits=digits))
    claim, names = ours.claim, {run: code(name) for run, name in ours.names.items()}
    left, *right = (KL, NO_KL) if len(names) > 1 and KL in names else names
    joint, text = "{left} minus {right}", ("{where}, {runs}, {n} seed: {found}", "{where}, {runs}, {n} seeds: {found}")
    if claim.kind != "equal":
        joint = "{left} against {right}"
        text = (
            "{where}, {runs}, {n} seed: {found} in the claim's favour",
            "{where}, {runs}, {n} seeds: {found} in the claim's favour",
        )
    runs = message(joint, left=names[left], right=[names[run] for run in right]) if claim.right else [*names.values()]
    found = tuple(cells if len(cells) < 2 else (cells[0], cells[-1]))
    return message(text, where=ours.where, runs=runs, n=len(ours.seeds), found=found)


def _measure_texts(claim: Claim, measured: Mapping[Run, Sequence[Cell]], names: Mapping[Run, Cell]) -> list[Cell]:
    """Return a text for each measure with the values of all runs."""
    if claim.measure == ("each",):
        text = "shot {at}" if claim.metric == "accuracy" else "step {at}"
        labels: list[Cell] = [message(text, at=int(step)) for step in claim.where]
    else:
        labels = [message(MEASURES[name].text) for name in claim.measure]
        labels *= len(measured[claim.left[0]]) // len(labels)
    texts: list[Cell] = []
    for label, values in zip(labels, zip(*measured.values(), strict=True), strict=True):
        by_run = zip(measured, values, strict=True)
        numbers = [message("{value} ({name})", name=names[run], value=value) for run, value in by_run]
        texts.append(message("{what}: {numbers}", what=label, numbers=numbers))
    return texts


def _name(run: Run) -> Cell:
    return message(RUN_NAMES[run]) if isinstance(run, str) else f"{run:g}"


def _statistic(context: ReportContext, run: Run, metric: str, name: str) -> Estimate:
    """Return a printed statistic of a selector's training curve; the documents print no epochs in between."""
    names = ("first", "last") if name == "fall" else (name,)
    number, *last = (printed_statistic(context, float(run), metric, each) for each in names)
    number = minus(number, last[0]) if last else number
    if number is None:
        raise NotTested(message("Not known: {what} of {run}.", what=code(metric), run=_name(run)))
    return number


def _of_accuracies(claim: Claim, side: Side) -> Finding:
    """Return the verdict on accuracies: on their spans for a claim of equality, else on their differences."""
    names = {run: _name(run) for run in claim.runs}
    if claim.kind == "equal":
        rows = {run: [_accuracy(side, run, int(k)) for k in claim.where] for run in claim.left}
        spans = [float(np.ptp([number.value for number in numbers])) for numbers in zip(*rows.values(), strict=True)]
        return _finding(claim, list(map(Check, spans)), _measure_texts(claim, rows, names), ())
    left, shots = claim.left[0], int(claim.where[0]) if claim.where else MEAN
    where = message("shot {at}", at=shots) if claim.where else message("mean over shots")
    checks: list[Check] = []
    texts: list[Cell] = []
    for run in claim.right:
        difference, check, test = (_our_gap if side.is_ours else _printed_gap)(side, left, run, shots)
        checks.append(check)
        parts = {"where": where, "value": difference, "left": names[left], "right": names[run], "test": test}
        texts.append(message("{where}: {value} ({left} minus {right}), {test}", **parts))
    lineages = [_lineage(side, run) for run in claim.runs]
    fields = dict.fromkeys(name for lineage in lineages for name in lineage if name not in IDENTITY)
    differs = [code(name) for name in fields if len({lineage[name] for lineage in lineages if name in lineage}) > 1]
    return _finding(claim, checks, texts, differs)


def _accuracy(side: Side, run: Run, shots: int) -> Estimate:
    """Return an accuracy: our mean over seeds of the main preset, or the value that the claim's document prints."""
    number = side.accuracy(float(run), EPOCH, shots, 0 if side.is_ours else DOCUMENT_SAMPLES)
    if number is None:
        raise NotTested(message("Not known: {what} of {run}.", what=message("accuracy"), run=_name(run)))
    return number.plain


def _our_gap(side: Side, left: Run, right: Run, shots: int | str) -> tuple[Estimate, Check, Cell]:
    """Return our difference with its Holm p in the document's family."""
    pair, where = [side.policy(float(run), EPOCH) for run in (left, right)], side.context.evidence.where
    # The evidence may contain a pair in either order.
    for first, second in (pair, pair[::-1]):
        for row in where(first, "accuracy", against=second, samples=side.context.document_samples, shots=shots):
            family = row.family.removesuffix(OF_ONE_RUN).removesuffix(BY_SHOTS)
            number = gap(row) if first == pair[0] else derived(-row.value, 2, (row,), "turned", sign=True)
            if family == f"document-{side.section}/epoch~{EPOCH}" and number is not None:
                return number.plain, Check(number.value, p=row.p_holm), message("adjusted p {p}", p=holm_of(row))
    raise NotTested(message("No comparison of {runs} was made.", runs=[_name(left), _name(right)]))


def _printed_gap(side: Side, left: Run, right: Run, shots: int | str) -> tuple[Estimate, Check, Cell]:
    """Return a difference of two printed accuracies with 1.96 binomial errors, as no paired results are published."""
    counts = SHOTS if shots == MEAN else (int(shots),)
    pair = [average([_accuracy(side, run, k) for k in counts], 2) for run in (left, right)]
    difference = minus(pair[0], pair[1])
    assert difference is not None
    variances = (number.value * (100 - number.value) / DOCUMENT_SAMPLES for number in pair if number)
    noise = NORMAL_95 * math.sqrt(sum_in_order(variances))
    cell = derived(noise, 1, (difference,), "1.96 binomial errors")
    return difference, Check(difference.value, noise), message("noise {value}", value=cell)


def _lineage(side: Side, run: Run) -> Fields:
    """Return the known lineage fields of a selector."""
    lineages = side.context.lineages
    if side.is_ours:
        return lineages.get(side.policy(float(run), EPOCH), {})
    keys = (published_key(float(run), EPOCH, document=document) for document in (side.section, ""))
    fields = next((lineages[key] for key in keys if key in lineages), {})
    # An unknown value is not a difference.
    return {field: value for field, value in fields.items() if value != UNKNOWN}


def _reason(claim: Claim, view: AgentView | None) -> Cell:
    """Return the document's reason, or None if the reference lacks one of its numbers."""
    cells = []
    for run, metric, *step in claim.stated:
        assert view is not None
        cells.append(as_printed(view.published(run, metric).get(int(step[0])) if step else view.stated(run, metric)))
    is_complete = claim.reason and all(cells)
    return message(claim.reason, **dict(zip("abc", cells, strict=False))) if is_complete else None


def _answered(claim: Claim, view: AgentView | None, found: Mapping[str, Finding]) -> Finding:
    """Return our answer to advice: of a claim, or of the tests in the table of arms."""
    answer = found.get(claim.claim)
    if claim.kind == "document arm" and view is not None:
        answer = _of_document(view)
    if claim.kind == "arms" and view is not None:
        answer = _of_arms(view, claim.factor)
    return answer or Finding(UNANSWERED, claim.otherwise)


def _of_document(view: AgentView) -> Finding:
    """Return the documents' arm against the reference arm at the primary endpoint; one seed gives no verdict."""
    arm = view.config.document_arm
    rows = {mode: row for mode in MODES if (row := view.compared(arm, mode)) is not None}
    gaps = (message("{where} {gap}", where=mode, gap=view.difference_cell(arm, mode)) for mode in rows)
    words = {mode: tested(holm_of(row)) for mode, row in rows.items() if row.runs > 1}
    return Finding(tuple(message("{mode}: {verdict}", mode=m, verdict=word) for m, word in words.items()), tuple(gaps))


def _of_arms(view: AgentView, factor: str) -> Finding | None:
    """Return the differences of the arms that differ from the reference arm in one factor alone, by decoding, or None.

    A KL schedule may also change the KL weight, and must not fall: the advice is a small coefficient early and a larger
    one late.
    """
    base, texts = view.arm(view.reference), []
    for arm in view.arms:
        changed = {name for name in SETTINGS if getattr(arm, name) != getattr(base, name)} - NOT_FACTORS
        is_fit = changed == {factor}
        if factor == KL_SCHEDULE:
            is_fit = changed - {"kl"} == {factor} and arm.kl_schedule.kind in ("constant", "rising")
        gaps = {mode: view.difference_cell(arm.name, mode) for mode in MODES} if is_fit else {}
        parts = [message("{where} {gap}", where=mode, gap=gap) for mode, gap in gaps.items() if gap]
        texts += [message("{arm}: {gaps}", arm=arm.name, gaps=parts)] if parts else []
    return Finding(None, tuple(texts)) if texts else None
