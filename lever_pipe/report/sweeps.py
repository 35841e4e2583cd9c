"""Sweeps: a table for each, its cells against the arm that is swept, the highest one named as chosen by the data."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from lever_pipe.base.policy_names import PolicyName
from lever_pipe.experiment.config import Sweep, swept
from lever_pipe.report.agent.runs import view_of
from lever_pipe.report.cells import Cell, Code, Series, gap, holm, level, part, say
from lever_pipe.report.evidence import EvidenceRow
from lever_pipe.report.material import Material
from lever_pipe.report.table import Column, Table, TableLine

Rows = Mapping[tuple[str, str], EvidenceRow]
"""By decoding, which the selector has none of, and arm."""
HEADS = ("Score", "Difference", "Holm p")
KINDS = {"lever": "selector", "intention": "agent"}
PLACE = ("at", "subset", "samples", "shots", "mode")
MEASURED = {
    "sft": "VQA accuracy (%) of the last SFT epoch at the primary endpoint.",
    "rce": "VQA accuracy (%) of the last RCE epoch at the primary endpoint.",
    "grpo": (
        "VQA accuracy (%) of the last epoch of offline GRPO at the primary endpoint, from the "
        "latest base, at KL_BETA 0.15 or the middle one."
    ),
    "on_policy": (
        "VQA accuracy (%) of the last epoch of on-policy GRPO at the primary endpoint, from the "
        "latest base, at KL_BETA 0.15 or the middle one."
    ),
    "normalised_reward": "Held-out reward in % of the ceiling, at the primary endpoint.",
    "reward": "Held-out reward, at the primary endpoint.",
}
COMPARED = {
    "last": "Arms are compared by their last policies, however many steps these took.",
    "best": "Arms are compared by their best policies, those that each run selected.",
}
WORDS = {
    "sampled": "Sampled",
    "greedy": "Greedy",
}


class SweepView(NamedTuple):
    """A sweep with its cells at the primary endpoint, and their differences to the arm that is swept."""

    sweep: Sweep
    study: str
    measured: Sequence[str]
    """What the scores are, the ends of their messages."""
    scale: float
    digits: int
    scores: Rows
    gaps: Rows

    @property
    def modes(self) -> Sequence[str]:
        """Return the decodings."""
        return list(dict.fromkeys(mode for mode, _ in self.scores))

    def cells(self, mode: str, arm: str) -> tuple[Cell, Cell, Cell]:
        """Return a score, its difference to the swept arm and the Holm p of that."""
        row, other = self.scores[mode, arm], self.gaps.get((mode, arm))
        return level(row, self.digits, scale=self.scale), gap(other, self.digits, scale=self.scale), holm(other)


def views_of(material: Material) -> Iterator[SweepView]:
    """Yield every sweep that has results."""
    agents, asked = view_of(material), list[tuple[Any, ...]]()
    asked += [(sweep, "lever", "accuracy", 1.0, 2) for sweep in material.config.sweeps]
    if agents is not None:
        told = ("intention", agents.config.evaluation.primary.metric, agents.scale, agents.digits)
        asked += [(sweep, *told) for sweep in agents.config.sweeps]
    for sweep, study, metric, scale, digits in asked:
        cells, every = swept([sweep]), material.evidence.where(metric=metric, study=study)
        rows = [row for row in every if _arm(row.against) == sweep.arm and _arm(row.subject) in cells]
        scores = {
            (row.mode, _arm(side)): material.evidence.get(side, metric, study=study, **at)
            for row in rows
            for at in [{name: getattr(row, name) for name in PLACE}]
            for side in (row.against, row.subject)
        }
        sides = dict.fromkeys(side for row in rows for side in (row.against, row.subject))
        measured = list(dict.fromkeys(PolicyName.parse(side).kind for side in sides)) if study == "lever" else [metric]
        gaps = {(row.mode, _arm(row.subject)): row for row in rows}
        if len(scores) == len(sweep.cells) * len({mode for mode, _ in scores}) > 0:  # every cell is there
            yield SweepView(sweep, KINDS[study], measured, scale, digits, scores, gaps)


def tables(material: Material) -> Iterator[Table]:
    """Yield a table a sweep."""
    for view in views_of(material):
        keys, arm = [Code(key) for key in view.sweep.over], Code(view.sweep.arm)
        columns = [Column(key, "name") for key in keys]
        columns += [Column(_in_mode(mode, say(head))) for mode in view.modes for head in HEADS]
        columns += [Column(say("Runs")), Column(say("Arm"), "name")]
        lines = []
        for cell in view.sweep.cells:
            values = [text_of(value) for value in cell.values.values()]
            numbers = [number for mode in view.modes for number in view.cells(mode, cell.arm)]
            runs = part(view.scores[view.modes[0], cell.arm], "runs", 0)
            lines.append(TableLine((*values, *numbers, runs, Code(cell.arm)), "ours"))
        tests = sum(holm(row) is not None for row in view.gaps.values()) // len(view.modes)
        notes = (
            say(
                "The highest cell is chosen by the very data that score it, so its score is too high by "
                "chance, the more so the more cells there are. Run it with further seeds before you rely "
                "on it."
            ),
            say(
                (
                    "Differences: each cell to {arm}, by common seeds, with 95 % intervals. Holm p: over the "
                    "{n:test|tests} of its column, so another value raises it. With one seed a test speaks "
                    "of these runs alone."
                ),
                arm=arm,
                n=tests,
            ),
            *_ended_early(material, view),
        )
        judged = (say(MEASURED[of]) for of in view.measured)
        lead = Series((*(_highest(view, mode) for mode in view.modes), *judged), "sentences")
        title = say("Sweep {name}: {keys} of arm {arm}", name=Code(view.sweep.name), keys=keys, arm=arm)
        place = f"sweep-{view.study}-{view.sweep.name}", f"sweeps-{view.study}"
        yield Table(*place, title, tuple(columns), tuple(lines), lead, notes)


def _ended_early(material: Material, view: SweepView) -> Iterator[Cell]:
    """Yield which agents of a sweep ended before the last step, where some did."""
    if view.study == "agent" and material.config.agents is not None:
        agents, ran = material.config.agents, material.evidence.where(metric="executed_steps", at="run")
        last, compared = agents.grpo.steps, say(COMPARED[agents.evaluation.primary.checkpoint])
        early = {_arm(row.subject) for row in ran if row.value < last}
        arms = [Code(cell.arm) for cell in view.sweep.cells if cell.arm in early]
        yield from (
            [
                say(
                    "Ended before step {steps}, in a run or more: {arms}. {compared}",
                    arms=arms,
                    steps=last,
                    compared=compared,
                )
            ]
            if arms
            else []
        )


def text_of(value: Any) -> str:
    """Return a value of a key as tables and figures write it."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _arm(subject: str) -> str:
    """Return the preset or arm that a subject's name begins with."""
    return subject.partition("/")[0].partition("~")[2]


def _highest(view: SweepView, mode: str) -> Cell:
    """Return which cell scores highest in a decoding, the swept arm before its equals, and how far above that."""
    cells, base = view.sweep.cells, view.sweep.arm
    best = max(cells, key=lambda cell: (view.scores[mode, cell.arm].value, cell.arm == base))
    score, difference, p = view.cells(mode, best.arm)
    told: dict[str, Any] = {"n": len(cells), "score": score, "base": Code(base), "gap": difference}
    told |= {"p": p or "-", "values": [f"{key} {text_of(value)}" for key, value in best.values.items()]}
    return _in_mode(
        mode,
        say(
            "The highest of {n} cells is {base} itself with {score}."
            if best.arm == base
            else "The highest of {n} cells is {values} with {score}, {gap} to {base} (Holm p {p}).",
            **told,
        ),
    )


def _in_mode(mode: str, text: Cell) -> Cell:
    return say("{mode}: {text}", mode=say(WORDS[mode]), text=text) if mode else text
