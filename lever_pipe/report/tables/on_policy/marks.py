"""Where on-policy GRPO stands between its marks: base, REINFORCE, oracle distillation, pool oracle, chance."""

from __future__ import annotations

from collections.abc import Sequence

from lever_pipe.report.tables.comparisons.estimates import ComparisonRow
from lever_pipe.report.tables.comparisons.families import MARKS, ORACLE
from lever_pipe.report.tables.comparisons.inference import DETECTABLE
from lever_pipe.report.tables.evidence import ALPHA, MEAN, kind_of, p_text
from lever_pipe.report.tables.on_policy.gains import OTHER_SEEDS, interval_text, methods, tested
from lever_pipe.report.tables.on_policy.study import (
    DISTIL,
    ON_POLICY,
    REINFORCE,
    SECTION,
    PresetRuns,
    Run,
    id_of,
    names_with,
)
from lever_pipe.report.tables.policies import label_of
from lever_pipe.report.tables.table import GROUP, Table, frame_of, groups_of
from lever_pipe.report.tables.text import number, sentences

CHANCE = "baseline/random"
SHORT = {
    "rce": "RCE base",
    "on_policy": "On-policy GRPO",
    "reinforce": "REINFORCE",
    "distil": "Oracle distillation",
    ORACLE: "Pool oracle",
}
"""Names in sentences, by run or group."""
RUNS = "Runs"  # seeds of a trained policy, draws of a baseline


def marks_table(study: PresetRuns) -> Table:
    """Return the accuracies of base, marks and the on-policy run of the smallest KL_BETA by shots."""
    rows = [_row(study, group) for group in mark_groups(study)]
    columns = ["Policy", RUNS, *(f"Shot {k}" for k in study.shots), "Mean"]
    return Table(
        id_of(study, "marks"),
        SECTION,
        names_with(study, f"On-policy GRPO between its marks, {study.samples} samples"),
        sentences(
            "VQA accuracy in percent with its 95 % interval, mean over the seeds or draws of a row.",
            OTHER_SEEDS,
            "REINFORCE: the plain score function with a baseline from the other queries, one update a batch and no "
            "clip.",
            "Oracle distillation: supervised on the candidates that the annotations rank first.",
            "Pool oracle: that ranking itself, which knows the answers.",
        ),
        frame_of(rows, columns),
        factor="policy base seed",
        groups=groups_of(rows),
    )


def differences_table(study: PresetRuns) -> Table | None:
    """Return the paired differences between the marks at every shot count; None where nothing was compared."""
    found = [row for row in study.measured.tests.values() if kind_of(row.family) == study.family(MARKS)]
    rows = [_difference(row) for row in found]
    if not rows:
        return None
    columns = ["Policy", "Against", "Shots", "Difference", "p", "Holm p", "Detectable", "Seeds compared"]
    return Table(
        id_of(study, "mark-differences"),
        SECTION,
        names_with(study, f"Differences between on-policy GRPO and its marks, {study.samples} samples"),
        sentences(
            "Difference: policy minus the other, in points, with its 95 % interval.",
            f"Holm p: adjusted for {len(rows)} comparisons.",
            methods(found),
            DETECTABLE,
        ),
        frame_of(rows, columns),
        factor="policy base seed",
        groups=groups_of(rows),
        lead=_lead(found),
    )


def mark_groups(study: PresetRuns) -> list[str]:
    """Return the groups of the marks in rising order of what they know, those that were evaluated."""
    first = [*study.at_last(ON_POLICY)[:1], *study.at_last(DISTIL)]
    runs: list[Run] = [*([study.start] if study.start else []), *study.at_last(REINFORCE), *first]
    return [*_evaluated(study, [CHANCE]), *(run.group for run in runs), *_evaluated(study, [ORACLE])]


def _evaluated(study: PresetRuns, groups: Sequence[str]) -> list[str]:
    known = {cell.group for cell in study.measured.evidence.intervals}
    return [group for group in groups if group in known]


def _row(study: PresetRuns, group: str) -> dict[str, str]:
    headings = {column: "Mean" if column == MEAN else f"Shot {column}" for column in study.columns}
    found = {
        heading: study.measured.evidence.interval(group, study.samples, column) for column, heading in headings.items()
    }
    runs = str(next(iter(found.values())).n_runs)
    return {"Policy": label_of(group), RUNS: runs, **{h: i.text() for h, i in found.items()}, GROUP: group}


def _difference(row: ComparisonRow) -> dict[str, str]:
    return {
        "Policy": label_of(row.left),
        "Against": label_of(row.right),
        "Shots": row.shots,
        **tested(row),
        "Detectable": number(row.detectable, 2),
        "Seeds compared": str(row.n_runs),
        GROUP: f"{row.left} {row.right}",
    }


def _lead(rows: Sequence[ComparisonRow]) -> str:
    """Return each difference at the mean over shots, and whether it is separated."""
    return " ".join(
        f"{_short(row.left)} against {_short(row.right)}: {interval_text(row)} points, mean over shots, "
        f"{'separated' if row.p_holm < ALPHA else 'not separated'} (Holm p {p_text(row.p_holm)})."
        for row in rows
        if row.shots == MEAN
    )


def _short(group: str) -> str:
    return SHORT.get(group if group == ORACLE else group.split("/")[1], label_of(group))
