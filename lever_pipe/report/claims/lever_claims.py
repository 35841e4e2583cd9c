"""What documents 000 to 002 say: losses, training metrics, accuracies, selections and set-up of the compared runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from itertools import pairwise, product
from operator import add
from statistics import fmean, stdev

import numpy as np

from lever_pipe.report import comparability
from lever_pipe.report.cells import Cell, Name, say
from lever_pipe.report.claims.lever_sides import SHOTS, LeverSide, Place, Row, Shots, Statistic
from lever_pipe.report.claims.quantities import (
    Quantity,
    average,
    equal,
    held,
    keys_of,
    labelled,
    less,
    listed,
    named,
    p_value,
    percent,
    printed,
    t_p,
)
from lever_pipe.report.claims.verdicts import Check, NotTestable, Part, lacking, require_print
from lever_pipe.report.evidence import MEAN
from lever_pipe.statistics.curve_tests import f_test

Betas = tuple[float, ...]
Parts = Iterator[Part]
END = 5
"""Epochs that count as the end of a training-curve run."""
IDENTITY = frozenset(("kl_beta", "epoch", "base_rce_epoch"))
"""Fields that name a run, or repeat its base checkpoint."""
ALL_PARAMETERS = "all parameters"
"""Value of the field `trained` where nothing is frozen."""
EVALUATED = "evaluated"
"""Field of a run whose evaluation saw other tensors than training left."""


def loss_is_the_sum(
    side: LeverSide,
    *,
    betas: Betas,
    places: tuple[Place, ...],
    plain: tuple[str, ...],
    weighted: tuple[str, ...],
    total: str,
) -> Parts:
    """Hold the sum of plain metrics and of KL_BETA times the weighted ones against a printed or logged total."""
    for beta, place in product(betas, places):
        terms = [side.at(beta, metric, place) for metric in plain]
        terms += [beta * side.at(beta, metric, place) for metric in weighted]
        what = None if isinstance(place, int) else _place(place)
        yield held(reduce(add, terms), side.at(beta, total, place), side.word, what=what)


def curve_differences_are(
    side: LeverSide, *, metric: str, left: float, right: float, claimed: dict[Statistic, str]
) -> Parts:
    """Hold left - right of printed statistics against their printed differences."""
    require_print(side)
    for name, text in claimed.items():
        yield held(side.at(left, metric, name) - side.at(right, metric, name), printed(text), what=_place(name))


def changes_in_percent_are(side: LeverSide, *, metric: str, claimed: dict[float, str]) -> Parts:
    """Hold 100 (last - first) / first against the printed changes."""
    require_print(side)
    for beta, text in claimed.items():
        first, last = (side.at(beta, metric, name) for name in ("first", "last"))
        yield held(percent(last - first, first), printed(text))


def difference_in_percent_is(
    side: LeverSide, *, metric: str, left: float, right: float, place: Place, claimed: str, difference: str = ""
) -> Parts:
    """Hold 100 (left - right) / left against a printed percentage, which may be worked out from a rounded difference.

    `difference` is the rounded one, empty for none.
    """
    require_print(side)
    row, said = side.together((left, right), (place,), metric)[place], printed(claimed)
    share = percent(row[left] - row[right], row[left])
    slack = 100 * printed(difference).rounding / abs(row[left].value) if difference else 0.0
    yield held(replace(share, rounding=share.rounding + slack), said, digits=said.digits + 1)


def curve_falls(side: LeverSide, *, metric: str, betas: Betas) -> Parts:
    """Tell whether a metric ends below its first epoch."""
    told = {}
    for beta in betas:
        first, last = (side.at(beta, metric, name) for name in ("first", "last"))
        told[beta] = say("claims.from_value_to", first=first.cell, last=last.cell)
        yield Part(Check(first.value - last.value))
    yield Part(None, listed(told))


def minimum_comes_earlier(side: LeverSide, *, metric: str, earlier: float, later: float) -> Parts:
    """Tell whether one training-curve run has its minimum at an earlier epoch."""
    return less("epoch", {beta: side.minimum_epoch(beta, metric) for beta in (earlier, later)})


def curve_changes_less(side: LeverSide, *, metric: str, steadier: float, than: float) -> Parts:
    """Compare the spread of the changes from epoch to epoch (F test)."""
    changes = {beta: np.diff(side.every_epoch(beta, metric)) for beta in (steadier, than)}
    spread = {
        beta: Quantity(float(of.std(ddof=1)), 6, of=side.at(beta, metric, "mean").of, how="sd of changes")
        for beta, of in changes.items()
    }
    return less("sd_of_changes", spread, test="f", p=f_test(*changes.values()))


def curve_converged(side: LeverSide, *, metric: str, betas: Betas, percent: float) -> Parts:
    """Hold the change from the last five epochs but five to the last five against a bound."""
    for beta in betas:
        values = side.every_epoch(beta, metric)
        if values.size < 2 * END:
            raise lacking("few_epochs", least=2 * END)
        before, end = float(values[-2 * END : -END].mean()), float(values[-END:].mean())
        keys = side.at(beta, metric, "mean").of
        change = _share(Quantity(end - before, 6, of=keys), Quantity(abs(before), 6, of=keys))
        yield _within(change, percent, Name(f"{beta:g}"))


def beta_moves_penalty_more_than_kl(side: LeverSide, *, left: float, right: float) -> Parts:
    """Compare the relative difference of the mean KL losses with that of the mean KL.

    `Mainly` needs the larger difference in the KL loss, `hardly` at most half of it in the KL.
    """
    shares = {}
    for metric in ("kl_loss", "kl"):
        a, b = side.at(left, metric, "mean"), side.at(right, metric, "mean")
        shares[metric] = _share(a - b, b, 1)
    penalty, kl = (share.value for share in shares.values())
    told = {_metric(name): say("claims.in_percent", value=share.cell) for name, share in shares.items()}
    yield Part(Check(penalty - kl), listed(told))
    yield Part(Check(penalty / 2 - kl))


def metric_tells_runs_apart(side: LeverSide, *, metric: str, betas: Betas, floor: float) -> Parts:
    """Hold the spread of a metric over runs against what float rounding leaves of a zero."""
    row = {beta: side.at(beta, metric, "mean") for beta in betas}
    yield Part(Check(_range(row.values()), floor), listed(row))
    yield Part(None, say("claims.centred", floor=floor))


def run_is_the_one_with(side: LeverSide, *, beta: float, epoch: int, claimed: dict[str, str]) -> Parts:
    """Hold training metrics against those that another document prints of the same beta and epoch."""
    require_print(side)
    for metric, text in claimed.items():
        yield equal(side.at(beta, metric, epoch), printed(text), _metric(metric))


def spread_over_seeds_is_smaller(side: LeverSide, *, metric: str, epoch: int, steadier: float, than: float) -> Parts:
    """Compare the spread of a metric over training seeds (F test)."""
    values = {beta: list(side.by_seed(beta, epoch, metric).values()) for beta in (steadier, than)}
    plain = {beta: [each.value for each in of] for beta, of in values.items()}
    spread = {b: Quantity(stdev(plain[b]), 6, of=keys_of(*of), how="sd over seeds") for b, of in values.items()}
    if not all(each.value for each in spread.values()):
        raise lacking("seeds_agree")
    return less("sd_over_seeds", spread, test="f", p=f_test(plain[steadier], plain[than]))


def metrics_rise_over(side: LeverSide, *, metrics: tuple[str, ...], places: tuple[Place, ...], betas: Betas) -> Parts:
    """Tell whether metrics rise in the claimed order of betas."""
    for what, row in _rows(side, metrics, places, betas):
        for before, after in pairwise(row.values()):
            yield Part(Check(after.value - before.value))
        yield Part(None, labelled(what, listed(row)))


def metrics_are_equal(
    side: LeverSide, *, metrics: tuple[str, ...], places: tuple[Place, ...], betas: Betas, floor: float
) -> Parts:
    """Tell whether metrics agree over betas up to their rounding, or to `floor`: what float errors leave of a zero."""
    for what, row in _rows(side, metrics, places, betas):
        yield Part(Check(_range(row.values()), max(floor, _slack(row))), labelled(what, listed(row)))


def metric_is_largest(side: LeverSide, *, epoch: int, metric: str, beta: float, others: Betas) -> Parts:
    """Tell whether one beta has the largest value of a metric."""
    row = _row(side, epoch, metric, (beta, *others))
    yield Part(Check(row[beta].value - max(row[other].value for other in others)), listed(row))


def smallest_has_smallest(side: LeverSide, *, metric: str, follows: str, betas: dict[int, Betas]) -> Parts:
    """Tell whether in every epoch the beta with the smallest `metric` also has the smallest `follows`."""
    for epoch, of in betas.items():
        first, second = (_row(side, epoch, name, of) for name in (metric, follows))
        chosen = min(of, key=lambda beta, row=first: row[beta].value)  # type: ignore[misc]
        rest = min(second[beta].value for beta in of if beta != chosen)
        told = {"what": _metric(metric), "beta": chosen, "then": _metric(follows), "values": listed(second)}
        yield Part(Check(rest - second[chosen].value), labelled(_place(epoch), say("claims.smallest_at", **told)))


def largest_kl_is_largest_update(side: LeverSide, *, epoch: int, betas: Betas) -> Parts:
    """Tell whether the beta with the largest KL also moved its parameters most."""
    sizes = {beta: side.update_size(beta, epoch) for beta in betas}
    kl = _row(side, epoch, "kl", betas)
    chosen = max(betas, key=lambda beta: kl[beta].value)
    rest = max(sizes[beta].value for beta in betas if beta != chosen)
    yield Part(Check(sizes[chosen].value - rest), say("claims.update", beta=chosen, values=listed(sizes)))


def spread_is_below(side: LeverSide, *, epoch: int, metric: str, betas: Betas, percent: float) -> Parts:
    """Hold the range of a metric over betas, in percent of its smallest value, against a bound."""
    low, *_, high = sorted(_row(side, epoch, metric, betas).values(), key=lambda each: each.value)
    yield _within(_share(high - low, low), percent, None)


def range_is(side: LeverSide, *, epoch: int, metric: str, betas: Betas, low: str, high: str) -> Parts:
    """Hold the smallest and largest value over betas against a printed range."""
    require_print(side)
    least, *_, most = sorted(_row(side, epoch, metric, betas).values(), key=lambda each: each.value)
    yield equal(least, printed(low))
    yield equal(most, printed(high))


def row_is_its_own(side: LeverSide, *, epoch: int, beta: float, others: Betas, metrics: tuple[str, ...]) -> Parts:
    """Tell whether a row of training metrics differs from every other row."""
    rows = [_row(side, epoch, metric, (beta, *others)) for metric in metrics]
    gaps = {other: max((row[beta] - row[other] for row in rows), key=_size) for other in others}
    nearest = min(gaps, key=lambda other: _size(gaps[other]))
    gap = gaps[nearest].shown(5)
    yield Part(Check(_size(gap)), say("claims.nearest", beta=nearest, gap=gap.cell))


def advantage_spread_tells_runs_apart(
    side: LeverSide, *, epochs: tuple[int, ...], betas: Betas, n_groups: int
) -> Parts:
    """Tell whether the spread of the advantages differs between betas.

    Advantages are standardised within a group, so their standard deviation is 1, or 0 where all rewards tie: its mean
    over groups is the share of groups that do not tie, a whole number over `n_groups`. The rewards of the groups are
    data, so no policy moves it.
    """
    for epoch in epochs:
        row = _row(side, epoch, "std_advantage", betas)
        share = side.gradient_share(betas[0], epoch, n_groups)
        told = say("claims.groups", values=listed(row), share=share.cell)
        yield Part(Check(_range(row.values()) - _slack(row)), labelled(_place(epoch), told))


def metric_falls_faster(side: LeverSide, *, metric: str, faster: float, slower: float, start: int, end: int) -> Parts:
    """Tell whether a metric falls from one epoch to another, and by more than that of another beta."""
    values = side.together((faster, slower), (start, end), metric)
    change = {beta: values[end][beta] - values[start][beta] for beta in (faster, slower)}
    lead = min(-change[faster].value, change[slower].value - change[faster].value)
    yield Part(Check(lead), listed(change))


def metric_is_larger_over_seeds(side: LeverSide, *, metric: str, epoch: int, larger: float, than: float) -> Parts:
    """Compare a metric of two betas seed by seed (paired t test)."""
    values = {beta: side.by_seed(beta, epoch, metric) for beta in (larger, than)}
    seeds = [seed for seed in values[larger] if seed in values[than]]
    if len(seeds) < 2:
        raise lacking("one_seed_of", beta=than)
    gaps = [values[larger][seed].value - values[than][seed].value for seed in seeds]
    p = t_p(gaps)
    left, right = (average(list(values[beta].values())) for beta in (larger, than))
    gap = replace(left - right, value=fmean(gaps), digits=6)
    yield Part(Check(gap.value, p=p), listed([(say("claims.minus", left=larger, right=than), gap)]))
    yield Part(None, p_value("paired_t", p))


def rows_are_identical(side: LeverSide, *, epoch: int, samples: int, betas: Betas) -> Parts:
    """Tell whether betas have the same accuracy at every shot count."""
    return _identical(_accuracies(side, epoch, samples, betas))


def accuracies_after_long_runs_are_equal(side: LeverSide, *, left: float, right: float, samples: int) -> Parts:
    """Tell whether two training-curve runs end with the same accuracy at every shot count."""
    n = side.near(samples)
    yield from _identical({beta: [side.long_accuracy(beta, n, k) for k in SHOTS] for beta in (left, right)})
    yield Part(None, say("claims.after_epochs", epochs=[side.long_epoch(beta) for beta in (left, right)]))


def only_one_differs(side: LeverSide, *, epoch: int, samples: int, beta: float, others: Betas) -> Parts:
    """Tell whether one beta differs from the others and these do not differ."""
    rows = _accuracies(side, epoch, samples, (beta, *others))
    own, *rest = ([each.value for each in row] for row in rows.values())
    apart, among = min(_gap(own, row) for row in rest), max(_gap(rest[0], row) for row in rest)
    yield Part(Check(apart))
    yield Part(Check(1.0 if among == 0 else -1.0), _by_shot(rows))


def epochs_are_identical(side: LeverSide, *, epochs: tuple[int, int], samples: int, betas: Betas) -> Parts:
    """Tell whether two epochs have the same accuracy at every shot count."""
    for beta in betas:
        one, other = (_accuracies(side, epoch, samples, (beta,))[beta] for epoch in epochs)
        gap = max((a - b for a, b in zip(one, other, strict=True)), key=_size).shown(2)
        yield Part(Check(_size(gap)), labelled(Name(f"{beta:g}"), named(largest_difference=gap)))


def cells_differ(
    side: LeverSide, *, beta: float, epochs: tuple[int, int], samples: tuple[int, ...], shots: tuple[int, ...]
) -> Parts:
    """Count the cells in which two epochs differ."""
    cells = product(_counts(side, samples), shots)
    pairs = [[side.accuracy(beta, epoch, n, k) for epoch in epochs] for n, k in cells]
    keys = tuple(key for pair in pairs for each in pair for key in each.of)
    count = Quantity(sum(a.value != b.value for a, b in pairs), 0, of=keys, how="number that differ")
    yield Part(Check(count.value), say("claims.cells", n=count.cell, cells=len(pairs)))


def averages_are(side: LeverSide, *, epoch: int, samples: int, claimed: dict[float, str]) -> Parts:
    """Hold means over shots against printed averages."""
    require_print(side)
    for beta, text in claimed.items():
        yield equal(_mean(side, beta, epoch, samples), printed(text), Name(f"{beta:g}"))


def accuracy_differences_are(
    side: LeverSide, *, epoch: int, samples: int, left: float, right: float, claimed: dict[Shots, str]
) -> Parts:
    """Hold the differences of two betas at shot counts, or of their means over shots, against printed ones."""
    require_print(side)
    for shots, text in claimed.items():
        if shots == MEAN:
            yield held(_mean(side, left, epoch, samples) - _mean(side, right, epoch, samples), printed(text), digits=3)
        else:
            a, b = (side.accuracy(beta, epoch, samples, int(shots)) for beta in (left, right))
            yield held(a - b, printed(text), what=say("claims.at_shots", shots=shots))


def is_more_accurate(side: LeverSide, *, better: float, than: Betas, epoch: int, samples: int, shots: Shots) -> Parts:
    """Compare accuracies; `cause` is judged by what else the runs differ in."""
    for other in than:
        yield side.separation(better, other, epoch, side.near(samples), shots)
    yield Part(differs=_differing([side.lineage(beta, epoch) for beta in (better, *than)]))


def accuracies_are_close(
    side: LeverSide, *, left: float, right: float, epoch: int, samples: int, shots: Shots, margin: float
) -> Parts:
    """Hold a difference of accuracies and its noise against a margin."""
    check, numbers, _ = side.separation(left, right, epoch, side.near(samples), shots)
    yield Part(check and replace(check, margin=margin), numbers)
    yield Part(None, named(margin=Name(f"{margin:g}")))


def is_best_beta(
    side: LeverSide, *, beta: float, others: Betas, shots: int, epochs: tuple[int, ...], samples: tuple[int, ...]
) -> list[Part]:
    """Tell whether one beta has the highest accuracy of all at a shot count, in every setting that others have."""
    parts = []
    for epoch, n in product(epochs, _counts(side, samples)):
        known = {other: found for other in others if (found := _known(side, other, epoch, n, shots)) is not None}
        if known:
            row = {beta: side.accuracy(beta, epoch, n, shots), **known}
            lead = row[beta].value - max(each.value for each in known.values())
            parts.append(Part(Check(lead), labelled(say("claims.setting", epoch=epoch, samples=n), listed(row))))
    if not parts:
        raise lacking("no_comparison", betas=[beta, *others])
    return parts


def selections_agree(side: LeverSide, *, left: float, right: float, claimed: str) -> Parts:
    """Hold the percentage of identical selections against a printed one."""
    share, counted = side.same_selections(left, right)
    yield equal(share, printed(claimed))
    yield Part(None, counted)


def parameters_differ(side: LeverSide, *, beta: float, epoch: int, trained: int, total: int) -> Parts:
    """Hold the percentage of parameters that differ against the share that is trained at all."""
    if side.lineage(beta, epoch).get("trained") == ALL_PARAMETERS:
        raise lacking("all_trained")
    share, base = side.differing_parameters(beta)
    _, numbers, _ = held(_trained(trained, total), share, side.word, what=base)
    yield Part(Check(share.value - 100 * trained / total, max(share.rounding, 0.005)), numbers)


def selections_stay_though_weights_move(side: LeverSide, *, left: float, right: float, epoch: int) -> Parts:
    """Tell whether two betas with other parameters select alike; `cause` asks whether the weights were evaluated."""
    share, counted = side.same_selections(left, right)
    moved, base = side.differing_parameters(left)
    if not moved.value:
        raise lacking("no_weights")
    lost = (comparability.named(EVALUATED),) if EVALUATED in side.lineage(left, epoch) else ()
    yield Part(Check(1.0 if share.value >= 100 else -1.0), labelled(counted, share.cell), lost)
    yield Part(None, labelled(base, moved.cell))


def trained_share_is(side: LeverSide, *, trained: int, total: int, claimed: str) -> Parts:
    """Hold the share of trained parameters against a printed one."""
    require_print(side)
    yield held(_trained(trained, total), printed(claimed))


def runs_share_their_setup(side: LeverSide, *, betas: Betas, epoch: int) -> Parts:
    """Count in how many known fields beside KL_BETA the runs differ."""
    lineages = [side.lineage(beta, epoch) for beta in betas]
    differs = _differing(lineages)
    fields = {field for of in lineages for field in of} - IDENTITY
    told = say("claims.fields_differ", fields=differs) if differs else say("claims.fields_equal", n=len(fields))
    yield Part(Check(float(len(differs))), told)


def _trained(trained: int, total: int) -> Quantity:
    terms = say("claims.share", part=Name(str(trained)), whole=Name(str(total)))
    return Quantity(100 * trained / total, 2, terms=(terms,))


def _within(share: Quantity, bound: float, what: Cell) -> Part:
    numbers = say("claims.bounded", value=share.cell, bound=bound)
    return Part(Check(bound - share.value), labelled(what, numbers))


def _share(part: Quantity, whole: Quantity, digits: int = 2) -> Quantity:
    """Return the size of a share in percent."""
    found = percent(part, whole, digits)
    return replace(found, value=abs(found.value))


def _known(side: LeverSide, beta: float, epoch: int, samples: int, shots: int) -> Quantity | None:
    try:
        return side.accuracy(beta, epoch, samples, shots)
    except NotTestable:
        return None


def _mean(side: LeverSide, beta: float, epoch: int, samples: int) -> Quantity:
    return average([side.accuracy(beta, epoch, samples, shots) for shots in SHOTS])


def _accuracies(side: LeverSide, epoch: int, samples: int, betas: Betas) -> dict[float, list[Quantity]]:
    n = side.near(samples)
    return {beta: [side.accuracy(beta, epoch, n, shots) for shots in SHOTS] for beta in betas}


def _identical(rows: Mapping[float, Sequence[Quantity]]) -> Parts:
    for column in zip(*rows.values(), strict=True):
        yield Part(Check(_range(column)))
    yield Part(None, _by_shot(rows))


def _by_shot(rows: Mapping[float, Sequence[Quantity]]) -> Cell:
    told = {beta: say("claims.four", a=a.cell, b=b.cell, c=c.cell, d=d.cell) for beta, (a, b, c, d) in rows.items()}
    return labelled(say("claims.shots"), listed(told))


def _row(side: LeverSide, epoch: int, metric: str, betas: Betas) -> Row:
    return side.together(betas, (epoch,), metric)[epoch]


def _rows(
    side: LeverSide, metrics: tuple[str, ...], places: tuple[Place, ...], betas: Betas
) -> Iterator[tuple[Cell, Row]]:
    """Yield every row with what tells it from the others."""
    for metric in metrics:
        for place, row in side.together(betas, places, metric).items():
            if len(metrics) > 1 and len(places) > 1:
                yield say("claims.of_place", what=_metric(metric), place=_place(place)), row
            else:
                yield _metric(metric) if len(metrics) > 1 else _place(place) if len(places) > 1 else None, row


def _range(row: Iterable[Quantity]) -> float:
    return float(np.ptp([each.value for each in row]))


def _slack(row: Row) -> float:
    return math.fsum(each.rounding for each in row.values())


def _gap(left: Sequence[float], right: Sequence[float]) -> float:
    return max(abs(a - b) for a, b in zip(left, right, strict=True))


def _size(value: Quantity) -> float:
    return abs(value.value)


def _counts(side: LeverSide, samples: tuple[int, ...]) -> list[int]:
    """Return the sample counts of a side that are nearest to the document's, each once."""
    return list(dict.fromkeys(side.near(n) for n in samples))


def _differing(lineages: Sequence[Mapping[str, str]]) -> tuple[Cell, ...]:
    """Return each field beside KL_BETA that is known to differ."""
    fields = dict.fromkeys(field for known in lineages for field in known if field not in IDENTITY)
    found = (name for name in fields if len({known[name] for known in lineages if name in known}) > 1)
    return tuple(map(comparability.named, found))


def _metric(name: str) -> Cell:
    return say(f"claims.metric.{name}")


def _place(place: Place) -> Cell:
    return say("claims.epoch", epoch=place) if isinstance(place, int) else say(f"claims.statistic.{place}")
