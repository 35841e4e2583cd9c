"""Comparisons, modes and presets from a small evidence."""

from __future__ import annotations

from typing import get_args

from lever_pipe.experiment.arms import ExtraObjective
from lever_pipe.experiment.report import ReportedRun
from lever_pipe.report.catalogue import Translator
from lever_pipe.report.context import ReportContext
from lever_pipe.report.evidence import Evidence, EvidenceRow
from lever_pipe.report.selector.comparisons import tables
from lever_pipe.report.table import Table

ENGLISH = Translator("en")
RCE, SMALL, LARGE = (
    f"preset~main/{name}" for name in ("rce/epoch~5", "grpo/base~5/beta~0/epoch~3", "grpo/base~5/beta~0.15/epoch~3")
)
ON_POLICY = "preset~main/on_policy/base~5/beta~0/epoch~3"


def level_rows(subject: str, value: float) -> list[EvidenceRow]:
    at = {"subset": "prefix", "samples": "200", "low": value - 1, "high": value + 1, "n": 200, "runs": 3}
    return [EvidenceRow("lever", subject, "accuracy", value, shots=k, **at) for k in ("1", "2", "mean")]


def gap_rows(left: str, right: str, family: str, value: float, p: float, shots: tuple[str, ...]) -> list[EvidenceRow]:
    at = {
        "against": right,
        "subset": "prefix",
        "samples": "200",
        "family": family,
        "p_holm": p,
        "low": -1.0,
        "high": 9.0,
    }
    return [EvidenceRow("lever", left, "accuracy", value, shots=k, detectable=1.5, runs=3, **at) for k in shots]


def built(*more: EvidenceRow) -> dict[str, Table]:
    rows = [row for name, value in ((RCE, 70.0), (SMALL, 71.0), (LARGE, 72.0)) for row in level_rows(name, value)]
    rows += gap_rows(LARGE, RCE, "grpo-against-rce", 2.0, 0.01, ("mean",))
    rows += gap_rows(LARGE, RCE, "grpo-against-rce-by-shots", 3.0, 0.2, ("1", "2"))
    rows += gap_rows(SMALL, LARGE, "document-001/epoch~3", -1.0, 0.5, ("1", "2", "mean"))
    rows += [EvidenceRow("lever", RCE, "accuracy.left", 71.0, against=SMALL, shots="2")]
    context = ReportContext(Evidence([*rows, *more]), ReportedRun(studies=(), main_preset="main"))
    return {table.id: table for table in tables(context) if len(table.frame)}


def texts(table: Table) -> list[list[str]]:
    return [list(map(ENGLISH.text, row.values())) for row in table.rows]


def test_a_pair_is_one_line_whose_other_shots_come_from_their_own_family() -> None:
    found = built()
    (line,) = texts(found["comparisons-primary"])
    heads = [ENGLISH.text(head) for head in found["comparisons-primary"].heads]
    displayed = dict(zip(heads, line, strict=True))
    assert displayed["Shot 1"] == "+3.0 [-1.0, 9.0]"  # of the family by shots
    assert displayed["Mean"] == "+2.00 [-1.0, 9.0]"
    assert displayed["Holm p"] == "0.010"  # of the mean alone
    assert [line[0] for line in texts(found["comparisons-secondary"])] == ["Document 001, epoch 3"]


def test_modes_are_compared_by_the_distance_that_is_measured_alike() -> None:
    logged = [EvidenceRow("lever", ON_POLICY, "kl_exact", 9.0)]
    measured = [EvidenceRow("lever", ON_POLICY, "kl_to_base", 0.25, at="from base")]
    for rows in (logged + measured, measured):
        table = built(*level_rows(ON_POLICY, 75.0), *rows)["modes"]
        heads = [ENGLISH.text(head) for head in table.heads]
        assert dict(zip(heads, texts(table)[1], strict=True))["KL to RCE"] == "0.250"


def test_every_extra_objective_next_to_on_policy_runs_has_its_line_and_name() -> None:
    of_marks = {"reinforce": "reinforce/base~5/beta~0", "continued": "continued/base~5", "distil": "distil/base~5"}
    assert set(of_marks) == set(get_args(ExtraObjective))
    rows = [row for name in of_marks.values() for row in level_rows(f"preset~main/{name}/epoch~3", 75.0)]
    displayed = [line[0] for line in texts(built(*level_rows(ON_POLICY, 75.0), *rows)["modes"])]
    assert displayed[-3:] == ["REINFORCE", "RCE continued", "Oracle distillation"]
