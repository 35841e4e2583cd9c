"""The difference and summary tables of document 002, at 200 samples."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lever_pipe.report.tables.documents import grpo_tables as parts
from lever_pipe.report.tables.documents.assessment import ASSESSMENT, AccuracyGap, assess, separation, trend_text
from lever_pipe.report.tables.documents.grpo_tables import ACCURACY_DIGITS, REFERENCE_BETA, Sources
from lever_pipe.report.tables.evidence import MEAN
from lever_pipe.report.tables.published import Lineage
from lever_pipe.report.tables.results import Results, standard_error
from lever_pipe.report.tables.table import Table, beside, frame_of, groups_of
from lever_pipe.report.tables.text import beta_text, difference, mean, number, sentences, signed

ByShots = dict[float, dict[int, float | None]]
"""Accuracy in percent by beta and shots."""


def by_shots(sources: Sources, betas: Sequence[float], epoch: int, gaps: str) -> Table:
    """Return the accuracies at 200 samples by shots with the first beta's differences to the others."""
    lineage = Lineage()
    samples, other = parts.near_200(sources.results)
    shown = sorted(betas, key=lambda beta: (beta != REFERENCE_BETA, beta))
    theirs = {beta: sources.published_accuracies(beta, epoch, samples, lineage) for beta in shown}
    rows: list[dict[str, str]] = []
    for shots in sources.results.shots:
        rows += beside(
            {"Shot": str(shots)},
            ours=_our_difference_cells(sources.results, shown, (epoch, samples, shots)),
            published=_published_difference_cells(theirs, shown, shots, samples),
            groups=_groups_of_columns(sources, shown, epoch),
        )
    pairs = [f"{beta_text(shown[-1])} vs {beta_text(beta)}" for beta in shown[:-1]]
    return Table(
        id=f"002-difference-epoch~{epoch}",
        document="002",
        title=f"Differences after GRPO epoch {epoch}, {samples} samples",
        caption=sentences(
            parts.INTERVALS, _caption(sources, other, gaps), parts.HOLM, parts.method(sources.results), ASSESSMENT
        ),
        frame=frame_of(
            rows,
            ["Shot", "Source", *(f"KL_BETA={beta_text(b)}" for b in shown), *pairs, "Standard error", "Assessment"],
        ),
        notes=lineage.notes(),
        factor="kl_beta",
        groups=groups_of(rows),
    )


def _our_difference_cells(results: Results, shown: Sequence[float], at: tuple[int, int, int]) -> dict[str, str]:
    epoch, samples, shots = at
    found = {beta: results.interval(beta, epoch, samples, shots) for beta in shown}
    cells = {f"KL_BETA={beta_text(beta)}": interval.text() for beta, interval in found.items() if interval}
    last = shown[-1]
    pairs = {beta: results.paired("002", epoch, (last, beta), samples, shots) for beta in shown[:-1]}
    known = {beta: pair for beta, pair in pairs.items() if pair is not None}
    cells |= {f"{beta_text(last)} vs {beta_text(beta)}": pair.text() for beta, pair in known.items()}
    return {**cells, "Assessment": separation({f"vs {beta_text(beta)}": pair for beta, pair in known.items()})}


def summary(sources: Sources, betas: Sequence[float], epochs: Sequence[int], gaps: str) -> Table:
    """Return for each beta the mean difference to 0.15 over shots by epoch, and its best shot."""
    lineage = Lineage()
    samples, other = parts.near_200(sources.results)
    everything = [REFERENCE_BETA, *betas]
    both = {epoch: _both(sources, everything, epoch, samples, lineage) for epoch in epochs}
    rows: list[dict[str, str]] = []
    for beta in betas:
        ours, theirs = ({epoch: pair[side] for epoch, pair in both.items()} for side in (0, 1))
        first = theirs[epochs[0]][beta] if epochs else {}
        rows += beside(
            {"KL_BETA": beta_text(beta)},
            ours=_summary_cells(ours, beta, samples) | _our_summary_cells(sources.results, beta, epochs, samples),
            published={**_summary_cells(theirs, beta, samples), "Standard error": _error(first.values(), samples)},
            groups=sources.groups(beta, epochs[0]) if epochs else ("", ""),
        )
    columns = [f"Epoch {epoch} mean difference" for epoch in epochs]
    best = f"Best shot (epoch {epochs[0]})" if epochs else ""
    return Table(
        id="002-summary",
        document="002",
        title=f"KL_BETA compared, {samples} samples",
        caption=sentences(
            "Mean difference: mean over shots of the accuracy minus that of 0.15, in points.",
            "Best shot: where the difference to 0.15 is largest; for 0.15, where its accuracy is highest.",
            parts.INTERVALS,
            _caption(sources, other, gaps),
            parts.HOLM,
            parts.method(sources.results),
            ASSESSMENT,
            "Here both accuracies are means over shots, and the number of questions counts once.",
        ),
        factor="kl_beta",
        groups=groups_of(rows),
        frame=frame_of(rows, ["KL_BETA", "Source", *columns, best, "Standard error", "Assessment"]),
        notes=lineage.notes(),
    )


def _our_summary_cells(results: Results, beta: float, epochs: Sequence[int], samples: int) -> dict[str, str]:
    """Return what pairing adds to a row of ours; nothing for the reference."""
    pairs = {e: results.paired("002", e, (beta, REFERENCE_BETA), samples, MEAN) for e in epochs}
    known = {epoch: pair for epoch, pair in pairs.items() if pair is not None}
    if beta == REFERENCE_BETA or not known:
        return {}
    cells = {f"Epoch {epoch} mean difference": pair.text() for epoch, pair in known.items()}
    named = {f"epoch {epoch}": pair for epoch, pair in known.items()}
    return {**cells, "Assessment": separation(named)}


def trend(sources: Sources, betas: Sequence[float], epoch: int, gaps: str) -> Table:
    """Return the accuracies at 200 samples by shots with each difference to 0.15 in brackets, and their range."""
    lineage = Lineage()
    samples, other = parts.near_200(sources.results)
    shown = sorted(betas, key=lambda beta: (beta != REFERENCE_BETA, beta))
    ours, theirs = _both(sources, shown, epoch, samples, lineage)
    rows: list[dict[str, str]] = []
    for shots in sources.results.shots:
        rows += beside(
            {"Shot": f"Shot {shots}"},
            ours=_trend_cells(ours, shots),
            published={
                **_trend_cells(theirs, shots),
                "Standard error": _error((by[shots] for by in theirs.values()), samples),
            },
            groups=_groups_of_columns(sources, shown, epoch),
        )
    return Table(
        id=f"002-by-shot-epoch~{epoch}",
        document="002",
        title=f"By shot, {samples} samples, GRPO epoch {epoch}",
        caption=sentences(
            "In round brackets: difference to 0.15. Range: largest minus smallest of the row.",
            "Trend: of the printed accuracies as KL_BETA grows, without a test.",
            _caption(sources, other, gaps),
        ),
        frame=frame_of(
            rows, ["Shot", "Source", *(f"KL_BETA={beta_text(b)}" for b in shown), "Range", "Standard error", "Trend"]
        ),
        notes=lineage.notes(),
        factor="kl_beta",
        groups=groups_of(rows),
    )


def _groups_of_columns(sources: Sources, betas: Sequence[float], epoch: int) -> tuple[str, str]:
    """Return the names of ours and of the published policies whose columns one row compares."""
    pairs = [sources.groups(beta, epoch) for beta in betas]
    return " ".join(ours for ours, _ in pairs), " ".join(published for _, published in pairs)


def _both(
    sources: Sources, betas: Sequence[float], epoch: int, samples: int, lineage: Lineage
) -> tuple[ByShots, ByShots]:
    ours = {beta: sources.our_accuracies(beta, epoch, samples) for beta in betas}
    theirs = {beta: sources.published_accuracies(beta, epoch, samples, lineage) for beta in betas}
    return ours, theirs


def _published_difference_cells(values: ByShots, shown: Sequence[float], shots: int, samples: int) -> dict[str, str]:
    at = {beta: values[beta].get(shots) for beta in shown}
    cells = {f"KL_BETA={beta_text(beta)}": number(value, ACCURACY_DIGITS) for beta, value in at.items()}
    if not any(cells.values()):
        return {}
    last = shown[-1]
    for beta in shown[:-1]:
        cells[f"{beta_text(last)} vs {beta_text(beta)}"] = signed(difference(at[last], at[beta]), ACCURACY_DIGITS)
    pairs = {f"vs {beta_text(beta)}": AccuracyGap(at[last], at[beta], samples) for beta in shown[:-1]}
    return {**cells, "Standard error": _error(at.values(), samples), "Assessment": assess(pairs)}


def _summary_cells(by_epoch: dict[int, ByShots], beta: float, samples: int) -> dict[str, str]:
    cells: dict[str, str] = {}
    for epoch, values in by_epoch.items():
        gap = difference(parts.average(values[beta]), parts.average(values[REFERENCE_BETA]))
        is_reference = beta == REFERENCE_BETA and gap is not None
        cells[f"Epoch {epoch} mean difference"] = "reference" if is_reference else signed(gap, ACCURACY_DIGITS)
    for epoch, values in list(by_epoch.items())[:1]:
        cells[f"Best shot (epoch {epoch})"] = _best_shot(values, beta)
    cells["Assessment"] = _summary_assessment(by_epoch, beta, samples)
    return cells


def _summary_assessment(by_epoch: dict[int, ByShots], beta: float, samples: int) -> str:
    averages = {epoch: {b: parts.average(of) for b, of in values.items()} for epoch, values in by_epoch.items()}
    if beta == REFERENCE_BETA:
        return "reference" if any(at[beta] is not None for at in averages.values()) else ""
    return assess(
        {f"epoch {epoch}": AccuracyGap(at[beta], at[REFERENCE_BETA], samples) for epoch, at in averages.items()}
    )


def _best_shot(values: ByShots, beta: float) -> str:
    base = values[REFERENCE_BETA]
    of = values[beta]
    score = of if beta == REFERENCE_BETA else {k: difference(of[k], base[k]) for k in of}
    known = {k: value for k, value in score.items() if value is not None}
    if not known:
        return ""
    best = max(known, key=lambda k: (known[k], -k))
    text = number(known[best], ACCURACY_DIGITS) if of is score else signed(known[best], ACCURACY_DIGITS)
    return f"Shot {best} ({text})"


def _trend_cells(values: ByShots, shots: int) -> dict[str, str]:
    at = {beta: by.get(shots) for beta, by in values.items()}
    base = at.get(REFERENCE_BETA)
    cells: dict[str, str] = {}
    for beta, value in at.items():
        gap = "" if beta == REFERENCE_BETA else signed(difference(value, base), ACCURACY_DIGITS)
        text = number(value, ACCURACY_DIGITS)
        cells[f"KL_BETA={beta_text(beta)}"] = f"{text} ({gap})" if text and gap else text
    known = [value for value in at.values() if value is not None]
    if known:
        cells["Range"] = number(max(known) - min(known), ACCURACY_DIGITS)
        cells["Trend"] = trend_text([number(at[beta], ACCURACY_DIGITS) for beta in sorted(at)])
    return cells


def _error(values: Iterable[float | None], samples: int) -> str:
    """Return the standard error of one accuracy near the mean of the given ones."""
    return number(standard_error(mean(v for v in values if v is not None), samples), 1)


def _caption(sources: Sources, other: str, gaps: str) -> str:
    return sentences(
        "VQA accuracy in percent, differences in points.",
        sources.results.seeds_sentence(),
        "Standard error: of one published accuracy, not of a difference.",
        parts.training_variance(sources.results),
        other,
        gaps,
    )
