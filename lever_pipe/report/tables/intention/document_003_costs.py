"""Document 003: lengths of sequences and training efficiency."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from lever_pipe.report.tables.intention import published as theirs
from lever_pipe.report.tables.intention.published import RUNS
from lever_pipe.report.tables.intention.shown import Shown
from lever_pipe.report.tables.table import Table, frame_of
from lever_pipe.report.tables.text import number, sentences

DOCUMENT = "003"
STEPS_OF_LENGTHS = (5, 10)
"""At which the document gives lengths: of the run without KL at the former, of the other at the latter."""
LENGTHS = (
    ("Tokens of a device and step", "tokens_per_rank", "mean_sequence_length_tokens_as_labelled"),
    ("Mean sequence length", "sequence_length", ""),
    ("Response length", "response_length", "response_length_tokens"),
    ("Agent tokens", "agent_tokens", ""),
    ("Turns", "turns", ""),
)
STATED_SPREAD = {"nokl": "fluctuates (no number)", "kl": "relatively stable (no number)"}
"""What the document says of the spread of lengths; text, so no row of the reference holds it."""
COSTS = (
    ("Seconds a step", "seconds_step", "time_per_step_s", 2),
    ("Tokens a second and device", "tokens_per_second_per_device", "throughput_tokens_per_s", 0),
    ("Agent tokens a second", "agent_tokens_per_second", "", 0),
    ("MFU of the update", "mfu_update", "mfu", 3),
    ("MFU of the whole step", "mfu_step", "", 3),
)
ALL_COMPUTE_THEM = "Every arm of ours computes the log-probabilities of the reference, so that its KL can be logged."
TIMED_APART = (
    "Smallest to largest of a step; published seconds include evaluations and checkpoints, ours leave both out."
)
TIMED_WITHIN = "Smallest to largest of a step; steps with an evaluation or a checkpoint take longer."
PARTS = (
    ("Rollout (% of the step)", "seconds_rollout"),
    ("Of this the simulator (% of the step)", "seconds_simulator"),
    ("Log-probabilities of the policy (% of the step)", "seconds_log_probs"),
    ("Log-probabilities of the reference (% of the step)", "seconds_reference"),
    ("Update (% of the step)", "seconds_update"),
)


def lengths(shown: Shown) -> Table:
    """Return token counts at the steps that the document names, and their spread over all steps."""
    rows: list[dict[str, str]] = []
    for name, metric, stated in LENGTHS:
        for step in STEPS_OF_LENGTHS:
            rows += _lengths_at(shown, name, step, metric, stated)
    for name, metric, stated in LENGTHS:
        cells = {RUNS[run]: _spread(shown, arm, metric) for run, arm in shown.pair.items()}
        key = {"Quantity": name, "Step": "sd over steps"}
        rows += [{**key, "Source": shown.source, **cells}] if any(cells.values()) else []
        if stated.startswith("mean_sequence_length"):
            rows.append({**key, "Source": theirs.SOURCE, **{RUNS[run]: said for run, said in STATED_SPREAD.items()}})
    return Table(
        id="003-lengths",
        document=DOCUMENT,
        title="Lengths of sequences",
        caption=sentences(
            shown.origin(),
            "The document calls the tokens of a device and step the mean sequence length; no sequence can be that "
            "long, and tokens a second times seconds gives the same number.",
            "It gives one number of each run, at different steps, and no spread.",
            "Response length counts user messages, agent tokens do not.",
            "sd over steps: standard deviation over all steps, mean over seeds.",
        ),
        frame=frame_of(rows, ["Quantity", "Step", "Source", *RUNS.values()]),
    )


def efficiency(shown: Shown) -> Table:
    """Return the ranges of seconds, throughput and MFU, and where the time of a step goes."""
    rows: list[dict[str, str]] = []
    for name, metric, stated, digits in COSTS:
        rows += _costs(shown, name, metric, stated, digits)
    for name, metric in PARTS:
        cells = {RUNS[run]: _share(shown, arm, metric) for run, arm in shown.pair.items()}
        rows += [{"Quantity": name, "Source": shown.source, **cells}] if any(cells.values()) else []
    has_peak = "mfu_update" in set(shown.runs.rows["metric"])
    return Table(
        id="003-efficiency",
        document=DOCUMENT,
        title="Training efficiency",
        caption=sentences(
            shown.origin(),
            TIMED_APART if shown.config.engine == "native" else TIMED_WITHIN,
            "Published ranges do not say of which steps, nor on which GPU.",
            "MFU of the update leaves rollout and simulator out, so it says nothing about most of a step."
            if has_peak
            else "No MFU of ours: no peak is known of this device.",
            ALL_COMPUTE_THEM if shown.config.engine == "native" else "",
        ),
        frame=frame_of(rows, ["Quantity", "Source", *RUNS.values()]),
    )


def _lengths_at(shown: Shown, name: str, step: int, metric: str, stated: str) -> Iterator[dict[str, str]]:
    key = {"Quantity": name, "Step": str(step)}
    series = {run: shown.runs.mean_training(arm, metric) for run, arm in shown.pair.items()}
    ours = {RUNS[run]: number(of.get(step), 0 if "tokens_per" in metric else 1) for run, of in series.items()}
    if any(ours.values()):
        yield {**key, "Source": shown.source, **ours}
    found = {run: shown.published.only(run, stated) for run in RUNS if stated}
    cells = {RUNS[run]: f"about {value[1]}" for run, value in found.items() if value and value[0] == step}
    if cells:
        yield {**key, "Source": theirs.SOURCE, **cells}


def _spread(shown: Shown, arm: str, metric: str) -> str:
    runs = shown.runs
    found = [list(runs.training(arm, seed, metric).values()) for seed in runs.seeds(arm)]
    spreads = [float(np.std(values, ddof=1)) for values in found if len(values) > 1]
    return number(sum(spreads) / len(spreads), 1) if spreads else ""


def _costs(shown: Shown, name: str, metric: str, stated: str, digits: int) -> Iterator[dict[str, str]]:
    ours = {RUNS[run]: _range(_steps(shown, arm, metric), digits) for run, arm in shown.pair.items()}
    if any(ours.values()):
        yield {"Quantity": name, "Source": shown.source, **ours}
    said = {RUNS[run]: shown.published.span(run, stated) for run in RUNS} if stated else {}
    if any(said.values()):
        yield {"Quantity": name, "Source": theirs.SOURCE, **said}


def _steps(shown: Shown, arm: str, metric: str) -> list[float]:
    """Return a metric of every step of every seed."""
    return [value for seed in shown.runs.seeds(arm) for value in shown.runs.training(arm, seed, metric).values()]


def _range(values: list[float], digits: int) -> str:
    return f"{number(min(values), digits)} to {number(max(values), digits)}" if values else ""


def _share(shown: Shown, arm: str, metric: str) -> str:
    part, whole = (_steps(shown, arm, name) for name in (metric, "seconds_step"))
    return number(100 * math.fsum(part) / math.fsum(whole), 1) if part and math.fsum(whole) else ""
