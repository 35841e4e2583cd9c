"""The published sentences that our runs can test (`resources/claims.yaml`), and the rules for their verdicts.

A sentence of kind `order`, `difference` or `equal` states that a measure of one run's curve, or its accuracy, exceeds
the same measure of another run.

| kind | holds | does not hold |
|---|---|---|
| order | every difference is above 0 (ours: and separated) | every difference is at most 0 (ours: below, separated) |
| difference | every difference exceeds the noise | every difference exceeds it in the other direction |
| equal | every difference plus its noise is within `margin`; without one, none is separated | one exceeds it |

Otherwise the runs are not separated. `checks` evaluates all kinds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, get_args

from pydantic import Field, TypeAdapter, ValidationError, field_validator

from lever_pipe.base.errors import RecordError
from lever_pipe.base.sections import Problem, Section, rule
from lever_pipe.base.storage import read_yaml
from lever_pipe.report import verdicts
from lever_pipe.report.cells import Cell, Estimate, derived, message
from lever_pipe.report.evidence import ALPHA
from lever_pipe.report.measures import MEASURES
from lever_pipe.report.table import Row, Table, framed

Run: TypeAlias = "float | str"
"""A KL_BETA of documents 000 to 002, or `nokl` or `kl` of documents 003 and 004."""
Pattern = Literal["identical rows", "repeats", "few prompts", "reused rows", "KL without update", "falling KL"]
"""Kinds of sentences about an emulated bug."""
Kind = Literal["order", "difference", "equal", "stated", "arms", "document arm", Pattern]
NEEDED: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(("order", "difference", "equal"), ("left", "metric")),
    "arms": ("factor",),
    **dict.fromkeys(get_args(Pattern), ("bug",)),
}
"""Keys that a kind needs."""
ROUNDING = 1e-12
"""Tolerance for sums of printed decimals, which have binary rounding errors."""
FOLDED = ("Stands in", "Kind", "Published numbers", "Our numbers")
"""Columns that the page folds below a claim."""


class Claim(Section):
    """One published sentence."""

    id: str = Field(pattern=r"^00[0-4]-[a-z0-9]+(-[a-z0-9]+)*$")
    """Starts with the document's number."""
    table: Literal["claims", "advice", "patterns", "002-summary", "004-stability", "004-assessment"] = "claims"
    """The table that shows it."""
    section: str = ""
    """Section of the document."""
    quote: str
    """The sentence in our own words; of a pattern with arguments."""
    kind: Kind
    left: tuple[Run, ...] = ()
    """Runs that are claimed to exceed `right`."""
    right: tuple[Run, ...] = ()
    """Empty if the measure is about single runs."""
    metric: str = ""
    measure: tuple[Annotated[str, Field(pattern=f"^({'|'.join(MEASURES)})$")], ...] = ("each",)
    where: tuple[float, ...] = ()
    """Steps; for accuracies, shot counts; for `steps_to`, values to reach. Empty: all."""
    margin: float | None = None
    about: tuple[str, ...] | None = None
    """Of two agents: the settings that the claim is about. If set, verdicts name the other settings that differ."""
    cause: bool = False
    """Whether the claim names the cause of the difference."""
    decisive: bool = False
    """Whether the main page shows it."""
    claim: str = ""
    """The claim whose test of ours answers the sentence."""
    factor: str = ""
    """The arms that answer it instead: those that differ from the reference arm in this setting alone."""
    stated: tuple[tuple[str, str] | tuple[str, str, int], ...] = ()
    """Published numbers of the document's reason: run, metric and, for a curve, the step."""
    reason: str = ""
    """The document's reason, with these numbers as `a`, `b` and `c`."""
    otherwise: str = "Not measured, or not reached in every seed"
    """Text if nothing answers the sentence."""
    bug: Literal["", "head", "pool", "dropout"] = ""
    """The emulated bug that may cause a pattern."""

    @field_validator("left", "right", "measure", mode="before")
    @classmethod
    def _several(cls, value: Any) -> Any:
        # In YAML, a single value needs no list.
        return value if isinstance(value, list | tuple) else (value,)

    @rule
    def _has_what_its_kind_needs(self) -> Iterator[Problem]:
        for key in NEEDED.get(self.kind, ()):
            if not getattr(self, key):
                yield (key,), f"must be set for kind '{self.kind}'. Add it."

    @property
    def document(self) -> str:
        """Return the number of its document."""
        return self.id[:3]

    @property
    def study(self) -> str:
        """Return the claim's study."""
        return "intention" if self.document in ("003", "004") else "lever"

    @property
    def runs(self) -> tuple[Run, ...]:
        """Return all runs of the claim, left before right."""
        return (*self.left, *self.right)


@dataclass(frozen=True, slots=True)
class Finding:
    """A verdict with its numbers, or the reason why there is none, and the deciding p value."""

    verdict: Cell
    numbers: Cell
    p: Estimate | None = None


@dataclass(frozen=True, slots=True)
class EvaluatedClaim:
    """A claim with the verdicts on the published numbers and on ours."""

    claim: Claim
    published: Finding
    ours: Finding
    control: Cell = None
    """Of a pattern: our numbers without the bug."""
    given: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the quote."""


@dataclass(frozen=True, slots=True)
class Check:
    """A difference, positive in the claim's favour, with its noise, or with a p value instead."""

    value: float
    noise: float = 0.0
    p: float | None = None


def read_claims(path: Path) -> tuple[Claim, ...]:
    """Return the claims of a YAML file.

    Raises:
        RecordError: a missing file, invalid YAML, or an invalid entry.
    """
    try:
        return TypeAdapter(tuple[Claim, ...]).validate_python(read_yaml(path, "a file of claims"))
    except ValidationError as error:
        raise RecordError(f"{path}: expected claims", found=str(error), do="Correct these entries.") from None


def verdict(claim: Claim, checks: Sequence[Check]) -> str:
    """Return the verdict of a claim on its differences."""
    sides = [_side(check, claim.kind) for check in checks]
    if claim.kind != "equal":
        return verdicts.HOLDS if min(sides) > 0 else verdicts.FAILS if max(sides) < 0 else verdicts.OPEN
    if claim.margin is None:
        return verdicts.FAILS if any(sides) else verdicts.HOLDS
    if all(abs(check.value) + check.noise <= claim.margin + ROUNDING for check in checks):
        return verdicts.HOLDS
    beyond = any(abs(check.value) - check.noise > claim.margin for check in checks)
    return verdicts.FAILS if beyond else verdicts.OPEN


def _side(check: Check, kind: str) -> int:
    """Return 1 for a difference in the claimed direction, -1 for the opposite direction, 0 if it is not separated."""
    sign = int(check.value > ROUNDING) - int(check.value < -ROUNDING)
    if check.p is not None:
        return sign if check.p < ALPHA else 0
    if kind == "order":
        return sign or -1  # equal numbers contradict an order
    return sign if abs(check.value) > check.noise + ROUNDING else 0


def tables(claims: Sequence[EvaluatedClaim]) -> Iterator[Table]:
    """Yield the decisive claims, a summary, and the claims of each document."""
    if not claims:
        return
    decisive = [evaluated for evaluated in claims if evaluated.claim.decisive]
    title = message("{n} decisive claims of the documents", n=len(decisive))
    yield Table("claims-decisive", "decisive", title, framed(map(_row, decisive)), folded=FOLDED)
    by_document = {document: list(group) for document, group in groupby(claims, key=lambda each: each.claim.document)}
    summary = (_counted(document, group) for document, group in {**by_document, "all": claims}.items())
    yield Table("claims-summary", "decisive", "All claims by verdict", framed(summary))
    for document, group in by_document.items():
        name, title = f"claims-{document}", message("Claims of document {document}", document=document)
        macro = f"claims-{group[0].claim.study}"
        yield Table(name, name, title, framed(map(_row, group)), macro_id=macro, folded=FOLDED)


def _row(entry: EvaluatedClaim) -> Row:
    """Return a claim with both verdicts, and the columns that the page folds below it."""
    where = {"document": entry.claim.document, "section": entry.claim.section}
    return {
        "Claim": entry.claim.quote,
        "Published": entry.published.verdict,
        "Ours": entry.ours.verdict,
        "Stands in": message("document {document}, {section}", **where),
        "Kind": entry.claim.kind,
        "Published numbers": entry.published.numbers,
        "Our numbers": entry.ours.numbers,
    }


def _counted(document: str, claims: Sequence[EvaluatedClaim]) -> Row:
    """Return the number of claims by verdict."""
    row: dict[Any, Cell] = {"In document": document, "Claims": derived(len(claims), 0, (), "claims")}
    sides = {
        "Published: {verdict}": [each.published for each in claims],
        "Ours: {verdict}": [each.ours for each in claims],
    }
    for side, findings in sides.items():
        counts = Counter(finding.verdict for finding in findings)
        for name in verdicts.OF_CLAIMS:
            row[message(side, verdict=name)] = derived(counts[name], 0, (), f"claims: {name}")
    return row
