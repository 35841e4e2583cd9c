"""The claims of the documents (`resources/claims.yaml`), each judged twice: by the published numbers and by ours.

A claim says that a measure of one run's curve, or its accuracy, lies above that of another.

| kind | holds | does not hold |
|---|---|---|
| order | every difference is above 0; of ours separated over the seeds | every one is below |
| difference | every difference is beyond noise | every one is, the other way |
| apart | as difference, whichever way | |
| equal | every difference and its noise lie within `margin`; without one, none is separated | one lies beyond |

Else the runs are not separated. A claim is not tested where a number is missing, or where it names a `cause` and the
runs differ in more than it is `about`.

Ours are tested over the seeds by a paired t, of several differences by the largest p, adjusted for all claims about
curves (Holm); accuracies by their paired comparison. Published accuracies have binomial errors, published curves the
test of their measure (`_test`).
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, TypeAlias

import numpy as np
import scipy
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter, ValidationError, field_validator

from lever_pipe.base.errors import RecordError
from lever_pipe.base.policy_names import PolicyName
from lever_pipe.base.sections import Section
from lever_pipe.base.seeding import generator
from lever_pipe.base.storage import read_yaml
from lever_pipe.experiment.agent_config import DIALS, SCHEDULES
from lever_pipe.report.agent.runs import KL, NO_KL, REWARD_DIGITS, STUDY, AgentView, Curve, after_start, run_of
from lever_pipe.report.cells import (
    Cell,
    Code,
    Estimate,
    Look,
    Series,
    Verdict,
    average,
    derived,
    gap,
    level,
    minus,
    p_value,
    say,
)
from lever_pipe.report.cells import holm as holm_of
from lever_pipe.report.comparability import named
from lever_pipe.report.evidence import ALPHA, BY_SHOTS, MEAN, OF_ONE_RUN, EvidenceRow
from lever_pipe.report.lineage import REMARK, UNKNOWN, Fields, published_key
from lever_pipe.report.material import DOCUMENT_SAMPLES, Material
from lever_pipe.report.reference import CURVES, FILES
from lever_pipe.report.selector.documents import DECIMALS, LAST_PUBLISHED_EPOCH, long_runs
from lever_pipe.report.table import Column, Table, TableLine
from lever_pipe.statistics.comparison import holm
from lever_pipe.statistics.curves import FlatNoise, drawdowns, f_test, first_reaching, flat_noise, paired_t
from lever_pipe.statistics.summary import standard_error_percent

Values = NDArray[np.float64]
Run: TypeAlias = "float | str"
"""A KL_BETA of documents 000 to 002, `nokl` or `kl` of 003 and 004."""
VerdictName = Literal["holds", "does not hold", "not separated", "not tested"]
VERDICTS: Mapping[VerdictName, Look] = {
    "holds": "yes",
    "does not hold": "no",
    "not separated": "open",
    "not tested": "mute",
}
NOISE_SD = 0.13
"""Standard error of a published evaluation on other tasks: each detail is found with one probability."""
FEWEST = 5
"""Epochs or evaluations below which a run is no curve."""
ROUNDING = 1e-12
"""Sums of printed decimals are off by some last bits."""
SHOTS, EPOCH = (1, 2, 3, 4), 1
"""Of the accuracies that claims are about."""
NORMAL_95 = 1.959964
IDENTITY = frozenset(("kl_beta", "epoch", "base_rce_epoch"))
"""Fields that name a selector, or repeat its base checkpoint."""
TRAINING = {
    "pg_loss": "pg_loss",
    "kl_loss": "kl",
    "entropy": "entropy",
    "mean_sequence_length_tokens_as_labelled": "sequence_length",
}
"""Metrics of the agents' reference, and ours; the KL is that before the update, which every arm logs."""
STATED = ("kl_loss_coef", "entropy_coeff", "lr_schedule")
OF_ARMS = {"kl_loss_coef": "kl", "entropy_coeff": "entropy", "lr_schedule": "schedule"} | {
    name: name for name in ("learning_rate", "trajectory_score", *SCHEDULES[1:], "stop", *DIALS)
}
"""Settings that two agents may differ in, and how an arm calls them; of the published ones three are stated."""
METRICS = {
    "kl": "KL",
    "kl_loss": "KL loss",
    "ppo_loss": "PPO loss",
    "val_loss": "validation loss",
    "entropy": "entropy",
    "accuracy": "accuracy",
    "val_reward": "reward",
    "pg_loss": "PG loss",
    "mean_sequence_length_tokens_as_labelled": "sequence length",
}
WHY = {
    "no_common_seed": "The two arms have no seed in common.",
    "not_known": "Not known: {what} of {run}.",
    "no_curve": "There is no training curve of {run}.",
    "no_step": "A step is missing: {what} of {run}.",
    "few": "Too few common steps: {what}.",
    "no_comparison": "No comparison of {runs} was made.",
}
MEASURED = {
    "greedy": "greedy validation",
    "sampled": "sampled validation",
    "training": "training",
}
RUNS = {
    "nokl": "no KL",
    "kl": "KL bundle",
}
MEASURES = {
    "over_shots": "mean over shots",
    "mean": "mean",
    "first": "first",
    "last": "last",
    "minimum": "minimum",
    "fall": "first minus last",
    "rises": "change",
    "slowing": "growth a step, early minus late",
    "best": "best",
    "best_step": "step of the best",
    "sd": "sd over steps",
    "sd_of_changes": "sd of changes",
    "range": "range",
    "drawdown": "largest fall",
    "steps_to": "mean first step that reaches the rewards",
    "sharp_fall": "fall",
}
KINDS = {
    "order": "order",
    "difference": "difference",
    "apart": "apart",
    "equal": "equal",
}
HEADS = {
    "document": "In document",
    "claim": "Claim",
    "place": "Stands in",
    "kind": "Kind",
    "claims": "Claims",
    "published": "Published",
    "published_numbers": "Published numbers",
    "ours": "Ours",
    "our_numbers": "Our numbers",
    "published_holds": "Published: holds",
    "published_does_not_hold": "Published: does not hold",
    "published_not_separated": "Published: not separated",
    "published_not_tested": "Published: not tested",
    "ours_holds": "Ours: holds",
    "ours_does_not_hold": "Ours: does not hold",
    "ours_not_separated": "Ours: not separated",
    "ours_not_tested": "Ours: not tested",
}
NOTES = {
    "lever": (
        "Noise of published accuracies: 1.96 binomial errors; of ours: the paired comparison "
        "with its Holm p. Curves of ours: a paired t test over the seeds; one seed separates "
        "nothing."
    ),
    "intention": (
        "Ours: greedy validation after the start, as the documents decode; the mean over the "
        "seeds of both arms with its 95 % interval, positive in the claim's favour. One paired t "
        "test over the seeds a comparison, of several the largest p, adjusted for all claims "
        "about curves (Holm); one seed separates nothing. A claim about a cause: the arm that "
        "differs in just this cause, where there is one. Published: the test of the curves' "
        "measure; of best values and falls against simulated curves that only noise moves."
    ),
    "own_words": "Sentences in our own words; every verdict is computed.",
    "verdicts": (
        "Holds: the numbers go the claimed way, separated. Does not hold: they go the other way. "
        "Not separated: they do not decide. Not tested: a number is missing, or more differs "
        "than the named cause."
    ),
    "kinds": (
        "Order: as printed of the published, of ours separated over the seeds (paired t, p < "
        "0.05). Difference: by more than noise. Apart: so whichever way. Equal: within the "
        "margin, noise included, or not separated."
    ),
}


class NotTested(Exception):  # noqa: N818 - it is an outcome, not an error
    """A claim lacks a number; `reason` is the message `claims.why.WHY`, which says which."""

    def __init__(self, why: str, /, **args: object) -> None:
        """Hold the reason."""
        super().__init__(why)
        self.reason = say(WHY[why], **args)


def _steps_to(steps: Values, values: Values, thresholds: Sequence[float]) -> float:
    """Return the mean first step that reaches a threshold; one that is never reached counts as the next evaluation."""
    end = 2 * steps[-1] - steps[-2]
    return fmean(end if (at := first_reaching(steps, values, of)) is None else at for of in thresholds)


def _slowing(steps: Values, values: Values, _: Sequence[float]) -> float:
    """Return the growth a step up to the middle value minus that behind it."""
    i = len(steps) // 2
    return float((values[i] - values[0]) / (steps[i] - steps[0]) - (values[-1] - values[i]) / (steps[-1] - steps[i]))


def _sharp_fall(steps: Values, values: Values, where: Sequence[float]) -> float:
    """Return the fall from the evaluation before to the step of `where`, without one the largest."""
    falls = dict(zip(steps[1:], -np.diff(values), strict=True))
    return float(falls.get(where[0], math.nan) if where else max(falls.values()))


OF_VALUES: Mapping[str, Callable[[Values], Any]] = {
    "each": lambda values: values,
    "mean": lambda values: values.mean(),
    "first": lambda values: values[0],
    "last": lambda values: values[-1],
    "minimum": lambda values: values.min(),
    "fall": lambda values: values[0] - values[-1],
    "rises": np.diff,
    "best": lambda values: values.max(),
    "sd": lambda values: values.std(ddof=1),
    "sd_of_changes": lambda values: np.diff(values).std(ddof=1),
    "range": np.ptp,
    "drawdown": lambda values: drawdowns(values[None])[0],
}
"""Measures of a curve, one number or several."""
OF_STEPS: Mapping[str, Callable[[Values, Values, Sequence[float]], float]] = {
    "best_step": lambda steps, values, _: steps[values.argmax()],
    "slowing": _slowing,
    "steps_to": _steps_to,
    "sharp_fall": _sharp_fall,
}
"""Those that ask for its steps, and for `where` of the claim."""
LEAST = {"each": 1, "rises": 2, "slowing": 3, "first": 2, "last": 2, "fall": 2}
"""Values that a measure needs, where it is not `FEWEST`."""


class Claim(Section):
    """One testable sentence of a document."""

    id: str = Field(pattern=r"^00[0-4]-[a-z0-9]+(-[a-z0-9]+)*$")
    """Begins with the document's number."""
    section: str
    """Where in the document it stands."""
    quote: str
    """What it says, in our own words."""
    kind: Literal["order", "difference", "apart", "equal"]
    left: tuple[Run, ...]
    """The runs that are claimed to lie above `right`."""
    right: tuple[Run, ...] = ()
    """Absent where a measure is about one run."""
    metric: str
    measure: tuple[str, ...] = ("each",)
    """Names of `OF_VALUES` and `OF_STEPS`."""
    where: tuple[float, ...] = ()
    """Steps, or the ends of a range of them; of accuracies shot counts; of `steps_to` values to reach. None: all."""
    margin: float | None = None
    decoding: Literal["greedy", "sampled"] | None = None
    about: tuple[str, ...] | None = None
    """Of two agents: the settings that the claim is about; with it what else differs is named."""
    cause: bool = False
    """Whether it says what the difference comes from."""
    decisive: bool = False
    """Whether it stands on the main page."""

    @field_validator("left", "right", "measure", mode="before")
    @classmethod
    def _several(cls, value: Any) -> Any:
        return value if isinstance(value, list | tuple) else (value,)

    @field_validator("measure")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if unknown := [name for name in names if name not in (*OF_VALUES, *OF_STEPS)]:
            raise ValueError(f"unknown measure '{unknown[0]}', use one of {', '.join((*OF_VALUES, *OF_STEPS))}")
        return names

    @property
    def document(self) -> str:
        """Return the number of its document."""
        return self.id[:3]

    @property
    def study(self) -> str:
        """Return the study that it is about."""
        return "intention" if self.document in ("003", "004") else "lever"

    @property
    def runs(self) -> tuple[Run, ...]:
        """Return all runs that it is about."""
        return (*self.left, *self.right)


@dataclass(frozen=True, slots=True)
class Finding:
    """A verdict with its numbers or the reason why there is none, and the p value that decides."""

    verdict: VerdictName
    numbers: Cell
    p: Estimate | None = None

    @property
    def word(self) -> Verdict:
        """Return the verdict as a coloured word."""
        return Verdict(self.verdict, VERDICTS[self.verdict])


@dataclass(frozen=True, slots=True)
class JudgedClaim:
    """A claim with the verdict of each side."""

    claim: Claim
    published: Finding
    ours: Finding


@dataclass(frozen=True, slots=True)
class Check:
    """A difference, positive in the claim's favour, and the noise that it is held against; a p replaces the noise."""

    value: float
    noise: float = 0.0
    p: float | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """The differences of a claim with their numbers, and what else the runs differ in."""

    checks: Sequence[Check]
    numbers: Sequence[Cell]
    differs: Sequence[Cell] = ()
    p: Estimate | None = None


@dataclass(frozen=True, slots=True)
class OverSeeds:
    """What every seed of ours shows of a claim, before its p is adjusted."""

    claim: Claim
    seeds: Sequence[Mapping[Run, Sequence[Estimate]]]
    names: Mapping[Run, Cell]
    where: Cell
    differs: Sequence[Cell] = ()

    @property
    def values(self) -> list[tuple[float, ...]]:
        """Return of each difference the value of every seed."""
        return list(zip(*(_gaps(self.claim, of) for of in self.seeds), strict=True))

    @property
    def comparison(self) -> str:
        """Return what is compared: claims that ask the same share a test."""
        names = [of.text if isinstance(of, Code) else of for of in self.names.values() if isinstance(of, str | Code)]
        return " ".join((self.claim.metric, *self.claim.measure, json.dumps(self.claim.where), *names))

    @property
    def p(self) -> float:
        """Return the largest p of its differences; NaN of one seed."""
        return max(paired_t(of)[1] for of in self.values)

    @property
    def is_tested(self) -> bool:
        """Return whether it counts in the family of tests."""
        return len(self.seeds) > 1 and self.claim.kind != "equal" and not (self.claim.cause and self.differs)


def read_claims(path: Path) -> tuple[Claim, ...]:
    """Return the claims of a YAML file.

    Raises:
        RecordError: no file, no YAML, or an entry that cannot be judged.
    """
    try:
        return TypeAdapter(tuple[Claim, ...]).validate_python(read_yaml(path, "a file of claims"))
    except ValidationError as fault:
        raise RecordError(f"{path}: expected claims", found=str(fault), do="Correct these entries.") from None


def judge_claims(claims: Sequence[Claim], material: Material) -> list[JudgedClaim]:
    """Return the claims about studies of the run, each with its verdicts."""
    judged = [claim for claim in claims if material.has(claim.study)]
    agents = material.config.agents
    view = None if agents is None else AgentView(material, agents)
    published = [_or_reason(_published, claim, material, view) for claim in judged]
    ours = [_or_reason(_ours, claim, material, view) for claim in judged]
    tested = {of.comparison: of.p for of in ours if isinstance(of, OverSeeds) and of.is_tested}
    adjusted = dict(zip(tested, map(float, holm(list(tested.values()))), strict=True))
    ours = [
        _tested(of, adjusted[of.comparison] if of.is_tested else None) if isinstance(of, OverSeeds) else of
        for of in ours
    ]
    sides = zip(judged, published, ours, strict=True)
    return [JudgedClaim(claim, _finding(claim, theirs), _finding(claim, own)) for claim, theirs, own in sides]


def _or_reason(measure: Callable[..., Any], *args: Any) -> Any:
    try:
        return measure(*args)
    except NotTested as lack:
        return Finding("not tested", lack.reason)


def _finding(claim: Claim, of: Finding | Measured) -> Finding:
    """Return the verdict on differences, with what else differs where that weighs."""
    if isinstance(of, Finding):
        return of
    also = [say("also different: {fields}", fields=of.differs)] if of.differs and claim.kind != "order" else []
    word: VerdictName = "not tested" if claim.cause and of.differs else verdict(claim, of.checks)
    return Finding(word, Series((*of.numbers, *also), "parts"), of.p)


def verdict(claim: Claim, checks: Sequence[Check]) -> VerdictName:
    """Return what the kind of a claim says of differences."""
    if claim.kind == "equal":
        if claim.margin is None:
            return "holds" if not any(_side(check) for check in checks) else "does not hold"
        if all(abs(check.value) + check.noise <= claim.margin + ROUNDING for check in checks):
            return "holds"
        beyond = any(abs(check.value) - check.noise > claim.margin for check in checks)
        return "does not hold" if beyond else "not separated"
    sides = [_side(check, claim.kind) for check in checks]
    if all(side > 0 for side in sides):
        return "holds"
    return "does not hold" if all(side < 0 for side in sides) else "not separated"


def _side(check: Check, kind: str = "") -> int:
    """Return 1 where a difference goes the claimed way, -1 where it goes the other, 0 where it is not separated."""
    value = abs(check.value) if kind == "apart" else check.value
    sign = int(value > ROUNDING) - int(value < -ROUNDING)
    if check.p is not None:
        return sign if check.p < ALPHA else 0
    if kind == "order":
        return sign or -1  # equal numbers are in no order
    return sign if abs(value) > check.noise + ROUNDING else 0


def _published(claim: Claim, material: Material, view: AgentView | None) -> Measured:
    if claim.metric == "accuracy":
        return _of_accuracies(claim, Accuracies(material, claim.document, is_ours=False))
    if claim.study == "lever":
        printed = {run: [_statistic(material, run, claim.metric, name) for name in claim.measure] for run in claim.runs}
        return Measured([Check(gap) for gap in _gaps(claim, printed)], _told(claim, printed, {}))
    assert view is not None
    quoted = "" if claim.metric == "val_reward" else claim.document
    curves = {run: view.published(str(run), claim.metric, quoted) for run in claim.runs}
    measured = _measured(claim, curves)
    checks = [Check(gap) for gap in _gaps(claim, measured)]
    p = None
    if claim.kind != "order":
        checks = [_test(claim, checks[0].value, curves)]
        p = None if checks[0].p is None else p_value(checks[0].p)
    stated = {run: {name: view.stated(str(run), name) for name in STATED} for run in (NO_KL, KL)}
    texts = {run: {name: row.printed if row else "" for name, row in of.items()} for run, of in stated.items()}
    test = [say("p {p}", p=p)] if p else []
    return Measured(checks, [*_told(claim, measured, {}), *test], _settings_apart(claim, *texts.values()), p)


def _ours(claim: Claim, material: Material, view: AgentView | None) -> Measured | OverSeeds:
    if claim.metric == "accuracy":
        return _of_accuracies(claim, Accuracies(material, claim.document, is_ours=True))
    if claim.study == "lever":
        seeds = [_measured(claim, curves) for curves in _long_curves(claim, material)]
        return OverSeeds(claim, seeds, {run: _name(run) for run in claim.runs}, say("training"))
    assert view is not None
    settings = {arm.name: {name: getattr(arm, of) for name, of in OF_ARMS.items()} for arm in view.config.arms}
    arms = dict(view.pair)
    if claim.cause:
        arms[KL] = arm_for(claim.about or (), arms, settings)
    common = view.common(*arms.values())
    if not common:
        raise NotTested("no_common_seed")
    curves = ({run: _of_arm(claim, view, arms[str(run)], seed) for run in claim.runs} for seed in common)
    differs = _settings_apart(claim, *(settings[arm] for arm in arms.values()))
    names, where = (
        {run: Code(arms[str(run)]) for run in claim.runs},
        _mode(claim, view) if claim.decoding else "training",
    )
    return OverSeeds(claim, [_measured(claim, of) for of in curves], names, say(MEASURED[where]), differs)


def _long_curves(claim: Claim, material: Material) -> list[dict[Run, Curve]]:
    """Return the curves of the longest selectors of every seed that all runs have."""
    found: dict[int, dict[Run, dict[int, EvidenceRow]]] = {}
    for run in claim.runs:
        for epoch, subjects in sorted(long_runs(material).get(float(run), {}).items()):
            for subject in subjects:
                of_seed = found.setdefault(PolicyName.parse(subject).seed or 0, {})
                of_seed.setdefault(run, {})[epoch] = material.evidence.get(subject, claim.metric)
    whole: list[dict[Run, Curve]] = [
        dict(curves)
        for curves in found.values()
        if len(curves) == len(claim.runs) and min(map(len, curves.values())) >= FEWEST
    ]
    if not whole:
        raise NotTested("no_curve", run=Series(tuple(map(_name, claim.runs))))
    return whole


def arm_for(cause: Collection[str], pair: Mapping[str, str], settings: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the arm that differs from the reference arm in just these settings, the documents' values first.

    Without one it is the arm of the documents.
    """
    reference, document = settings[pair[NO_KL]], settings[pair[KL]]
    fitting = [n for n, of in settings.items() if {key for key in of if of[key] != reference[key]} == {*cause}]
    alike = [name for name in fitting if all(settings[name][key] == document[key] for key in cause)]
    return next(iter((*alike, *fitting)), pair[KL])


def _of_arm(claim: Claim, view: AgentView, arm: str, seed: int) -> Curve:
    """Return a curve after the start; training metrics at the first step and the evaluated ones, as documents print."""
    subject = run_of(arm, seed)
    rewards = after_start(view.curve(subject, _mode(claim, view)))
    if claim.metric == "val_reward":
        return rewards
    return {step: row for step, row in view.training(subject, TRAINING[claim.metric]).items() if step in {1, *rewards}}


def _mode(claim: Claim, view: AgentView) -> str:
    """Return the decoding of a claim, or another where no validation was so."""
    wanted = claim.decoding or "greedy"
    modes = {row.mode for row in view.evidence.where(metric="reward", study=STUDY, subset="val")}
    return wanted if wanted in modes else min(modes, default=wanted)


def _settings_apart(claim: Claim, left: Mapping[str, Any], right: Mapping[str, Any]) -> list[Cell]:
    """Return the settings that differ between two agents beside those that a claim is about."""
    return [Code(of) for of in left if claim.about is not None and of not in claim.about and left[of] != right[of]]


def _measured(claim: Claim, curves: Mapping[Run, Curve]) -> dict[Run, list[Estimate]]:
    """Return the measures of every run, over the steps that all of them have."""
    metric = say(METRICS[claim.metric])
    steps = _steps(curves)
    found: dict[Run, list[Estimate]] = {run: [] for run in curves}
    if len(steps) < max(LEAST.get(name, FEWEST) for name in claim.measure):
        raise NotTested("few", what=metric)
    for name in claim.measure:
        inside = _inside(claim, name, steps)
        if len(inside) < (2 if name == "range" else 1):
            raise NotTested("few", what=metric)
        for run, curve in curves.items():
            rows = [curve[step] for step in inside if step in curve]
            if len(rows) < len(inside):
                raise NotTested("no_step", what=metric, run=_name(run))
            where = () if name == "sharp_fall" and run in claim.right else claim.where
            at, values = np.array(inside, dtype=float), np.array([row.value for row in rows])
            shown = OF_VALUES[name](values) if name in OF_VALUES else OF_STEPS[name](at, values, where)
            of = [[row] for row in rows] if name == "each" else [rows] * np.size(shown)
            how = "value" if name == "each" else name
            both = zip(np.atleast_1d(shown), of, strict=True)
            found[run] += [
                n for value, behind in both if (n := derived(value, _digits(claim, name, value), behind, how))
            ]
        if len({len(of) for of in found.values()}) > 1:
            raise NotTested("few", what=metric)
    return found


def _steps(curves: Mapping[Run, Curve]) -> list[int]:
    return sorted(set.intersection(*(set(curve) for curve in curves.values())))


def _inside(claim: Claim, name: str, steps: Sequence[int]) -> list[int]:
    """Return the steps of `where`, or all."""
    if name == "range":
        return [step for step in steps if claim.where[0] <= step <= claim.where[-1]]
    return [int(step) for step in claim.where] if claim.where and name in ("each", "mean") else list(steps)


def _digits(claim: Claim, name: str, value: float) -> int:
    """Return the decimals of a measure: of the selector those that show six significant digits."""
    if claim.study == "intention":
        return (
            0
            if name == "best_step" or abs(value) > 100
            else REWARD_DIGITS + (name.startswith("sd") or name == "slowing")
        )
    return max(0, min(12, 5 - math.floor(math.log10(abs(value))))) if value else 1


def _gaps(claim: Claim, measured: Mapping[Run, Sequence[Estimate]]) -> list[float]:
    """Return left minus right of every measure; of single runs the measure itself."""
    if not claim.right:
        return [number.value for run in claim.left for number in measured[run]]
    pair = zip(measured[claim.left[0]], measured[claim.right[0]], strict=True)
    return [left.value - right.value for left, right in pair]


@cache
def flat_curves(n: int) -> FlatNoise:
    """Return simulated curves that only the noise of a published evaluation moves."""
    return flat_noise(n, NOISE_SD, generator(42, "claims", "flat_noise"))


def _test(claim: Claim, gap: float, curves: Mapping[Run, Curve]) -> Check:
    """Return a difference of two published curves with the test of its measure."""
    (name,), steps = claim.measure, _steps(curves)
    left, right = (np.array([curve[step].value for step in steps]) for curve in curves.values())
    inside = [steps.index(step) for step in _inside(claim, name, steps)]
    noise = flat_curves(len(steps))
    match name:
        case "mean":
            error = float(np.std(left - right, ddof=1)) / math.sqrt(len(inside))
            p = float(2 * scipy.special.stdtr(len(steps) - 1, -abs(gap) / error))
            return Check(gap, float(scipy.special.stdtrit(len(steps) - 1, 0.975)) * error, p)
        case "best":
            return Check(gap, p=noise.chance_of_best_gap(abs(gap)))
        case "drawdown":
            return Check(gap, p=min(noise.chance_of_drawdown(float(drawdowns(of[None])[0])) for of in (left, right)))
        case "sd_of_changes":
            return Check(gap, p=f_test(np.diff(left), np.diff(right)))
        case "sd" | "range":
            return Check(gap, p=f_test(left[inside], right[inside]))
        case _:  # a step is known as well as the evaluations are dense
            return Check(gap, float(np.diff(steps).max()))


def _tested(of: OverSeeds, adjusted: float | None) -> Measured | Finding:
    """Return the mean over seeds of each difference with its p, or its interval where a margin decides.

    One seed separates nothing.
    """
    claim, means = of.claim, [fmean(values) for values in of.values]
    if len(of.seeds) < 2:
        numbers = Series((*_told(claim, of.seeds[0], of.names), say("one seed: no inference about runs")), "parts")
        return Finding("not tested" if claim.cause and of.differs else "not separated", numbers)
    halves = [paired_t(values)[2] for values in of.values]
    p, how = adjusted, f"paired t over seeds, adjusted: {of.comparison}"
    if claim.kind == "equal" and claim.margin is None:
        p, how = of.p, f"paired t over seeds: {of.comparison}"
    test = None if p is None else p_value(p, how=how)
    checks = [Check(mean, half, p) for mean, half in zip(means, halves, strict=True)]
    margin = [say("margin {value}", value=claim.margin)] if claim.margin else []
    told = [] if test is None else [say("adjusted p {p}" if p == adjusted else "p {p}", p=test)]
    return Measured(checks, [_intervals(of, means, halves), *told, *margin], of.differs, test)


def _intervals(of: OverSeeds, means: Sequence[float], halves: Sequence[float]) -> Cell:
    """Return the mean with its interval over the seeds, of several differences the least and the most."""
    behind = [number for seed in of.seeds for each in seed.values() for number in each]
    digits = REWARD_DIGITS + 1 if max(map(abs, means)) < 1 else 1
    cells = []
    for mean, half in sorted(zip(means, halves, strict=True)):
        found = derived(mean, digits, behind, "mean over seeds, in the claim's favour", sign=True)
        assert found is not None
        cells.append(replace(found, low=mean - half, high=mean + half, interval_digits=digits))
    shown = {"n": len(of.seeds), "found": Series(tuple(cells if len(cells) < 2 else (cells[0], cells[-1])), "parts")}
    where, names = of.where, list(of.names.values())
    if not of.claim.right:
        return say(
            "{where}, {run}, {n:seed|seeds}: {found} in the claim's favour",
            where=where,
            run=Series(tuple(names)),
            **shown,
        )
    left, right = (of.names[KL], of.names[NO_KL]) if KL in of.names else names
    text = (
        "{where}, {left} minus {right}, {n:seed|seeds}: {found}"
        if of.claim.kind == "equal"
        else "{where}, {left} against {right}, {n:seed|seeds}: {found} in the claim's favour"
    )
    return say(text, where=where, left=left, right=right, **shown)


def _told(claim: Claim, measured: Mapping[Run, Sequence[Cell]], names: Mapping[Run, Cell]) -> list[Cell]:
    """Return each measure of every run."""
    by_measure = list(zip(*measured.values(), strict=True))
    if claim.measure == ("each",):
        at = "shot {at}" if claim.metric == "accuracy" else "step {at}"
        labels: list[Cell] = [say(at, at=int(of)) for of in claim.where]
    else:
        labels = [say(MEASURES[name]) for name in claim.measure]
        labels *= len(by_measure) // len(labels)
    told: list[Cell] = []
    for label, values in zip(labels, by_measure, strict=True):
        each = zip(measured, values, strict=True)
        of = tuple(say("{value} ({name})", name=names.get(run) or _name(run), value=value) for run, value in each)
        told.append(say("{what}: {numbers}", what=label, numbers=Series(of)))
    return told


def _name(run: Run) -> Cell:
    return say(RUNS[run]) if isinstance(run, str) else f"{run:g}"


def _statistic(material: Material, run: Run, metric: str, name: str) -> Estimate:
    """Return a printed statistic of a training curve of the selector; no epoch in between is printed."""
    if name == "fall":
        found = minus(_statistic(material, run, metric, "first"), _statistic(material, run, metric, "last"))
    else:
        at = {"mean": "mean(1-50)", "minimum": "minimum"}.get(name, name)
        epoch = {"first": "/epoch~1", "last": f"/epoch~{LAST_PUBLISHED_EPOCH}"}.get(name, "")
        subject = f"published/grpo_balanced/beta~{run:g}{epoch}"
        row = material.evidence.find(subject, metric, at="" if epoch else at, quoted=CURVES)
        found = level(row, DECIMALS.get(metric, 6))
    if found is None:
        raise NotTested("not_known", what=say(METRICS[metric]), run=_name(run))
    return found


@dataclass(frozen=True, slots=True)
class Accuracies:
    """Accuracies of selectors: as a document prints them, or ours of the main preset, mean over seeds."""

    material: Material
    document: str
    is_ours: bool

    def accuracy(self, run: Run, shots: int) -> Estimate:
        """Return an accuracy; a printed one has one decimal: on OK-VQA that of a question is 0, 0.6 or 1."""
        of, found = self.material, None
        if self.is_ours:
            found = level(of.accuracy(of.grpo(float(run), EPOCH), shots, of.document_samples), interval=False)
        else:
            place = (f"published/grpo/beta~{run:g}/epoch~{EPOCH}", "accuracy")
            at: dict[str, Any] = {"samples": DOCUMENT_SAMPLES, "shots": shots}
            printed = (level(of.evidence.find(*place, quoted=file, **at), 1) for file in FILES[self.document])
            found = next((number for number in printed if number is not None), None)
        if found is None:
            raise NotTested("not_known", what=say("accuracy"), run=_name(run))
        return found

    def separation(self, left: Run, right: Run, shots: int | str) -> tuple[Estimate, float, Estimate | None]:
        """Return a difference with half of its interval, and of ours its Holm p in the document's family."""
        if not self.is_ours:  # nothing paired is published: 1.96 binomial errors
            counts = SHOTS if shots == MEAN else (int(shots),)
            pair = [average([self.accuracy(run, k) for k in counts], 2) for run in (left, right)]
            errors = [standard_error_percent(of.value / 100, DOCUMENT_SAMPLES) for of in pair if of]
            found = minus(pair[0], pair[1])
            assert found is not None
            return found, NORMAL_95 * math.hypot(*errors), None
        pair_of_ours = [self.material.grpo(float(run), EPOCH) for run in (left, right)]
        for document in (self.document, "001", "002"):
            for one, other in (pair_of_ours, pair_of_ours[::-1]):
                own = {"against": other, "samples": self.material.document_samples, "shots": shots}
                for row in self.material.evidence.where(one, "accuracy", **own):
                    family = row.family.removesuffix(OF_ONE_RUN).removesuffix(BY_SHOTS)
                    turned = derived(-row.value, 2, (row,), "turned", sign=True)
                    found = gap(row) if one == pair_of_ours[0] else turned
                    if family == f"document-{document}/epoch~{EPOCH}" and found is not None:
                        return found.plain, (row.high - row.low) / 2, holm_of(row)
        raise NotTested("no_comparison", runs=[_name(left), _name(right)])

    def lineage(self, run: Run) -> Fields:
        """Return what is known of how a selector came to be."""
        if self.is_ours:
            return self.material.lineages.get(self.material.grpo(float(run), EPOCH), {})
        keys = (published_key(float(run), EPOCH, document=document) for document in (self.document, ""))
        found = next((self.material.lineages[key] for key in keys if key in self.material.lineages), {})
        return {field: value for field, value in found.items() if value != UNKNOWN and not field.startswith(REMARK)}


def _of_accuracies(claim: Claim, side: Accuracies) -> Measured:
    """Return the spans of what is claimed equal, else the differences, with what else the selectors differ in."""
    if claim.kind == "equal":
        rows = {run: [side.accuracy(run, int(k)) for k in claim.where] for run in claim.left}
        spans = (np.ptp([each.value for each in of]) for of in zip(*rows.values(), strict=True))
        return Measured([Check(float(span)) for span in spans], _told(claim, rows, {}))
    shots = int(claim.where[0]) if claim.where else MEAN
    where = say("shot {at}", at=shots) if claim.where else say("mean over shots")
    checks: list[Check] = []
    told: list[Cell] = []
    for run in claim.right:
        difference, half, p = side.separation(claim.left[0], run, shots)
        checks.append(Check(difference.value, half, None if p is None else p.value))
        noise = derived(half, 1, (difference,), "1.96 binomial errors")
        test = say("noise {value}", value=noise) if p is None else say("adjusted p {p}", p=p)
        pair = {"left": _name(claim.left[0]), "right": _name(run)}
        told.append(
            say("{where}: {value} ({left} minus {right}), {test}", where=where, value=difference, test=test, **pair)
        )
    known = [side.lineage(run) for run in claim.runs]
    fields = dict.fromkeys(name for of in known for name in of if name not in IDENTITY)
    differs = [name for name in fields if len({of[name] for of in known if name in of}) > 1]
    return Measured(checks, told, list(map(named, differs)))


def tables(material: Material) -> Iterator[Table]:
    """Yield the decisive claims, a summary, and the claims of each document."""
    if not material.claims:
        return
    decisive = [of for of in material.claims if of.claim.decisive]
    title = say("{n} decisive claims of the documents", n=len(decisive))
    yield _table("claims-decisive", "decisive", title, decisive, "own_words")
    yield _summary(material.claims)
    for document, of in groupby(material.claims, key=lambda each: each.claim.document):
        judged, name = list(of), f"claims-{document}"
        yield _table(name, name, say("Claims of document {document}", document=document), judged, judged[0].claim.study)


def _table(name: str, section: str, title: Cell, judged: Sequence[JudgedClaim], note: str) -> Table:
    """Return claims with both verdicts; the rest is folded below each."""
    heads = ("claim", "published", "ours", "place", "kind", "published_numbers", "our_numbers")
    columns = tuple(Column(say(HEADS[head]), "words" if i < 3 else "folded") for i, head in enumerate(heads))
    lines = []
    for of in judged:
        place = say("document {document}, {section}", document=of.claim.document, section=of.claim.section)
        folded = (place, say(KINDS[of.claim.kind]), of.published.numbers, of.ours.numbers)
        lines.append(TableLine((say(of.claim.quote), of.published.word, of.ours.word, *folded)))
    return Table(name, section, title, columns, tuple(lines), notes=(say(NOTES[note]),))


def _summary(judged: Sequence[JudgedClaim]) -> Table:
    """Return how many claims have each verdict."""
    names = [f"{side}_{name.replace(' ', '_')}" for side in ("published", "ours") for name in VERDICTS]
    columns = (
        Column(say("In document"), "words"),
        *(Column(say(HEADS[of])) for of in ("claims", *names)),
    )
    groups: list[tuple[Cell, list[JudgedClaim]]] = [
        (document, list(of)) for document, of in groupby(judged, key=lambda each: each.claim.document)
    ]
    lines = []
    for group, of in (*groups, (say("all"), list(judged))):
        sides = [Counter(each.published.verdict for each in of), Counter(each.ours.verdict for each in of)]
        counts = [derived(side[name], 0, (), f"claims: {name}") for side in sides for name in VERDICTS]
        lines.append(TableLine((group, derived(len(of), 0, (), "claims"), *counts)))
    notes = (
        say(
            "Holds: the numbers go the claimed way, separated. Does not hold: they go the other way. "
            "Not separated: they do not decide. Not tested: a number is missing, or more differs "
            "than the named cause."
        ),
        say(
            "Order: as printed of the published, of ours separated over the seeds (paired t, p < "
            "0.05). Difference: by more than noise. Apart: so whichever way. Equal: within the "
            "margin, noise included, or not separated."
        ),
    )
    return Table("claims-summary", "decisive", say("All claims by verdict"), columns, tuple(lines), notes=notes)
