"""Document 001: KL_BETA 0.12 to 0.18, training metrics and accuracy at 200 samples, epoch by epoch."""

from __future__ import annotations

from lever_pipe.report.tables.documents import grpo_tables as parts
from lever_pipe.report.tables.evidence import MEAN, p_text
from lever_pipe.report.tables.published import ACCURACY_015, Lineage, Published
from lever_pipe.report.tables.published import BETAS as BETAS_FILE
from lever_pipe.report.tables.results import Results, keep
from lever_pipe.report.tables.table import Table, beside, frame_of, groups_of
from lever_pipe.report.tables.text import beta_text, difference, number, sentences, signed

BETAS = (0.12, 0.145, 0.15, 0.155, 0.18)
EPOCHS = (1, 2, 3)
COLUMNS = (parts.KL, parts.TRAIN_LOSS, parts.PPO_LOSS, parts.ADV_STD, parts.ADV_MAX)
REMARKS = (
    (parts.KL, max, "largest KL"),
    (parts.KL, min, "smallest KL"),
    (parts.TRAIN_LOSS, min, "lowest train loss"),
    (parts.PPO_LOSS, min, "lowest PPO loss"),
)
"""The extremes over betas that the document remarks."""


def tables(results: Results, published: Published) -> list[Table]:
    """Return the training tables of all epochs, then their accuracy tables."""
    sources = parts.Sources(results, published, (ACCURACY_015, BETAS_FILE))
    epochs, missing = keep(EPOCHS, results.epochs, "epoch")
    training = [_training(sources, epoch, missing) for epoch in epochs]
    return training + [_accuracy(sources, epoch, missing) for epoch in epochs]


def _training(sources: parts.Sources, epoch: int, missing: str) -> Table:
    lineage = Lineage()
    betas, without = keep(BETAS, sources.results.betas, "KL_BETA")
    rows: list[dict[str, str]] = []
    for beta in betas:
        rows += beside(
            {"KL_BETA": beta_text(beta)},
            ours=sources.our_metrics(COLUMNS, beta, epoch),
            published=sources.published_metrics(COLUMNS, beta, epoch, lineage),
            groups=sources.groups(beta, epoch),
        )
    return Table(
        id=f"001-training-epoch~{epoch}",
        document="001",
        title=f"Training metrics, GRPO epoch {epoch}",
        caption=sentences(
            sources.results.seeds_sentence(),
            "KL is the k3 penalty.",
            "Remark: extremes among the rows of one source as printed; none where two rows share it.",
            "Adv Std and Adv Max: spread and largest size of a query's advantages, mean over queries; ties give 0.",
            without,
            missing,
        ),
        frame=frame_of(_remarked(rows), ["KL_BETA", "Source", *(c.heading for c in COLUMNS), "Remark"]),
        notes=lineage.notes(),
        factor="kl_beta",
        groups=groups_of(rows),
    )


def _remarked(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """Return the rows with the extremes that they alone hold among the rows of their source."""
    return [{**row, "Remark": _remark(row, [r for r in rows if r["Source"] == row["Source"]])} for row in rows]


def _remark(row: dict[str, str], rows: list[dict[str, str]]) -> str:
    found = []
    for column, extreme, text in REMARKS:
        values = [float(other[column.heading]) for other in rows if other[column.heading]]
        holds = bool(row[column.heading]) and float(row[column.heading]) == extreme(values)
        if holds and len(values) > 1 and values.count(extreme(values)) == 1:
            found.append(text)
    return ", ".join(found)


def _accuracy(sources: parts.Sources, epoch: int, missing: str) -> Table:
    lineage = Lineage()
    samples, other = parts.near_200(sources.results)
    betas, without = keep(BETAS, sources.results.betas, "KL_BETA")
    rows: list[dict[str, str]] = []
    for beta in betas:
        theirs = sources.published_accuracies(beta, epoch, samples, lineage)
        their_base = sources.published_accuracies(parts.REFERENCE_BETA, epoch, samples, lineage)
        rows += beside(
            {"KL_BETA": beta_text(beta)},
            ours=_our_cells(sources, beta, epoch, samples),
            published=_published_cells(theirs, their_base, beta),
            groups=sources.groups(beta, epoch),
        )
    shots = [f"Shot {k}" for k in sources.results.shots]
    return Table(
        id=f"001-accuracy-epoch~{epoch}",
        document="001",
        title=f"Accuracy at {samples} samples, GRPO epoch {epoch}",
        caption=_caption(sources, epoch, samples, (other, without, missing)),
        frame=frame_of(rows, ["KL_BETA", "Source", *shots, "Average", "vs 0.15", "Holm p"]),
        notes=lineage.notes(),
        factor="kl_beta",
        groups=groups_of(rows),
    )


def _our_cells(sources: parts.Sources, beta: float, epoch: int, samples: int) -> dict[str, str]:
    cells = sources.our_cells(beta, epoch, samples)
    average = sources.results.interval(beta, epoch, samples, MEAN)
    if average is None:
        return cells
    cells["Average"] = average.text()
    paired = sources.results.paired("001", epoch, (beta, parts.REFERENCE_BETA), samples, MEAN)
    if beta == parts.REFERENCE_BETA:
        cells["vs 0.15"] = "reference"
    elif paired is not None:
        cells |= {"vs 0.15": paired.text(), "Holm p": p_text(paired.p)}
    return cells


def _published_cells(by_shots: dict[int, float | None], base: dict[int, float | None], beta: float) -> dict[str, str]:
    cells = parts.accuracy_cells(by_shots)
    cells["Average"] = number(parts.average(by_shots), parts.ACCURACY_DIGITS)
    against = difference(parts.average(by_shots), parts.average(base))
    is_base = beta == parts.REFERENCE_BETA and cells["Average"]
    cells["vs 0.15"] = "reference" if is_base else signed(against, parts.ACCURACY_DIGITS)
    return cells


def _caption(sources: parts.Sources, epoch: int, samples: int, gaps: tuple[str, ...]) -> str:
    results = sources.results
    betas = [beta for beta in BETAS if beta in results.betas] or results.betas
    pairs = [results.paired("001", epoch, (beta, parts.REFERENCE_BETA), samples, MEAN) for beta in betas]
    return sentences(
        "VQA accuracy in percent.",
        results.seeds_sentence(),
        parts.INTERVALS,
        parts.HOLM,
        parts.method(results),
        parts.detectable(pairs),
        parts.training_variance(results),
        "Published: average and differences are recomputed from the printed shots; no interval was published.",
        *gaps,
    )
