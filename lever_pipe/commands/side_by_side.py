"""Comparisons of two policies or two runs as plain text for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from tabulate import tabulate

from lever_pipe.commands.telling import counted
from lever_pipe.report.catalogue import number_text, parts_of
from lever_pipe.report.cells import PValue

SINGLE = (
    "p: share of the ways to exchange the answers of A and B on single questions that set them as far apart. Interval "
    "and p hold for further questions and these very checkpoints, not for further seeds."
)
SEVERAL = "Interval and p (Student's t) hold for further questions and further runs of the sides with several."
UNPAIRED = "A and B were scored on other questions: no interval and no test, and no comparison of what they choose."
DETECTABLE = "detectable: smallest difference found at 80 % power. low and high: 95 % interval."
NOTHING = "Nothing in the run cards."
WIDEST = 36  # characters of a configured value
MOST_CELLS = 4  # of a policy that are named one by one
ACCURACY_HEADS = ("A", "B", "A - B", "low", "high", "p", "detectable")


def text(found: Mapping[str, Any]) -> str:
    """Return plain values of `compare_tool` as text: of two runs where they hold groups, else of two policies."""
    parts = _runs(found) if "groups" in found else _policies(found)
    return "\n\n".join(part for part in parts if part)


def _policies(found: Mapping[str, Any]) -> Iterator[str]:
    one, other = found["runs"]
    yield f"A  {found['left']}  ({counted(one, 'run')})\nB  {found['right']}  ({counted(other, 'run')})"
    yield _questions(found)
    notes = [DETECTABLE, SINGLE if one == other == 1 else SEVERAL] if found["same_questions"] else []
    rows = [[line["shots"], *_accuracy_cells(line)] for line in found["accuracies"]]
    head = f"Accuracy in percent, {_counts(found['questions'])} questions"
    yield "\n".join([_part(head, ["shots", *ACCURACY_HEADS], rows), *notes])
    values = [
        [line["metric"], *("-" if line[side] is None else f"{line[side]:.6g}" for side in ("left", "right"))]
        for line in found["metrics"]
    ]
    yield _part("Training metrics", ["metric", "A", "B"], values)
    rows = [
        [str(line["shots"]), _number(line["same_sequence"], 1), _number(line["same_set"], 1)]
        for line in found["agreement"]
    ]
    yield _part("Same demonstrations, percent of queries", ["shots", "in sequence", "as a set"], rows)
    head = "What differs" if one == other == 1 else "What differs between the first run of each side"
    yield _differences(head, ["in", "key", "A", "B"], found["differences"])


def _runs(found: Mapping[str, Any]) -> Iterator[str]:
    yield f"A  {found['left']}\nB  {found['right']}"
    yield _questions(found)
    rows = [
        [row["group"], _counts(row["questions"]), *_accuracy_cells(row), _p(row["p_holm"])] for row in found["groups"]
    ]
    heads = ["policy", "questions", *ACCURACY_HEADS, "Holm p"]
    notes = [DETECTABLE] if any(row["same_questions"] for row in found["groups"]) else []
    yield "\n".join([_part("Accuracy in percent, mean over shots, by size of difference", heads, rows), *notes])
    for side, cells in (("A", found["only_left"]), ("B", found["only_right"])):
        yield _part(f"Only in {side}", ["policy", "cells"], list(_by_policy(cells)))
    yield _differences("What differs", ["stage", "key", "A", "B", "jobs"], found["differences"])


def _questions(found: Mapping[str, Any]) -> str:
    """Return in what the questions of both sides differ; nothing where they are the same."""
    sets = found["question_sets"]
    if found["same_questions"] or sets is None:
        return "" if found["same_questions"] else UNPAIRED
    common, changed = sets["common"], sets["changed"]
    return (
        f"{UNPAIRED}\nA has {sets['left']} questions, B {sets['right']}: {common} are in both by their id, of these "
        f"{changed} with other words, images or answers; {sets['left'] - common} are only in A, "
        f"{sets['right'] - common} only in B."
    )


def _counts(sides: Sequence[int]) -> str:
    """Return a number of questions, of each side where they differ."""
    return " and ".join(map(str, dict.fromkeys(sides)))


def _part(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a titled grid, or nothing without rows."""
    if not rows:
        return ""
    aligned = ["left" if _is_text(column) else "right" for column in zip(*rows, strict=True)]
    grid = tabulate(rows, headers=heads, tablefmt="simple", disable_numparse=True, colalign=aligned)
    return f"{title}\n\n{grid}"


def _is_text(column: Iterable[str]) -> bool:
    return not any(cell.strip("+-<").replace(".", "", 1).isdigit() for cell in column)


def _accuracy_cells(line: Mapping[str, Any]) -> list[str]:
    one, other, gap, low, high, least = (
        _number(line[name], 2, sign=name == "difference")
        for name in ("left", "right", "difference", "low", "high", "detectable")
    )
    return [one, other, gap, low, high, _p(line["p"]), least]


def _number(value: float | None, digits: int, *, sign: bool = False) -> str:
    return "-" if value is None else number_text(value, digits, sign=sign)


def _p(value: float | None) -> str:
    return "-" if value is None else parts_of(PValue(value))[0]


def _differences(title: str, heads: Sequence[str], found: Sequence[Mapping[str, Any]]) -> str:
    """Return what run cards state differently, the first of each place with its name."""
    rows = []
    for where, lines in groupby(found, key=lambda line: str(line["where"])):
        for i, line in enumerate(lines):
            cells = ["" if i else where, line["key"], _short(line["left"]), _short(line["right"]), str(line["n_cards"])]
            rows.append(cells[: len(heads)])
    return _part(title, heads, rows) or f"{title}\n{NOTHING}"


def _short(value: str) -> str:
    """Return a value that fits beside another one on a line."""
    return value if len(value) <= WIDEST else f"{value[: WIDEST - 3]}..."


def _by_policy(cells: Sequence[str]) -> Iterator[list[str]]:
    """Yield one row a policy: how many of its cells, and which where they are few."""
    for policy, group in groupby(cells, key=lambda cell: cell.partition("/scores/")[0]):
        names = [cell.partition("/scores/")[2] for cell in group]
        yield [policy, f"{len(names)} cells" if len(names) > MOST_CELLS else ", ".join(names)]
