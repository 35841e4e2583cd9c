"""What documents 000 to 002 say: losses, training metrics, accuracies, selections and set-up of the compared runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from itertools import pairwise
from operator import add
from statistics import fmean, stdev

import numpy as np

from lever_pipe.report import comparability
from lever_pipe.report.cells import Cell, Name, say
from lever_pipe.report.claims.lever_sides import SHOTS, LeverSide, Place, Row, Shots, Statistic
from lever_pipe.report.claims.quantities import (
    Part,
    Quantity,
    average,
    held,
    labelled,
    listed,
    measures,
    named,
    p_value,
    percent,
    printed,
    t_p,
)
from lever_pipe.report.claims.verdicts import Check, Measured, NotTestable, lacking, require_print
from lever_pipe.statistics.curve_tests import f_test

Betas = tuple[float, ...]
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
) -> Measured:
    """Hold the sum of plain metrics and of KL_BETA times the weighted ones against a printed or logged total."""
    parts = []
    for beta in betas:
        for place in places:
            terms = [side.at(beta, metric, place) for metric in plain]
            terms += [beta * side.at(beta, metric, place) for metric in weighted]
            what = None if isinstance(place, int) else _place(place)
            parts.append(held(reduce(add, terms), side.at(beta, total, place), side.word, what=what))
    return measures(parts)


def curve_differences_are(
    side: LeverSide, *, metric: str, left: float, right: float, claimed: dict[Statistic, str]
) -> Measured:
    """Hold left - right of printed statistics against their printed differences."""
    require_print(side)
    pairs = {name: side.at(left, metric, name) - side.at(right, metric, name) for name in claimed}
    return measures([held(gap, printed(claimed[name]), what=_place(name)) for name, gap in pairs.items()])


def changes_in_percent_are(side: LeverSide, *, metric: str, claimed: dict[float, str]) -> Measured:
    """Hold 100 (last - first) / first against the printed changes."""
    require_print(side)
    ends = {beta: [side.at(beta, metric, name) for name in ("first", "last")] for beta in claimed}
    return measures([held(percent(b - a, a), printed(claimed[beta])) for beta, (a, b) in ends.items()])


def difference_in_percent_is(
    side: LeverSide, *, metric: str, left: float, right: float, place: Place, difference: str, claimed: str
) -> Measured:
    """Hold 100 (left - right) / left against a printed percentage, which may be worked out from a rounded difference.

    `difference` is the rounded one, empty for none.
    """
    require_print(side)
    row, said = side.together((left, right), (place,), metric)[place], printed(claimed)
    share = percent(row[left] - row[right], row[left])
    slack = 100 * printed(difference).rounding / abs(row[left].value) if difference else 0.0
    return measures([held(replace(share, rounding=share.rounding + slack), said, digits=said.digits + 1)])


def curve_falls(side: LeverSide, *, metric: str, betas: Betas) -> Measured:
    """Tell whether a metric ends below its first epoch."""
    ends = {beta: [side.at(beta, metric, name) for name in ("first", "last")] for beta in betas}
    told = {beta: say("claims.from_value_to", first=a.cell, last=b.cell) for beta, (a, b) in ends.items()}
    checks: list[Part] = [(Check(a.value - b.value), None) for a, b in ends.values()]
    return measures(checks, listed(told))


def minimum_comes_earlier(side: LeverSide, *, metric: str, earlier: float, later: float) -> Measured:
    """Tell whether one training-curve run has its minimum at an earlier epoch."""
    found = {beta: side.minimum_epoch(beta, metric) for beta in (earlier, later)}
    return measures([(Check(found[later].value - found[earlier].value), labelled(_word("epoch"), listed(found)))])


def curve_changes_less(side: LeverSide, *, metric: str, steadier: float, than: float) -> Measured:
    """Compare the spread of the changes from epoch to epoch (F test)."""
    changes = {beta: np.diff(side.every_epoch(beta, metric)) for beta in (steadier, than)}
    ends = {beta: side.at(beta, metric, "mean").of for beta in changes}
    spread = {b: Quantity(float(of.std(ddof=1)), 6, of=ends[b], how="sd of changes") for b, of in changes.items()}
    return _spread(spread, f_test(changes[steadier], changes[than]), "sd_of_changes")


def curve_converged(side: LeverSide, *, metric: str, betas: Betas, percent: float) -> Measured:
    """Hold the change from the last five epochs but five to the last five against a bound."""
    parts = []
    for beta in betas:
        values = side.every_epoch(beta, metric)
        if values.size < 2 * END:
            raise lacking("few_epochs", least=2 * END)
        before, end = float(values[-2 * END : -END].mean()), float(values[-END:].mean())
        keys = side.at(beta, metric, "mean").of
        change = _share(Quantity(abs(end - before), 6, of=keys), Quantity(abs(before), 6, of=keys))
        parts.append(_within(change, percent, _beta(beta)))
    return measures(parts)


def beta_moves_penalty_more_than_kl(side: LeverSide, *, left: float, right: float) -> Measured:
    """Compare the relative difference of the mean KL losses with that of the mean KL.

    `Mainly` needs the larger difference in the KL loss, `hardly` at most half of it in the KL.
    """
    shares = {}
    for metric in ("kl_loss", "kl"):
        a, b = side.at(left, metric, "mean"), side.at(right, metric, "mean")
        shares[metric] = _share(a - b, b, 1)
    penalty, kl = shares["kl_loss"].value, shares["kl"].value
    checks = ((Check(penalty - kl), _percents(shares)), (Check(penalty / 2 - kl), None))
    return measures(checks)


def metric_tells_runs_apart(side: LeverSide, *, metric: str, betas: Betas, floor: float) -> Measured:
    """Hold the spread of a metric over runs against what float rounding leaves of a zero."""
    row = {beta: side.at(beta, metric, "mean") for beta in betas}
    return measures([(Check(_range(row), floor), listed(row))], say("claims.centred", floor=floor))


def run_is_the_one_with(side: LeverSide, *, beta: float, epoch: int, claimed: dict[str, str]) -> Measured:
    """Hold training metrics against those that another document prints of the same beta and epoch."""
    require_print(side)
    rows = {metric: side.at(beta, metric, epoch) for metric in claimed}
    return measures([_is(row, printed(claimed[metric]), _metric(metric)) for metric, row in rows.items()])


def spread_over_seeds_is_smaller(side: LeverSide, *, metric: str, epoch: int, steadier: float, than: float) -> Measured:
    """Compare the spread of a metric over training seeds (F test)."""
    values = {beta: list(side.by_seed(beta, epoch, metric).values()) for beta in (steadier, than)}
    plain = {beta: [each.value for each in of] for beta, of in values.items()}
    spread = {
        beta: Quantity(stdev(plain[beta]), 6, of=average(of).of, how="sd over seeds") for beta, of in values.items()
    }
    if not all(each.value for each in spread.values()):
        raise lacking("seeds_agree")
    return _spread(spread, f_test(plain[steadier], plain[than]), "sd_over_seeds")


def metrics_rise_over(
    side: LeverSide, *, metrics: tuple[str, ...], places: tuple[Place, ...], betas: Betas
) -> Measured:
    """Tell whether metrics rise in the claimed order of betas."""
    parts: list[Part] = []
    for metric, place, row in _rows(side, metrics, places, betas):
        parts += [(Check(after.value - before.value), None) for before, after in pairwise(row.values())]
        parts.append((None, labelled(_where(metric, place, metrics, places), listed(row))))
    return measures(parts)


def metric_is_largest(side: LeverSide, *, epoch: int, metric: str, beta: float, others: Betas) -> Measured:
    """Tell whether one beta has the largest value of a metric."""
    row = _row(side, epoch, metric, (beta, *others))
    return measures([(Check(row[beta].value - max(row[other].value for other in others)), listed(row))])


def smallest_has_smallest(side: LeverSide, *, metric: str, follows: str, betas: dict[int, Betas]) -> Measured:
    """Tell whether in every epoch the beta with the smallest `metric` also has the smallest `follows`."""
    parts = []
    for epoch, of in betas.items():
        first, second = _row(side, epoch, metric, of), _row(side, epoch, follows, of)
        chosen = min(of, key=lambda beta: first[beta].value)
        rest = min(second[beta].value for beta in of if beta != chosen)
        told = say(
            "claims.smallest_at", what=_metric(metric), beta=chosen, then=_metric(follows), values=listed(second)
        )
        parts.append((Check(rest - second[chosen].value), labelled(_place(epoch), told)))
    return measures(parts)


def largest_kl_is_largest_update(side: LeverSide, *, epoch: int, betas: Betas) -> Measured:
    """Tell whether the beta with the largest KL also moved its parameters most."""
    sizes = {beta: side.update_size(beta, epoch) for beta in betas}
    kl = _row(side, epoch, "kl", betas)
    chosen = max(betas, key=lambda beta: kl[beta].value)
    rest = max(sizes[beta].value for beta in betas if beta != chosen)
    return measures([(Check(sizes[chosen].value - rest), say("claims.update", beta=chosen, values=listed(sizes)))])


def spread_is_below(side: LeverSide, *, epoch: int, metric: str, betas: Betas, percent: float) -> Measured:
    """Hold the range of a metric over betas, in percent of its smallest value, against a bound."""
    ordered = sorted(_row(side, epoch, metric, betas).values(), key=lambda each: each.value)
    return measures([_within(_share(ordered[-1] - ordered[0], ordered[0]), percent, None)])


def range_is(side: LeverSide, *, epoch: int, metric: str, betas: Betas, low: str, high: str) -> Measured:
    """Hold the smallest and largest value over betas against a printed range."""
    require_print(side)
    ordered = sorted(_row(side, epoch, metric, betas).values(), key=lambda each: each.value)
    return measures([_is(ordered[0], printed(low), None), _is(ordered[-1], printed(high), None)])


def row_is_its_own(side: LeverSide, *, epoch: int, beta: float, others: Betas, metrics: tuple[str, ...]) -> Measured:
    """Tell whether a row of training metrics differs from every other row."""
    rows = [_row(side, epoch, metric, (beta, *others)) for metric in metrics]
    gaps = {other: max(((row[beta] - row[other]) for row in rows), key=_size) for other in others}
    nearest = min(gaps, key=lambda other: _size(gaps[other]))
    gap = replace(gaps[nearest], terms=())
    return measures([(Check(_size(gap)), say("claims.nearest", beta=nearest, gap=gap.shown(5).cell))])


def advantage_spread_tells_runs_apart(
    side: LeverSide, *, epochs: tuple[int, ...], betas: Betas, n_groups: int
) -> Measured:
    """Tell whether the spread of the advantages differs between betas.

    Advantages are standardised within a group, so their standard deviation is 1, or 0 where all rewards tie: its mean
    over groups is the share of groups that do not tie, a whole number over `n_groups`. The rewards of the groups are
    data, so no policy moves it.
    """
    parts = []
    for epoch in epochs:
        row = _row(side, epoch, "std_advantage", betas)
        share = side.gradient_share(betas[0], epoch, n_groups)
        slack = math.fsum(each.rounding for each in row.values())
        told = say("claims.groups", values=listed(row), share=share.cell)
        parts.append((Check(_range(row) - slack), labelled(_place(epoch), told)))
    return measures(parts)


def metric_falls_faster(
    side: LeverSide, *, metric: str, faster: float, slower: float, start: int, end: int
) -> Measured:
    """Tell whether a metric falls from one epoch to another, and by more than that of another beta."""
    values = side.together((faster, slower), (start, end), metric)
    change = {beta: values[end][beta] - values[start][beta] for beta in (faster, slower)}
    lead = min(-change[faster].value, change[slower].value - change[faster].value)
    return measures([(Check(lead), listed({beta: _equation(of) for beta, of in change.items()}))])


def metric_is_larger_over_seeds(side: LeverSide, *, metric: str, epoch: int, larger: float, than: float) -> Measured:
    """Compare a metric of two betas seed by seed (paired t test)."""
    values = {beta: side.by_seed(beta, epoch, metric) for beta in (larger, than)}
    seeds = [seed for seed in values[larger] if seed in values[than]]
    if len(seeds) < 2:
        raise lacking("one_seed_of", beta=than)
    gaps = [values[larger][seed].value - values[than][seed].value for seed in seeds]
    p = t_p(gaps)
    sides = [average(list(values[beta].values())) for beta in (larger, than)]
    gap = replace(sides[0] - sides[1], value=fmean(gaps), terms=(), digits=6)
    what = say("claims.minus", left=larger, right=than)
    return measures([(Check(gap.value, p=p), listed([(what, gap)]))], p_value("paired_t", p))


def metrics_are_equal(
    side: LeverSide, *, metrics: tuple[str, ...], places: tuple[Place, ...], betas: Betas, floor: float
) -> Measured:
    """Tell whether metrics agree over betas up to their rounding, or to `floor`: what float errors leave of a zero."""
    parts = []
    for metric, place, row in _rows(side, metrics, places, betas):
        slack = max(floor, math.fsum(each.rounding for each in row.values()))
        parts.append((Check(_range(row), slack), labelled(_where(metric, place, metrics, places), listed(row))))
    return measures(parts)


def rows_are_identical(side: LeverSide, *, epoch: int, samples: int, betas: Betas) -> Measured:
    """Tell whether betas have the same accuracy at every shot count."""
    rows = _accuracies(side, epoch, samples, betas)
    checks: list[Part] = [
        (Check(max(column) - min(column)), None) for column in zip(*map(_values, rows.values()), strict=True)
    ]
    return measures(checks, _by_shot(rows))


def only_one_differs(side: LeverSide, *, epoch: int, samples: int, beta: float, others: Betas) -> Measured:
    """Tell whether one beta differs from the others and these do not differ."""
    rows = _accuracies(side, epoch, samples, (beta, *others))
    own, *rest = map(_values, rows.values())
    apart, among = min(_gap(own, row) for row in rest), max(_gap(rest[0], row) for row in rest)
    return measures([(Check(apart), None), (Check(1.0 if among == 0 else -1.0), _by_shot(rows))])


def epochs_are_identical(side: LeverSide, *, epochs: tuple[int, int], samples: int, betas: Betas) -> Measured:
    """Tell whether two epochs have the same accuracy at every shot count."""
    parts = []
    for beta in betas:
        one, other = (_accuracies(side, epoch, samples, (beta,))[beta] for epoch in epochs)
        gap = max((a - b for a, b in zip(one, other, strict=True)), key=_size)
        told = named(largest_difference=replace(gap, terms=(), digits=2))
        parts.append((Check(_size(gap)), labelled(_beta(beta), told)))
    return measures(parts)


def cells_differ(
    side: LeverSide, *, beta: float, epochs: tuple[int, int], samples: tuple[int, ...], shots: tuple[int, ...]
) -> Measured:
    """Count the cells in which two epochs differ."""
    cells = [(n, k) for n in _counts(side, samples) for k in shots]
    pairs = [[side.accuracy(beta, epoch, n, k) for epoch in epochs] for n, k in cells]
    keys = tuple(key for pair in pairs for each in pair for key in each.of)
    count = Quantity(sum(a.value != b.value for a, b in pairs), 0, of=keys, how="number that differ")
    return measures([(Check(count.value), say("claims.cells", n=count.cell, cells=len(pairs)))])


def averages_are(side: LeverSide, *, epoch: int, samples: int, claimed: dict[float, str]) -> Measured:
    """Hold means over shots against printed averages."""
    require_print(side)
    return measures(
        [_is(_mean(side, beta, epoch, samples), printed(text), _beta(beta)) for beta, text in claimed.items()]
    )


def average_difference_is(
    side: LeverSide, *, epoch: int, samples: int, left: float, right: float, claimed: str
) -> Measured:
    """Hold the difference of two means over shots against a printed one."""
    require_print(side)
    a, b = (_mean(side, beta, epoch, samples) for beta in (left, right))
    return measures([held(a - b, printed(claimed), digits=3)])


def shot_differences_are(
    side: LeverSide, *, epoch: int, samples: int, left: float, right: float, claimed: dict[int, str]
) -> Measured:
    """Hold the differences of two betas at each shot count against printed ones."""
    require_print(side)
    gaps = {
        shots: side.accuracy(left, epoch, samples, shots) - side.accuracy(right, epoch, samples, shots)
        for shots in claimed
    }
    return measures([held(gap, printed(claimed[k]), what=say("claims.at_shots", shots=k)) for k, gap in gaps.items()])


def is_more_accurate(
    side: LeverSide, *, better: float, than: Betas, epoch: int, samples: int, shots: Shots
) -> Measured:
    """Compare accuracies; `cause` is judged by what else the runs differ in."""
    parts = [side.separation(better, other, epoch, side.near(samples), shots) for other in than]
    return measures(parts, differs=_differing([side.lineage(beta, epoch) for beta in (better, *than)]))


def accuracies_are_close(
    side: LeverSide, *, left: float, right: float, epoch: int, samples: int, shots: Shots, margin: float
) -> Measured:
    """Hold a difference of accuracies and its noise against a margin."""
    check, numbers = side.separation(left, right, epoch, side.near(samples), shots)
    return measures([(replace(check, margin=margin) if check else None, numbers)], _stated("margin", margin))


def is_best_beta(
    side: LeverSide, *, beta: float, others: Betas, shots: int, epochs: tuple[int, ...], samples: tuple[int, ...]
) -> Measured:
    """Tell whether one beta has the highest accuracy of all at a shot count, in every setting that others have."""
    parts = []
    for epoch in epochs:
        for n in _counts(side, samples):
            known = {other: found for other in others if (found := _known(side, other, epoch, n, shots)) is not None}
            if known:
                row = {beta: side.accuracy(beta, epoch, n, shots), **known}
                lead = row[beta].value - max(each.value for each in known.values())
                parts.append((Check(lead), labelled(say("claims.setting", epoch=epoch, samples=n), listed(row))))
    if not parts:
        raise lacking("no_comparison", betas=[beta, *others])
    return measures(parts)


def accuracies_after_long_runs_are_equal(side: LeverSide, *, left: float, right: float, samples: int) -> Measured:
    """Tell whether two training-curve runs end with the same accuracy at every shot count."""
    n = side.near(samples)
    rows = {beta: [side.long_accuracy(beta, n, k) for k in SHOTS] for beta in (left, right)}
    checks: list[Part] = [(Check(abs(a.value - b.value)), None) for a, b in zip(*rows.values(), strict=True)]
    epochs = [side.long_epoch(beta) for beta in (left, right)]
    return measures(checks, _by_shot(rows), say("claims.after_epochs", epochs=epochs))


def selections_agree(side: LeverSide, *, left: float, right: float, claimed: str) -> Measured:
    """Hold the percentage of identical selections against a printed one."""
    share, counted = side.same_selections(left, right)
    return measures([_is(share, printed(claimed), None)], counted)


def parameters_differ(side: LeverSide, *, beta: float, epoch: int, trained: int, total: int) -> Measured:
    """Hold the percentage of parameters that differ against the share that is trained at all."""
    if side.lineage(beta, epoch).get("trained") == ALL_PARAMETERS:
        raise lacking("all_trained")
    share, base = side.differing_parameters(beta)
    _, numbers = held(_trained(trained, total), share, side.word, what=base)
    return measures([(Check(share.value - 100 * trained / total, max(share.rounding, 0.005)), numbers)])


def selections_stay_though_weights_move(side: LeverSide, *, left: float, right: float, epoch: int) -> Measured:
    """Tell whether two betas with other parameters select alike; `cause` asks whether the weights were evaluated."""
    share, counted = side.same_selections(left, right)
    moved, base = side.differing_parameters(left)
    if not moved.value:
        raise lacking("no_weights")
    lost = (comparability.named(EVALUATED),) if EVALUATED in side.lineage(left, epoch) else ()
    same = labelled(counted, share.cell)
    return measures([(Check(1.0 if share.value >= 100 else -1.0), same)], labelled(base, moved.cell), differs=lost)


def trained_share_is(side: LeverSide, *, trained: int, total: int, claimed: str) -> Measured:
    """Hold the share of trained parameters against a printed one."""
    require_print(side)
    return measures([held(_trained(trained, total), printed(claimed))])


def runs_share_their_setup(side: LeverSide, *, betas: Betas, epoch: int) -> Measured:
    """Count in how many known fields beside KL_BETA the runs differ."""
    lineages = [side.lineage(beta, epoch) for beta in betas]
    differs = _differing(lineages)
    fields = {field for of in lineages for field in of} - IDENTITY
    told = say("claims.fields_differ", fields=differs) if differs else say("claims.fields_equal", n=len(fields))
    return measures([(Check(float(len(differs))), told)])


def _trained(trained: int, total: int) -> Quantity:
    terms = say("claims.share", part=Name(str(trained)), whole=Name(str(total)))
    return Quantity(100 * trained / total, 2, terms=(terms,))


def _spread(spread: Mapping[float, Quantity], p: float, name: str) -> Measured:
    steadier, than = (each.value for each in spread.values())
    return measures([(Check(than - steadier, p=p), labelled(_word(name), listed(spread)))], p_value("f", p))


def _is(found: Quantity, said: Quantity, what: Cell) -> Part:
    """Hold a number against another as it is."""
    numbers = say("claims.is", value=found.cell, said=said.cell)
    return Check(found.value - said.value, found.rounding + said.rounding), labelled(what, numbers)


def _within(share: Quantity, bound: float, what: Cell) -> Part:
    numbers = say("claims.bounded", value=share.cell, bound=bound)
    return Check(bound - share.value), labelled(what, numbers)


def _share(part: Quantity, whole: Quantity, digits: int = 2) -> Quantity:
    """Return the size of a share in percent."""
    found = percent(part, whole, digits)
    return replace(found, value=abs(found.value), terms=())


def _percents(shares: Mapping[str, Quantity]) -> Cell:
    return listed({_metric(name): say("claims.in_percent", value=share.cell) for name, share in shares.items()})


def _equation(found: Quantity) -> Cell:
    return replace(found, terms=()).cell


def _stated(name: str, value: float) -> Cell:
    return listed([(_word(name), Name(f"{value:g}"))])


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


def _by_shot(rows: Mapping[float, Sequence[Quantity]]) -> Cell:
    told = {beta: say("claims.four", a=a.cell, b=b.cell, c=c.cell, d=d.cell) for beta, (a, b, c, d) in rows.items()}
    return labelled(say("claims.shots"), listed(told))


def _row(side: LeverSide, epoch: int, metric: str, betas: Betas) -> Row:
    return side.together(betas, (epoch,), metric)[epoch]


def _rows(
    side: LeverSide, metrics: tuple[str, ...], places: tuple[Place, ...], betas: Betas
) -> Iterator[tuple[str, Place, Row]]:
    for metric in metrics:
        for place, row in side.together(betas, places, metric).items():
            yield metric, place, row


def _where(metric: str, place: Place, metrics: Sequence[str], places: Sequence[Place]) -> Cell:
    """Return what tells a row from the others of its claim."""
    if len(metrics) > 1 and len(places) > 1:
        return say("claims.of_place", what=_metric(metric), place=_place(place))
    return _metric(metric) if len(metrics) > 1 else _place(place) if len(places) > 1 else None


def _range(row: Mapping[float, Quantity]) -> float:
    values = [each.value for each in row.values()]
    return max(values) - min(values)


def _values(row: Sequence[Quantity]) -> list[float]:
    return [each.value for each in row]


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


def _word(name: str) -> Cell:
    return say(f"claims.name.{name}")


def _metric(name: str) -> Cell:
    return say(f"claims.metric.{name}")


def _beta(beta: float) -> Cell:
    return Name(f"{beta:g}")


def _place(place: Place) -> Cell:
    return say("claims.epoch", epoch=place) if isinstance(place, int) else say(f"claims.statistic.{place}")
