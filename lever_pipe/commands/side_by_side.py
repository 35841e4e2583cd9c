"""Comparisons of two policies or two runs as plain text for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from tabulate import tabulate

from lever_pipe.commands.card_differences import Differing
from lever_pipe.commands.two_policies import AccuracyLine, AgreementLine, MetricLine
from lever_pipe.report.catalogue import number_text, parts_of
from lever_pipe.report.cells import PValue

SINGLE = (
    "p: share of the ways to exchange the answers of A and B on single questions that set them as far apart. Interval "
    "and p hold for further questions and these very checkpoints, not for further seeds."
)
SEVERAL = "Interval and p (Student's t) hold for further questions and further runs of the sides with several."
UNPAIRED = "A and B were scored on other questions: no interval and no test, and no comparison of what they choose."
DETECTABLE = "detectable: smallest difference found at 80 % power. low and high: 95 % interval."
NO_TEST = "-"
NOTHING = "Nothing in the run cards."
WIDEST = 36  # characters of a configured value
ACCURACY_HEADS = ["A", "B", "A - B", "low", "high", "p", "detectable"]


def text(found: Mapping[str, Any]) -> str:
    """Return what `compare_tool` found as text: of two runs where it holds groups, else of two policies."""
    parts = _runs(found) if "groups" in found else _policies(found)
    return "\n\n".join(part for part in parts if part)


def _policies(found: Mapping[str, Any]) -> Iterator[str]:
    one, other = found["runs"]
    runs = [f"A  {found['left']}  ({_runs_text(one)})", f"B  {found['right']}  ({_runs_text(other)})"]
    yield "\n".join(runs)
    yield _questions(found)
    notes = [DETECTABLE, SINGLE if one == other == 1 else SEVERAL] if found["same_questions"] else []
    accuracies = [_accuracy_cells(line) for line in found["accuracies"]]
    head = f"Accuracy in percent, {_counts(found['questions'])} questions"
    yield "\n".join([_part(head, ["shots", *ACCURACY_HEADS], accuracies), *notes])
    yield _part("Training metrics", ["metric", "A", "B"], [_metric_cells(line) for line in found["metrics"]])
    agreement = [_agreement_cells(line) for line in found["agreement"]]
    yield _part("Same demonstrations, percent of queries", ["shots", "in sequence", "as a set"], agreement)
    rows = [[where, line.key, _short(line.left), _short(line.right)] for where, line in _named(found["differences"])]
    head = "What differs" if one == other == 1 else "What differs between the first run of each side"
    yield _part(head, ["in", "key", "A", "B"], rows) or f"{head}\n{NOTHING}"


def _runs(found: Mapping[str, Any]) -> Iterator[str]:
    yield f"A  {found['left']}\nB  {found['right']}"
    yield _questions(found)
    rows = [
        [row["group"], _counts(row["questions"]), *_accuracy_cells(_line(row))[1:], _p(row["p_holm"])]
        for row in found["groups"]
    ]
    heads = ["policy", "questions", *ACCURACY_HEADS, "Holm p"]
    notes = [DETECTABLE] if any(row["same_questions"] for row in found["groups"]) else []
    yield "\n".join([_part("Accuracy in percent, mean over shots, by size of difference", heads, rows), *notes])
    for side, cells in (("A", found["only_left"]), ("B", found["only_right"])):
        yield _part(f"Only in {side}", ["policy", "cells"], _by_policy(cells))
    rows = [
        [where, line.key, _short(line.left), _short(line.right), str(line.n_cards)]
        for where, line in _named(found["differences"])
    ]
    yield _part("What differs", ["stage", "key", "A", "B", "jobs"], rows) or f"What differs\n{NOTHING}"


def _questions(found: Mapping[str, Any]) -> str:
    """Return in what the questions of both sides differ; nothing where they are the same."""
    if found["same_questions"]:
        return ""
    sets = found["question_sets"]
    if sets is None:
        return UNPAIRED
    common, changed = sets["common"], sets["changed"]
    return (
        f"{UNPAIRED}\nA has {sets['left']} questions, B {sets['right']}: {common} are in both by their id, of these "
        f"{changed} with other words, images or answers; {sets['left'] - common} are only in A, "
        f"{sets['right'] - common} only in B."
    )


def _counts(sides: Sequence[int]) -> str:
    """Return a number of questions, of each side where they differ."""
    return " and ".join(map(str, dict.fromkeys(sides)))


def _part(title: str, heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a titled grid, or nothing without rows; cells are text already."""
    if not rows:
        return ""
    aligned = ["left" if _is_text(column) else "right" for column in zip(*rows, strict=True)]
    grid = tabulate(rows, headers=heads, tablefmt="simple", disable_numparse=True, colalign=aligned)
    return f"{title}\n\n{grid}"


def _is_text(column: Iterable[object]) -> bool:
    return not any(str(cell).strip("+-<").replace(".", "", 1).isdigit() for cell in column)


def _accuracy_cells(line: AccuracyLine) -> list[str]:
    bounds = (_number(line.low, 2), _number(line.high, 2))
    least = _number(line.detectable, 2)
    return [
        line.shots,
        _number(line.left, 2),
        _number(line.right, 2),
        _number(line.difference, 2, sign=True),
        *bounds,
        _p(line.p),
        least,
    ]


def _line(row: Mapping[str, Any]) -> AccuracyLine:
    return AccuracyLine(**{name: row[name] for name in AccuracyLine._fields})


def _metric_cells(line: MetricLine) -> list[str]:
    return [line.metric, *(NO_TEST if value is None else f"{value:.6g}" for value in (line.left, line.right))]


def _agreement_cells(line: AgreementLine) -> list[str]:
    return [str(line.shots), _number(line.same_sequence, 1), _number(line.same_set, 1)]


def _number(value: float, digits: int, *, sign: bool = False) -> str:
    return NO_TEST if value != value else number_text(value, digits, sign=sign)


def _p(value: float) -> str:
    return NO_TEST if value != value else parts_of(PValue(value))[0]


def _named(differences: Sequence[Differing]) -> Iterator[tuple[str, Differing]]:
    """Yield the differences, the first of each place with its name."""
    for where, lines in groupby(differences, key=lambda line: line.where):
        for index, line in enumerate(lines):
            yield ("" if index else where), line


def _short(value: str) -> str:
    """Return a value that fits beside another one on a line."""
    return value if len(value) <= WIDEST else f"{value[: WIDEST - 3]}..."


def _by_policy(cells: Sequence[str]) -> list[list[str]]:
    """Return one row a policy: how many of its cells, and which where they are few."""
    rows = []
    for policy, group in groupby(cells, key=lambda cell: cell.partition("/scores/")[0]):
        names = [cell.partition("/scores/")[2] for cell in group]
        rows.append([policy, f"{len(names)} cells" if len(names) > 4 else ", ".join(names)])
    return rows


def _runs_text(count: int) -> str:
    return f"{count} run{'s' * (count > 1)}"
