"""`python -m lever_pipe compare A B`: two policies, or two whole runs, in tables that a person can read.

A policy is named as in the results (`preset~world/rce/seed~0/epoch~5`, `baseline/similar_both`), or without its seed or
draw for all of them (`preset~world/rce/epoch~5`), or by the path of its folder. A run is a results folder.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lever_pipe.base.errors import ComparisonError, UnknownMemberError
from lever_pipe.base.policy_names import group_of
from lever_pipe.base.records import EpochMetrics, Example, RunCard
from lever_pipe.base.sections import did_you_mean
from lever_pipe.base.storage import read_row, read_rows, read_selections
from lever_pipe.commands import card_differences as cards
from lever_pipe.commands import side_by_side
from lever_pipe.commands import two_policies as lines
from lever_pipe.commands.telling import as_json, plain
from lever_pipe.report.inference.estimates import Draws
from lever_pipe.report.inference.per_question import GroupScores, group_runs, read_scores, with_mean
from lever_pipe.runtime.plan import batch_of
from lever_pipe.statistics.comparison import holm

STUDY = "lever"
SCORES, SCORES_CARD = "scores/per_question.jsonl", "scores/run.json"
EXAMPLES = "examples/eval.jsonl"
CARDS = {"training": "run.json", "selection": "selections.run.json", "scoring": SCORES_CARD}
DRAWS = Draws(seed=42, n_resamples=10_000)


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison: runs of one policy within a study's folder."""

    study: Path
    runs: tuple[str, ...]

    @property
    def name(self) -> str:
        """Return the policy's name, without seed or draw where it stands for several runs."""
        return self.runs[0] if len(self.runs) == 1 else group_of(self.runs[0])

    def files(self, name: str) -> list[Path]:
        """Return this file of every run, or none where a run has none."""
        paths = [self.study / run / name for run in self.runs]
        return paths if all(path.is_file() for path in paths) else []


def main(words: Sequence[str]) -> int:
    """Compare two policies or two runs, print the result and return 0.

    Raises:
        ComparisonError: a policy against a run, or scores that do not exist.
        UnknownMemberError: no such policy.
    """
    options = _parser().parse_args(words[1:])
    given = (options.a, options.b)
    are_runs = {(Path(name) / STUDY).is_dir() for name in given}
    if len(are_runs) > 1:
        raise ComparisonError(
            "compare: expected two policies or two results folders",
            found=" and ".join(given),
            do=f"Name two of a kind; a results folder holds the folder {STUDY}.",
        )
    found = (
        compare_runs(*(Path(name) / STUDY for name in given))
        if are_runs == {True}
        else compare_sides(*(find_side(name, Path(options.results) / STUDY) for name in given))
    )
    sys.stdout.write(as_json(found) if options.json else f"{side_by_side.text(plain(found))}\n")
    return 0


def find_side(name: str, study: Path) -> Side:
    """Return the runs that a policy's name, a name without seed, or a folder means.

    Args:
        name: as given on the command line; the path of a folder may lead to another study.
        study: folder of the study.

    Raises:
        UnknownMemberError: no such policy among the results.
        ComparisonError: the policy was not scored; the message names the file to ask Snakemake for.
    """
    wanted, parts = name.strip("/"), Path(name).parts
    if Path(name).is_dir() and STUDY in parts:
        cut = len(parts) - parts[::-1].index(STUDY)
        study, wanted = Path(*parts[:cut]), "/".join(parts[cut:])
    known = policies_in(study)
    runs = [policy for policy in known if wanted in (policy, group_of(policy))]
    if not runs:
        names, otherwise = {*known, *map(group_of, known)}, "Name one of its folders, or give --results."
        do = did_you_mean(wanted, names, otherwise)
        raise UnknownMemberError(f"compare: expected a policy of {study}", found=f"'{wanted}'", do=do)
    missing = [f"{study}/{run}/{SCORES}" for run in runs if not (study / run / SCORES).is_file()]
    if missing:
        raise ComparisonError(
            f"compare: expected scores of {wanted}", found="none", do=f"Run: snakemake {' '.join(missing)}"
        )
    return Side(study, tuple(runs))


def policies_in(study: Path) -> list[str]:
    """Return the names of all policies with metrics, selections or scores, sorted."""
    folders = {path.parent for name in ("selections.jsonl", "metrics.json") for path in study.rglob(name)}
    folders |= {path.parents[1] for path in study.rglob(SCORES)}
    names = (path.relative_to(study).as_posix() for path in folders)
    return sorted(name for name in names if name.startswith(("preset~", "baseline/")))


def compare_sides(left: Side, right: Side) -> dict[str, Any]:
    """Return everything that is told of two policies, by part.

    Raises:
        ComparisonError: they have no shot count in common.
        RecordError: a malformed file.
    """
    sides = (left, right)
    one, other = _scores(*sides)
    chosen = [[read_selections(path) for path in side.files("selections.jsonl")] for side in sides]
    logged = [[read_row(path, EpochMetrics).values for path in side.files("metrics.json")] for side in sides]
    shots, same_questions = [int(column) for column in one.columns[:-1]], _same_questions(left, right)
    is_paired = same_questions and all(chosen)  # of other questions equal numbers mean nothing
    pairs = lines.pairs_of(*chosen, same_runs=one.shares_seeds_with(other)) if is_paired else []
    return {
        "left": left.name,
        "right": right.name,
        "runs": [len(side.runs) for side in sides],
        "questions": [scores.accuracies.shape[1] for scores in (one, other)],
        "same_questions": same_questions,
        "question_sets": None if same_questions else question_sets(left.study, right.study),
        "accuracies": lines.accuracy_lines(one, other, DRAWS, same_questions=same_questions),
        "metrics": lines.metric_lines(*logged),
        "agreement": lines.agreement_lines(pairs, shots),
        "differences": list(_card_differences(left, right)),
    }


def compare_runs(left: Path, right: Path) -> dict[str, Any]:
    """Return everything that is told of two studies: common groups by size of difference, cells, configuration.

    Raises:
        RecordError: a malformed file.
        ComparisonError: the studies have no scored policy in common.
    """
    groups, others = _groups_of(left), _groups_of(right)
    rows = [{"group": name, **_mean_line(groups[name], others[name])} for name in groups if name in others]
    if not rows:
        raise ComparisonError(
            f"compare: expected a policy that both {left} and {right} have scored",
            found="none",
            do="Score one of them in both.",
        )
    tested = [row for row in rows if not math.isnan(row["p"])]
    for row, adjusted in zip(tested, holm([row["p"] for row in tested]), strict=True):
        row["p_holm"] = float(adjusted)
    cells = [_cells(study) for study in (left, right)]
    same_questions = all(row["same_questions"] for row in rows)
    return {
        "left": str(left),
        "right": str(right),
        "same_questions": same_questions,
        "question_sets": None if same_questions else question_sets(left, right),
        "groups": sorted(rows, key=lambda row: (-abs(row["difference"]), row["group"])),
        "only_left": cells[0] - cells[1],
        "only_right": cells[1] - cells[0],
        "differences": cards.of_runs(left, right),
    }


def _mean_line(left: Side, right: Side) -> dict[str, Any]:
    one, other = _scores(left, right)
    same_questions = _same_questions(left, right)
    line = lines.accuracy_lines(one, other, DRAWS, same_questions=same_questions)[-1]
    counts = [side.accuracies.shape[1] for side in (one, other)]
    return {"questions": counts, "same_questions": same_questions, **line._asdict(), "p_holm": math.nan}


def question_sets(left: Path, right: Path) -> dict[str, int] | None:
    """Return how many questions two studies evaluate on, and how they differ; None where their examples are gone.

    Questions are the same by their id in the raw data; `changed` ones have other words, another image or other answers.
    """
    paths = [study / EXAMPLES for study in (left, right)]
    if not all(path.is_file() for path in paths):
        return None
    one, other = ({row.question_id: row for row in read_rows(path, Example)} for path in paths)
    common = one.keys() & other.keys()
    asked = [{key: (of[key].question, of[key].image_digest, of[key].answers) for key in common} for of in (one, other)]
    changed = sum(asked[0][key] != asked[1][key] for key in common)
    return {"left": len(one), "right": len(other), "common": len(common), "changed": changed}


def _scores(left: Side, right: Side) -> tuple[GroupScores, GroupScores]:
    """Return the accuracies of both sides at the shot counts that all runs have, the mean over these included."""
    found = [{run: read_scores(side.study / run / SCORES) for run in side.runs} for side in (left, right)]
    counts = [set.intersection(*(set(scores.shots) for scores in of.values())) for of in found]
    shots = sorted(counts[0] & counts[1])
    if not shots:
        raise ComparisonError(
            f"compare: expected a shot count that {left.name} and {right.name} have in common",
            found=" and ".join(", ".join(map(str, sorted(of))) for of in counts),
            do="Score both at the same evaluation.shots.",
        )
    runs = [
        {run: with_mean(scores.accuracies[:, np.searchsorted(scores.shots, shots)]) for run, scores in of.items()}
        for of in found
    ]
    one, other = (group_runs({side.name: of}, shots)[side.name] for side, of in zip((left, right), runs, strict=True))
    return one, other


def _same_questions(left: Side, right: Side) -> bool:
    """Return whether both sides were scored on the same evaluation examples, by their content."""
    made = (read_row(path, RunCard) for side in (left, right) for path in side.files(SCORES_CARD))
    return len({card.inputs["eval_examples"] for card in made}) == 1


def _groups_of(study: Path) -> dict[str, Side]:
    scored = [policy for policy in policies_in(study) if (study / policy / SCORES).is_file()]
    groups = dict.fromkeys(map(group_of, scored))
    return {name: Side(study, tuple(policy for policy in scored if group_of(policy) == name)) for name in groups}


def _cells(study: Path) -> set[str]:
    return {path.relative_to(study).with_suffix("").as_posix() for path in study.rglob("scores/samples~*/shots~*.json")}


def _card_differences(left: Side, right: Side) -> Iterator[cards.Differing]:
    """Yield what the run cards of each side's first run state differently, those of its answers included."""
    for where, name in {**CARDS, "answers": None}.items():
        places = [
            side.study / (f"{side.runs[0]}/{name}" if name else f"answers/{batch_of(side.runs[0])}/run.json")
            for side in (left, right)
        ]
        if all(place.is_file() for place in places):
            yield from cards.differing(where, *(read_row(place, RunCard) for place in places))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lever_pipe compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("a", metavar="A", help="a policy or a results folder")
    parser.add_argument("b", metavar="B", help="what it is compared with")
    parser.add_argument("--results", default="results", help="results folder that holds the named policies")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--debug", action="store_true", help="show the traceback of a fault")
    return parser
