"""Every accuracy of the study: mode by KL_BETA by epoch by samples by shots."""

from __future__ import annotations

from lever_pipe.report.tables.evidence import MEAN
from lever_pipe.report.tables.on_policy.gains import FACTOR
from lever_pipe.report.tables.on_policy.study import (
    DISTIL,
    NAMES,
    OFFLINE,
    ON_POLICY,
    RCE,
    REINFORCE,
    SECTION,
    PresetRuns,
    Run,
    id_of,
    names_with,
)
from lever_pipe.report.tables.table import GROUP, Table, frame_of, groups_of

KINDS = (RCE, ON_POLICY, OFFLINE, REINFORCE, DISTIL)


def cells_table(study: PresetRuns) -> Table:
    """Return a row for each run, epoch and sample count, a column a shot count."""
    runs = [run for kind in KINDS for run in study.runs(kind)]
    rows = [_row(study, run, samples) for run in runs for samples in _samples(study, run)]
    columns = ["Mode", "KL_BETA", "Epoch", "Samples", "Seeds", *(f"Shot {k}" for k in study.shots), "Mean"]
    return Table(
        id_of(study, "cells"),
        SECTION,
        names_with(study, "On-policy and offline GRPO: every accuracy"),
        "VQA accuracy in percent with its 95 % interval, mean over the seeds of a row. Mean: over shots.",
        frame_of(rows, columns),
        factor=f"{FACTOR} epoch samples",
        groups=groups_of(rows),
    )


def _samples(study: PresetRuns, run: Run) -> list[int]:
    rows = study.rows[study.rows["kind"] == run.kind]
    return sorted({int(n) for n in rows["samples"]})


def _row(study: PresetRuns, run: Run, samples: int) -> dict[str, str]:
    headings = {column: "Mean" if column == MEAN else f"Shot {column}" for column in study.columns}
    return {
        "Mode": NAMES[run.kind],
        "KL_BETA": run.beta_text,
        "Epoch": str(run.epoch),
        "Samples": str(samples),
        "Seeds": str(len(run.seeds)),
        **{heading: study.interval(run, column, samples).text() for column, heading in headings.items()},
        GROUP: run.group,
    }
