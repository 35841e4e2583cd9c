"""What document 003 says about drift, overfitting, declines and lengths: claims that need both runs logged alike."""

from __future__ import annotations

import math
from collections.abc import Mapping

from lever_pipe.report.claims.reward_runs import FEWEST, RewardRuns
from lever_pipe.report.claims.step_claims import RESPONSE
from lever_pipe.report.claims.texts import counted, named
from lever_pipe.report.claims.verdicts import Check, Measured, NotTestable
from lever_pipe.report.tables.evidence import p_text
from lever_pipe.report.tables.text import digits_text, number, signed
from lever_pipe.statistics.curve_tests import drifting_t_p

VALIDATED = "val_reward_sampled"
"""Of ours: sampled normalised validation reward; nothing of the kind is published."""


def drifts_less(runs: RewardRuns, *, metric: str, steadier: str, than: str, beside: tuple[str, ...]) -> Measured:
    """Compare the divergence from the reference of two runs at the same steps, which both have to log.

    `cause` is judged by the settings that differ beside the named ones.
    """
    gap, text = _mean_gap(runs, metric, less=steadier, than=than)
    return Measured(text, (gap,), runs.differs(beside=beside))


def overfits_less(runs: RewardRuns, *, metric: str, steadier: str, than: str, beside: tuple[str, ...]) -> Measured:
    """Compare how far the training reward lies above the sampled validation reward, each as a share of its ceiling.

    `cause` is judged by the settings that differ beside the named ones.
    """
    gaps: dict[str, dict[int, float]] = {}
    for run in (steadier, than):
        trained, validated = (_known(runs, run, name) for name in (metric, VALIDATED))
        gaps[run] = {step: trained[step] - validated[step] for step in trained if step in validated}
    gap, text = _paired_gap(runs, gaps, less=steadier, than=than)
    return Measured(f"training minus validation, {text}", (gap,), runs.differs(beside=beside))


def declines_less(runs: RewardRuns, *, steadier: str, than: str) -> Measured:
    """Compare how far two runs end below their best reward.

    The difference of two declines is one of four evaluations, so its noise is 1.96 sqrt(4) standard errors of one.
    """
    runs.require_curves()
    declines, texts = {}, []
    for run in (steadier, than):
        rewards = {step: runs.reward(run, step).value for step in runs.steps_of(run)}
        best, last = max(rewards, key=lambda step, of=rewards: (of[step], -step)), max(rewards)  # type: ignore[misc]
        if best == last:
            ours = f"{runs.subject(run)} has no evaluation after its best step {best}."
            raise NotTestable(
                ours if runs.is_ours else f"No reward of `{runs.labels[run]}` after step {best} is published."
            )
        declines[run] = rewards[best] - rewards[last]
        texts.append(f"{runs.labels[run]} from step {best} to {last}: {signed(-declines[run], 3)}")
    needed = 1.96 * 2 * runs.noise.sd
    check = Check(declines[than] - declines[steadier], needed)
    return Measured(f"{'; '.join(texts)}; noise {number(needed, 3)}", (check,), runs.differs())


def response_is_longer(runs: RewardRuns, *, longer: str, than: str, beside: tuple[str, ...]) -> Measured:
    """Compare response lengths, which need the same step; ours at all steps that are known."""
    if runs.is_ours:
        gap, text = _mean_gap(runs, RESPONSE, less=than, than=longer)
        return Measured(text, (gap,), runs.differs(beside=beside))
    (first, one), (second, other) = runs.only(longer, RESPONSE), runs.only(than, RESPONSE)
    text = f"{runs.labels[longer]} {one} tokens at step {first}, {runs.labels[than]} {other} tokens at step {second}"
    differs = () if first == second else (f"step ({first} against {second})",)
    return Measured(text, (Check(one.value - other.value),), (*runs.differs(beside=beside), *differs))


def _mean_gap(runs: RewardRuns, metric: str, *, less: str, than: str) -> tuple[Check, str]:
    """Return how far a metric of `than` lies above that of `less`, mean over common steps, and the numbers."""
    return _paired_gap(runs, {run: _known(runs, run, metric) for run in (than, less)}, less=less, than=than)


def _known(runs: RewardRuns, run: str, metric: str) -> dict[int, float]:
    series = runs.series(run, metric)
    if not series:
        raise runs.lacking(f"Not published: {named(metric)} of `{runs.labels[run]}`.")
    return {step: value.value for step, value in series.items()}


def _paired_gap(
    runs: RewardRuns, by_run: Mapping[str, Mapping[int, float]], *, less: str, than: str
) -> tuple[Check, str]:
    """Return `than` minus `less` over common steps, with a t test that allows for neighbouring steps being alike."""
    steps = [step for step in by_run[less] if step in by_run[than]]
    if not steps:
        raise NotTestable("The runs have no step in common.")
    gaps = [by_run[than][step] - by_run[less][step] for step in steps]
    means = {run: math.fsum(by_run[run][step] for step in steps) / len(steps) for run in (less, than)}
    listed = ", ".join(f"{runs.labels[run]} {digits_text(value)}" for run, value in means.items())
    text = f"mean over {counted(len(steps), 'step')}: {listed}"
    if len(steps) < FEWEST:
        return Check(means[than] - means[less]), text
    p = drifting_t_p(gaps)
    return Check(
        math.fsum(gaps) / len(gaps), p=p
    ), f"{text}; t for steps that are alike, p {p_text(p)}{runs.p_is_of_runs}"
