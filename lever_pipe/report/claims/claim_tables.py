"""The judged claims as tables: a summary, and one table a document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from lever_pipe.report.claims.evaluate import JudgedClaim
from lever_pipe.report.claims.reward_runs import DOCUMENTS
from lever_pipe.report.claims.verdicts import VERDICTS
from lever_pipe.report.tables.intention.published import SET_UP
from lever_pipe.report.tables.origin import PUBLISHED, Origin
from lever_pipe.report.tables.table import Table, frame_of
from lever_pipe.report.tables.text import sentences

SECTION = "claims"
COLUMNS = ("id", "document", "section", "claim", "published_verdict", "published_numbers", "our_verdict", "our_numbers")
SET_UPS = {
    **{f"{SECTION}-{name}": PUBLISHED for name in ("000", "001", "002")},
    **{f"{SECTION}-{name}": SET_UP for name in DOCUMENTS},
}
"""What the published numbers of a table were measured with."""
RULES_CAPTION = sentences(
    "Every verdict is computed.",
    "Supported: the numbers hold by the rule; contradicted: they go against the sentence.",
    "Not supported: they do not decide or lie within noise; not testable: a number is missing or other factors differ "
    "too.",
    "Identity: the numbers agree within their rounding.",
    "Order: the numbers go the claimed way; no inference.",
    "Noise: they go the claimed way by more than noise allows; published accuracies have 1.96 binomial standard errors "
    "as noise, ours a paired comparison with Holm p.",
    "Sameness: a difference and its noise lie within the margin.",
    "Cause: as noise, and not testable where the runs differ in more than the named cause.",
)


def claim_rows(judged: Iterable[JudgedClaim]) -> list[tuple[str, ...]]:
    """Return one row of text a claim, in the order of `COLUMNS`."""
    return [
        (
            of.claim.id,
            of.claim.document,
            of.claim.section,
            of.claim.claim,
            of.published.verdict,
            of.published.numbers,
            of.ours.verdict,
            of.ours.numbers,
        )
        for of in judged
    ]


def claim_tables(judged: Sequence[JudgedClaim], origin: Origin | None, runs: str = "") -> list[Table]:
    """Return the counts of verdicts, then the claims of each document; captions begin with whose numbers they are.

    Args:
        judged: all claims.
        origin: of study `lever`; None without a run of it.
        runs: which runs of study `intention` are ours; empty without one.
    """
    documents: list[str] = sorted({of.claim.document for of in judged})
    by_document: dict[str, list[JudgedClaim]] = {
        name: [of for of in judged if of.claim.document == name] for name in documents
    }
    tables = [_summary(by_document), *(_document(name, of) for name, of in by_document.items())]
    lever = "" if origin is None else origin.sentence([origin.main_preset])
    ours = {f"{SECTION}-summary": sentences(lever, runs)} | {f"{SECTION}-{name}": runs for name in DOCUMENTS}
    return [
        replace(table, caption=sentences(ours.get(table.id, lever), SET_UPS.get(table.id, ""), table.caption))
        for table in tables
    ]


def _summary(by_document: Mapping[str, list[JudgedClaim]]) -> Table:
    every = [of for judged in by_document.values() for of in judged]
    rows = [_counts(name, judged) for name, judged in by_document.items()]
    rows.append(_counts("all", every))
    columns = [
        "In document",
        "Claims",
        *(f"{side}: {verdict}" for side in ("Published", "Ours") for verdict in VERDICTS),
    ]
    caption = sentences(
        "How many testable sentences of the documents their own numbers support, and how many ours do.", RULES_CAPTION
    )
    return Table(f"{SECTION}-summary", SECTION, "Claims by verdict", caption, frame_of(rows, columns))


def _counts(name: str, judged: Sequence[JudgedClaim]) -> dict[str, str]:
    published = Counter(of.published.verdict for of in judged)
    ours = Counter(of.ours.verdict for of in judged)
    cells = {f"Published: {verdict}": str(published[verdict]) for verdict in VERDICTS}
    cells |= {f"Ours: {verdict}": str(ours[verdict]) for verdict in VERDICTS}
    return {"In document": name, "Claims": str(len(judged)), **cells}


def _document(name: str, judged: Sequence[JudgedClaim]) -> Table:
    rows = [
        {
            "Claim": of.claim.claim,
            "Section": of.claim.section,
            "Rule": of.claim.rule,
            "Published verdict": of.published.verdict,
            "Published numbers": of.published.numbers,
            "Our verdict": of.ours.verdict,
            "Our numbers": of.ours.numbers,
        }
        for of in judged
    ]
    columns = ["Claim", "Section", "Rule", "Published verdict", "Published numbers", "Our verdict", "Our numbers"]
    caption = "The sentences in our own words, with the numbers that decide."
    return Table(f"{SECTION}-{name}", SECTION, f"Claims of document {name}", caption, frame_of(rows, columns))
