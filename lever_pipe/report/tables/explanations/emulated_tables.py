"""The emulation in the shape of documents 001 and 002: what each arm is, its accuracies, its logged KL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lever_pipe.report.tables.explanations.emulated import DIGITS, Run
from lever_pipe.report.tables.explanations.pattern_study import DROPOUT, NONE, EmulatedStudy
from lever_pipe.report.tables.lineage import published_key
from lever_pipe.report.tables.table import Table, beside, frame_of, groups_of
from lever_pipe.report.tables.text import beta_text, difference, mean, number, sentences, signed

ONE_SEED = "No inference about training variance: one seed."
ON_PURPOSE = "Emulated: the faults are switched on deliberately, and no other section shows these rows."
CONTROL = "Control of the emulation: no fault is switched on."
DOCUMENT_BETAS = (0.18, 0.15, 0.12)
"""The betas of document 002, in its order."""
KL_ARMS = {DROPOUT: "with dropout", NONE: "without"}
KL_NAMES = {"kl": "KL", "kl_exact": "Exact KL"}
PUBLISHED_KL = "Published KL"
AGAINST = "against"
FAULTS = {
    "none": "none: the right evaluation of the same checkpoints",
    "head": "the trained attention and layer norm are lost at load and initialised afresh",
    "pool": "every query is offered the same first train items",
    "dropout": "GRPO compares a policy with dropout to a reference without",
    "bases": "one beta starts from another RCE epoch",
    "all": "all of these together",
}


def emulated_tables(study: EmulatedStudy) -> list[Table]:
    """Return every table of the emulation but that of the patterns."""
    by_arm = [table(study, arm) for arm in FAULTS for table in (accuracy_table, samples_table)]
    return [arms_table(study), kl_table(study), *by_arm]


def arms_table(study: EmulatedStudy) -> Table:
    """Return what each arm switches on."""
    emulate = study.emulate
    here = {
        "none": f"pools of their own, RCE epoch {emulate.base_rce_epoch} as base",
        "head": f"stream {emulate.head_seed}, the same for every checkpoint",
        "pool": f"{emulate.pool_items} items",
        "dropout": "dropout of the preset",
        "bases": f"KL_BETA={beta_text(emulate.other_kl_beta)} from RCE epoch {emulate.other_base_rce_epoch}",
        "all": "",
    }
    rows = [{"Arm": arm, "Fault": fault, "Here": here[arm]} for arm, fault in FAULTS.items()]
    return Table(
        id="why-arms",
        document="why",
        title="Emulated: the faults",
        caption=sentences(ON_PURPOSE, f"Seed {emulate.seed}."),
        frame=frame_of(rows, ["Arm", "Fault", "Here"]),
    )


def kl_table(study: EmulatedStudy) -> Table:
    """Return the logged KL of every beta and epoch beside the published one, first of all without updates."""
    base, lineage = study.emulate.base_rce_epoch, study.quoted.afresh()
    rows = [
        {"KL_BETA": "no update", "Epoch": text, **_kl({arm: _untouched(study, arm, epoch) for arm in KL_ARMS})}
        for epoch, text in ((1, "1"), (2, "later"))
    ]
    for epoch in study.epochs:
        for beta in study.emulate.kl_betas:
            values = {
                arm: [study.emulated.metric(arm, base, (beta, epoch), name) for name in KL_NAMES] for arm in KL_ARMS
            }
            published = number(lineage.metric("kl", epoch, beta), 5)
            rows.append({"KL_BETA": beta_text(beta), "Epoch": str(epoch), PUBLISHED_KL: published, **_kl(values)})
    headings = [f"{name} {arm}" for arm in KL_ARMS.values() for name in KL_NAMES.values()]
    return Table(
        id="why-kl",
        document="why",
        title="Emulated: the logged KL with and without dropout in the policy",
        caption=sentences(
            "KL is the k3 penalty.",
            "Without an update, epoch 1 and later ones differ only in how many selections of a query are kept.",
            ONE_SEED,
        ),
        frame=frame_of(rows, ["KL_BETA", "Epoch", PUBLISHED_KL, *headings]),
        notes=lineage.notes(),
    )


def _untouched(study: EmulatedStudy, arm: str, epoch: int) -> list[float]:
    return [study.untouched(arm, name, epoch) for name in KL_NAMES]


def _kl(values: Mapping[str, Sequence[float]]) -> dict[str, str]:
    return {
        f"{name} {KL_ARMS[arm]}": number(value, 5)
        for arm, numbers in values.items()
        for name, value in zip(KL_NAMES.values(), numbers, strict=True)
    }


def accuracy_table(study: EmulatedStudy, arm: str) -> Table:
    """Return document 001's accuracies of an arm, all epochs and betas at one sample count."""
    samples = study.row_samples
    lineage, alone = study.quoted.afresh(), study.emulate.other_kl_beta
    rows: list[dict[str, str]] = []
    for epoch in study.epochs:
        ours = {beta: _ours(study, arm, (beta, epoch), samples) for beta in study.emulate.kl_betas}
        theirs = {beta: lineage.accuracies(beta, epoch, samples, study.shots) for beta in study.emulate.kl_betas}
        for beta in study.emulate.kl_betas:
            rows += beside(
                {"Epoch": str(epoch), "KL_BETA": beta_text(beta)},
                ours=_cells(study, ours[beta]) | _against(ours[beta], ours[alone], is_it=beta == alone),
                published=_cells(study, theirs[beta]) | _against(theirs[beta], theirs[alone], is_it=beta == alone),
                groups=("", published_key(beta, epoch)),
            )
    rows = _sourced(rows, arm)
    rows = [{f"vs {beta_text(alone)}" if key == AGAINST else key: cell for key, cell in row.items()} for row in rows]
    return Table(
        id=f"why-accuracy-{arm}",
        document="why",
        title=f"Emulated: accuracy at {samples} samples, arm {arm}",
        caption=sentences("VQA accuracy in percent.", _purpose(arm), ONE_SEED),
        frame=frame_of(rows, ["Epoch", "KL_BETA", "Source", *_shots(study), "Average", f"vs {beta_text(alone)}"]),
        notes=lineage.notes(),
        factor="kl_beta epoch",
        groups=groups_of(rows),
    )


def samples_table(study: EmulatedStudy, arm: str) -> Table:
    """Return document 002's accuracies of an arm, by samples and shots."""
    lineage, betas = study.quoted.afresh(), study.emulate.kl_betas
    rows: list[dict[str, str]] = []
    for epoch in study.epochs:
        for beta in [beta for beta in DOCUMENT_BETAS if beta in betas] or betas:
            for samples in study.samples:
                rows += beside(
                    {"Epoch": str(epoch), "KL_BETA": beta_text(beta), "Samples": str(samples)},
                    ours=_cells(study, _ours(study, arm, (beta, epoch), samples)),
                    published=_cells(study, lineage.accuracies(beta, epoch, samples, study.shots)),
                    groups=("", published_key(beta, epoch)),
                )
    rows = _sourced(rows, arm)
    return Table(
        id=f"why-samples-{arm}",
        document="why",
        title=f"Emulated: accuracy by samples, arm {arm}",
        caption=sentences(
            "VQA accuracy in percent on the first questions in question-id order.", _purpose(arm), ONE_SEED
        ),
        frame=frame_of(rows, ["Epoch", "KL_BETA", "Samples", "Source", *_shots(study)]),
        notes=lineage.notes(),
        factor="kl_beta epoch samples",
        groups=groups_of(rows),
    )


def _purpose(arm: str) -> str:
    return CONTROL if arm == NONE else ON_PURPOSE


def _sourced(rows: Sequence[Mapping[str, str]], arm: str) -> list[dict[str, str]]:
    """Return the rows with the name of what ours are: no row with a fault may read as a result."""
    ours = "control" if arm == NONE else "emulated"
    return [{**row, "Source": ours if row["Source"] == "ours" else row["Source"]} for row in rows]


def _shots(study: EmulatedStudy) -> list[str]:
    return [f"Shot {k}" for k in study.shots]


def _ours(study: EmulatedStudy, arm: str, run: Run, samples: int) -> list[float | None]:
    return list(study.emulated.cells(arm, run, (samples,), study.shots))


def _cells(study: EmulatedStudy, accuracies: Sequence[float | None]) -> dict[str, str]:
    """Return accuracies under their shots; nothing where none is known."""
    return dict(zip(_shots(study), [number(value, DIGITS) for value in accuracies], strict=True))


def _against(accuracies: Sequence[float | None], reference: Sequence[float | None], *, is_it: bool) -> dict[str, str]:
    """Return the mean over shots, and its difference from the beta with another base."""
    average = number(mean(accuracies), DIGITS)
    if is_it and average:
        return {"Average": average, AGAINST: "reference"}
    return {"Average": average, AGAINST: signed(difference(mean(accuracies), mean(reference)), DIGITS)}
