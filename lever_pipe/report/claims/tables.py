"""The judged claims as tables: the decisive ones with a summary, and those of each document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from lever_pipe.report.cells import Cell, Name, derived, say
from lever_pipe.report.claims.evaluate import JudgedClaim, read_json
from lever_pipe.report.claims.verdicts import VERDICTS
from lever_pipe.report.table import Column, Table, TableLine

if TYPE_CHECKING:
    from lever_pipe.report.material import Material

SIDES = ("published", "ours")


def tables(material: Material) -> Iterator[Table]:
    """Yield the tables of the judged claims; claims of a study that is not part of the run have no line."""
    every = map(read_json, material.findings)
    judged = [of for of in every if material.has("intention" if of.claim.is_of_agents else "lever")]
    decisive = [of for of in judged if of.claim.decisive]
    if decisive:
        yield _decisive(decisive)
    if judged:
        yield _summary(judged)
    for document, of in groupby(judged, key=lambda each: each.claim.document):
        yield from _of_document(document, list(of))


def sentence(of: JudgedClaim) -> Cell:
    """Return the sentence of a claim in our own words."""
    return say(f"claim.{of.claim.id}")


def place(of: JudgedClaim) -> Cell:
    """Return where in its document a claim stands."""
    return say(f"claims.place.{of.claim.section}")


def _decisive(judged: Sequence[JudgedClaim]) -> Table:
    lines = [TableLine((Name(of.claim.document), sentence(of), of.published.word, *_sides(of)[2:])) for of in judged]
    columns = _columns("document", "claim", "published", "ours", "our_numbers")
    title, notes = say("claims.title.decisive", n=len(judged)), (say("claims.note.own_words"),)
    return Table("claims-decisive", "decisive", title, columns, tuple(lines), notes=notes)


def _summary(judged: Sequence[JudgedClaim]) -> Table:
    """Return how many claims have each verdict; those that a machine's load decides are left out."""
    counted = [of for of in judged if not of.claim.load]
    by_document = groupby(counted, key=lambda each: each.claim.document)
    rows: dict[Cell, list[JudgedClaim]] = {Name(name): list(of) for name, of in by_document}
    rows[say("claims.name.all")] = counted
    heads = [say(f"claims.head.{side}_{name.replace(' ', '_')}") for side in SIDES for name in VERDICTS]
    columns = (*_columns("document"), Column(say("claims.head.claims")), *(Column(head) for head in heads))
    lines = [TableLine((head, derived(len(of), 0, (), "claims"), *_counts(of))) for head, of in rows.items()]
    notes = (say("claims.note.verdicts"), say("claims.note.rules"), say("claims.note.load"))
    return Table("claims-summary", "decisive", say("claims.title.summary"), columns, tuple(lines), notes=notes)


def _counts(judged: Sequence[JudgedClaim]) -> Iterator[Cell]:
    for side in SIDES:
        found = Counter(getattr(of, side).verdict for of in judged)
        for name in VERDICTS:
            yield derived(found[name], 0, (), f"claims that are {name}")


def _of_document(name: str, judged: Sequence[JudgedClaim]) -> Iterator[Table]:
    """Yield the claims that both sides are asked, and more tersely those about printed numbers."""
    asked = [of for of in judged if not of.is_about_print]
    printed = [of for of in judged if of.is_about_print]
    if asked:
        lines = [TableLine((*_said(of), say(f"claims.rule.{of.claim.rule}"), *_sides(of))) for of in asked]
        columns = _columns("claim", "place", "rule", "published", "published_numbers", "ours", "our_numbers")
        title = say("claims.title.document", document=name)
        note = say(f"claims.note.{'agents' if asked[0].claim.is_of_agents else 'lever'}")
        yield Table(f"claims-{name}", f"claims-{name}", title, columns, (*lines,), notes=(note,))
    if printed:
        lines = [TableLine((*_said(of), *_sides(of)[:2])) for of in printed]
        columns = _columns("claim", "place", "published", "published_numbers")
        title = say("claims.title.printed", document=name)
        yield Table(f"claims-{name}-printed", f"claims-{name}", title, columns, (*lines,))


def _said(of: JudgedClaim) -> tuple[Cell, Cell]:
    return sentence(of), place(of)


def _sides(of: JudgedClaim) -> tuple[Cell, ...]:
    return of.published.word, of.published.numbers, of.ours.word, of.ours.numbers


def _columns(*names: str) -> tuple[Column, ...]:
    return tuple(Column(say(f"claims.head.{name}"), "words") for name in names)
