"""How far the arms' runs came, at what cost, and what selecting a checkpoint is worth."""

from __future__ import annotations

import math

from lever_pipe.report.tables.intention.agent_runs import RunFacts
from lever_pipe.report.tables.intention.arms import SECTION
from lever_pipe.report.tables.intention.shown import Shown
from lever_pipe.report.tables.intention.task_values import NORMALISED
from lever_pipe.report.tables.table import Table, frame_of
from lever_pipe.report.tables.text import listing, number, sentences, signed

MINUTES_APART = (
    "Minutes: all training steps with their evaluations and checkpoints; the evaluations of the start and of held-out "
    "tasks are left out."
)
MINUTES_WITHIN = "Minutes: sum over training steps, their evaluations included."

COUNTED = (("Simulator failures", "simulator_failures"), ("Time-outs", "environment_timeouts"))
TROUBLES = (
    "Simulator failures, time-outs and malformed ends: of the episodes of training; a malformed end is a turn without "
    "a readable call."
)


def tables(shown: Shown) -> list[Table]:
    """Return the tables of checkpoints and runs; a table of nothing is left out."""
    return [table for table in (_checkpoints(shown), _runs(shown)) if not table.frame.empty]


def _checkpoints(shown: Shown) -> Table:
    rows = []
    for fact in shown.runs.facts:
        selected, held, validated, last = (
            shown.found.by_seed(fact.arm, f"{name}_{NORMALISED}_sampled_{checkpoint}", [fact.seed])[0]
            for name, checkpoint in (("val", "best"), ("test", "best"), ("val", "last"), ("test", "last"))
        )
        if math.isnan(selected) or math.isnan(held):
            continue
        rows.append(
            {
                "Arm": fact.arm,
                "Seed": str(fact.seed),
                "Selected step": str(fact.best_step),
                "Validation": number(100 * selected, 1),
                "Held-out": number(100 * held, 1),
                "Held-out minus validation": signed(100 * (held - selected), 1),
                "Validation, last step": number(100 * validated, 1),
                "Held-out, last step": number(100 * last, 1),
                "Last minus selected": signed(100 * (last - held), 1),
            }
        )
    return Table(
        id="arms-checkpoints",
        document=SECTION,
        title="What the selected checkpoint is worth on held-out tasks",
        caption=sentences(
            f"Ours: {shown.size}.",
            "Selected: the step with the largest sampled validation reward, of ties the first.",
            "Sampled normalised reward in percent of the ceiling: the mean over tasks of their shares; the statistics "
            "of our curves have the ratio of the means.",
            "A best value is selected by its noise, too, so it may fall on held-out tasks; the last step shows how the "
            "two task sets differ.",
            "The documents report only the selected value.",
        ),
        frame=frame_of(rows, list(rows[0]) if rows else ["Arm"]),
    )


def _runs(shown: Shown) -> Table:
    rows = [
        {
            "Arm": fact.arm,
            "Seed": str(fact.seed),
            "Engine": fact.engine,
            "Planned steps": str(fact.planned_steps),
            "Executed steps": str(fact.executed_steps),
            "End": fact.reason,
            "Parameters": f"{fact.n_parameters:,}" if fact.n_parameters else "",
            "Device": fact.device,
            "Minutes": number(fact.seconds / 60, 1),
            **_troubles(shown, fact),
        }
        for fact in shown.runs.facts
    ]
    versions = list(dict.fromkeys(fact.version for fact in shown.runs.facts if fact.version))
    early = [_name(fact) for fact in shown.runs.facts if fact.executed_steps < fact.planned_steps]
    return Table(
        id="arms-runs",
        document=SECTION,
        title="Runs: planned and executed steps",
        caption=sentences(
            f"Ours: {shown.size}.",
            f"Ended before the planned steps: {listing(early)}." if early else "Every run executed its planned steps.",
            f"Metric definitions of {listing(f'`{version}`' for version in versions)}." if versions else "",
            MINUTES_APART if shown.config.engine == "native" else MINUTES_WITHIN,
            TROUBLES if any("Malformed ends (%)" in row for row in rows) else "",
        ),
        frame=frame_of(rows, list(dict.fromkeys(key for row in rows for key in row)) or ["Arm"]),
    )


def _troubles(shown: Shown, fact: RunFacts) -> dict[str, str]:
    """Return how often simulator, environment and agent failed in training; what is not logged is absent."""
    cells: dict[str, str] = {}
    for name, metric in COUNTED:
        series = shown.runs.training(fact.arm, fact.seed, metric)
        cells |= {name: f"{math.fsum(series.values()):g}"} if series else {}
    ends = shown.runs.training(fact.arm, fact.seed, "end_malformed")
    share = 100 * math.fsum(ends.values()) / len(ends) if ends else math.nan
    return cells | ({"Malformed ends (%)": number(share, 1)} if ends else {})


def _name(fact: RunFacts) -> str:
    return f"`{fact.arm}` seed {fact.seed}"
