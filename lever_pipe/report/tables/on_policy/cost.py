"""What learning costs: prompts that the LVLM answered, and the points that they bought."""

from __future__ import annotations

from lever_pipe.report.tables.evidence import MEAN
from lever_pipe.report.tables.on_policy.gains import FACTOR, prompts_sentence
from lever_pipe.report.tables.on_policy.study import (
    NAMES,
    OFFLINE,
    ON_POLICY,
    REINFORCE,
    SECTION,
    PresetRuns,
    Run,
    id_of,
    names_with,
)
from lever_pipe.report.tables.table import GROUP, Table, frame_of, groups_of
from lever_pipe.report.tables.text import beta_text, listing, number, sentences, signed

RATE = "Gain per 1,000 prompts"


def cost_table(study: PresetRuns) -> Table:
    """Return a row a run and epoch: prompts so far, accuracy, and the gain over the RCE base for 1,000 prompts."""
    runs = [run for kind in (ON_POLICY, REINFORCE, OFFLINE) for run in study.runs(kind)]
    rows = [_row(study, run) for run in runs]
    return Table(
        id_of(study, "cost"),
        SECTION,
        names_with(study, f"Learning against LVLM prompts, {study.samples} samples"),
        sentences(
            f"VQA accuracy in percent, mean over shots, {study.samples} samples.",
            "Gain: to the RCE base, in points, over the seeds that both have; it is not tested here, that of the last "
            "epoch is in the table of gains.",
            prompts_sentence(),
        ),
        frame_of(rows, ["Mode", "KL_BETA", "Epoch", "Seeds", "Prompts", "Accuracy", "Gain", RATE]),
        factor=f"{FACTOR} epoch",
        groups=groups_of(rows),
        lead=_lead(study),
    )


def rate_of(study: PresetRuns, run: Run) -> float | None:
    """Return the points over the RCE base for 1,000 prompts, or None without a common seed."""
    gain = study.gain(run)
    return None if gain is None else 1000 * gain / study.cost(run)


def _row(study: PresetRuns, run: Run) -> dict[str, str]:
    return {
        "Mode": NAMES[run.kind],
        "KL_BETA": run.beta_text,
        "Epoch": str(run.epoch),
        "Seeds": str(len(run.seeds)),
        "Prompts": number(study.cost(run), 0),
        "Accuracy": study.interval(run, MEAN).text(),
        "Gain": signed(study.gain(run), 2),
        RATE: signed(rate_of(study, run), 3),
        GROUP: run.group,
    }


def _lead(study: PresetRuns) -> str:
    """Return the rates of the smallest KL_BETA of each mode after its first and its last epoch."""
    said = []
    for kind in (ON_POLICY, OFFLINE):
        last = study.at_last(kind)[:1]
        same_beta = [run for run in study.runs(kind) if last and run.beta == last[0].beta and run.epoch == 1]
        ends = {run.epoch: rate_of(study, run) for run in (*same_beta, *last)}
        parts = [f"{signed(rate, 3)} up to epoch {epoch}" for epoch, rate in ends.items() if rate is not None]
        if parts:
            said.append(f"{NAMES[kind]} with KL_BETA={beta_text(last[0].beta or 0.0)} {listing(parts)}")
    return f"Points for 1,000 prompts: {'; '.join(said)}." if said else ""
