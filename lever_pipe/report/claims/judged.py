"""Every claim judged twice, by the published numbers and by ours, and the tables of the verdicts."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby
from statistics import fmean
from typing import TYPE_CHECKING, Any

from lever_pipe.report.cells import (
    Cell,
    Code,
    Name,
    Number,
    PValue,
    Series,
    derived,
    from_json,
    keys_behind,
    numbers_in,
    say,
    to_json,
)
from lever_pipe.report.claims.agents import DIGITS, KL, NO_KL, TRAINING, OurAgents, RewardRuns
from lever_pipe.report.claims.book import Claim
from lever_pipe.report.claims.lever import OurLever, PublishedLever
from lever_pipe.report.claims.verdicts import VERDICTS, Finding, Measured, NotTestable, judge, listed, t_p, together
from lever_pipe.report.table import Column, Table, TableLine
from lever_pipe.statistics.comparison import holm
from lever_pipe.statistics.curve_tests import paired_t

if TYPE_CHECKING:
    from lever_pipe.report.material import Material

Side = PublishedLever | OurLever | RewardRuns | OurAgents


@dataclass(frozen=True, slots=True)
class JudgedClaim:
    """A claim with the verdict of each side."""

    claim: Claim
    published: Finding
    ours: Finding


def as_json(of: JudgedClaim) -> dict[str, Any]:
    """Return a judged claim as JSON values, which `read_json` reads back."""
    sides = {"published": of.published, "ours": of.ours}
    findings = {name: {"verdict": side.verdict, "numbers": to_json(side.numbers)} for name, side in sides.items()}
    return {"claim": of.claim.model_dump(mode="json"), **findings}


def read_json(value: Mapping[str, Any]) -> JudgedClaim:
    """Return the judged claim that `as_json` wrote."""
    sides = [Finding(value[name]["verdict"], from_json(value[name]["numbers"])) for name in ("published", "ours")]
    return JudgedClaim(Claim.model_validate(value["claim"]), *sides)


def judge_claims(claims: Sequence[Claim], published: Mapping[str, Side], ours: Mapping[str, Side]) -> list[JudgedClaim]:
    """Return each claim with its verdicts; the sides are given by document, and ours may lack one.

    Of our agents a comparison's p is the largest of its paired t tests, as all of them have to hold, adjusted for all.
    """
    own = {claim.id: _judged(claim, ours) for claim in claims}
    tested = {
        of.comparison: max(paired_t(gaps)[1] for gaps in of.values)
        for of in own.values()
        if isinstance(of, OverSeeds) and of.is_tested
    }
    adjusted = dict(zip(tested, holm(list(tested.values())), strict=True))
    findings = {
        name: of if isinstance(of, Finding) else of.finding(float(adjusted.get(of.comparison, math.nan)))
        for name, of in own.items()
    }
    return [JudgedClaim(claim, _judged(claim, published), findings[claim.id]) for claim in claims]  # type: ignore[arg-type]


def _judged(claim: Claim, sides: Mapping[str, Side]) -> Finding | OverSeeds:
    """Return the verdict of a side; of our agents, whose tests are adjusted together, what every seed shows."""
    side = sides.get(claim.document)
    if side is None:
        study = "intention" if claim.is_of_agents else "lever"
        return Finding("not testable", say("claims.why.no_run", study=study))
    if isinstance(side, OurLever) and claim.rule == "order":
        return judge(claim.rule, lambda: _over_seeds(claim, side))
    if not isinstance(side, OurAgents):
        return judge(claim.rule, lambda: _measured(claim, side))
    runs = side.pair(claim.about if claim.rule == "cause" else None)
    if not runs.seeds:
        return Finding("not testable", say("claims.why.no_common_seed"))
    if claim.rule in ("identity", "fact"):
        return judge(claim.rule, lambda: _measured(claim, runs))
    try:
        by_seed = tuple(_measured(claim, replace(runs, seeds=(seed,))) for seed in runs.seeds)
    except NotTestable as lack:
        return Finding("not testable", lack.reason)
    if len(by_seed) < 2:
        return Finding("not testable", say("claims.why.one_seed"))
    return OverSeeds(claim, runs, by_seed)


def _measured(claim: Claim, side: Any) -> Measured:
    found = Measured.of(claim.function(side, **claim.arguments))
    if claim.about is None:
        return found
    return replace(found, differs=(*side.differs(beside=claim.about), *found.differs))


def _over_seeds(claim: Claim, side: OurLever) -> Measured:
    """Return what the mean over seeds shows, with a paired t test over the seeds for each comparison."""
    whole = _measured(claim, side)
    single = []
    for seed in sorted({seed for _, seed in side.runs}):
        with suppress(NotTestable):
            single.append([check.value for check in _measured(claim, replace(side, seed=seed)).checks])
    by_check = [[values[i] for values in single] for i in range(len(whole.checks))]
    checks = tuple(
        replace(check, value=fmean(values) if values else check.value, p=t_p(values))
        for check, values in zip(whole.checks, by_check, strict=True)
    )
    test = say("claims.one_seed")
    if len(single) > 1:
        test = say("claims.over_seeds", n=len(single), p=Series(tuple(PValue(check.p or 0.0) for check in checks)))
    return replace(whole, numbers=together(whole.numbers, test), checks=checks)


@dataclass(frozen=True, slots=True)
class OverSeeds:
    """What every common seed of two arms shows of a claim."""

    claim: Claim
    runs: RewardRuns
    by_seed: tuple[Measured, ...]

    @property
    def comparison(self) -> tuple[str, ...]:
        """Return what is compared: sentences that ask the same share a test."""
        return (self.claim.computation, json.dumps(self.claim.arguments, sort_keys=True), *self.runs.arms.values())

    @property
    def is_tested(self) -> bool:
        """Return whether the claim counts in the family of tests."""
        return self.claim.rule != "sameness" and not (self.claim.rule == "cause" and self.by_seed[0].differs)

    @property
    def values(self) -> list[list[float]]:
        """Return for each comparison of the claim the value of every seed, positive in the claim's favour."""
        checks = zip(*(measured.checks for measured in self.by_seed), strict=True)
        return [[check.value for check in of] for of in checks]

    def finding(self, p: float) -> Finding:
        """Return the verdict by an adjusted p; by the interval over the seeds where a margin decides."""
        means, is_margin = [fmean(of) for of in self.values], self.claim.rule == "sameness"
        halves = [paired_t(of)[2] for of in self.values]
        checks = tuple(
            replace(check, value=mean, needed=half, p=None if is_margin else p)
            for check, mean, half in zip(self.by_seed[0].checks, means, halves, strict=True)
        )
        how = f"paired t over seeds, adjusted: {' '.join(self.comparison)}"
        numbers = together(
            self._intervals(means, halves),
            say("claims.test.adjusted", p=PValue(p, how=how)) if self.is_tested else None,
            listed({say("claims.name.margin"): Name(f"{checks[0].margin:g}")}) if is_margin else None,
        )
        return judge(self.claim.rule, lambda: replace(self.by_seed[0], numbers=numbers, checks=checks))

    def _intervals(self, means: Sequence[float], halves: Sequence[float]) -> Cell:
        """Return the mean with its interval over the seeds, of several comparisons the least and the most."""
        keys = [key for found in self.by_seed for number in numbers_in(found.numbers) for key in keys_behind(number)]
        of, how = tuple(dict.fromkeys(keys)), "mean over seeds, in the claim's favour"
        digits = DIGITS + 1 if max(map(abs, means)) < 1 else 1
        cells = [
            Number(mean, digits, sign=True, low=mean - half, high=mean + half, interval_digits=digits, of=of, how=how)
            for mean, half in zip(means, halves, strict=True)
        ]
        ends = cells if len(cells) == 1 else [pick(cells, key=lambda cell: cell.value) for pick in (min, max)]
        arguments = self.claim.arguments
        is_of_one = "run" in arguments and "than" not in arguments
        shown = (arguments["run"],) if is_of_one else (KL, NO_KL)
        arms = dict(zip((KL, NO_KL), (Code(self.runs.arms[run]) for run in shown), strict=False))
        where = say(f"claims.measured.{'training' if arguments.get('metric') in TRAINING else self.runs.mode}")
        shape = "mean_gap" if self.claim.rule == "sameness" else "of_one" if is_of_one else "in_favour"
        return say(f"claims.{shape}", where=where, n=len(self.runs.seeds), found=Series(tuple(ends), "parts"), **arms)


def tables(material: Material) -> Iterator[Table]:
    """Yield the decisive claims, a summary, and the claims of each document.

    Claims of a study that is not part of the run have no line.
    """
    every = map(read_json, material.findings)
    judged = [of for of in every if material.has("intention" if of.claim.is_of_agents else "lever")]
    if judged:
        yield _decisive([of for of in judged if of.claim.decisive])
        yield _summary(judged)
    for document, of in groupby(judged, key=lambda each: each.claim.document):
        yield _of_document(document, list(of))


def _decisive(judged: Sequence[JudgedClaim]) -> Table:
    columns = _columns("document", "claim", "published", "ours", "our_numbers")
    rows = [
        (Name(of.claim.document), say(f"claim.{of.claim.id}"), of.published.word, of.ours.word, of.ours.numbers)
        for of in judged
    ]
    return _table(
        "claims-decisive", "decisive", say("claims.title.decisive", n=len(judged)), columns, rows, "own_words"
    )


def _summary(judged: Sequence[JudgedClaim]) -> Table:
    """Return how many claims have each verdict."""
    heads = [f"{side}_{name.replace(' ', '_')}" for side in ("published", "ours") for name in VERDICTS]
    columns = (*_columns("document"), *(Column(say(f"claims.head.{name}")) for name in ("claims", *heads)))
    by_document = groupby(judged, key=lambda each: each.claim.document)
    groups: list[tuple[Cell, Sequence[JudgedClaim]]] = [(Name(name), list(of)) for name, of in by_document]
    groups.append((say("claims.name.all"), judged))
    rows: list[tuple[Cell, ...]] = []
    for group, of in groups:
        sides = [Counter(each.published.verdict for each in of), Counter(each.ours.verdict for each in of)]
        counts = [derived(side[name], 0, (), f"claims that are {name}") for side in sides for name in VERDICTS]
        rows.append((group, derived(len(of), 0, (), "claims"), *counts))
    return _table("claims-summary", "decisive", say("claims.title.summary"), columns, rows, "verdicts", "rules")


def _of_document(document: str, judged: Sequence[JudgedClaim]) -> Table:
    columns = _columns("claim", "place", "rule", "published", "published_numbers", "ours", "our_numbers")
    rows = []
    for of in judged:
        sides = (of.published.word, of.published.numbers, of.ours.word, of.ours.numbers)
        rows.append(
            (
                say(f"claim.{of.claim.id}"),
                say(f"claims.place.{of.claim.section}"),
                say(f"claims.rule.{of.claim.rule}"),
                *sides,
            )
        )
    title, name = say("claims.title.document", document=document), f"claims-{document}"
    return _table(name, name, title, columns, rows, "agents" if judged[0].claim.is_of_agents else "lever")


def _table(
    name: str, section: str, title: Cell, columns: tuple[Column, ...], rows: Sequence[tuple[Cell, ...]], *notes: str
) -> Table:
    told = tuple(say(f"claims.note.{note}") for note in notes)
    return Table(name, section, title, columns, tuple(map(TableLine, rows)), notes=told)


def _columns(*names: str) -> tuple[Column, ...]:
    return tuple(Column(say(f"claims.head.{name}"), "words") for name in names)
