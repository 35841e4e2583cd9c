"""The arms: one table of the primary endpoint in both decodings."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from lever_pipe.base.sums import sum_in_order
from lever_pipe.experiment.agent_training import WEIGHTS, AgentArm
from lever_pipe.report.agent.document_003 import TRAJECTORY_SCORES
from lever_pipe.report.agent.runs import (
    MODES,
    START,
    STUDY,
    AgentView,
    mean_of,
    run_of,
    schedule_cell,
    seeds_cell,
    weight_cell,
)
from lever_pipe.report.cells import Cell, code, derived, holm, level, message, minus
from lever_pipe.report.evidence import ALPHA, SIGN_FLIP, STUDENT
from lever_pipe.report.table import Row, Table, framed

SCORES = {
    "greedy": ("Held-out, greedy", "Difference, greedy", "Holm p, greedy", "Gain, greedy"),
    "sampled": ("Held-out, sampled", "Difference, sampled", "Holm p, sampled", "Gain, sampled"),
}
COSTS = {
    "Requests": "agent_requests",
    "Prompt tokens": "prompt_tokens",
    "Completion tokens": "completion_tokens",
    "Failed requests": "agent_failures",
    "Refusals": "agent_refused",
    "Filtered replies": "agent_filtered",
    "Empty replies": "agent_empty",
}
"""Metrics of a served agent by column head."""
FOLDED = (
    *("Entropy", "Schedule", "Learning rate", "Trajectory score", "Gain, greedy", "Gain, sampled"),
    *("KL at the end", "Entropy at the end", "Malformed (%)", *COSTS),
)
"""Columns that a page shows below the line of an arm."""
TESTS = {
    SIGN_FLIP: "between single runs sign flips over tasks",
    STUDENT: "between several seeds Student's t on crossed seeds and tasks",
}
"""Text by a test's name in `comparisons.csv`."""
STOP_METRICS = {
    "reward": "reward",
    "normalised_reward": "share of the ceiling",
    "coverage": "coverage",
}


def tables(view: AgentView) -> Iterator[Table]:
    """Yield the table of the arms."""
    served = view.evidence.subjects("agent_requests", study=STUDY)
    agents = list(dict.fromkeys(name.removeprefix("arm~") for name in served if "/" not in name))
    rows = [row for arm in view.arms for row in _rows(view, arm)]
    start = {SCORES[mode][0]: view.score(view.held_out(START, mode)) for mode in MODES}
    rows += [{"Arm": "start policy", **start}] if any(start.values()) else []
    rows += [_served(view, agent) for agent in agents]
    title = (
        "Arms and decoding: held-out score in % of the ceiling"
        if view.scale > 1
        else "Arms and decoding: held-out reward"
    )
    yield Table("agent-arms", "agent", title, framed(rows), facts=_sentence_facts(view, agents), folded=FOLDED)


def _sentence_facts(view: AgentView, agents: list[str]) -> dict[str, Any]:
    """Return the arms that are separated from the reference arm, and the facts for the notes."""
    compared = [(mode, arm.name, view.compared(arm.name, mode)) for mode in MODES for arm in view.arms]
    compared += [(mode, agent, view.compared(agent, mode)) for mode in MODES for agent in agents]
    rows = [(mode, arm, row) for mode, arm, row in compared if row is not None]
    trained = [(mode, arm, row) for mode, arm, row in rows if arm not in agents and not math.isnan(row.p_holm)]
    over_seeds = [(mode, arm, row) for mode, arm, row in trained if row.runs > 1]
    separated: dict[str, list[Cell]] = {mode: [] for mode, *_ in over_seeds}
    for mode, arm, row in over_seeds:
        if row.p_holm < ALPHA:
            gap, p = view.difference(arm, mode), holm(row)
            separated[mode].append(message("{arm} ({gap}, Holm p {p})", arm=code(arm), gap=gap, p=p))
    overlap = ("n_tasks", "n_requests_also_trained", "n_hidden_also_trained")
    return {
        "reference": view.reference,
        "separated": separated,
        "single": list(dict.fromkeys(code(arm) for _, arm, row in trained if row.runs == 1)),
        "tests": [TESTS[how] for how in dict.fromkeys(row.how for *_, row in rows) if how in TESTS],
        "has_fewer": bool(_fewer(view)),
        "stops": [_stop(view, arm) for arm in view.arms if arm.stop is not None],
        "has_served": bool(agents),
        "start": view.config.start,
        "tasks": [level(view.find("tasks", f"test.{name}"), 0) for name in overlap],
    }


def _rows(view: AgentView, arm: AgentArm) -> Iterator[Row]:
    """Yield the row of an arm; for the reference arm also its levels over fewer seeds."""
    seeds, name = view.seeds[arm.name], code(arm.name)
    yield {
        # an arm with one seed describes these runs only
        "Arm": name if len(seeds) > 1 else message("{arm} (these runs)", arm=name),
        **_settings(view, arm),
        "Seeds": seeds_cell(seeds),
        **_scores(view, arm.name),
        **_after(view, arm.name),
    }
    for fewer in _fewer(view) if arm.name == view.reference else ():
        scores = {SCORES[mode][0]: view.at_seeds(fewer, mode) for mode in MODES}
        yield {"Arm": message("{arm}, same seeds", arm=name), "Seeds": seeds_cell(fewer), **scores}


def _served(view: AgentView, agent: str) -> Row:
    """Return the row of a served agent: without our settings, with its costs in all decodings."""
    costs: dict[str, Cell] = {}
    for head, name in COSTS.items():
        rows = [view.find(f"arm~{agent}", name, at="0", subset="test", mode=mode) for mode in MODES]
        measured = [row for row in rows if row is not None]
        costs[head] = derived(sum_in_order(row.value for row in measured), 0, measured, "sum over decodings")
    label = message("{agent} (served)", agent=code(agent))
    return {"Arm": label, **_scores(view, agent), **_after(view, agent), **costs}


def _fewer(view: AgentView) -> list[list[int]]:
    """Return the sets of common seeds that contain only some of the reference arm's seeds."""
    reference = view.seeds.get(view.reference, [])
    common = [tuple(view.common(arm.name, view.reference)) for arm in view.arms]
    return [list(seeds) for seeds in dict.fromkeys(common) if 0 < len(seeds) < len(reference)]


def _settings(view: AgentView, arm: AgentArm) -> Row:
    grpo = view.config.grpo
    rates = {each.name: each.learning_rate or grpo.learning_rate for each in view.arms}
    scores = {each.name: each.trajectory_score or grpo.trajectory_score for each in view.arms}
    kl, entropy = (weight_cell(getattr(arm, term), getattr(arm, f"{term}_schedule")) for term in WEIGHTS)
    return {
        "KL": kl,
        "Entropy": entropy,
        "Schedule": schedule_cell(arm.schedule),
        "Learning rate": f"{rates[arm.name]:g}" if len(set(rates.values())) > 1 else None,
        "Trajectory score": TRAJECTORY_SCORES[scores[arm.name]] if len(set(scores.values())) > 1 else None,
    }


def _scores(view: AgentView, arm: str) -> Row:
    row: dict[str, Cell] = {}
    for mode in MODES:
        score, start = (view.score(view.held_out(subject, mode)) for subject in (f"arm~{arm}", START))
        cells = (score, view.difference(arm, mode), holm(view.compared(arm, mode)), minus(score, start))
        row |= dict(zip(SCORES[mode], cells, strict=True))
    return row


def _after(view: AgentView, arm: str) -> Row:
    kl, entropy = (level(view.find(f"arm~{arm}", metric), 3, interval=False) for metric in ("kl_end", "entropy_end"))
    return {"KL at the end": kl, "Entropy at the end": entropy, "Malformed (%)": _malformed(view, arm)}


def _malformed(view: AgentView, arm: str) -> Cell:
    """Return the share of unreadable calls in the held-out episodes of the last policy, mean over seeds."""
    location = {"metric": "end_malformed", "subset": "test", "mode": "sampled"}
    by_seed = [view.evidence.where(run_of(arm, seed), **location) for seed in view.seeds.get(arm, ())]
    last = [max(rows, key=lambda row: int(row.at)) for rows in by_seed if rows]
    if len({row.at for row in last}) > 1:  # the seeds have different last steps
        return derived(100 * mean_of(row.value for row in last), 1, last, "mean over seeds at their last steps")
    rows = view.evidence.where(f"arm~{arm}", **location)
    return level(max(rows, key=lambda row: (row.runs, int(row.at)), default=None), 1, scale=100)


def _stop(view: AgentView, arm: AgentArm) -> dict[str, Any]:
    """Return the stopping rule of an arm that may stop early, and the last step of each of its runs."""
    assert arm.stop is not None
    facts: dict[str, Any] = {"arm": arm.name, "ends": view.ended(arm.name), "steps": view.config.grpo.steps}
    facts |= {"compared": view.config.evaluation.primary.checkpoint, "metric": STOP_METRICS[arm.stop.metric]}
    return arm.stop.model_dump() | facts
