"""Evaluate each claim twice: with the published numbers and with ours.

A claim is not tested if a number is missing. A claim with a `cause` is also not tested if the runs differ in more than
the settings that it is `about`.

Our curves are tested over the seeds with a paired t test. Of several differences the largest p counts, and Holm's
method adjusts the p values of all claims about curves. Our accuracies have their own paired comparisons. Agents are
validated greedily, as in the documents. Published accuracies have binomial errors; published curves have the test of
their measure (`pair_check`).
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from statistics import fmean
from typing import Any

import numpy as np
import scipy

from lever_pipe.base.policy_names import PolicyName
from lever_pipe.base.seeding import generator
from lever_pipe.base.sums import sum_in_order
from lever_pipe.experiment.agent_training import AgentArm
from lever_pipe.report.agent.runs import (
    KL,
    NO_KL,
    REWARD_DIGITS,
    RUN_NAMES,
    STUDY,
    AgentView,
    Curve,
    after_start,
    run_of,
)
from lever_pipe.report.cells import (
    Cell,
    Estimate,
    average,
    code,
    derived,
    gap,
    level,
    message,
    minus,
    p_value,
)
from lever_pipe.report.cells import holm as holm_of
from lever_pipe.report.claims import (
    AT_STEPS,
    FEWEST,
    MEASURES,
    VERDICTS,
    Check,
    Claim,
    EvaluatedClaim,
    Finding,
    Run,
    VerdictName,
    verdict,
)
from lever_pipe.report.context import DOCUMENT_SAMPLES, ReportContext
from lever_pipe.report.evidence import BY_SHOTS, MEAN, OF_ONE_RUN, EvidenceRow
from lever_pipe.report.lineage import UNKNOWN, Fields, published_key
from lever_pipe.report.reference import FILES, quoted
from lever_pipe.report.selector.documents import long_runs, printed_statistic
from lever_pipe.report.table import Row, Table, framed
from lever_pipe.statistics.comparison import holm
from lever_pipe.statistics.curves import FlatNoise, drawdowns, f_test, flat_noise, paired_t

NOISE_SD = 0.13
"""Standard error of a published evaluation on other tasks, if each detail is found with the same probability."""
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


class NotTested(Exception):  # noqa: N818 - it is an outcome, not an error
    """A number that a claim needs is missing; `reason` names it."""

    def __init__(self, reason: str, /, **args: object) -> None:
        """Store the reason as text and as a message."""
        super().__init__(reason)
        self.reason = message(reason, **args)


@dataclass(frozen=True, slots=True)
class OverSeeds:
    """The differences of a claim in each of our seeds, before the p values are adjusted."""

    claim: Claim
    seeds: Sequence[Mapping[Run, Sequence[Estimate]]]
    names: Mapping[Run, str]
    where: Cell
    differs: Sequence[Cell] = ()

    @property
    def values(self) -> list[tuple[float, ...]]:
        """Return the values of each difference, one per seed."""
        return list(zip(*(_gaps(self.claim, seed) for seed in self.seeds), strict=True))

    @property
    def comparison(self) -> str:
        """Return the identity of the comparison; claims with the same comparison share a test."""
        return " ".join((self.claim.metric, *self.claim.measure, json.dumps(self.claim.where), *self.names.values()))

    @property
    def p(self) -> float:
        """Return the largest p of the differences; NaN for one seed."""
        return max(paired_t(values)[1] for values in self.values)

    @property
    def is_tested(self) -> bool:
        """Return whether the claim counts in the family of tests."""
        return len(self.seeds) > 1 and self.claim.kind != "equal" and not (self.claim.cause and self.differs)


def evaluate_claims(claims: Sequence[Claim], context: ReportContext) -> list[EvaluatedClaim]:
    """Return the claims about the run's studies, each with its two verdicts."""
    agents = context.config.agents
    view = None if agents is None else AgentView(context, agents)
    evaluated = [claim for claim in claims if context.has(claim.study)]
    published = [_or_reason(_published, claim, context, view) for claim in evaluated]
    ours = [_or_reason(_ours, claim, context, view) for claim in evaluated]
    # Keyed by comparison: claims that share a test count once in the Holm family.
    tested = {finding.comparison: finding.p for finding in ours if isinstance(finding, OverSeeds) and finding.is_tested}
    adjusted = dict(zip(tested, map(float, holm(list(tested.values()))), strict=True))
    ours = [_tested(finding, adjusted) if isinstance(finding, OverSeeds) else finding for finding in ours]
    return [EvaluatedClaim(*parts) for parts in zip(evaluated, published, ours, strict=True)]


def _or_reason(evaluate: Callable[..., Any], *args: Any) -> Any:
    # A claim that cannot be tested must not stop the others.
    try:
        return evaluate(*args)
    except NotTested as lack:
        return Finding("not tested", lack.reason)


def _finding(
    claim: Claim, checks: Sequence[Check], numbers: Sequence[Cell], differs: Sequence[Cell], p: Estimate | None = None
) -> Finding:
    """Return the verdict on differences; except for orders, also name the other settings that differ."""
    also = [message("also different: {fields}", fields=differs)] if differs and claim.kind != "order" else []
    word: VerdictName = "not tested" if claim.cause and differs else verdict(claim, checks)
    return Finding(word, (*numbers, *also), p)


def _published(claim: Claim, context: ReportContext, view: AgentView | None) -> Finding:
    if claim.metric == "accuracy":
        return _of_accuracies(claim, context, is_ours=False)
    names = {run: _name(run) for run in claim.runs}
    if claim.study == "lever":
        measured = {run: [_statistic(context, run, claim.metric, name) for name in claim.measure] for run in names}
        return _finding(claim, list(map(Check, _gaps(claim, measured))), _measure_texts(claim, measured, names), ())
    assert view is not None
    quoted = "" if claim.metric == "val_reward" else claim.document
    curves = {run: view.published(str(run), claim.metric, quoted) for run in claim.runs}
    measured = _measured(claim, curves)
    checks, p = list(map(Check, _gaps(claim, measured))), None
    if claim.kind != "order":
        checks = [pair_check(claim.measure[0], checks[0].value, curves, _inside(claim, _steps(curves)))]
        p = None if checks[0].p is None else p_value(checks[0].p)
    stated = {run: {name: view.stated(run, metric) for name, metric in STATED.items()} for run in (NO_KL, KL)}
    texts = ({name: row.printed if row else "" for name, row in rows.items()} for rows in stated.values())
    test = [message("p {p}", p=p)] if p else []
    return _finding(claim, checks, [*_measure_texts(claim, measured, names), *test], _settings_apart(claim, *texts), p)


def _ours(claim: Claim, context: ReportContext, view: AgentView | None) -> Finding | OverSeeds:
    if claim.metric == "accuracy":
        return _of_accuracies(claim, context, is_ours=True)
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
        raise NotTested("The two arms have no seed in common.")
    seeds = [
        _measured(claim, {run: _of_arm(claim, view, arms[str(run)], seed) for run in claim.runs}) for seed in common
    ]
    differs = _settings_apart(claim, *(settings[arm] for arm in arms.values()))
    where = message("training") if claim.metric in TRAINING else message("{mode} validation", mode=message(_mode(view)))
    return OverSeeds(claim, seeds, {run: arms[str(run)] for run in claim.runs}, where, differs)


def _long_curves(claim: Claim, context: ReportContext) -> list[dict[Run, Curve]]:
    """Return the curves of the longest selector runs, for each seed that all runs have."""
    by_seed: dict[int, dict[Run, dict[int, EvidenceRow]]] = {}
    for run in claim.runs:
        for epoch, subjects in sorted(long_runs(context).get(float(run), {}).items()):
            for subject in subjects:
                of_seed = by_seed.setdefault(PolicyName.parse(subject).seed or 0, {})
                of_seed.setdefault(run, {})[epoch] = context.evidence.get(subject, claim.metric)
    whole: list[dict[Run, Curve]] = [
        dict(curves)
        for curves in by_seed.values()
        if len(curves) == len(claim.runs) and min(map(len, curves.values())) >= FEWEST
    ]
    if not whole:
        raise NotTested("There is no training curve of {run}.", run=list(map(_name, claim.runs)))
    return whole


def arm_for(cause: Sequence[str], pair: Mapping[str, str], settings: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the arm that differs from the reference arm in exactly these settings.

    Prefer an arm with the documents' values of these settings. Without a fitting arm, return the documents' arm.
    """
    reference, document = settings[pair[NO_KL]], settings[pair[KL]]
    fitting = [n for n, arm in settings.items() if {key for key in arm if arm[key] != reference[key]} == {*cause}]
    alike = [name for name in fitting if all(settings[name][key] == document[key] for key in cause)]
    return next(iter((*alike, *fitting)), pair[KL])


def _of_arm(claim: Claim, view: AgentView, arm: str, seed: int) -> Curve:
    """Return a curve after the start; of training metrics only the first and evaluated steps, as documents print."""
    subject = run_of(arm, seed)
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
    steps = _steps(curves)
    numbers: dict[Run, list[Estimate]] = {run: [] for run in curves}
    for name in claim.measure:
        measure, inside = MEASURES[name], _inside(claim, steps)
        if len(steps) < measure.least or not set(inside) <= set(steps):
            raise NotTested("Too few common steps: {what}.", what=code(claim.metric))
        for run, curve in curves.items():
            rows = [curve[step] for step in inside]
            # A fall of the left run at a given step is compared with the largest fall of the right run.
            where = () if name == "sharp_fall" and run in claim.right else claim.where
            values = measure.compute(np.array(inside, dtype=float), np.array([row.value for row in rows]), where)
            how = "value" if name == "each" else name
            of_each = [[row] for row in rows] if name == "each" else [rows] * np.size(values)
            for value, operands in zip(np.atleast_1d(values), of_each, strict=True):
                if (number := derived(value, _digits(claim, name, value), operands, how)) is None:
                    raise NotTested("Too few common steps: {what}.", what=code(claim.metric))
                numbers[run].append(number)
    return numbers


def _steps(curves: Mapping[Run, Curve]) -> list[int]:
    return sorted(set.intersection(*(set(curve) for curve in curves.values())))


def _inside(claim: Claim, steps: Sequence[int]) -> list[int]:
    """Return the steps of `where` for a measure of named steps, else all steps."""
    return [int(step) for step in claim.where] if claim.where and claim.measure[0] in AT_STEPS else list(steps)


def _digits(claim: Claim, name: str, value: float) -> int:
    """Return the decimals of a measure; for the selector, as many as show six significant digits."""
    if claim.study == "lever":
        return max(0, min(12, 5 - math.floor(math.log10(abs(value))))) if value else 1
    return (
        0 if name == "best_step" or abs(value) > 100 else REWARD_DIGITS + (name.startswith("sd") or name == "slowing")
    )


def _gaps(claim: Claim, measured: Mapping[Run, Sequence[Estimate]]) -> list[float]:
    """Return left minus right of every measure, or the measure itself for a claim about single runs."""
    if not claim.right:
        return [number.value for run in claim.left for number in measured[run]]
    pair = zip(measured[claim.left[0]], measured[claim.right[0]], strict=True)
    return [left.value - right.value for left, right in pair]


# Cached, because each length simulates 200,000 pairs of curves.
@cache
def flat_curves(n: int) -> FlatNoise:
    """Return simulated curves that vary only by the noise of a published evaluation."""
    return flat_noise(n, NOISE_SD, generator(42, "claims", "flat_noise"))


def pair_check(name: str, gap: float, curves: Mapping[Any, Curve], inside: Sequence[int]) -> Check:
    """Return the check of a difference between two published curves: its measure's test over the steps `inside`."""
    steps = _steps(curves)
    left, right = (np.array([curve[step].value for step in steps]) for curve in curves.values())
    positions = [steps.index(step) for step in inside]
    match name:
        case "mean":
            # The noise comes from all steps: the phases of some claims have only two or three.
            error = float(np.std(left - right, ddof=1)) / math.sqrt(len(inside))
            p = float(2 * scipy.special.stdtr(len(steps) - 1, -abs(gap) / error))
            return Check(gap, float(scipy.special.stdtrit(len(steps) - 1, 0.975)) * error, p)
        case "best":
            return Check(gap, p=flat_curves(len(steps)).chance_of_best_gap(abs(gap)))
        case "drawdown":
            falls = (float(drawdowns(curve[None])[0]) for curve in (left, right))
            return Check(gap, p=min(map(flat_curves(len(steps)).chance_of_drawdown, falls)))
        case "sd_of_changes":
            return Check(gap, p=f_test(np.diff(left), np.diff(right)))
        case "sd" | "range":
            return Check(gap, p=f_test(left[positions], right[positions]))
        case _:  # steps are known only up to the distance between evaluations
            return Check(gap, float(np.diff(steps).max()))


def _tested(ours: OverSeeds, family: Mapping[str, float]) -> Finding:
    """Return the verdict on the means over seeds, from their p value, or from their interval if the claim has a margin.

    One seed separates nothing. `family` contains the adjusted p values by comparison.
    """
    claim, means = ours.claim, [fmean(values) for values in ours.values]
    if len(ours.seeds) < 2:
        names = {run: code(name) for run, name in ours.names.items()}
        numbers = (*_measure_texts(claim, ours.seeds[0], names), "one seed: no inference about runs")
        return Finding("not tested" if claim.cause and ours.differs else "not separated", numbers)
    halves = [paired_t(values)[2] for values in ours.values]
    texts, test = [_intervals(ours, means, halves)], None
    if ours.is_tested:
        test = p_value(family[ours.comparison], how=f"paired t over seeds, adjusted: {ours.comparison}")
        texts.append(message("adjusted p {p}", p=test))
    elif claim.margin is not None:
        texts.append(message("margin {value}", value=claim.margin))
    elif claim.kind == "equal":
        test = p_value(ours.p, how=f"paired t over seeds: {ours.comparison}")
        texts.append(message("p {p}", p=test))
    checks = [Check(mean, half, None if test is None else test.value) for mean, half in zip(means, halves, strict=True)]
    return _finding(claim, checks, texts, ours.differs, test)


def _intervals(ours: OverSeeds, means: Sequence[float], halves: Sequence[float]) -> Cell:
    """Return the mean with its interval over the seeds; of several differences, the smallest and the largest."""
    operands = [number for seed in ours.seeds for numbers in seed.values() for number in numbers]
    digits = REWARD_DIGITS + 1 if max(map(abs, means)) < 1 else 1
    cells = []
    for mean, half in sorted(zip(means, halves, strict=True)):
        number = derived(mean, digits, operands, "mean over seeds, in the claim's favour", sign=True)
        assert number is not None
        cells.append(replace(number, low=mean - half, high=mean + half, interval_digits=digits))
    ends = tuple(cells if len(cells) < 2 else (cells[0], cells[-1]))
    claim, names = ours.claim, {run: code(name) for run, name in ours.names.items()}
    left, *right = (KL, NO_KL) if len(names) > 1 and KL in names else names
    joint = "{left} minus {right}" if claim.kind == "equal" else "{left} against {right}"
    runs = (
        message(joint, left=names[left], right=[names[run] for run in right]) if claim.right else list(names.values())
    )
    text = "{where}, {runs}, {n:seed|seeds}: {found}"
    favour = "{where}, {runs}, {n:seed|seeds}: {found} in the claim's favour"
    return message(
        text if claim.kind == "equal" else favour, where=ours.where, runs=runs, n=len(ours.seeds), found=ends
    )


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
    if name == "fall":
        number = minus(_statistic(context, run, metric, "first"), _statistic(context, run, metric, "last"))
    else:
        number = printed_statistic(context, float(run), metric, name)
    if number is None:
        raise NotTested("Not known: {what} of {run}.", what=code(metric), run=_name(run))
    return number


def _of_accuracies(claim: Claim, context: ReportContext, *, is_ours: bool) -> Finding:
    """Return the verdict on accuracies: on their spans for a claim of equality, else on their differences."""
    names = {run: _name(run) for run in claim.runs}
    if claim.kind == "equal":
        rows = {run: [_accuracy(claim, context, run, int(k), is_ours) for k in claim.where] for run in claim.left}
        spans = [float(np.ptp([number.value for number in numbers])) for numbers in zip(*rows.values(), strict=True)]
        return _finding(claim, list(map(Check, spans)), _measure_texts(claim, rows, names), ())
    left, shots = claim.left[0], int(claim.where[0]) if claim.where else MEAN
    where = message("shot {at}", at=shots) if claim.where else message("mean over shots")
    checks: list[Check] = []
    texts: list[Cell] = []
    for run in claim.right:
        difference, check, test = (_our_gap if is_ours else _printed_gap)(claim, context, run, shots)
        checks.append(check)
        parts = {"where": where, "value": difference, "left": names[left], "right": names[run], "test": test}
        texts.append(message("{where}: {value} ({left} minus {right}), {test}", **parts))
    lineages = [_lineage(claim, context, run, is_ours=is_ours) for run in claim.runs]
    fields = dict.fromkeys(name for lineage in lineages for name in lineage if name not in IDENTITY)
    differs = [code(name) for name in fields if len({lineage[name] for lineage in lineages if name in lineage}) > 1]
    return _finding(claim, checks, texts, differs)


def _accuracy(claim: Claim, context: ReportContext, run: Run, shots: int, is_ours: bool) -> Estimate:
    """Return an accuracy: our mean over seeds of the main preset, or the value that the claim's document prints.

    One decimal is exact for printed accuracies, because an OK-VQA question scores 0, 0.6 or 1.
    """
    if is_ours:
        row, digits = context.accuracy(context.grpo(float(run), EPOCH), shots, context.document_samples), 2
    else:
        files, location = FILES[claim.document], {"samples": DOCUMENT_SAMPLES, "shots": shots}
        row, digits = quoted(context.evidence, files, float(run), EPOCH, "accuracy", **location), 1
    number = level(row, digits, interval=False)
    if number is None:
        raise NotTested("Not known: {what} of {run}.", what=message("accuracy"), run=_name(run))
    return number


def _our_gap(claim: Claim, context: ReportContext, run: Run, shots: int | str) -> tuple[Estimate, Check, Cell]:
    """Return our difference with its Holm p in the document's family."""
    pair = [context.grpo(float(side), EPOCH) for side in (claim.left[0], run)]
    location = {"samples": context.document_samples, "shots": shots}
    # The evidence may contain a pair in either order.
    for left, right in (pair, pair[::-1]):
        for row in context.evidence.where(left, "accuracy", against=right, **location):
            family = row.family.removesuffix(OF_ONE_RUN).removesuffix(BY_SHOTS)
            number = gap(row) if left == pair[0] else derived(-row.value, 2, (row,), "turned", sign=True)
            if family == f"document-{claim.document}/epoch~{EPOCH}" and number is not None:
                return number.plain, Check(number.value, p=row.p_holm), message("adjusted p {p}", p=holm_of(row))
    raise NotTested("No comparison of {runs} was made.", runs=[_name(claim.left[0]), _name(run)])


def _printed_gap(claim: Claim, context: ReportContext, run: Run, shots: int | str) -> tuple[Estimate, Check, Cell]:
    """Return a difference of two printed accuracies with 1.96 binomial errors, as no paired results are published."""
    counts = SHOTS if shots == MEAN else (int(shots),)
    pair = [average([_accuracy(claim, context, side, k, False) for k in counts], 2) for side in (claim.left[0], run)]
    difference = minus(pair[0], pair[1])
    assert difference is not None
    variances = (number.value * (100 - number.value) / DOCUMENT_SAMPLES for number in pair if number)
    noise = NORMAL_95 * math.sqrt(sum_in_order(variances))
    cell = derived(noise, 1, (difference,), "1.96 binomial errors")
    return difference, Check(difference.value, noise), message("noise {value}", value=cell)


def _lineage(claim: Claim, context: ReportContext, run: Run, *, is_ours: bool) -> Fields:
    """Return the known lineage fields of a selector."""
    if is_ours:
        return context.lineages.get(context.grpo(float(run), EPOCH), {})
    keys = (published_key(float(run), EPOCH, document=document) for document in (claim.document, ""))
    fields = next((context.lineages[key] for key in keys if key in context.lineages), {})
    # An unknown value is not a difference.
    return {field: value for field, value in fields.items() if value != UNKNOWN}


def tables(context: ReportContext) -> Iterator[Table]:
    """Yield the decisive claims, a summary, and the claims of each document."""
    if not context.claims:
        return
    decisive = [evaluated for evaluated in context.claims if evaluated.claim.decisive]
    title = message("{n} decisive claims of the documents", n=len(decisive))
    yield Table("claims-decisive", "decisive", title, framed(map(_row, decisive)), folded=FOLDED)
    yield Table("claims-summary", "decisive", "All claims by verdict", framed(_summary(context.claims)))
    for document, group in groupby(context.claims, key=lambda evaluated: evaluated.claim.document):
        claims, name = list(group), f"claims-{document}"
        title, macro_id = message("Claims of document {document}", document=document), f"claims-{claims[0].claim.study}"
        yield Table(name, name, title, framed(map(_row, claims)), None, macro_id, folded=FOLDED)


FOLDED = ("Stands in", "Kind", "Published numbers", "Our numbers")


def _row(entry: EvaluatedClaim) -> Row:
    """Return a claim with both verdicts, and the columns that the page folds below it."""
    return {
        "Claim": entry.claim.quote,
        "Published": entry.published.verdict,
        "Ours": entry.ours.verdict,
        "Stands in": message(
            "document {document}, {section}", document=entry.claim.document, section=entry.claim.section
        ),
        "Kind": entry.claim.kind,
        "Published numbers": entry.published.numbers,
        "Our numbers": entry.ours.numbers,
    }


def _summary(claims: Sequence[EvaluatedClaim]) -> Iterator[Row]:
    """Yield the number of claims by verdict, for each document and for all documents."""
    by_document = [(document, list(group)) for document, group in groupby(claims, key=lambda each: each.claim.document)]
    for document, group in (*by_document, ("all", claims)):
        row: dict[Any, Cell] = {"In document": document, "Claims": derived(len(group), 0, (), "claims")}
        sides = {"Published: {verdict}": [c.published for c in group], "Ours: {verdict}": [c.ours for c in group]}
        for side, findings in sides.items():
            counts = Counter(each.verdict for each in findings)
            for name in VERDICTS:
                row[message(side, verdict=name)] = derived(counts[name], 0, (), f"claims: {name}")
        yield row
