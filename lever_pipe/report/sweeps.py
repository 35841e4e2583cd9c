"""Sweeps: a table for each, with its cells against the swept arm; the data choose the cell named as highest."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from lever_pipe.base.policy_names import PolicyName
from lever_pipe.experiment.sweeps import Sweep, swept
from lever_pipe.report.agent.runs import view_of
from lever_pipe.report.cells import Cell, code, gap, holm, level, message, part
from lever_pipe.report.context import ReportContext
from lever_pipe.report.evidence import EvidenceRow
from lever_pipe.report.table import Row, Table, framed

Rows = Mapping[tuple[str, str], EvidenceRow]
"""By decoding (empty for the selector) and arm."""
HEADS = ("Score", "Difference", "Holm p")
KINDS = {"lever": "selector", "intention": "agent"}
LOCATION = ("at", "subset", "samples", "shots", "mode")
WORDS = {
    "sampled": "Sampled",
    "greedy": "Greedy",
}


class SweepView(NamedTuple):
    """A sweep with its cells at the primary endpoint, and their differences from the swept arm."""

    sweep: Sweep
    study: str
    measured: Sequence[str]
    """Names of the scores, which are suffixes of their messages."""
    scale: float
    digits: int
    scores: Rows
    gaps: Rows

    @property
    def modes(self) -> Sequence[str]:
        """Return the decodings."""
        return list(dict.fromkeys(mode for mode, _ in self.scores))

    def cells(self, mode: str, arm: str) -> tuple[Cell, Cell, Cell]:
        """Return a score, its difference from the swept arm, and the Holm p of the difference."""
        row, contrast = self.scores[mode, arm], self.gaps.get((mode, arm))
        return level(row, self.digits, scale=self.scale), gap(contrast, self.digits, scale=self.scale), holm(contrast)


def views_of(context: ReportContext) -> Iterator[SweepView]:
    """Yield every sweep that has complete results."""
    agents, endpoints = view_of(context), list[tuple[Any, ...]]()
    endpoints += [(sweep, "lever", "accuracy", 1.0, 2) for sweep in context.config.sweeps]
    if agents is not None:
        primary = ("intention", agents.config.evaluation.primary.metric, agents.scale, agents.digits)
        endpoints += [(sweep, *primary) for sweep in agents.config.sweeps]
    for sweep, study, metric, scale, digits in endpoints:
        cells, every = swept([sweep]), context.evidence.where(metric=metric, study=study)
        rows = [row for row in every if _arm(row.against) == sweep.arm and _arm(row.subject) in cells]
        scores = {
            (row.mode, _arm(side)): context.evidence.get(side, metric, study=study, **location)
            for row in rows
            for location in [{name: getattr(row, name) for name in LOCATION}]
            for side in (row.against, row.subject)
        }
        sides = dict.fromkeys(side for row in rows for side in (row.against, row.subject))
        measured = list(dict.fromkeys(PolicyName.parse(side).kind for side in sides)) if study == "lever" else [metric]
        gaps = {(row.mode, _arm(row.subject)): row for row in rows}
        if len(scores) == len(sweep.cells) * len({mode for mode, _ in scores}) > 0:  # every cell has a score
            yield SweepView(sweep, KINDS[study], measured, scale, digits, scores, gaps)


def tables(context: ReportContext) -> Iterator[Table]:
    """Yield one table for each sweep."""
    for view in views_of(context):
        keys, arm = [code(key) for key in view.sweep.over], code(view.sweep.arm)
        rows: list[Row] = []
        for cell in view.sweep.cells:
            cells: dict[Any, Cell] = dict(zip(keys, map(text_of, cell.values.values()), strict=True))
            for mode in view.modes:
                cells |= zip((_in_mode(mode, head) for head in HEADS), view.cells(mode, cell.arm), strict=True)
            runs = part(view.scores[view.modes[0], cell.arm], "runs", 0)
            rows.append({**cells, "Runs": runs, "Arm": code(cell.arm)})
        facts = {
            "arm": view.sweep.arm,
            "highest": [_highest(view, mode) for mode in view.modes],
            "measured": view.measured,
            "tests": sum(holm(row) is not None for row in view.gaps.values()) // len(view.modes),
            **_ended_early(context, view),
        }
        title = message("Sweep {name}: {keys} of arm {arm}", name=code(view.sweep.name), keys=keys, arm=arm)
        id_and_section = f"sweep-{view.study}-{view.sweep.name}", f"sweeps-{view.study}"
        yield Table(*id_and_section, title, framed(rows), facts, "sweep")


def _ended_early(context: ReportContext, view: SweepView) -> dict[str, Any]:
    """Return the agents of a sweep that ended before the last step."""
    agents = context.config.agents
    if view.study != "agent" or agents is None:
        return {"early": []}
    ran, last = context.evidence.where(metric="executed_steps", at="run"), agents.grpo.steps
    early = {_arm(row.subject) for row in ran if row.value < last}
    arms = [code(cell.arm) for cell in view.sweep.cells if cell.arm in early]
    return {"early": arms, "steps": last, "compared": agents.evaluation.primary.checkpoint}


def text_of(value: Any) -> str:
    """Return a key's value as text for tables and figures."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _arm(subject: str) -> str:
    """Return the preset or arm at the start of a subject's name."""
    return subject.partition("/")[0].partition("~")[2]


def _highest(view: SweepView, mode: str) -> Cell:
    """Return the highest cell in a decoding and its difference from the swept arm, which wins ties."""
    cells, base = view.sweep.cells, view.sweep.arm
    best = max(cells, key=lambda cell: (view.scores[mode, cell.arm].value, cell.arm == base))
    score, difference, p = view.cells(mode, best.arm)
    args: dict[str, Any] = {"n": len(cells), "score": score, "base": code(base), "gap": difference}
    args |= {"p": p or "-", "values": [f"{key} {text_of(value)}" for key, value in best.values.items()]}
    return _in_mode(
        mode,
        message(
            "The highest of {n} cells is {base} itself with {score}."
            if best.arm == base
            else "The highest of {n} cells is {values} with {score}, {gap} to {base} (Holm p {p}).",
            **args,
        ),
    )


def _in_mode(mode: str, text: Cell) -> Cell:
    return message("{mode}: {text}", mode=WORDS[mode], text=text) if mode else text
