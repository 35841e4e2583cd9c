"""`config/findings.yaml`: what its cells share and differ in."""

from __future__ import annotations

import math
from functools import cache

from test_plan import shipped_with

from lever_pipe.experiment.identities import config_of
from lever_pipe.experiment.on_policy import OnPolicy
from lever_pipe.experiment.rce import TrainContinuedEpochConfig
from lever_pipe.experiment.studies import Experiment


@cache
def findings() -> Experiment:
    return shipped_with("findings")


def experiment_of(preset: str) -> str:
    if preset.startswith("equal"):
        return "X2, equal"
    return "X3" if preset == "world" else "X2, long" if preset.endswith("_long") else "X2"


def test_cells_of_x2_differ_in_reward_and_learning_rate_alone() -> None:
    given = findings()
    world, cells = given.presets["world"], set()
    for arm in given.arms:
        preset = given.presets[arm.preset]
        assert (preset.selector, preset.rce, preset.reward) == (world.selector, world.rce, world.reward)
        assert (arm.seeds, arm.rce_epochs, arm.base_rce_epochs) == ((0, 1, 2), 5, (5,))
        own = {"reward": preset.grpo.reward, "learning_rate": preset.grpo.learning_rate}
        if experiment_of(arm.preset) != "X2, equal":
            assert preset.grpo == world.grpo.model_copy(update=own)
        if experiment_of(arm.preset) == "X2":
            rate, reward = preset.grpo.learning_rate, preset.grpo.reward or preset.reward
            assert preset.on_policy == OnPolicy(learning_rate=rate, reward=reward)
            cells.add((reward.mode, rate))
            assert steps_of_an_epoch(given, arm.preset) == (80, 80, 80)
    modes = ("hard_plus_soft", "accuracy_plus_expected")
    assert cells == {(mode, rate) for mode in modes for rate in (1e-4, 5e-4, 25e-4)}


def steps_of_an_epoch(given: Experiment, preset: str) -> tuple[int, int, int]:
    """Return the optimiser steps of offline GRPO, on-policy GRPO and continued RCE."""
    of = given.presets[preset]
    n_train = int(of.train_share * given.rl_data.n_queries)
    wild = {"preset": preset, "base": "5", "seed": "0", "epoch": "1"}
    continued = config_of(given, "train_continued_epoch", wild)
    assert isinstance(continued, TrainContinuedEpochConfig)
    assert continued.continued.learning_rate == of.grpo.learning_rate
    return (
        math.ceil(n_train / of.grpo.batch_queries),
        math.ceil(n_train / of.on_policy.batch_queries) * of.on_policy.updates,
        math.ceil(n_train / continued.continued.batch_queries) * continued.continued.passes,
    )


def test_in_the_equal_cells_a_mode_differs_in_who_draws_and_when_alone() -> None:
    given = findings()
    stored, replayed = (given.presets[name] for name in ("equal_1e4", "equal_1e4_replayed"))
    assert replayed == stored.model_copy(update={"grpo": stored.grpo.model_copy(update={"replays": True})})
    off, on = stored.grpo, stored.on_policy
    assert (off.reward or stored.reward) == on.reward
    assert (off.top_k_first_epoch, off.top_k) == (on.group, on.group)
    assert on.shots == (given.rl_data.shots,)
    for key in ("learning_rate", "batch_queries", "weight_decay", "clip_epsilon", "freeze_projections"):
        assert getattr(off, key) == getattr(on, key)
    assert steps_of_an_epoch(given, "equal_1e4") == (80, 80, 80)


def test_forms_and_proxies_differ_from_the_baseline_in_these_and_their_kl_alone() -> None:
    """X4 and X6; the proxy is the rules of evaluation but for what they pay for several details."""
    given = findings().intention
    baseline, gamed = (next(arm for arm in given.arms if arm.name == name) for name in ("baseline", "gamed"))
    cells = {
        sweep.name: [arm for arm in given.arms if arm.name in {c.arm for c in sweep.cells}] for sweep in given.sweeps
    }
    assert {(arm.kl_form, arm.kl) for arm in cells["kl_forms"]} == {
        ("k3_loss", 0),
        *((form, kl) for form in ("k2_loss", "k1_reward") for kl in (0.03, 0.1, 0.3)),
    }
    assert sorted(arm.kl for arm in cells["gamed"]) == [0, 0.1, 0.3, 0.5, 1.0]
    for name, of, keys in (("kl_forms", baseline, ("name", "kl", "kl_form")), ("gamed", gamed, ("name", "kl"))):
        filled = [given.filled(arm).model_dump(exclude={*keys}) for arm in (of, *cells[name])]
        assert all(other == filled[0] for other in filled)
    paid = {"multi_detail_penalty": -0.7, "normalise_rewards": False}
    assert gamed.proxy == given.environment.model_copy(update=paid)
    assert gamed.model_dump(exclude={"name", "proxy"}) == baseline.model_dump(exclude={"name"})
