"""The arms: one table of the endpoint in both decodings, and what stands behind it in the appendix."""

from __future__ import annotations

import math
from collections.abc import Iterator

from lever_pipe.experiment.agent_config import AgentArm
from lever_pipe.report.agent.checks import identities
from lever_pipe.report.agent.document_003 import steps_cell
from lever_pipe.report.agent.runs import (
    ALPHA,
    MODES,
    PUBLISHED_ERROR,
    PUBLISHED_FRESH_ERROR,
    REWARD_DIGITS,
    START,
    AgentView,
    arm_cell,
    run_of,
    schedule_cell,
    seeds_cell,
    table_of,
    values_of,
)
from lever_pipe.report.cells import Cell, Code, Name, Number, Series, derived, gap, holm, level, minus, say
from lever_pipe.report.evidence import EvidenceRow
from lever_pipe.report.table import Column, Line, Table
from lever_pipe.statistics.curves import curve_statistics, excess_sd

SECTION, APPENDIX = "agent", "004"
SETTINGS = ("kl", "entropy", "schedule", "learning_rate", "trajectory_score")


def tables(view: AgentView) -> Iterator[Table]:
    """Yield the table of arms, then secondary endpoints, curves and runs."""
    yield _arms(view)
    yield _secondary(view)
    yield _curves(view)
    yield _runs(view)


def _arms(view: AgentView) -> Table:
    lines = [line for arm in view.arms for line in _arm_lines(view, arm)]
    start = _start_cells(view)
    lines += [Line((say("agent.start"), *start))] if any(cell is not None for cell in start) else []
    tested = [f"{name}_{mode}" for mode in MODES for name in ("score", "difference", "holm", "gain")]
    names = ("arm", "kl_coefficient", *SETTINGS[1:], "seeds", *tested, "kl_end", "entropy_end", "malformed")
    notes = (
        say("agent.arms_note", reference=Code(view.reference)),
        _start_note(view),
        _tests(view),
        _levels(view),
        _overlap(view),
    )
    title = "agent.arms" if view.scale > 1 else "agent.arms_reward"
    return table_of("agent-arms", title, names, lines, section=SECTION, lead=answer(view), notes=notes)


def _arm_lines(view: AgentView, arm: AgentArm) -> Iterator[Line]:
    yield Line((arm_cell(view, arm.name), *_settings(view, arm), seeds_cell(view.seeds[arm.name]), *_scores(view, arm)))
    if arm.name != view.reference:
        return
    for seeds in _fewer(view):
        scores = [cell for mode in MODES for cell in (view.at_seeds(seeds, mode), None, None, None)]
        name = say("agent.same_seeds", arm=Code(arm.name))
        yield Line((name, *(None for _ in SETTINGS), seeds_cell(seeds), *scores, None, None, None))


def _fewer(view: AgentView) -> list[list[int]]:
    """Return the sets of seeds at which an arm meets fewer runs of the reference arm than there are."""
    mine = view.seeds.get(view.reference, [])
    found = [view.common(arm.name, view.reference) for arm in view.arms]
    return [list(seeds) for seeds in dict.fromkeys(map(tuple, found)) if 0 < len(seeds) < len(mine)]


def _settings(view: AgentView, arm: AgentArm) -> tuple[Cell, ...]:
    grpo = view.config.grpo
    rates = {of.name: of.learning_rate or grpo.learning_rate for of in view.arms}
    scores = {of.name: of.trajectory_score or grpo.trajectory_score for of in view.arms}
    rate = Name(f"{rates[arm.name]:g}") if len(set(rates.values())) > 1 else None
    score = say(f"doc003.score.{scores[arm.name]}") if len(set(scores.values())) > 1 else None
    return Name(f"{arm.kl:g}"), Name(f"{arm.entropy:g}"), schedule_cell(arm.schedule), rate, score


def _scores(view: AgentView, arm: AgentArm) -> tuple[Cell, ...]:
    cells: list[Cell] = []
    for mode in MODES:
        subject = f"arm~{arm.name}"
        score, start = view.score(view.held_out(subject, mode)), view.score(view.held_out(START, mode))
        last, first = (view.score(_validated(view, subject, at, mode)) for at in ("last", "start"))
        gain = minus(score, start) if start else minus(last, first)
        cells += [score, view.difference(arm.name, mode), view.holm(arm.name, mode), gain]
    drift = [level(view.find(f"arm~{arm.name}", f"{name}_end"), 3, interval=False) for name in ("kl", "entropy")]
    malformed = view.evidence.where(f"arm~{arm.name}", "end_malformed", subset="test", mode="sampled")
    return (*cells, *drift, level(malformed[0], 1, scale=100) if malformed else None)


def _start_cells(view: AgentView) -> tuple[Cell, ...]:
    """Return the policy before GRPO: on held-out tasks, or at step 0 of the validation."""
    cells: list[Cell] = [None] * (len(SETTINGS) + 1)
    for mode in MODES:
        row = view.held_out(START, mode) or _validated(view, f"arm~{view.reference}", "start", mode)
        cells += [view.score(row), None, None, None]
    return (*cells, None, None, None)


def _validated(view: AgentView, subject: str, at: str, mode: str) -> EvidenceRow | None:
    return view.find(subject, view.config.evaluation.primary.metric, at=at, subset="val", mode=mode)


def _start_note(view: AgentView) -> Cell:
    return None if any(view.held_out(START, mode) for mode in MODES) else say("agent.start_validated")


def _tests(view: AgentView) -> Cell:
    tests = [row.how for arm in view.arms for mode in MODES if (row := view.compared(arm.name, mode)) is not None]
    return say("agent.tests", tests=[Code(test) for test in dict.fromkeys(tests) if test]) if any(tests) else None


def _levels(view: AgentView) -> Cell:
    return say("agent.levels", reference=Code(view.reference)) if _fewer(view) else None


def _overlap(view: AgentView) -> Cell:
    """Return how many held-out tasks resemble trained ones, where the tasks are known."""
    names = ("n_tasks", "n_requests_also_trained", "n_hidden_also_trained")
    n, requests, hidden = (level(view.find("tasks", f"test.{name}"), 0) for name in names)
    if n is None or requests is None:
        return None
    shared = None if hidden is None else say("agent.overlap_hidden", n=hidden)
    return Series((say("agent.overlap", n=n, requests=requests), shared), "sentences")


def answer(view: AgentView) -> Cell:
    """Return which arms are separated from the reference arm over seeds, and which in these runs, by decoding."""
    parts: list[Cell] = []
    for is_over_seeds in (True, False):
        for mode in MODES:
            rows = [(arm.name, row) for arm in view.arms if (row := view.compared(arm.name, mode)) is not None]
            rows = [(arm, row) for arm, row in rows if (row.runs > 1) == is_over_seeds and not math.isnan(row.p_holm)]
            named = [
                say("agent.named", arm=Code(arm), gap=view.difference(arm, mode), p=holm(row))
                for arm, row in rows
                if row.p_holm < ALPHA
            ]
            kind = "over_seeds" if is_over_seeds else "these_runs"
            if rows:
                text = f"agent.{kind}" if named else f"agent.{kind}_none"
                parts.append(say(text, mode=say(f"agent.{mode}"), arms=named, reference=Code(view.reference)))
    return Series(tuple(parts), "sentences") if parts else None


def _secondary(view: AgentView) -> Table:
    names = [
        *("start", "last", "gain", "last3", "trapezoid", "trapezoid_difference", "holm", "best", "best_step"),
        *(f"at_{share:g}" for share in view.config.evaluation.thresholds),
        *("others_best", "drawdown"),
    ]
    shares = {f"at_{share:g}": Name(f"{100 * share:g} %") for share in view.config.evaluation.thresholds}
    heads = [Column(say("agent.head.at_share", share=shares[name])) if name in shares else name for name in names]
    found = [(arm.name, mode, _secondary_cells(view, arm.name, mode)) for arm in view.arms for mode in MODES]
    lines = [Line((arm_cell(view, arm), say(f"agent.{mode}"), *cells)) for arm, mode, cells in found if any(cells)]
    notes = (say("agent.secondary_note", reference=Code(view.reference), document=Code(view.config.document_arm)),)
    return table_of(
        "agent-secondary", "agent.secondary", ("arm", "curve", *heads), lines, section=APPENDIX, notes=notes
    )


def _secondary_cells(view: AgentView, arm: str, mode: str) -> tuple[Cell, ...]:
    subject = f"arm~{arm}"

    def of(metric: str) -> Number | None:
        return level(view.find(subject, metric, mode=mode), REWARD_DIGITS)

    def steps(metric: str) -> Cell:
        rows = [view.find(run_of(arm, seed), metric, mode=mode) for seed in view.seeds[arm]]
        return steps_cell([row.value for row in rows if row is not None]) if all(rows) else None

    edges = [level(view.find(subject, "reward", at=at, subset="val", mode=mode), 3) for at in ("start", "last")]
    tested = view.evidence.where(subject, "trapezoid", mode=mode, against=f"arm~{view.reference}")
    row = tested[0] if tested else None
    reached = (steps(f"steps_to_{share:g}") for share in view.config.evaluation.thresholds)
    best, drawdown = (cell.plain if cell else None for cell in (of("best_value"), of("drawdown")))
    means = (of("gain"), of("last3"), of("trapezoid"), gap(row, 3), holm(row), best, steps("best_step"))
    return (*edges, *means, *reached, steps("steps_to_others_best"), drawdown)


CURVE_METRICS = (
    ("sd_of_changes", 3),
    ("error", 3),
    ("fresh_error", 3),
    ("excess_sd", 3),
    ("curve.sd", 4),
    ("curve.slope", 3),
    ("curve.r_squared", 2),
    ("curve.von_neumann", 2),
    ("curve.lag_one", 2),
    ("curve.flat_chance_of_drawdown", 3),
)
"""Of a run's curve; the slope stands for 100 steps."""


def _curves(view: AgentView) -> Table:
    lines = []
    for arm, seed in _each_run(view):
        for mode in MODES:
            cells = [_curve_cell(view, run_of(arm, seed), mode, *of) for of in CURVE_METRICS]
            keys = (Code(arm), Name(str(seed)), say(f"agent.{mode}"))
            lines += [Line((*keys, *cells), "ours")] if any(cells) else []
    lines += _published_curves(view)
    heads = ("arm", "seed", "curve", *(metric.removeprefix("curve.") for metric, _ in CURVE_METRICS))
    return table_of("agent-curves", "agent.curves", heads, lines, section=APPENDIX, notes=("agent.curves_note",))


def _each_run(view: AgentView) -> list[tuple[str, int]]:
    return [(arm, seed) for arm, seeds in view.seeds.items() for seed in seeds]


def _curve_cell(view: AgentView, run: str, mode: str, metric: str, digits: int) -> Number | None:
    at = {"subset": "val", "mode": mode} if metric.startswith("curve.") else {"mode": mode}
    return level(view.find(run, metric, **at), digits, scale=100 if metric == "curve.slope" else 1, interval=False)


def _published_curves(view: AgentView) -> Iterator[Line]:
    pair = next((pair for pair in view.pairs if not pair.is_ours), None)
    for run, of in zip(("nokl", "kl"), (pair.no_kl, pair.kl) if pair else (), strict=False):
        rows, values = list(of[0].values()), values_of(of[0])
        if len(values) < 5:
            continue
        found = curve_statistics(list(values), list(values.values()))
        errors = (PUBLISHED_ERROR, PUBLISHED_FRESH_ERROR, excess_sd(found.sd_of_changes, PUBLISHED_ERROR))
        numbers = (found.sd_of_changes, *errors, found.sd, 100 * found.slope, found.r_squared, found.von_neumann)
        values_shown = (*numbers, found.lag_one)
        cells = [
            derived(value, digits, rows, metric)
            for value, (metric, digits) in zip(values_shown, CURVE_METRICS, strict=False)
        ]
        yield Line((say(f"agent.head.{run}"), say("word.published"), say("agent.greedy"), *cells, None), "published")


RUN_METRICS = (
    ("planned_steps", "run", 0, 1),
    ("executed_steps", "run", 0, 1),
    ("best_step", "run", 0, 1),
    ("cumulative_learning_rate", "", 5, 1),
    ("share_policy", "", 1, 100),
    ("share_kl", "", 1, 100),
    ("share_entropy", "", 1, 100),
    ("seconds", "run", 1, 1),
)


def _runs(view: AgentView) -> Table:
    lines = [Line((Code(arm), Name(str(seed)), *_run_cells(view, arm, seed))) for arm, seed in _each_run(view)]
    scores = (f"{subset}_{at}" for at in ("best", "last") for subset in ("val", "test"))
    heads = ("arm", "seed", "engine", "reason", *(metric for metric, *_ in RUN_METRICS), *scores)
    checks = identities(view)
    broken = [check for check in checks if not check.holds]
    names = [say(f"agent.identity.{check.name}") for check in broken or checks]
    lead = say("agent.broken" if broken else "agent.hold", names=names) if checks else None
    notes = ("agent.runs_note", _troubles(view))
    return table_of("agent-runs", "agent.runs", heads, lines, section=APPENDIX, lead=lead, notes=notes)


def _troubles(view: AgentView) -> Cell:
    """Return how often simulator and environment failed in training, over all runs."""
    counts = []
    for metric in ("simulator_failures", "environment_timeouts"):
        rows = [view.find(f"arm~{arm.name}", metric, at="sum", subset="train") for arm in view.arms]
        known = [row for row in rows if row is not None]
        total = math.fsum(row.runs * row.value for row in known) if known else math.nan
        counts.append(derived(total, 0, known, "sum over runs"))
    return say("agent.troubles", failures=counts[0], timeouts=counts[1]) if all(counts) else None


def _run_cells(view: AgentView, arm: str, seed: int) -> tuple[Cell, ...]:
    run = run_of(arm, seed)
    texts = [view.find(run, name, at="run") for name in ("engine", "reason")]
    numbers = [
        level(view.find(run, metric, at=at), digits, scale=scale, interval=False)
        for metric, at, digits, scale in RUN_METRICS
    ]
    scores = [
        level(view.find(run, "normalised_reward", at=at, subset=subset, mode="sampled"), 1, scale=100, interval=False)
        for at in ("best", "last")
        for subset in ("val", "test")
    ]
    return (*(Name(row.printed) if row else None for row in texts), *numbers, *scores)
