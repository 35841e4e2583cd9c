"""Sweeps: a table for each, its cells against the arm that is swept, the highest one named as chosen by the data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from lever_pipe.experiment.sweeps import SelectorSweep, Sweep
from lever_pipe.report.agent.runs import AgentView, view_of
from lever_pipe.report.cells import Cell, Code, Name, Series, gap, holm, level, part, say
from lever_pipe.report.evidence import OF_ONE_RUN, EvidenceRow
from lever_pipe.report.inference.families import SWEEP
from lever_pipe.report.material import Material
from lever_pipe.report.table import Column, Table, TableLine

SELECTOR = ""
"""In the place of a decoding, where there is none."""
Rows = Mapping[str, EvidenceRow]
"""By arm."""


class SweepView(NamedTuple):
    """A sweep with what was measured of its cells, by decoding: the primary endpoint, and its difference to the arm."""

    sweep: Sweep
    study: Literal["selector", "agent"]
    scale: float
    digits: int
    scores: Mapping[str, Rows]
    gaps: Mapping[str, Rows]

    def highest(self, mode: str) -> str:
        """Return the arm of the highest score, of equal ones the first."""
        return max(self.scores[mode], key=lambda arm: self.scores[mode][arm].value)


def views_of(material: Material) -> Iterator[SweepView]:
    """Yield every sweep that has results."""
    agents, found = view_of(material), list[SweepView]()
    if material.has("lever"):
        found += [_of_selector(material, sweep) for sweep in material.config.sweeps]
    if agents is not None:
        found += [_of_agents(agents, sweep) for sweep in agents.config.sweeps]
    return (view for view in found if all(view.gaps.values()))


def tables(material: Material) -> Iterator[Table]:
    """Yield a table a sweep."""
    for view in views_of(material):
        sweep, modes = view.sweep, tuple(view.scores)
        lines = [_line(view, cell.arm, cell.values) for cell in sweep.cells]
        columns = [Column(say("sweeps.arm"), "name"), *(Column(Code(key), "name") for key in sweep.over)]
        columns += [Column(say(head)) for mode in modes for head in _heads(mode)]
        title = say("sweeps.title", name=Code(sweep.name), keys=[Code(key) for key in sweep.over], arm=Code(sweep.arm))
        tests = [sum(row.p_holm == row.p_holm for row in view.gaps[mode].values()) for mode in modes]
        told: dict[str, Any] = {"arm": Code(sweep.arm), "n": max(tests)}
        notes = (_unit(view), say("sweeps.chosen"), say(f"sweeps.holm{'' if len(modes) == 1 else '_each'}", **told))
        lead = Series(tuple(_highest(view, mode) for mode in modes), "sentences")
        yield Table(
            f"sweep-{view.study}-{sweep.name}",
            f"sweeps-{view.study}",
            title,
            (*columns, Column(say("head.runs"))),
            tuple(lines),
            lead,
            notes,
        ).without_empty_columns()


def text_of(value: Any) -> str:
    """Return a value of a key as tables and figures write it."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {text_of(of)}" for key, of in value.items())
    if isinstance(value, list):
        return ", ".join(map(text_of, value))
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"{value:g}" if is_number else str(value).lower() if isinstance(value, bool) else str(value or "\u2013")


def _of_selector(material: Material, sweep: SelectorSweep) -> SweepView:
    groups = {arm.preset: arm.judged(sweep.policy) or "" for arm in material.every_preset}
    names = {cell.arm: groups.get(cell.arm, "") for cell in sweep.cells}
    gaps = {
        arm: row
        for arm, group in names.items()
        for row in material.evidence.where(group, "accuracy", against=names[sweep.arm])
        if row.family.removesuffix(OF_ONE_RUN) == SWEEP + sweep.name
    }
    scores: dict[str, EvidenceRow] = {}
    for row in list(gaps.values())[:1]:
        found = {arm: material.accuracy(name, row.shots, int(row.samples)) for arm, name in names.items()}
        scores = {arm: of for arm, of in found.items() if of is not None}
    return SweepView(sweep, "selector", 1.0, 2, {SELECTOR: scores}, {SELECTOR: gaps})


def _of_agents(view: AgentView, sweep: Sweep) -> SweepView:
    modes: Sequence[str] = view.config.evaluation.primary.modes
    arms = [cell.arm for cell in sweep.cells]
    scores = {
        mode: {arm: row for arm in arms if (row := view.held_out(f"arm~{arm}", mode)) is not None} for mode in modes
    }
    gaps = {
        mode: {arm: row for arm in arms if (row := view.compared(arm, mode, sweep.arm)) is not None} for mode in modes
    }
    return SweepView(sweep, "agent", view.scale, view.digits, scores, gaps)


def _heads(mode: str) -> Sequence[str]:
    agent = [f"agent.head.{name}_{mode}" for name in ("score", "difference", "holm")]
    return agent if mode else ("head.accuracy", "agent.head.difference", "head.holm_p")


def _line(view: SweepView, arm: str, values: Mapping[str, Any]) -> TableLine:
    cells: list[Cell] = [Code(arm), *(Name(text_of(value)) for value in values.values())]
    for mode, scores in view.scores.items():
        row = view.gaps[mode].get(arm)
        cells += [level(scores.get(arm), view.digits, scale=view.scale), gap(row, view.digits, scale=view.scale)]
        cells.append(holm(row))
    runs = next((scores[arm] for scores in view.scores.values() if arm in scores), None)
    return TableLine((*cells, part(runs, "runs", 0)), "ours")


def _unit(view: SweepView) -> Cell:
    if isinstance(view.sweep, SelectorSweep):
        return say(f"sweeps.of.{view.sweep.policy}")
    return say("sweeps.of.share" if view.scale > 1 else "sweeps.of.reward")


def _highest(view: SweepView, mode: str) -> Cell:
    """Return which cell scores highest in a decoding, and how far above the arm that is swept."""
    arm, base = view.highest(mode), view.sweep.arm
    score = level(view.scores[mode][arm], view.digits, scale=view.scale)
    told: dict[str, Any] = {"n": len(view.scores[mode]), "arm": Code(arm), "base": Code(base), "score": score}
    row = view.gaps[mode].get(arm)
    end = "itself" if arm == base else "untested" if holm(row) is None else "cell"
    told |= {"gap": gap(row, view.digits, scale=view.scale), "p": holm(row)}
    found = say(f"sweeps.highest.{end}", **told)
    return say("sweeps.in_mode", mode=say(f"word.{mode}"), text=found) if mode else found
