"""The single-factor study: which factor moves the primary endpoint, and by what."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lever_pipe.report.tables.comparisons.estimates import SIGN_FLIP
from lever_pipe.report.tables.evidence import ALPHA, p_text
from lever_pipe.report.tables.intention.arm_comparisons import ArmComparisonRow
from lever_pipe.report.tables.intention.endpoint_cells import (
    detectable_text,
    difference_text,
    endpoint_text,
    endpoint_title,
    is_share,
)
from lever_pipe.report.tables.intention.shown import Shown, schedule_text
from lever_pipe.report.tables.table import Table, frame_of
from lever_pipe.report.tables.text import digits_text, listing, number, sentences, signed

SECTION = "arms"
FACTORS = ["Arm", "KL", "Entropy", "Schedule", "Learning rate", "Trajectory score"]
TESTED = ["Difference", "p", "Holm p", "Detectable", "Test"]
NO_PRIMARY = "The runs hold no evaluation of the primary endpoint."
OTHER_SEEDS = "One seed says nothing about other seeds."
HOLM = "Holm p: adjusted for the arms with several common seeds, and for those with one, apart."
DETECTABLE = "Detectable: the smallest difference that the comparison finds at 80 % power, without adjustment."
OVER_TASKS_ONLY = (
    "With one common seed p is of sign flips over tasks: it infers to further tasks for these very runs, and there is "
    "no inference about training variance."
)


def tables(shown: Shown) -> list[Table]:
    """Return the table of factors with the answer, and what each factor did to the training."""
    return [_factors(shown), _mechanism(shown)]


def _factors(shown: Shown) -> Table:
    found, primary = shown.found, shown.found.primary
    against = {row.arm: row for row in found.family(is_primary=True)}
    rows = [
        {
            **_settings(shown, arm),
            "Seeds": listing(shown.runs.seeds(arm)),
            "Primary endpoint": endpoint_text(found.mean(arm, primary)),
            **_compared(shown, arm, against.get(arm)),
        }
        for arm in shown.runs.arms
    ]
    title = f"Primary endpoint: {endpoint_title(primary)}; fixed before the runs." if primary else NO_PRIMARY
    return Table(
        id="arms-factors",
        document=SECTION,
        title="One factor at a time",
        caption=sentences(
            f"Ours: {shown.size}.",
            title,
            _unit(primary) if primary else "",
            *_method(list(against.values()), shown),
            DETECTABLE if against else "",
            _overlap(shown),
        ),
        frame=frame_of(rows, [*FACTORS, "Seeds", "Primary endpoint", *TESTED]),
        lead=answer(list(against.values()), shown),
    )


def answer(rows: Sequence[ArmComparisonRow], shown: Shown) -> str:
    """Return which arms are separated from the reference arm, and what the seeds allow to say."""
    tested = [row for row in rows if not math.isnan(row.p)]
    reference = f"`{shown.config.reference_arm}`"
    if not tested:
        return f"No arm can be compared with {reference} at the primary endpoint."
    apart = [row for row in tested if row.p_holm < ALPHA]
    over_seeds = [row for row in apart if row.n_seeds > 1]
    single = [row for row in apart if row.n_seeds == 1]
    parts = []
    if over_seeds:
        parts.append(f"Separated from {reference} over seeds: {_named(over_seeds)}.")
    if single:
        parts += [f"Separated from {reference} over tasks, with one seed each: {_named(single)}.", OTHER_SEEDS]
    if not apart:
        least = p_text(min(row.p_holm for row in tested))
        parts.append(f"No arm is separated from {reference} at the primary endpoint: the smallest Holm p is {least}.")
    return sentences(*parts, *_directions(tested, shown))


def _named(rows: Sequence[ArmComparisonRow]) -> str:
    scale = 100 if is_share(rows[0].endpoint) else 1
    digits = 1 if scale == 100 else 3
    return listing(
        f"`{row.arm}` ({signed(scale * row.difference, digits)}, Holm p {p_text(row.p_holm)})" for row in rows
    )


def _directions(rows: Sequence[ArmComparisonRow], shown: Shown) -> list[str]:
    """Return for each arm that its seeds do not separate that they all go the same way, where they do."""
    found = []
    for row in rows:
        if row.p_holm >= ALPHA and row.n_seeds > 1:
            signs = {math.copysign(1, of) if of else 0.0 for of in shown.seed_differences(row)}
            word = {1.0: "higher", -1.0: "lower"}.get(*signs) if len(signs) == 1 else None
            found += [f"`{row.arm}` is {word} in all {row.n_seeds} seeds."] if word else []
    return found


def _settings(shown: Shown, name: str) -> dict[str, str]:
    arm = shown.arm(name)
    config = {other.name: other for other in shown.config.arms}
    cells = {"Arm": name, "KL": f"{arm.kl:g}", "Entropy": f"{arm.entropy:g}", "Schedule": schedule_text(arm.schedule)}
    rates = {name: other.learning_rate or shown.config.grpo.learning_rate for name, other in config.items()}
    scores = {name: other.trajectory_score or shown.config.grpo.trajectory_score for name, other in config.items()}
    cells |= {"Learning rate": f"{rates[name]:g}"} if len(set(rates.values())) > 1 else {}
    return cells | ({"Trajectory score": scores[name]} if len(set(scores.values())) > 1 else {})


def _compared(shown: Shown, arm: str, row: ArmComparisonRow | None) -> dict[str, str]:
    if row is None:
        return {"Difference": "reference"} if arm == shown.config.reference_arm else {}
    tested = not math.isnan(row.p)
    return {
        "Difference": difference_text(row),
        "p": p_text(row.p) if tested else "",
        "Holm p": p_text(row.p_holm) if tested else "",
        "Detectable": detectable_text(row),
        "Test": _test_text(row),
    }


def _test_text(row: ArmComparisonRow) -> str:
    """Return the test with the number of common seeds."""
    return f"{row.test}, {row.n_seeds} seed{'s' * (row.n_seeds != 1)}" if row.test else ""


def _unit(endpoint: str) -> str:
    unit = "in points" if is_share(endpoint) else "in rewards"
    return f"Difference: to the reference arm over the common seeds, {unit}, paired by seed and task."


def _method(rows: Sequence[ArmComparisonRow], shown: Shown) -> list[str]:
    if not rows:
        return []
    reference = f"`{shown.config.reference_arm}`"
    return [
        f"Reference arm: {reference}.",
        "In brackets: 95 % interval over tasks and rollouts and, with several seeds, over seeds.",
        "p: Student's t on crossed seeds and tasks." if any(row.n_seeds > 1 for row in rows) else "",
        OVER_TASKS_ONLY if any(row.test == SIGN_FLIP for row in rows) else "",
        "Holm p: adjusted for the arms with several common seeds, and for those with one, apart."
        if len(rows) > 1
        else "",
    ]


def _overlap(shown: Shown) -> str:
    """Return how many held-out tasks hide the same details as trained ones, where the tasks are known."""
    if shown.held_out is None:
        return ""
    n, again = shown.held_out
    return f"No held-out task repeats a training request; {again} of {n} share category and hidden details with one."


def _mechanism(shown: Shown) -> Table:
    found, reference = shown.found, shown.config.reference_arm
    against = {row.arm: row for row in found.family(is_primary=False)}
    trapezoid = next((row.endpoint for row in against.values()), "trapezoid_sampled")
    base = found.value(reference, "cumulative_learning_rate")
    rows = []
    for arm in shown.runs.arms:
        rate = found.value(arm, "cumulative_learning_rate")
        share = 100 * rate / base if base else math.nan
        row = against.get(arm)
        rows.append(
            {
                "Arm": arm,
                "Cumulative learning rate": digits_text(rate),
                "Of the reference (%)": number(share, 1),
                "Trapezoid mean": endpoint_text(found.mean(arm, trapezoid)),
                **_compared_briefly(shown, arm, row),
                "KL at the end": digits_text(found.value(arm, "kl_end")),
                "Entropy at the end": digits_text(found.value(arm, "entropy_end")),
                **{
                    f"{name} in the loss (%)": number(100 * found.value(arm, f"share_{term}"), 1)
                    for name, term in (("Policy", "policy"), ("KL", "kl"), ("Entropy", "entropy"))
                },
            }
        )
    return Table(
        id="arms-mechanism",
        document=SECTION,
        title="What each factor does to the training",
        caption=sentences(
            f"Ours: {shown.size}.",
            shown.averaging(*shown.runs.arms),
            f"Trapezoid mean: {endpoint_title(trapezoid)}, after the start.",
            "KL and entropy at the end: mean of the last 5 steps; KL is that to the start policy.",
            "In the loss: mean size of a term over steps, in percent of the sum of all terms.",
            _unit(trapezoid) if against else "",
            *_method(list(against.values()), shown),
        ),
        frame=frame_of(rows, list(dict.fromkeys(key for row in rows for key in row))),
    )


def _compared_briefly(shown: Shown, arm: str, row: ArmComparisonRow | None) -> dict[str, str]:
    cells = _compared(shown, arm, row)
    return {name: cells.get(name, "") for name in ("Difference", "p", "Holm p", "Test")}
