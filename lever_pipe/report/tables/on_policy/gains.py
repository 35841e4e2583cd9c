"""What each mode and KL_BETA adds to its RCE base: one row a run, and one row a run and shot count."""

from __future__ import annotations

from collections.abc import Iterator

from lever_pipe.report.tables.comparisons.estimates import UNADJUSTED, ComparisonRow, method_of
from lever_pipe.report.tables.comparisons.inference import DETECTABLE, ONE_RUN, SEVERAL_SEEDS
from lever_pipe.report.tables.evidence import ALPHA, MEAN, p_text
from lever_pipe.report.tables.on_policy.study import (
    NAMES,
    OFFLINE,
    ON_POLICY,
    SECTION,
    PresetRuns,
    Run,
    id_of,
    names_with,
)
from lever_pipe.report.tables.table import GROUP, Table, frame_of, groups_of
from lever_pipe.report.tables.text import beta_text, bracketed, listing, number, sentences, signed

FACTOR = "policy kl_beta base seed"  # on-policy runs may have fewer seeds than the others
KEYS = ["Mode", "KL_BETA", "Epoch"]
HOLM = "Holm p: adjusted for its family, {families}."
PAIRED = "A difference is paired over the same questions and over the seeds that both sides have."


def gains_table(study: PresetRuns) -> Table:
    """Return every KL_BETA of both modes after the last common epoch, with its gain over the RCE base at each shot."""
    runs = _shown(study)
    rows = [_row(study, run) for run in runs]
    gains = [f"Gain, shot {k}" for k in study.shots]
    return Table(
        id_of(study, "gains"),
        SECTION,
        names_with(study, f"On-policy and offline GRPO against the RCE base, {study.samples} samples"),
        sentences(
            f"VQA accuracy in percent, mean over shots, {study.samples} samples.",
            "Gain: to the RCE base, in points, with its 95 % interval; the tests belong to the mean over shots.",
            OTHER_SEEDS,
            _how(study),
            prompts_sentence(),
            study.seeds_sentence(),
        ),
        frame_of(rows, [*KEYS, "Seeds", "Prompts", "Accuracy", "Gain", "p", "Holm p", *gains]),
        factor=FACTOR,
        groups=groups_of(rows),
        lead=sentences(_first(study), _separated(study)),
    )


def by_shots_table(study: PresetRuns) -> Table:
    """Return the same runs at each shot count and their mean, with every test."""
    rows = [_cell(study, run, shots) for run in _shown(study) for shots in study.columns]
    columns = ["Accuracy", "Difference", "p", "Holm p", "Detectable", "Seeds compared"]
    return Table(
        id_of(study, "gains-by-shots"),
        SECTION,
        names_with(study, f"On-policy and offline GRPO against the RCE base by shots, {study.samples} samples"),
        sentences(
            f"VQA accuracy in percent, {study.samples} samples.",
            "Difference: to the RCE base, in points, with its 95 % interval.",
            _how(study),
            DETECTABLE,
        ),
        frame_of(rows, [*KEYS, "Shots", *columns]),
        factor=FACTOR,
        groups=groups_of(rows),
    )


def tested(row: ComparisonRow | None, heading: str = "Difference") -> dict[str, str]:
    """Return difference, p and Holm p as cells; none of no comparison."""
    if row is None:
        return {}
    return {heading: interval_text(row), "p": p_text(row.p), "Holm p": p_text(row.p_holm)}


def interval_text(row: ComparisonRow) -> str:
    """Return `+0.12 [-0.9, 1.1]`."""
    return bracketed(signed(row.difference, 2), row.low, row.high)


def prompts_sentence() -> str:
    """Return what counts as a prompt."""
    return (
        "Prompts: all that a policy has learned from, mean over seeds: those of the RL data that its RCE base learned "
        "from, without those of validation queries, and the different ones of each own epoch, added up, those included "
        "that the ledger answered."
    )


def methods(rows: list[ComparisonRow]) -> str:
    """Return how the tests of these comparisons were made, and what they hold for."""
    if not rows:
        return ""
    several = {row.n_runs > 1 for row in rows}
    holds = ONE_OR_SEVERAL if len(several) > 1 else SEVERAL_SEEDS if True in several else ONE_RUN
    return sentences(PAIRED, UNADJUSTED, method_of(row.test for row in rows), holds)


OTHER_SEEDS = "Accuracies of rows with other seeds do not compare; paired differences do."
ONE_OR_SEVERAL = (
    "Where one seed is compared, intervals and p values hold for further questions, for these very checkpoints; where "
    "several are, for further seeds too."
)


def _shown(study: PresetRuns) -> list[Run]:
    start = [study.start] if study.start else []
    return [*start, *study.at_last(ON_POLICY), *study.at_last(OFFLINE)]


def _keys(run: Run) -> dict[str, str]:
    return {"Mode": NAMES[run.kind], "KL_BETA": run.beta_text, "Epoch": str(run.epoch), GROUP: run.group}


def _row(study: PresetRuns, run: Run) -> dict[str, str]:
    gains = {f"Gain, shot {k}": study.against_base(run, str(k)) for k in study.shots}
    return {
        **_keys(run),
        "Seeds": str(len(run.seeds)),
        "Prompts": number(study.cost(run), 0),
        "Accuracy": study.interval(run, MEAN).text(),
        **tested(study.against_base(run), "Gain"),
        **{heading: interval_text(row) for heading, row in gains.items() if row},
    }


def _cell(study: PresetRuns, run: Run, shots: str) -> dict[str, str]:
    found = study.against_base(run, shots)
    more = {"Detectable": number(found.detectable, 2), "Seeds compared": str(found.n_runs)} if found else {}
    return {**_keys(run), "Shots": shots, "Accuracy": study.interval(run, shots).text(), **tested(found), **more}


def _comparisons(study: PresetRuns, kind: str, shots: list[str]) -> list[ComparisonRow]:
    found = [study.against_base(run, column) for run in study.at_last(kind) for column in shots]
    return [row for row in found if row is not None]


def _family(study: PresetRuns, kind: str) -> list[ComparisonRow]:
    """Return everything that is adjusted together with a kind's comparisons at the mean, other bases included."""
    rows = _comparisons(study, kind, [MEAN])
    return [row for row in study.measured.tests.values() if rows and row.family == rows[0].family]


def _how(study: PresetRuns) -> str:
    rows = {kind: _family(study, kind) for kind in (ON_POLICY, OFFLINE)}
    families = [f"{len(found)} comparisons {NAMES[kind]}" for kind, found in rows.items() if found]
    how = methods([row for kind in rows for row in _comparisons(study, kind, study.columns)])
    return sentences(how, HOLM.format(families=listing(families)) if families else "")


def _first(study: PresetRuns) -> str:
    """Return what the smallest KL_BETA adds at each shot count; it is not chosen by its accuracy."""
    run = study.at_last(ON_POLICY)[0]
    found = {column: study.against_base(run, column) for column in study.columns}
    items = [f"{interval_text(row)} {_where(column)}" for column, row in found.items() if row]
    if not items:
        return ""
    who = f"On-policy GRPO with KL_BETA={beta_text(run.beta or 0.0)} after epoch {run.epoch}"
    return f"{who}, against its RCE base: {'; '.join(items)}."


def _where(column: str) -> str:
    return "mean over shots" if column == MEAN else f"at shot {column}"


def _separated(study: PresetRuns) -> str:
    parts = list(_counts(study))
    return f"Separated from the RCE base (Holm p below 0.05), mean over shots: {'; '.join(parts)}." if parts else ""


def _counts(study: PresetRuns) -> Iterator[str]:
    for kind in (ON_POLICY, OFFLINE):
        rows = _comparisons(study, kind, [MEAN])
        above = sum(row.p_holm < ALPHA and row.difference > 0 for row in rows)
        below = sum(row.p_holm < ALPHA and row.difference < 0 for row in rows)
        if rows:
            yield f"{NAMES[kind]} {above} of {len(rows)} KL_BETA above it and {below} below"
