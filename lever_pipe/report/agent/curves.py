"""What every arm and run shows beside document 004: rewards by step, secondary endpoints, curves and runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lever_pipe.report.agent.runs import MODES, PERCENT, REWARD_DIGITS, STUDY, AgentView, run_of, table_of
from lever_pipe.report.cells import Cell, Name, gap, holm, level, say
from lever_pipe.report.table import Column, Table, TableLine

SECTION = "004"
STEADINESS = {"best_step": 0, "sd_of_changes": 3, "error": 3, "fresh_error": 3, "excess_sd": 3}
SHAPE = {"sd": 4, "slope": 3, "r_squared": 2, "von_neumann": 2, "lag_one": 2, "flat_chance_of_drawdown": 3}
"""Statistics of a curve, with their decimals; a slope is printed for 100 steps."""
SHARES = ("share_policy", "share_kl", "share_entropy")


def tables(view: AgentView) -> Iterator[Table]:
    """Yield the tables that have a line."""
    made = (*(_rewards(view, mode) for mode in MODES), _secondary(view), _curves(view), _runs(view))
    yield from (table for table in made if table.lines)


def _rewards(view: AgentView, mode: str) -> Table:
    validations = view.evidence.where(metric="reward", study=STUDY, subset="val")
    steps = sorted({int(row.at) for row in validations if row.at.isdigit()})

    def cells(subject: str) -> Iterator[Cell]:
        for step in steps:
            yield level(view.find(subject, "reward", at=step, subset="val", mode=mode), REWARD_DIGITS)

    lines = (line for arm in view.arms for line in _line((Name(arm.name),), cells(f"arm~{arm.name}")))
    columns: tuple[str | Column, ...] = (
        "arm",
        *(Column(say("agent.head.at_step", step=Name(str(step)))) for step in steps),
    )
    title = say("agent.rewards", mode=say(f"agent.{mode}"))
    return table_of(f"agent-rewards-{mode}", title, columns, lines, section=SECTION)


def _secondary(view: AgentView) -> Table:
    thresholds = view.config.evaluation.thresholds

    def cells(subject: str, mode: str) -> Iterator[Cell]:
        rewards = (view.find(subject, "reward", at=at, subset="val", mode=mode) for at in ("start", "last"))
        endpoints = (view.find(subject, name, mode=mode) for name in ("gain", "last3", "trapezoid"))
        yield from (level(row, REWARD_DIGITS) for row in (*rewards, *endpoints))
        compared = view.find(subject, "trapezoid", mode=mode, against=f"arm~{view.reference}", family="secondary")
        yield from (gap(compared, REWARD_DIGITS), holm(compared))
        yield level(view.find(subject, "best_value", mode=mode), REWARD_DIGITS)
        steps = ("best_step", *(f"steps_to_{share:g}" for share in thresholds), "steps_to_others_best")
        yield from (level(view.find(subject, name, mode=mode), 1) for name in steps)
        yield level(view.find(subject, "drawdown", mode=mode), REWARD_DIGITS)

    lines = (
        line
        for arm in view.arms
        for mode in MODES
        for line in _line((Name(arm.name), say(f"agent.{mode}")), cells(f"arm~{arm.name}", mode))
    )
    heads = ("arm", "curve", "start", "last", "gain", "last3", "trapezoid", "trapezoid_difference", "holm", "best")
    shares = (Column(say("agent.head.at_share", threshold=share)) for share in thresholds)
    columns: tuple[str | Column, ...] = (*heads, "best_step", *shares, "others_best", "drawdown")
    return table_of(
        "agent-secondary", "agent.secondary", columns, lines, section=SECTION, notes=("agent.secondary_note",)
    )


def _curves(view: AgentView) -> Table:
    def cells(subject: str, mode: str) -> Iterator[Cell]:
        yield from (level(view.find(subject, name, mode=mode), digits) for name, digits in STEADINESS.items())
        for name, digits in SHAPE.items():
            row = view.find(subject, f"curve.{name}", subset="val", mode=mode)
            yield level(row, digits, scale=100 if name == "slope" else 1)

    lines = (
        line
        for arm, seed in _every_run(view)
        for mode in MODES
        for line in _line((Name(arm), Name(str(seed)), say(f"agent.{mode}")), cells(run_of(arm, seed), mode))
    )
    heads = ("arm", "seed", "curve", *STEADINESS, *SHAPE)
    return table_of("agent-curves", "agent.curves", heads, lines, section=SECTION, notes=("agent.curves_note",))


def _runs(view: AgentView) -> Table:
    def cells(subject: str) -> Iterator[Cell]:
        yield from (
            level(view.find(subject, of, at="run"), 0) for of in ("planned_steps", "executed_steps", "best_step")
        )
        for at in ("best", "last"):
            for subset in ("val", "test"):
                row = view.find(subject, "normalised_reward", at=at, subset=subset, mode="sampled")
                yield level(row, 1, scale=PERCENT)
        yield level(view.find(subject, "cumulative_learning_rate"), 5)
        yield from (level(view.find(subject, name), 1, scale=PERCENT) for name in SHARES)
        yield level(view.find(subject, "seconds", at="run"), 1)

    lines = (
        line for arm, seed in _every_run(view) for line in _line((Name(arm), Name(str(seed))), cells(run_of(arm, seed)))
    )
    heads = ("arm", "seed", "planned_steps", "executed_steps", "selected_step", "val_best", "test_best", "val_last")
    columns = (*heads, "test_last", "cumulative_learning_rate", *SHARES, "seconds")
    return table_of("agent-runs", "agent.runs", columns, lines, section=SECTION, notes=("agent.runs_note",))


def _every_run(view: AgentView) -> Iterator[tuple[str, int]]:
    return ((arm.name, seed) for arm in view.arms for seed in view.seeds[arm.name])


def _line(names: Sequence[Cell], cells: Iterator[Cell]) -> Iterator[TableLine]:
    """Yield the line of an arm or run, where it has a number."""
    found = tuple(cells)
    if any(cell is not None for cell in found):
        yield TableLine((*names, *found))
