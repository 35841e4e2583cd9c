"""The arms: one table of the primary endpoint in both decodings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from lever_pipe.experiment.agent_config import WEIGHTS, AgentArm
from lever_pipe.report.agent.runs import (
    HEADS,
    MODES,
    START,
    STUDY,
    AgentView,
    mean_of,
    run_of,
    schedule_cell,
    seeds_cell,
    table_of,
    weight_cell,
)
from lever_pipe.report.cells import Cell, Code, Series, derived, holm, level, minus, say
from lever_pipe.report.evidence import ALPHA, SIGN_FLIP, STUDENT
from lever_pipe.report.table import Column, Table, TableLine

SETTINGS = ("kl_coefficient", "entropy", "schedule", "learning_rate", "trajectory_score")
SCORES = ("score", "difference", "holm", "gain")
AFTER = ("kl_end", "entropy_end", "malformed")
COSTS = ("agent_requests", "prompt_tokens", "completion_tokens", "agent_failures")
"""Of a served agent."""
FOLDED = {*SETTINGS[1:], *(f"gain_{mode}" for mode in MODES), *AFTER, *COSTS}
"""Columns that a page shows below the line of an arm."""
TESTS = {
    SIGN_FLIP: "between single runs sign flips over tasks",
    STUDENT: "between several seeds Student's t on crossed seeds and tasks",
}
"""Message by the name that `comparisons.csv` gives a test."""
TRAJECTORY_SCORES = {
    "sum": "sum of turn rewards",
    "mean": "mean of turn rewards",
    "r2g": "discounted sum of turn rewards",
}
STOP_METRICS = {
    "reward": "reward",
    "normalised_reward": "share of the ceiling",
    "coverage": "coverage",
}
COMPARED = {
    "last": "Arms are compared by their last policies, however many steps these took.",
    "best": "Arms are compared by their best policies, those that each run selected.",
}


def tables(view: AgentView) -> Iterator[Table]:
    """Yield the table."""
    lines = [line for arm in view.arms for line in _lines(view, arm)]
    start = [view.score(view.held_out(START, mode)) for mode in MODES]
    lines += [_scored(say("start policy"), None, start)] if any(start) else []
    served = view.evidence.subjects(COSTS[0], study=STUDY)
    agents = list(dict.fromkeys(name.removeprefix("arm~") for name in served if "/" not in name))
    lines += [_served(view, agent) for agent in agents]
    names = ("arm", *SETTINGS, "seeds", *(f"{name}_{mode}" for mode in MODES for name in SCORES), *AFTER, *COSTS)
    heads = [Column(say(HEADS[name]), "folded") if name in FOLDED else name for name in names]
    compared = (view.compared(name, mode) for name in (*view.seeds, *agents) for mode in MODES)
    tests = dict.fromkeys(TESTS[row.how] for row in compared if row is not None and row.how in TESTS)
    reference = Code(view.reference)
    notes = (
        say(
            (
                "Difference and gain: to {reference} over the common seeds, and to the start policy, in "
                "points. In brackets: 95 % interval over tasks and, with several seeds, over seeds. "
                "Malformed: sampled held-out episodes that end in an unreadable call."
            ),
            reference=reference,
        ),
        say(
            (
                "Tests: {tests}. With one seed a test speaks of these runs on further tasks, not of "
                "other seeds; a difference without an interval has no test."
            ),
            tests=[say(test) for test in tests],
        )
        if tests
        else None,
        say(
            ("Where an arm shares fewer seeds with {reference}, its difference is to the line of the same seeds."),
            reference=reference,
        )
        if _fewer(view)
        else None,
        *_stops(view),
        say(
            (
                "Served: an agent behind a server, known by the name that it answers to alone, with the "
                "tasks, rules and temperature of the arms; its difference is to all runs of {reference}, "
                "its Holm p among served agents. Its requests and tokens are those of its evaluations, "
                "as its server counts them. An episode without an answer is lost: its task counts for "
                "this agent's numbers in no decoding."
            ),
            reference=reference,
        )
        if agents
        else None,
        say("All arms start from {start}.", start=view.config.start) if view.config.start else None,
        *_overlap(view),
    )
    title = (
        "Arms and decoding: held-out score in % of the ceiling"
        if view.scale > 1
        else "Arms and decoding: held-out reward"
    )
    yield table_of("agent-arms", title, heads, lines, section="agent", lead=_answer(view), notes=notes)


def _lines(view: AgentView, arm: AgentArm) -> Iterator[TableLine]:
    """Yield the line of an arm, behind that of the reference arm its levels over fewer seeds."""
    seeds, name = view.seeds[arm.name], Code(arm.name)
    named = name if len(seeds) > 1 else say("{arm} (these runs)", arm=name)  # it stands for these runs alone
    cells = (*_settings(view, arm), seeds_cell(seeds), *_scores(view, arm.name), *_after(view, arm.name))
    yield TableLine((named, *cells, *[None] * len(COSTS)))
    for fewer in _fewer(view) if arm.name == view.reference else ():
        scores = [view.at_seeds(fewer, mode) for mode in MODES]
        yield _scored(say("{arm}, same seeds", arm=Code(arm.name)), seeds_cell(fewer), scores)


def _scored(name: Cell, seeds: Cell, scores: Sequence[Cell]) -> TableLine:
    """Return a line of nothing but scores."""
    cells = [cell for score in scores for cell in (score, *[None] * (len(SCORES) - 1))]
    return TableLine((name, *[None] * len(SETTINGS), seeds, *cells, *[None] * len((*AFTER, *COSTS))))


def _served(view: AgentView, agent: str) -> TableLine:
    """Return the line of a served agent: no settings of ours, and what it has cost in all decodings."""
    costs = [[view.find(f"arm~{agent}", name, at="0", subset="test", mode=mode) for mode in MODES] for name in COSTS]
    known = [[row for row in rows if row is not None] for rows in costs]
    sums = (derived(sum(row.value for row in rows), 0, rows, "sum over decodings") for rows in known)
    unread = _after(view, agent)
    return TableLine(
        (
            say("{agent} (served)", agent=Code(agent)),
            *[None] * (len(SETTINGS) + 1),
            *_scores(view, agent),
            *unread,
            *sums,
        )
    )


def _fewer(view: AgentView) -> list[list[int]]:
    """Return the sets of seeds at which an arm meets fewer runs of the reference arm than there are."""
    mine = view.seeds.get(view.reference, [])
    found = [tuple(view.common(arm.name, view.reference)) for arm in view.arms]
    return [list(seeds) for seeds in dict.fromkeys(found) if 0 < len(seeds) < len(mine)]


def _settings(view: AgentView, arm: AgentArm) -> tuple[Cell, ...]:
    grpo = view.config.grpo
    rates = {of.name: of.learning_rate or grpo.learning_rate for of in view.arms}
    scores = {of.name: of.trajectory_score or grpo.trajectory_score for of in view.arms}
    rate = f"{rates[arm.name]:g}" if len(set(rates.values())) > 1 else None
    score = say(TRAJECTORY_SCORES[scores[arm.name]]) if len(set(scores.values())) > 1 else None
    weights = (weight_cell(getattr(arm, term), getattr(arm, f"{term}_schedule")) for term in WEIGHTS)
    return *weights, schedule_cell(arm.schedule), rate, score


def _scores(view: AgentView, arm: str) -> Iterator[Cell]:
    for mode in MODES:
        score, start = (view.score(view.held_out(subject, mode)) for subject in (f"arm~{arm}", START))
        yield from (score, view.difference(arm, mode), holm(view.compared(arm, mode)), minus(score, start))


def _after(view: AgentView, arm: str) -> Iterator[Cell]:
    for metric in ("kl_end", "entropy_end"):
        yield level(view.find(f"arm~{arm}", metric), 3, interval=False)
    yield _malformed(view, arm)


def _malformed(view: AgentView, arm: str) -> Cell:
    """Return the share of unreadable calls in the held-out episodes of the last policy, mean over seeds."""
    of = {"metric": "end_malformed", "subset": "test", "mode": "sampled"}
    by_seed = [view.evidence.where(run_of(arm, seed), **of) for seed in view.seeds.get(arm, ())]
    last = [max(rows, key=lambda row: int(row.at)) for rows in by_seed if rows]
    if len({row.at for row in last}) > 1:  # no step is the last of all seeds
        return derived(100 * mean_of(row.value for row in last), 1, last, "mean over seeds at their last steps")
    rows = view.evidence.where(f"arm~{arm}", **of)
    return level(max(rows, key=lambda row: (row.runs, int(row.at)), default=None), 1, scale=100)


def _stops(view: AgentView) -> Iterator[Cell]:
    """Yield of each arm that may stop early what it stops by, and behind how many steps each of its runs ended."""
    for arm in view.arms:
        if arm.stop is not None:
            told = arm.stop.model_dump() | {"mode": say(arm.stop.mode), "steps": view.config.grpo.steps}
            told |= {"metric": say(STOP_METRICS[arm.stop.metric])}
            told |= {"compared": say(COMPARED[view.config.evaluation.primary.checkpoint])}
            yield say(
                (
                    "{arm} stops once its validation curve ({metric}, {mode}) has risen by no more than "
                    "{least_change} in {patience:evaluation|evaluations}, and selects by it: its runs ended "
                    "behind step {ends} of {steps}. {compared}"
                ),
                arm=Code(arm.name),
                ends=view.ended(arm.name),
                **told,
            )


def _overlap(view: AgentView) -> Iterator[Cell]:
    """Yield how many held-out tasks resemble trained ones, where the tasks are known."""
    n, requests, hidden = (
        level(view.find("tasks", f"test.{name}"), 0)
        for name in ("n_tasks", "n_requests_also_trained", "n_hidden_also_trained")
    )
    yield (
        say("Of {n} held-out tasks {requests} repeat a training request.", n=n, requests=requests)
        if n and requests
        else None
    )
    yield say("{n} share category and hidden details with a training task.", n=hidden) if hidden else None


def _answer(view: AgentView) -> Cell:
    """Return which arms are separated from the reference arm over seeds, by decoding, and of which one seed ran."""
    parts: list[Cell] = []
    found = [(mode, arm.name, view.compared(arm.name, mode)) for mode in MODES for arm in view.arms]
    tested = [(mode, arm, row) for mode, arm, row in found if row is not None and not math.isnan(row.p_holm)]
    for mode in MODES:
        rows = [(arm, row) for at, arm, row in tested if at == mode and row.runs > 1]
        named = [
            say("{arm} ({gap}, Holm p {p})", arm=Code(arm), gap=view.difference(arm, mode), p=holm(row))
            for arm, row in rows
            if row.p_holm < ALPHA
        ]
        if rows:
            args = {"mode": say(mode), "arms": named, "reference": Code(view.reference)}
            parts.append(
                say(
                    "Over seeds, {mode}: separated from {reference} are {arms}."
                    if named
                    else "Over seeds, {mode}: no arm is separated from {reference}.",
                    **args,
                )
            )
    single = dict.fromkeys(arm for _, arm, row in tested if row.runs == 1)
    parts += (
        [say("Of one seed each, so that nothing is shown of other seeds: {arms}.", arms=list(map(Code, single)))]
        if single
        else []
    )
    return Series(tuple(parts), "sentences") if parts else None
