"""What KL_BETA does on-policy: divergence, entropy, accuracy and choices by beta, and where it begins to matter."""

from __future__ import annotations

from lever_pipe.report.tables.comparisons.estimates import ComparisonRow
from lever_pipe.report.tables.comparisons.families import DRAWN_BETAS
from lever_pipe.report.tables.evidence import ALPHA, MEAN, p_text
from lever_pipe.report.tables.on_policy.gains import FACTOR, methods, tested
from lever_pipe.report.tables.on_policy.study import LAST_SHARE, ON_POLICY, SECTION, PresetRuns, Run, id_of, names_with
from lever_pipe.report.tables.table import GROUP, Table, frame_of, groups_of
from lever_pipe.report.tables.text import beta_text, number, sentences, signed

HALF = 0.5


def betas_table(study: PresetRuns) -> Table:
    """Return a row a KL_BETA after the last common on-policy epoch, against the smallest one."""
    runs = study.at_last(ON_POLICY)
    rows = [_row(study, run) for run in runs]
    agreeing = _agreeing(study)
    compared = [row for run in runs if (row := against_smallest(study, run, MEAN))]
    smallest = beta_text(runs[0].beta or 0.0)
    columns = ["KL_BETA", "Seeds", "Exact KL", "Entropy", "Accuracy", "Difference", "p", "Holm p", *agreeing.values()]
    return Table(
        id_of(study, "betas"),
        SECTION,
        names_with(study, f"What KL_BETA does on-policy, after epoch {study.last(ON_POLICY)}"),
        sentences(
            "Exact KL (policy to RCE base, nats a pick) and entropy (first pick, nats): mean over the last quarter of "
            "the steps of a run.",
            f"VQA accuracy in percent, mean over shots, {study.samples} samples.",
            f"Difference: to KL_BETA={smallest}, in points, with its 95 % interval.",
            f"Holm p: adjusted for {len(compared)} comparisons." if compared else "",
            methods(compared),
            "Same choice: evaluated questions for which the policy picks exactly what its RCE base picks, in the same "
            "order, in percent.",
            study.seeds_sentence(),
        ),
        frame_of(rows, columns),
        factor=FACTOR,
        groups=groups_of(rows),
        lead=sentences(accuracy_sentence(study), divergence_sentence(study)),
    )


def accuracy_sentence(study: PresetRuns) -> str:
    """Return the smallest KL_BETA that is separated from the smallest one of all, or that none is."""
    runs = study.at_last(ON_POLICY)
    found = {run.beta or 0.0: row for run in runs if (row := against_smallest(study, run, MEAN))}
    if not found:
        return ""
    first = beta_text(runs[0].beta or 0.0)
    apart = [beta for beta, row in found.items() if row.p_holm < ALPHA]
    if apart:
        points = f"{signed(found[apart[0]].difference, 2)} points"
        return (
            f"The smallest KL_BETA separated from KL_BETA={first} (Holm p below 0.05, mean over shots): "
            f"{beta_text(apart[0])}, {points}{_of_larger(apart, list(found))}."
        )
    least = p_text(min(row.p_holm for row in found.values()))
    return f"No KL_BETA is separated from KL_BETA={first} at the mean over shots: the smallest Holm p is {least}."


def divergence_sentence(study: PresetRuns) -> str:
    """Return from which KL_BETA on the exact KL at the end is below half of that of the smallest one."""
    ends = {run.beta or 0.0: study.logged(run, "kl_exact", share=LAST_SHARE) for run in study.at_last(ON_POLICY)}
    known = {beta: value for beta, value in ends.items() if value is not None}
    if len(known) < 2:
        return ""
    first, *others = known
    held = [beta for beta in others if known[beta] < HALF * known[first]]
    from_here = [beta for beta in held if all(larger in held for larger in others if larger >= beta)]
    whole = f"the exact KL at the end is below half of that at KL_BETA={beta_text(first)}"
    level = f"({number(known[first], 3)} nats a pick)"
    if not from_here:
        return f"At no KL_BETA up to {beta_text(others[-1])} {whole} {level}."
    return f"From KL_BETA={beta_text(from_here[0])} on {whole} {level}."


def against_smallest(study: PresetRuns, run: Run, shots: str) -> ComparisonRow | None:
    """Return the comparison of a run with the smallest KL_BETA; None for that one itself."""
    return study.test(DRAWN_BETAS, run.group, study.at_last(ON_POLICY)[0].group, shots)


def _of_larger(apart: list[float], every: list[float]) -> str:
    """Return what holds of the larger ones that were run, if any."""
    if apart[0] == every[-1]:
        return ""
    return ", and every larger one" if apart == every[len(every) - len(apart) :] else ", but not every larger one"


def _agreeing(study: PresetRuns) -> dict[int, str]:
    ends = sorted({min(study.shots), max(study.shots)})
    return {k: f"Same choice, {k} shot{'s' if k > 1 else ''}" for k in ends}


def _row(study: PresetRuns, run: Run) -> dict[str, str]:
    shares = {heading: study.agreement(run, k) for k, heading in _agreeing(study).items()}
    return {
        "KL_BETA": run.beta_text,
        "Seeds": str(len(run.seeds)),
        "Exact KL": number(study.logged(run, "kl_exact", share=LAST_SHARE), 4),
        "Entropy": number(study.logged(run, "entropy", share=LAST_SHARE), 3),
        "Accuracy": study.interval(run, MEAN).text(),
        **tested(against_smallest(study, run, MEAN)),
        **{heading: number(None if share is None else 100 * share, 2) for heading, share in shares.items()},
        GROUP: run.group,
    }
