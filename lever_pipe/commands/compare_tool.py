"""`lever-pipe compare A B`: which settings of two runs differ, and which of their results differ.

A and B are results folders. Settings are those of the run cards at equal places, each difference once with the number
of jobs that it concerns. Results are rows of `evidence.csv` with an interval: the accuracy of a policy as mean over
shots, the endpoints of an agent, both as mean over seeds. What one run lacks is `absent`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tabulate import tabulate

from lever_pipe.base import storage
from lever_pipe.base.records import RunCard
from lever_pipe.report.evidence import MEAN, EvidenceRow, read_evidence
from lever_pipe.runtime.rerun.why_names import flat

ABSENT = "absent"
KINDS = ("config", "code", "version", "commit", "device", "input")
OF_ANY_JOB = ("version", "commit", "device")
DIGEST = 12  # hexadecimal digits of a content digest that tell two files apart
WIDEST = 36  # characters of a printed value
NAMES = ("policy.", "shard")
"""Config keys that name the job itself."""


class DifferingSetting(NamedTuple):
    """What the cards of a stage's jobs state differently; `key` is dotted, behind one of `KINDS`."""

    stage: str
    key: str
    left: str
    right: str
    n_jobs: int


class DifferingResult(NamedTuple):
    """A quantity whose values differ; None where a run lacks it."""

    quantity: str
    left: float | None
    right: float | None


def main(words: Sequence[str]) -> int:
    """Print what differs between two runs and return 0."""
    parser = argparse.ArgumentParser(prog="lever-pipe compare", description=__doc__)
    parser.add_argument("a", metavar="A", type=Path, help="a results folder")
    parser.add_argument("b", metavar="B", type=Path, help="the results folder that it is compared with")
    options = parser.parse_args(words[1:])
    results, settings = differing_results(options.a, options.b), differing_settings(options.a, options.b)
    of_settings = [[f"{cell!s:.{WIDEST}}" for cell in line] for line in settings]
    of_results = []
    for name, a, b in results:
        gap = None if a is None or b is None else b - a
        of_results.append([name, *(ABSENT if value is None else f"{value:.6g}" for value in (a, b, gap))])
    sys.stdout.write(f"A  {options.a}\nB  {options.b}\n\n")
    sys.stdout.write(_table("Settings that differ", ("stage", "key", "A", "B", "jobs"), of_settings))
    sys.stdout.write("\n" + _table("Results that differ", ("quantity", "A", "B", "B - A"), of_results))
    return 0


def differing_settings(left: Path, right: Path) -> list[DifferingSetting]:
    """Return what the cards at equal places below two folders state differently, by kind and stage.

    Of an input the name alone is given: everything that follows from other content differs too.
    """
    counts: Counter[tuple[str, str, str, str]] = Counter()
    for path in sorted(left.rglob("*run.json")):
        if not (right / path.relative_to(left)).is_file():
            continue
        left_card, right_card = (storage.read_row(card, RunCard) for card in (path, right / path.relative_to(left)))
        left_facts, right_facts = dict(facts(left_card)), dict(facts(right_card))
        for key in left_facts | right_facts:
            a, b, kind = left_facts.get(key, ABSENT), right_facts.get(key, ABSENT), _kind(key)
            if a != b:
                stage = "any job" if kind in OF_ANY_JOB else left_card.stage
                counts[(stage, key, "one content", "another") if kind == "input" else (stage, key, a, b)] += 1
    settings = [DifferingSetting(*setting, n_jobs) for setting, n_jobs in counts.items()]
    return sorted(settings, key=lambda line: (KINDS.index(_kind(line.key)), line.stage, line.key))


def facts(card: RunCard) -> Iterator[tuple[str, str]]:
    """Yield what a card states: configuration, inputs, code, versions, commit and device, each as text."""
    for key, value in flat(card.config).items():
        if not key.startswith(NAMES):
            yield f"config.{key}", value if isinstance(value, str) else json.dumps(value)
    files: dict[str, list[str]] = {}
    for name, digest in card.inputs.items():  # a list of files stands as `name[0]`, `name[1]`, ...
        files.setdefault(name.partition("[")[0], []).append(digest)
    for name, digests in files.items():
        joint = hashlib.sha256("\n".join(digests).encode()).hexdigest()
        is_list = f"{name}[0]" in card.inputs
        yield f"input.{name}", f"{len(digests)} files {joint[:DIGEST]}" if is_list else digests[0][:DIGEST]
    yield "code", card.code
    for name, version in card.versions.items():
        yield f"version.{name}", version
    yield "commit", f"{card.commit[:DIGEST]}{' with changes' if card.dirty else ''}"
    yield "device", card.device


def differing_results(left: Path, right: Path) -> list[DifferingResult]:
    """Return the results of two runs whose values differ, in the order of their evidence."""
    a, b = ({row.key: row.value for row in _results(folder)} for folder in (left, right))
    return [DifferingResult(key, a.get(key), b.get(key)) for key in a | b if a.get(key) != b.get(key)]


def _results(folder: Path) -> list[EvidenceRow]:
    rows = (row for row in read_evidence(folder / "evidence.csv") if row.has_interval and not row.against)
    return [row for row in rows if row.shots in ("", MEAN) and "/seed~" not in row.subject]


def _kind(key: str) -> str:
    return key.partition(".")[0]


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return f"{title}\n\n{tabulate(rows, headers=heads, disable_numparse=True)}\n" if rows else f"{title}: none\n"
