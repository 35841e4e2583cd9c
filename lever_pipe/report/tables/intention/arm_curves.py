"""Curves of every arm by step, and the secondary endpoints of them."""

from __future__ import annotations

import math

from lever_pipe.report.tables.intention.agent_runs import GREEDY, SAMPLED
from lever_pipe.report.tables.intention.arms import SECTION
from lever_pipe.report.tables.intention.document_004_assessment import sd_of_changes
from lever_pipe.report.tables.intention.endpoint_cells import endpoint_text
from lever_pipe.report.tables.intention.pairs import published_pair
from lever_pipe.report.tables.intention.published import RUNS
from lever_pipe.report.tables.intention.shown import SHARED_DRAWS, UPPER_BOUND, Shown, reward_text, steps_listed
from lever_pipe.report.tables.table import Table, frame_of
from lever_pipe.report.tables.text import listing, number, sentences
from lever_pipe.statistics.curves import excess_sd

STEP_COLUMN = "Step"
GREEDY_REPEATS = "A greedy policy that does not change repeats itself when it is evaluated again."
INTERVALS = "In brackets: 95 % interval over tasks and rollouts and, with several seeds, over seeds."


def tables(shown: Shown) -> list[Table]:
    """Return the sampled and the greedy curves, then their endpoints; a table of nothing is left out."""
    found = [
        *(_by_step(shown, mode) for mode in (SAMPLED, GREEDY)),
        *(_secondary(shown, mode) for mode in (SAMPLED, GREEDY)),
    ]
    return [table for table in found if not table.frame.empty]


def _by_step(shown: Shown, mode: str) -> Table:
    curves = {arm: shown.runs.mean_validation(arm, mode) for arm in shown.runs.arms}
    steps = sorted({step for curve in curves.values() for step in curve})
    rows = [
        {"Step": str(step), **{f"`{arm}`": reward_text(curve[step]) for arm, curve in curves.items() if step in curve}}
        for step in steps
    ]
    return Table(
        id=f"arms-{mode}",
        document=SECTION,
        title=f"Validation reward by step, {mode}",
        caption=sentences(
            f"Ours: {shown.size}.",
            shown.averaging(*shown.runs.arms),
            f"Seeds: {listing(f'`{arm}` {len(shown.runs.seeds(arm))}' for arm in curves)}.",
            "Step 0 is the start that all arms share." if 0 in steps else "",
            SHARED_DRAWS if shown.shares_draws else "",
        ),
        frame=frame_of(rows, [STEP_COLUMN, *(f"`{arm}`" for arm in curves)]),
    )


def _secondary(shown: Shown, mode: str) -> Table:
    found = shown.found
    rows = []
    for arm in shown.runs.arms:
        seeds = shown.runs.seeds(arm)
        last = max(shown.runs.fact(arm, seed).executed_steps for seed in seeds)
        cells = {
            "Start": endpoint_text(found.mean(arm, f"val_reward_{mode}_start")),
            "Last": endpoint_text(found.mean(arm, f"val_reward_{mode}_last")),
            "Gain": endpoint_text(found.mean(arm, f"gain_{mode}")),
            "Mean of the last 3": endpoint_text(found.mean(arm, f"last3_{mode}")),
            "Trapezoid mean": endpoint_text(found.mean(arm, f"trapezoid_{mode}")),
            "Best": reward_text(found.value(arm, f"best_value_{mode}")),
            "Step of the best": steps_listed(found.by_seed(arm, f"best_step_{mode}", seeds), last),
        }
        for share in shown.config.evaluation.thresholds:
            first = found.by_seed(arm, f"steps_to_{share:g}_{mode}", seeds)
            cells[f"Step at {100 * share:g} %"] = steps_listed(first, last)
        others = found.by_seed(arm, f"steps_to_others_best_{mode}", seeds)
        cells["Step at 95 % of the other's best"] = steps_listed(others, last)
        cells["Drawdown"] = reward_text(found.value(arm, f"drawdown_{mode}"))
        rows += [{"Arm": arm, **cells}] if any(cells.values()) else []
    columns = list(rows[0]) if rows else ["Arm"]
    return Table(
        id=f"arms-secondary-{mode}",
        document=SECTION,
        title=f"Secondary endpoints of the validation curve, {mode}",
        caption=sentences(
            f"Ours: {shown.size}.",
            shown.averaging(*shown.runs.arms),
            INTERVALS if any("[" in cell for row in rows for cell in row.values()) else "",
            "Gain: last evaluation minus the start.",
            "Best and drawdown: mean over seeds of what each run shows, without an interval, since noise alone raises "
            "them.",
            "Steps: of each seed in order, once where all agree, > where none is enough.",
            "Percentages are of the ceiling.",
            f"The other arm: `{shown.config.reference_arm}`, for it `{shown.config.document_arm}`.",
        ),
        frame=frame_of(rows, columns),
    )


def noise_table(shown: Shown) -> Table:
    """Return how noisy one evaluation is, and what of the changes of a curve the noise leaves unexplained."""
    found = shown.found
    rows: list[dict[str, str]] = []
    for arm in shown.runs.arms:
        for mode in (SAMPLED, GREEDY):
            error, fresh, spread, excess = (
                found.value(arm, f"{name}_{mode}") for name in ("error", "fresh_error", "sd_of_changes", "excess_sd")
            )
            row = found.mean(arm, f"val_reward_{mode}_last")
            if row is None:
                continue
            rows.append(
                {
                    "Run": f"`{arm}`",
                    "Source": shown.source,
                    "Curve": mode,
                    "Episodes": f"{row.n_tasks * row.n_rollouts:g}",
                    "Error, same tasks": number(error, 3),
                    "Error, other tasks": number(fresh, 3),
                    "sd of change by noise": number(math.sqrt(2) * error, 3),
                    "sd of change": number(spread, 3),
                    "Excess sd": number(excess, 3),
                }
            )
    return Table(
        id="arms-noise",
        document=SECTION,
        title="Noise of an evaluation",
        caption=sentences(
            shown.averaging(*shown.runs.arms),
            "Error: standard error of the mean reward of one evaluation.",
            "Same tasks: if they were rolled out again, from the spread between sampled rollouts of a task; a greedy "
            "episode counts as one draw.",
            "sd of change by noise: sqrt(2) times the error on the same tasks.",
            f"{UPPER_BOUND} {GREEDY_REPEATS}" if shown.shares_draws else "",
            "Excess sd: sqrt(max(0, sd^2 - 2 error^2)), with the error on the same tasks.",
            "Published errors are modelled: every detail of the 40 tasks is found independently with one probability.",
        ),
        frame=frame_of(
            rows + _published_noise(shown),
            [
                *("Run", "Source", "Curve", "Episodes", "Error, same tasks", "Error, other tasks"),
                *("sd of change by noise", "sd of change", "Excess sd"),
            ],
        ),
    )


def _published_noise(shown: Shown) -> list[dict[str, str]]:
    pair, given = published_pair(shown), shown.given
    error = given.same_tasks_sd
    return [
        {
            "Run": RUNS[run],
            "Source": pair.source,
            "Curve": pair.mode,
            "Error, same tasks": number(error, 3),
            "Error, other tasks": number(given.noise_sd, 3),
            "sd of change by noise": number(math.sqrt(2) * error, 3),
            "sd of change": number(spread, 3),
            "Excess sd": number(excess_sd(spread, error), 3),
        }
        for run, spread in pair.means(sd_of_changes).items()
    ]
