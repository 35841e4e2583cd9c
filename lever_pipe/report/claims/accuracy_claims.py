"""Accuracies, selections and set-up of the compared runs (documents 000, 001 and 002)."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from lever_pipe.report.claims.lever_side import LeverSide, Shots
from lever_pipe.report.claims.quantities import Quantity, printed
from lever_pipe.report.claims.texts import by_value
from lever_pipe.report.claims.verdicts import Check, Measured, NotTestable
from lever_pipe.report.tables.comparability import LABELS
from lever_pipe.report.tables.text import beta_text, listing, number, signed

Betas = tuple[float, ...]
SHOTS = (1, 2, 3, 4)
IDENTITY = frozenset(("kl_beta", "epoch", "base_rce_epoch"))
"""Fields that name a run, or repeat its base checkpoint."""
ALL_PARAMETERS = "all parameters"
"""Value of the field `trained` where nothing is frozen."""
EVALUATED = "evaluated"
"""Field of a run whose evaluation saw other tensors than training left."""


def rows_are_identical(side: LeverSide, *, epoch: int, samples: int, betas: Betas) -> Measured:
    """Tell whether betas have the same accuracy at every shot count."""
    n = side.near(samples)
    rows = {beta: _row(side, beta, epoch, n) for beta in betas}
    gaps = [max(column) - min(column) for column in zip(*_values(rows), strict=True)]
    return Measured(_listed(rows, n), tuple(Check(gap) for gap in gaps))


def only_one_differs(side: LeverSide, *, epoch: int, samples: int, beta: float, others: Betas) -> Measured:
    """Tell whether one beta differs from the others and these do not differ."""
    n = side.near(samples)
    rows = {other: _row(side, other, epoch, n) for other in (beta, *others)}
    own, *rest = _values(rows)
    apart = min(_gap(own, row) for row in rest)
    among = max(_gap(rest[0], row) for row in rest)
    return Measured(_listed(rows, n), (Check(apart), Check(1.0 if among == 0 else -1.0)))


def epochs_are_identical(side: LeverSide, *, epochs: tuple[int, int], samples: int, betas: Betas) -> Measured:
    """Tell whether two epochs have the same accuracy at every shot count."""
    pairs = {beta: [_row(side, beta, epoch, side.near(samples)) for epoch in epochs] for beta in betas}
    gaps = [_gap(*([v.value for v in row] for row in pair)) for pair in pairs.values()]
    return Measured(_largest_gaps(dict(zip(betas, gaps, strict=True))), tuple(Check(gap) for gap in gaps))


def cells_differ(
    side: LeverSide, *, beta: float, epochs: tuple[int, int], samples: tuple[int, ...], shots: tuple[int, ...]
) -> Measured:
    """Count the cells in which two epochs differ."""
    cells = [(n, k) for n in _counts(side, samples) for k in shots]
    pairs = [[side.accuracy(beta, epoch, n, k).value for epoch in epochs] for n, k in cells]
    count = sum(left != right for left, right in pairs)
    text = f"{count} of {len(pairs)} cells at shots {listing(shots)} differ between epochs {listing(epochs)}"
    return Measured(text, (Check(count),))


def averages_are(side: LeverSide, *, epoch: int, samples: int, claimed: dict[float, str]) -> Measured:
    """Hold means over shots against printed averages."""
    side.require_print()
    texts, checks = [], []
    for beta, text in claimed.items():
        mean, said = _mean(side, beta, epoch, samples), printed(text)
        checks.append(Check(mean.value - said.value, mean.rounding + said.rounding))
        texts.append(f"{beta_text(beta)}: mean over shots {mean}, printed {said}")
    return Measured("; ".join(texts), tuple(checks))


def average_difference_is(
    side: LeverSide, *, epoch: int, samples: int, left: float, right: float, claimed: str
) -> Measured:
    """Hold the difference of two means over shots against a printed one."""
    side.require_print()
    a, b = (_mean(side, beta, epoch, samples) for beta in (left, right))
    said, gap = printed(claimed), a.value - b.value
    text = f"{a} - {b} = {number(gap, 3)}, printed {said}"
    return Measured(text, (Check(gap - said.value, a.rounding + b.rounding + said.rounding),))


def shot_differences_are(
    side: LeverSide, *, epoch: int, samples: int, left: float, right: float, claimed: dict[int, str]
) -> Measured:
    """Hold the differences of two betas at each shot count against printed ones."""
    side.require_print()
    texts, checks = [], []
    for shots, text in claimed.items():
        a, b, said = (
            side.accuracy(left, epoch, samples, shots),
            side.accuracy(right, epoch, samples, shots),
            printed(text),
        )
        gap = a.value - b.value
        checks.append(Check(gap - said.value, a.rounding + b.rounding + said.rounding))
        texts.append(f"shot {shots}: {a} - {b} = {number(gap, said.digits)}, printed {said}")
    return Measured("; ".join(texts), tuple(checks))


def is_more_accurate(
    side: LeverSide, *, better: float, than: Betas, epoch: int, samples: int, shots: Shots
) -> Measured:
    """Compare accuracies; `cause` is judged by what else the runs differ in."""
    found = [side.separation(better, other, epoch, side.near(samples), shots) for other in than]
    differs = _differing({beta: side.lineage(beta, epoch) for beta in (better, *than)})
    return Measured("; ".join(text for _, text in found), tuple(check for check, _ in found), differs)


def accuracies_are_close(
    side: LeverSide, *, left: float, right: float, epoch: int, samples: int, shots: Shots, margin: float
) -> Measured:
    """Hold a difference of accuracies and its noise against a margin."""
    check, text = side.separation(left, right, epoch, side.near(samples), shots)
    return Measured(f"{text}; margin {margin:g}", (Check(check.value, check.needed, check.p, margin),))


def best_with_shots(
    side: LeverSide, *, beta: float, shots: int, epochs: tuple[int, ...], samples: tuple[int, ...]
) -> Measured:
    """Tell whether one shot count has the highest accuracy at every sample count and epoch."""
    texts, checks = [], []
    for epoch in epochs:
        for n in _counts(side, samples):
            row = dict(zip(SHOTS, _row(side, beta, epoch, n), strict=True))
            lead = row[shots].value - max(value.value for k, value in row.items() if k != shots)
            checks.append(Check(lead))
            texts.append(f"epoch {epoch}, {n} samples {signed(lead, 2)}")
    return Measured(f"shot {shots} minus the best other: {'; '.join(texts)}", tuple(checks))


def accuracies_after_long_runs_are_equal(side: LeverSide, *, left: float, right: float, samples: int) -> Measured:
    """Tell whether two training-curve runs end with the same accuracy at every shot count."""
    n = side.near(samples)
    rows = {beta: [side.long_accuracy(beta, n, k) for k in SHOTS] for beta in (left, right)}
    gaps = [abs(a - b) for a, b in zip(*_values(rows), strict=True)]
    texts = [f"{beta_text(beta)} after epoch {side.long_epoch(beta)}: {_joined(row)}" for beta, row in rows.items()]
    return Measured(f"{n} samples, shots 1 to 4: {'; '.join(texts)}", tuple(Check(gap) for gap in gaps))


def selections_agree(side: LeverSide, *, left: float, right: float, claimed: str) -> Measured:
    """Hold the percentage of identical selections against a printed one."""
    share, counted = side.same_selections(left, right)
    said = printed(claimed)
    return Measured(f"{share} % ({counted}), printed {said} %", (Check(share.value - said.value, said.rounding),))


def parameters_differ(side: LeverSide, *, beta: float, epoch: int, trained: int, total: int) -> Measured:
    """Hold the percentage of parameters that differ against the share that is trained at all."""
    if side.lineage(beta, epoch).get("trained") == ALL_PARAMETERS:
        raise NotTestable("Every parameter is trained.")
    share, base = side.differing_parameters(beta)
    possible = 100 * trained / total
    text = f"{share} % differ {base}; 100 x {trained} / {total} = {number(possible, 2)} are trained"
    return Measured(text, (Check(share.value - possible, max(share.rounding, 0.005)),))


def selections_stay_though_weights_move(side: LeverSide, *, left: float, right: float, epoch: int) -> Measured:
    """Tell whether two betas with other parameters select alike; `cause` asks whether the weights were evaluated."""
    share, counted = side.same_selections(left, right)
    moved, base = side.differing_parameters(left)
    if not moved.value:
        raise NotTestable("No parameter differs.")
    text = f"{share} % of selections agree ({counted}); {moved} % of parameters differ {base}"
    lineage = side.lineage(left, epoch)
    lost = (by_value(LABELS[EVALUATED], {"all": lineage[EVALUATED]}),) if EVALUATED in lineage else ()
    return Measured(text, (Check(1.0 if share.value >= 100 else -1.0),), lost)


def trained_share_is(side: LeverSide, *, trained: int, total: int, claimed: str) -> Measured:
    """Hold the share of trained parameters against a printed one."""
    side.require_print()
    said, share = printed(claimed), 100 * trained / total
    text = f"100 x {trained} / {total} = {number(share, said.digits)}, printed {said}"
    return Measured(text, (Check(share - said.value, said.rounding),))


def runs_share_their_setup(side: LeverSide, *, betas: Betas, epoch: int) -> Measured:
    """Count in how many known fields beside KL_BETA the runs differ."""
    lineages = {beta: side.lineage(beta, epoch) for beta in betas}
    differs = _differing(lineages)
    fields = {field for of in lineages.values() for field in of} - IDENTITY
    text = f"Different: {listing(differs)}" if differs else f"None of {len(fields)} recorded fields differs"
    return Measured(text, (Check(float(len(differs))),))


def _mean(side: LeverSide, beta: float, epoch: int, samples: int) -> Quantity:
    row = _row(side, beta, epoch, samples)
    return Quantity(fmean(value.value for value in row), 3, max(value.rounding for value in row))


def _row(side: LeverSide, beta: float, epoch: int, samples: int) -> list[Quantity]:
    return [side.accuracy(beta, epoch, samples, shots) for shots in SHOTS]


def _values(rows: dict[float, list[Quantity]]) -> list[list[float]]:
    return [[value.value for value in row] for row in rows.values()]


def _gap(left: list[float], right: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(left, right, strict=True))


def _listed(rows: dict[float, list[Quantity]], samples: int) -> str:
    texts = [f"{beta_text(beta)}: {_joined(row)}" for beta, row in rows.items()]
    return f"{samples} samples, shots 1 to 4: {'; '.join(texts)}"


def _joined(row: list[Quantity]) -> str:
    return " / ".join(map(str, row))


def _counts(side: LeverSide, samples: tuple[int, ...]) -> list[int]:
    """Return the sample counts of a side that are nearest to the document's, each once."""
    return list(dict.fromkeys(side.near(n) for n in samples))


def _largest_gaps(gaps: dict[float, float]) -> str:
    return "; ".join(f"{beta_text(beta)}: largest difference {number(gap, 2)}" for beta, gap in gaps.items())


def _differing(lineages: Mapping[float, Mapping[str, str]]) -> tuple[str, ...]:
    """Return each field that is known to differ with its values, as `texts.by_value` writes them."""
    found = []
    for field in dict.fromkeys(field for known in lineages.values() for field in known):
        values = {beta_text(beta): known[field] for beta, known in lineages.items() if field in known}
        if field not in IDENTITY and len(set(values.values())) > 1:
            found.append(by_value(LABELS.get(field, field), values))
    return tuple(found)
