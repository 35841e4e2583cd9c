"""Whole runs of the tiny world: what they repeat, what they count, and what moves them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from agent_doubles import FailingFor
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from trained_world import ENVIRONMENT, N_TRAIN, Files, evaluate_here, read_run, train_here, training, world

from lever_pipe.base import storage
from lever_pipe.base.errors import TrainingError
from lever_pipe.experiment.agent_training import Schedule, Stop, TrainAgentConfig
from lever_pipe.experiment.environment import Simulator
from lever_pipe.intention.agent import trainer
from lever_pipe.intention.agent.rollout import Episode, Player, Rollouts
from lever_pipe.intention.agent.trainer import tasks_of_step
from lever_pipe.intention.agent.update import TrainingSample, update
from lever_pipe.intention.records import Task
from lever_pipe.intention.simulators import rule


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run of four steps."""
    folder = tmp_path_factory.mktemp("run")
    train_here(folder, training(steps=4, evaluation={"every": 3}))
    return folder


@pytest.fixture(scope="module")
def files(run: Path) -> Files:
    return read_run(run)


def rows_of(folder: Path, config: TrainAgentConfig) -> Files:
    train_here(folder, config)
    return read_run(folder)


def test_evaluations_come_at_zero_every_so_often_and_at_the_end(files: Files) -> None:
    assert [(row.step, row.mode, row.n_samples) for row in files.evaluations] == [
        (step, mode, n) for step in (0, 3, 4) for mode, n in (("greedy", 1), ("sampled", 2))
    ]
    assert {row.checkpoint for row in files.evaluations} == {"current"}
    assert len(files.episodes) == 3 * 3 * (1 + 2)


def test_the_best_policy_is_the_first_with_the_highest_sampled_reward(tmp_path: Path, run: Path, files: Files) -> None:
    rewards = {row.step: row.values["reward"] for row in files.evaluations if row.mode == "sampled"}
    assert files.done.best_step == min(step for step in rewards if rewards[step] == max(rewards.values()))
    still = rows_of(tmp_path, training(steps=2, learning_rate=1e-30, weight_decay=0.0, evaluation={"every": 1}))
    assert still.done.best_step == 0  # all equal
    assert (files.done.planned_steps, files.done.executed_steps, files.done.reason) == (4, 4, "finished")
    assert not (run / "state").exists()


def test_the_rate_follows_completed_steps(tmp_path: Path) -> None:
    schedule = Schedule(kind="cosine", warmup_steps=2)
    files = rows_of(tmp_path, training(steps=4, learning_rate=0.01, arm={"schedule": schedule}))
    # i / 2 of the peak, then (1 + cos(pi p)) / 2 at p = 0 and 1/2; both updates of a step share it.
    assert [row.values["learning_rate"] for row in files.metrics] == pytest.approx([0, 0.005, 0.01, 0.005], abs=1e-12)
    assert files.metrics[1].values["kl"] == 0  # the first step moved nothing


def test_scheduled_weights_act_and_are_told(tmp_path: Path) -> None:
    rising, adaptive = Schedule(kind="rising"), Schedule(kind="adaptive", target=0.3, horizon=24)
    arm = {"kl": 4.0, "kl_schedule": rising, "entropy": 0.5, "entropy_schedule": adaptive}
    settings = {"steps": 4, "learning_rate": 5e-3}
    rows = rows_of(tmp_path / "both", training(arm=arm, **settings)).metrics
    assert [row.values["kl_coefficient"] for row in rows] == [0.0, 1.0, 2.0, 3.0]
    weight = 0.5
    for row in rows:
        assert row.values["entropy_coefficient"] == pytest.approx(weight, abs=1e-12)
        # 12 episodes of 24: half of the error, of which a fifth counts; more entropy needs less of a bonus.
        weight *= 1 - 0.5 * min(0.2, max(-0.2, row.values["entropy"] / 0.3 - 1))
    assert weight != 0.5
    # At the first step the penalty weighs nothing: both of its updates equal the updates of an arm without one.
    free = rows_of(tmp_path / "free", training(arm=arm | {"kl": 0.0, "kl_schedule": Schedule()}, **settings)).metrics
    assert rows[0].values["grad_norm"] == free[0].values["grad_norm"]
    assert rows[-1].values["kl"] < free[-1].values["kl"]


FAST = {"steps": 4, "learning_rate": 5e-3}


@pytest.fixture(scope="module")
def free(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Return the files of a run without a penalty."""
    return rows_of(tmp_path_factory.mktemp("free"), training(**FAST))


def test_a_reset_makes_the_policy_its_own_reference(tmp_path: Path, free: Files) -> None:
    rows = rows_of(tmp_path, training(arm={"reference_reset": 2}, **FAST)).metrics
    far = [row.values["kl"] for row in rows]
    assert far[:2] == [row.values["kl"] for row in free.metrics[:2]]
    assert far[2] == 0 < far[1]
    assert far[3] > 0


def test_a_proxy_pays_in_training_and_judges_nothing(tmp_path: Path, free: Files) -> None:
    """Twice the reward gives the same advantage and the same updates; prompts show less than the evaluation's rules."""
    untold = {"show_reward": False, "normalise_rewards": False}
    plain, twice = (
        rows_of(tmp_path / name, training(arm={"proxy": ENVIRONMENT.model_copy(update=untold | scale)}, **FAST))
        for name, scale in (("plain", {}), ("twice", {"reward_scale": 2.0}))
    )
    pairs = list(zip(twice.metrics, plain.metrics, strict=True))
    assert [of.values["reward"] for of, _ in pairs] == pytest.approx([2 * one.values["reward"] for _, one in pairs])
    # but for what keeps the scores' deviation from 0
    assert [of.values["kl"] for of, _ in pairs] == pytest.approx([one.values["kl"] for _, one in pairs], rel=1e-3)
    assert twice.evaluations[0] == plain.evaluations[0] == free.evaluations[0]
    assert twice.metrics[0].values["reward"] > 0 < max(row.values["kl"] for row in twice.metrics)


def test_a_run_stops_by_its_curve_and_keeps_the_best_of_it(tmp_path: Path) -> None:
    config = training(
        arm={"stop": Stop(metric="coverage", patience=3)}, steps=14, learning_rate=1e-3, evaluation={"every": 1}
    )
    found = rows_of(tmp_path, config)
    curve = [row.values["coverage"] for row in found.evaluations if row.mode == "sampled"]
    done, n = found.done, len(curve) - 1
    assert (done.reason, done.executed_steps, len(found.metrics)) == ("stopped early", n, n)
    assert 3 < n < 14
    assert max(curve[-3:]) <= max(curve[:-3])
    assert all(max(curve[k - 2 : k + 1]) > max(curve[: k - 2]) for k in range(3, n))  # and nowhere before
    assert done.best_step == curve.index(max(curve)) > 0
    tested = evaluate_here(tmp_path, tmp_path / "test", tmp_path / "done.json", config)
    assert [evaluation.rows[0].step for evaluation in tested] == [n, done.best_step]


def test_the_policy_learns_and_a_strong_kl_holds_it_back(tmp_path: Path) -> None:
    settings = {"steps": 12, "prompts": N_TRAIN, "group": 6, "learning_rate": 3e-3}
    evaluation = {"every": 12, "samples": 16}
    free, held = (
        rows_of(tmp_path / str(kl), training(arm={"kl": kl}, evaluation=evaluation, **settings)) for kl in (0.0, 5.0)
    )
    (before, after), (start, _) = (
        [row.values["reward"] for row in of.evaluations if row.mode == "sampled"] for of in (free, held)
    )
    assert start == before  # one start for every arm
    assert after - before > 0.1
    assert 0 < held.metrics[-1].values["kl"] < free.metrics[-1].values["kl"] / 4


@pytest.fixture
def dialogues(monkeypatch: pytest.MonkeyPatch) -> list[list[Episode]]:
    """Return the episodes of each rollout, as they are played."""
    found: list[list[Episode]] = []
    play = Player.play

    def watched(player: Player, *arguments: Any, **options: Any) -> Rollouts:
        rollouts = play(player, *arguments, **options)
        found.append(rollouts.episodes)
        return rollouts

    monkeypatch.setattr(Player, "play", watched)
    return found


def failing_for(
    monkeypatch: pytest.MonkeyPatch, n_tasks: int, *, after: int, limit: float = 1.0, **grpo: Any
) -> TrainAgentConfig:
    """Let the user fail for the first tasks of the first step; return a run of one step in one update."""
    tasks = storage.read_rows(world() / "train.jsonl", Task)
    lost = [tasks[index] for index in tasks_of_step(1, N_TRAIN, N_TRAIN, 0)[:n_tasks]]
    monkeypatch.setattr(rule, "load", lambda *_: FailingFor(*lost, after=after))
    config = training(steps=1, arm={"kl": 0.1, "entropy": 0.01}, **{"group": 6, "minibatches": 1, **grpo})
    return config.model_copy(update={"simulator": Simulator(kind="rule", failure_limit=limit)})


def test_an_episode_that_the_user_failed_teaches_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dialogues: list[list[Episode]]
) -> None:
    learned: list[Sequence[TrainingSample]] = []
    monkeypatch.setattr(trainer, "update", lambda *a, **k: learned.append(a[2]) or update(*a, **k))
    values = rows_of(tmp_path, failing_for(monkeypatch, 2, after=1)).metrics[0].values
    (rollout,) = [episodes for episodes in dialogues if len(episodes) == 24]
    groups = [rollout[start : start + 6] for start in range(0, 24, 6)]
    sound = [[episode for episode in group if episode.end != "failed"] for group in groups]
    assert [len(group) for group in sound] == [1, 3, 6, 6]  # the first has no comparison
    assert any(sum(episode.rewards) for episode in rollout if episode.end == "failed")
    assert values["end_failed"] == values["simulator_failures"] / 24 == 8 / 24
    whole = [episode for group in sound for episode in group]
    assert values["reward"] == pytest.approx(sum(sum(e.rewards) for e in whole) / len(whole), abs=1e-9)
    assert values["kl"] == 0
    assert values["episodes"] == 24
    ((*training_samples,),) = learned
    speaking = [len(sample.positions) > 0 for sample in training_samples]
    assert speaking == [
        len(of) > 1 and episode in of for group, of in zip(groups, sound, strict=True) for episode in group
    ]


def test_too_many_failures_of_the_user_stop_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = failing_for(monkeypatch, 2, after=1, limit=0.01)
    with pytest.raises(TrainingError, match="step 1: "):
        train_here(tmp_path, config)


def test_a_step_that_the_user_failed_altogether_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = failing_for(monkeypatch, 2, after=0, prompts=2, group=2)
    with pytest.raises(TrainingError, match="step 1: "):
        train_here(tmp_path, config)


@given(st.integers(2, 12), st.integers(1, 6), st.integers(0, 3))
def test_a_pass_takes_each_task_at_most_once(n_tasks: int, n_prompts: int, seed: int) -> None:
    if n_prompts > n_tasks:
        return
    n_steps = n_tasks // n_prompts
    for number in range(2):
        steps = range(number * n_steps + 1, (number + 1) * n_steps + 1)
        taken = [index for step in steps for index in tasks_of_step(step, n_tasks, n_prompts, seed)]
        assert len(set(taken)) == len(taken) == n_steps * n_prompts
        assert set(taken) <= set(range(n_tasks))


@pytest.mark.parametrize("dial", [{"ratio": "sequence"}, {"advantages": "centred"}])
def test_a_dial_moves_the_run_and_no_draw_of_its_first_step(dial: dict[str, Any], tmp_path: Path, free: Files) -> None:
    rows = rows_of(tmp_path, training(arm=dial, **FAST)).metrics
    assert rows[0].values["reward"] == free.metrics[0].values["reward"]
    assert rows[0].values["grad_norm"] != free.metrics[0].values["grad_norm"]


def test_weights_decay_next_to_the_gradient(tmp_path: Path) -> None:
    start, weights = load_file(world() / "policy/model.safetensors"), dict[float, dict[str, torch.Tensor]]()
    for decay in (0.0, 1.0):
        config = training(steps=1, minibatches=1, learning_rate=0.01, weight_decay=decay)
        train_here(tmp_path / str(decay), config)
        weights[decay] = load_file(tmp_path / str(decay) / "last/model.safetensors")
    for name, before in start.items():  # both take the same step from the first gradient
        torch.testing.assert_close(weights[1.0][name], weights[0.0][name] - 0.01 * before, atol=1e-6, rtol=0)
