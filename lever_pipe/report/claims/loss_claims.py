"""Arithmetic of losses and training curves (documents 000, 001 and 002)."""

from __future__ import annotations

import numpy as np

from lever_pipe.report.claims.lever_side import LeverSide, Statistic
from lever_pipe.report.claims.quantities import Quantity, percent_of, printed
from lever_pipe.report.claims.texts import named
from lever_pipe.report.claims.verdicts import Check, Measured, NotTestable
from lever_pipe.report.tables.evidence import p_text
from lever_pipe.report.tables.text import beta_text, number
from lever_pipe.statistics.curve_tests import f_test

Statistics = tuple[Statistic, ...]
END = 5
"""Epochs that count as the end of a training-curve run."""


def penalty_is_weighted_kl(side: LeverSide, *, beta: float, statistics: Statistics) -> Measured:
    """Hold beta x KL against the KL loss of a training-curve run."""
    texts, checks = [], []
    for name in statistics:
        kl, penalty = side.curve(beta, "kl", name), side.curve(beta, "kl_loss", name)
        product = beta * kl.value
        checks.append(Check(product - penalty.value, beta * kl.rounding + penalty.rounding))
        texts.append(f"{name}: {beta_text(beta)} x {kl} = {_like(product, penalty)}, {side.word} {penalty}")
    return Measured("; ".join(texts), tuple(checks))


def loss_is_sum_of_curves(side: LeverSide, *, beta: float, statistics: Statistics) -> Measured:
    """Hold PPO loss + KL loss against the GRPO loss of a training-curve run."""
    texts, checks = [], []
    for name in statistics:
        ppo, penalty, loss = (side.curve(beta, metric, name) for metric in ("ppo_loss", "kl_loss", "loss"))
        total = ppo.value + penalty.value
        checks.append(Check(total - loss.value, ppo.rounding + penalty.rounding + loss.rounding))
        texts.append(f"{name}: {ppo} + {penalty} = {_like(total, loss)}, {side.word} {loss}")
    return Measured("; ".join(texts), tuple(checks))


def loss_is_ppo_plus_weighted_kl(side: LeverSide, *, epoch: int, betas: tuple[float, ...]) -> Measured:
    """Hold PPO loss + beta x KL against the loss of an epoch."""
    texts, checks = [], []
    for beta in betas:
        ppo, kl, loss = (side.training(beta, epoch, metric) for metric in ("ppo_loss", "kl", "loss"))
        total = ppo.value + beta * kl.value
        checks.append(Check(total - loss.value, ppo.rounding + beta * kl.rounding + loss.rounding))
        texts.append(f"{ppo} + {beta_text(beta)} x {kl} = {_like(total, loss)}, {side.word} {loss}")
    return Measured("; ".join(texts), tuple(checks))


def curve_differences_are(
    side: LeverSide, *, metric: str, left: float, right: float, claimed: dict[Statistic, str]
) -> Measured:
    """Hold left - right of printed statistics against their printed differences."""
    side.require_print()
    texts, checks = [], []
    for name, text in claimed.items():
        a, b, said = side.curve(left, metric, name), side.curve(right, metric, name), printed(text)
        gap = a.value - b.value
        checks.append(Check(gap - said.value, a.rounding + b.rounding + said.rounding))
        texts.append(f"{name}: {a} - {b} = {_like(gap, said)}, printed {said}")
    return Measured("; ".join(texts), tuple(checks))


def changes_in_percent_are(side: LeverSide, *, metric: str, claimed: dict[float, str]) -> Measured:
    """Hold 100 (last - first) / first against the printed changes."""
    side.require_print()
    texts, checks = [], []
    for beta, text in claimed.items():
        first, last, said = side.curve(beta, metric, "first"), side.curve(beta, metric, "last"), printed(text)
        change = 100 * (last.value - first.value) / first.value
        slack = 100 * (first.rounding + last.rounding) / abs(first.value)
        checks.append(Check(change - said.value, slack + said.rounding))
        texts.append(f"100 x ({last} - {first}) / {first} = {_like(change, said)}, printed {said}")
    return Measured("; ".join(texts), tuple(checks))


def difference_in_percent_is(
    side: LeverSide, *, metric: str, left: float, right: float, statistic: Statistic, difference: str, claimed: str
) -> Measured:
    """Hold 100 (left - right) / left against a printed percentage that was worked out from a rounded difference."""
    side.require_print()
    a, b, said = side.curve(left, metric, statistic), side.curve(right, metric, statistic), printed(claimed)
    used = printed(difference)
    share = 100 * (a.value - b.value) / a.value
    slack = 100 * (a.rounding + b.rounding + used.rounding) / abs(a.value) + said.rounding
    exact = f"100 x ({a} - {b}) / {a} = {number(share, said.digits + 1)}"
    text = f"{exact}; 100 x {used} / {a} = {number(100 * used.value / a.value, said.digits + 1)}, printed {said}"
    return Measured(text, (Check(share - said.value, slack),))


def curve_falls(side: LeverSide, *, metric: str, betas: tuple[float, ...]) -> Measured:
    """Tell whether a metric ends below its first epoch."""
    ends = {beta: (side.curve(beta, metric, "first"), side.curve(beta, metric, "last")) for beta in betas}
    texts = [f"{beta_text(beta)}: first {first}, last {last}" for beta, (first, last) in ends.items()]
    return Measured("; ".join(texts), tuple(Check(first.value - last.value) for first, last in ends.values()))


def curve_lies_below(side: LeverSide, *, metric: str, lower: float, higher: float, statistics: Statistics) -> Measured:
    """Tell whether one training-curve run lies below the other in each statistic."""
    pairs = {name: (side.curve(lower, metric, name), side.curve(higher, metric, name)) for name in statistics}
    return Measured(
        "; ".join(f"{name}: {_pair(lower, a)}, {_pair(higher, b)}" for name, (a, b) in pairs.items()),
        tuple(Check(b.value - a.value) for a, b in pairs.values()),
    )


def minimum_comes_earlier(side: LeverSide, *, metric: str, earlier: float, later: float) -> Measured:
    """Tell whether one training-curve run has its minimum at an earlier epoch."""
    first, second = side.minimum_epoch(earlier, metric), side.minimum_epoch(later, metric)
    text = f"{beta_text(earlier)}: epoch {first}; {beta_text(later)}: epoch {second}"
    # epochs are whole, so half an epoch tells a tie, which decides nothing, from a later minimum
    return Measured(text, (Check(second - first), Check(second - first + 0.5)))


def curve_changes_less(side: LeverSide, *, metric: str, steadier: float, than: float) -> Measured:
    """Compare the spread of the changes from epoch to epoch (F test)."""
    changes = {beta: np.diff(side.every_epoch(beta, metric)) for beta in (steadier, than)}
    spread = {beta: float(values.std(ddof=1)) for beta, values in changes.items()}
    p = f_test(changes[steadier], changes[than])
    texts = [f"{beta_text(beta)}: sd of changes {number(value, 6)}" for beta, value in spread.items()]
    return Measured(f"{'; '.join(texts)}; F test p {p_text(p)}", (Check(spread[than] - spread[steadier], p=p),))


def curve_converged(side: LeverSide, *, metric: str, betas: tuple[float, ...], percent: float) -> Measured:
    """Hold the change from the last five epochs but five to the last five against a bound."""
    texts, checks = [], []
    for beta in betas:
        values = side.every_epoch(beta, metric)
        if values.size < 2 * END:
            raise NotTestable(f"Fewer than {2 * END} epochs were trained.")
        before, end = float(values[-2 * END : -END].mean()), float(values[-END:].mean())
        change = percent_of(abs(end - before), abs(before))
        checks.append(Check(percent - change))
        texts.append(f"{beta_text(beta)}: last {END} epochs against the {END} before {number(change, 2)} %")
    return Measured(f"{'; '.join(texts)}; bound {percent:g} %", tuple(checks))


def beta_moves_penalty_more_than_kl(side: LeverSide, *, left: float, right: float) -> Measured:
    """Compare the relative difference of the mean KL losses with that of the mean KL.

    `Mainly` needs the larger difference in the KL loss, `hardly` at most half of it in the KL.
    """
    shares = {}
    for metric in ("kl_loss", "kl"):
        a, b = side.curve(left, metric, "mean"), side.curve(right, metric, "mean")
        shares[metric] = abs(percent_of(a.value - b.value, b.value))
    half = shares["kl_loss"] / 2
    text = f"KL loss differs by {number(shares['kl_loss'], 1)} %, KL by {number(shares['kl'], 1)} %"
    checks = (Check(shares["kl_loss"] - shares["kl"]), Check(half - shares["kl"]))
    return Measured(f"{text}; half of the former is {number(half, 1)} %", checks)


def curves_are_equal(
    side: LeverSide, *, metric: str, left: float, right: float, statistics: Statistics, floor: float
) -> Measured:
    """Tell whether two runs agree in a metric; `floor` is what float rounding leaves of a zero."""
    pairs = {name: (side.curve(left, metric, name), side.curve(right, metric, name)) for name in statistics}
    return Measured(
        "; ".join(f"{name}: {_pair(left, a)}, {_pair(right, b)}" for name, (a, b) in pairs.items()),
        tuple(Check(a.value - b.value, floor) for a, b in pairs.values()),
    )


def metric_tells_runs_apart(side: LeverSide, *, metric: str, betas: tuple[float, ...], floor: float) -> Measured:
    """Hold the spread of a metric over runs against what float rounding leaves of a zero."""
    values = [side.curve(beta, metric, "mean") for beta in betas]
    spread = max(v.value for v in values) - min(v.value for v in values)
    listed = "; ".join(_pair(beta, value) for beta, value in zip(betas, values, strict=True))
    text = f"{listed}; group advantages are centred, so their mean is 0 in any run up to {floor:g}"
    return Measured(text, (Check(spread, floor),))


def run_is_the_one_with(
    side: LeverSide, *, beta: float, epoch: int, document: str, claimed: dict[str, str]
) -> Measured:
    """Hold training metrics against those that another document prints of the same beta and epoch."""
    side.require_print()
    texts, checks = [], []
    for metric, text in claimed.items():
        here, there = side.training(beta, epoch, metric), printed(text)
        checks.append(Check(here.value - there.value, here.rounding + there.rounding))
        texts.append(f"{named(metric)}: {here} here, {there} in document {document}")
    return Measured("; ".join(texts), tuple(checks))


def spread_over_seeds_is_smaller(side: LeverSide, *, metric: str, epoch: int, steadier: float, than: float) -> Measured:
    """Compare the spread of a metric over training seeds (F test)."""
    values = {beta: side.by_seed(beta, epoch, metric) for beta in (steadier, than)}
    spread = {beta: float(of.std(ddof=1)) for beta, of in values.items()}
    if not all(spread.values()):
        raise NotTestable("The seeds of a beta agree to the last digit.")
    p = f_test(values[steadier], values[than])
    texts = [f"{beta_text(beta)}: sd over {len(values[beta])} seeds {number(sd, 6)}" for beta, sd in spread.items()]
    return Measured(f"{'; '.join(texts)}; F test p {p_text(p)}", (Check(spread[than] - spread[steadier], p=p),))


def _pair(beta: float, value: Quantity) -> str:
    return f"{beta_text(beta)} {value}"


def _like(value: float, shown: Quantity) -> str:
    return number(value, shown.digits)
