from __future__ import annotations

from dataclasses import replace

import pytest
from agent_doubles import FailingFor
from trained_world import N_VAL, player_of, world

from lever_pipe.base import storage
from lever_pipe.base.errors import TrainingError
from lever_pipe.experiment.agent_evaluation import AgentEvaluation
from lever_pipe.experiment.environment import Simulator
from lever_pipe.intention.agent.evaluation import PolicyEvaluation, When, evaluate, relabelled
from lever_pipe.intention.agent.rollout import Player, RolloutCounts
from lever_pipe.intention.records import END_REASONS, Task

NOW = When(3, "val", "current")
N_SAMPLES = 3


def sampling(n: int = N_SAMPLES, seed: int = 0) -> AgentEvaluation:
    return AgentEvaluation(samples=n, test_samples=n, seed=seed)


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    return storage.read_rows(world() / "val.jsonl", Task)


@pytest.fixture(scope="module")
def player() -> Player:
    return player_of(world() / "policy")


@pytest.fixture(scope="module")
def found(player: Player, tasks: list[Task]) -> PolicyEvaluation:
    return evaluate(player, tasks, NOW, sampling())


def test_rows_say_what_was_played(found: PolicyEvaluation) -> None:
    greedy, sampled = found.rows
    assert (greedy.mode, greedy.n_samples, sampled.mode, sampled.n_samples) == ("greedy", 1, "sampled", N_SAMPLES)
    assert {(row.step, row.split, row.checkpoint, row.n_tasks) for row in found.rows} == {(3, "val", "current", N_VAL)}
    assert [(row.mode, row.sample) for row in found.episodes] == (
        [("greedy", 0)] * N_VAL + [("sampled", sample) for sample in range(N_SAMPLES)] * N_VAL
    )
    assert set(sampled.values) == {
        "reward",
        "reward_se",
        "reward_min",
        "reward_max",
        "normalised_reward",
        "coverage",
        "turns",
        "agent_tokens",
        "tasks_lost",
        "simulator_failures",
        "simulator_retries",
        "simulator_malformed",
        "environment_timeouts",
        *(f"end_{reason}" for reason in END_REASONS),
    }


def test_values_are_means_of_the_episodes(found: PolicyEvaluation) -> None:
    for row in found.rows:
        episodes = [each for each in found.episodes if each.mode == row.mode]
        rewards = [sum(each.rewards) for each in episodes]
        values = row.values
        assert values["reward"] == pytest.approx(sum(rewards) / len(rewards), abs=1e-12)
        assert (values["reward_min"], values["reward_max"]) == pytest.approx((min(rewards), max(rewards)), abs=1e-12)
        shares = [reward / each.ceiling for reward, each in zip(rewards, episodes, strict=True)]
        assert values["normalised_reward"] == pytest.approx(sum(shares) / len(shares), abs=1e-12)
        assert values["turns"] == pytest.approx(sum(len(each.rewards) for each in episodes) / len(episodes), abs=1e-12)
        for reason in END_REASONS:
            share = sum(each.end == reason for each in episodes) / len(episodes)
            assert values[f"end_{reason}"] == pytest.approx(share, abs=1e-12)
        assert 0 <= values["coverage"] <= 1
        assert values["simulator_failures"] == 0


def test_draws_are_common_to_steps_and_belong_to_their_episode(
    player: Player, tasks: list[Task], found: PolicyEvaluation
) -> None:
    later = evaluate(replace(player, batch=2), tasks, When(40, "val", "best"), sampling())
    assert relabelled(later, NOW) == found
    fewer = evaluate(player, tasks, NOW, sampling(1))
    assert fewer.episodes[N_VAL:] == [row for row in found.episodes[N_VAL:] if row.sample == 0]
    other = evaluate(player, tasks, NOW, sampling(seed=1))
    assert other.episodes[:N_VAL] == found.episodes[:N_VAL]  # greedy draws nothing
    assert other.episodes[N_VAL:] != found.episodes[N_VAL:]
    test = evaluate(player, tasks, When(3, "test", "current"), sampling())
    assert relabelled(test, NOW).episodes[N_VAL:] != found.episodes[N_VAL:]


def failing(player: Player, *tasks: Task) -> Player:
    """Return a player whose user fails for these tasks and may."""
    may = Simulator(kind="rule", failure_limit=1.0)
    return replace(player, simulator=FailingFor(*tasks), simulator_config=may)


def test_episodes_that_the_user_failed_are_counted_and_left_out(
    player: Player, tasks: list[Task], found: PolicyEvaluation, caplog: pytest.LogCaptureFixture
) -> None:
    """Of the second task only an episode that asks nothing is sound: none of the greedy ones, one of the sampled."""
    lost = evaluate(failing(player, tasks[1]), tasks, NOW, sampling())
    for row, n_failed, n_lost in zip(lost.rows, (1, 2), (1, 0), strict=True):
        rewards: dict[str, list[float]] = {}
        for each in found.episodes:
            if each.mode == row.mode and (each.task_id != tasks[1].id or len(each.rewards) == 1):
                rewards.setdefault(each.task_id, []).append(sum(each.rewards))
        means = [sum(of) / len(of) for of in rewards.values()]
        assert (len(means), row.n_tasks, row.values["tasks_lost"]) == (N_VAL - n_lost, N_VAL, n_lost)
        assert row.values["end_failed"] == n_failed / (N_VAL * row.n_samples)
        assert row.values["simulator_failures"] == n_failed
        assert row.values["reward"] == pytest.approx(sum(means) / len(means), abs=1e-12)
    warning = f"split val at step 3: 1 of 3 tasks have no sound episode and are excluded, for example {tasks[1].id}"
    assert [record.getMessage() for record in caplog.records] == [f"greedy evaluation of {warning}"]


def test_failures_and_time_outs_of_the_user_are_counted_against_the_limit(player: Player) -> None:
    strict = replace(player, simulator_config=Simulator(kind="rule", failure_limit=0.1))

    def judge(requests: int, failures: int, timeouts: int) -> None:
        found = {"requests": requests, "failures": failures, "retries": 5, "malformed": 1}
        counts = RolloutCounts(environment_timeouts=timeouts, **{f"simulator_{k}": v for k, v in found.items()})
        strict.require_few_failures(counts.values(), during="step 7")

    for few in ((20, 2, 0), (20, 0, 2), (20, 1, 1), (0, 0, 0)):
        judge(*few)
    for failures, timeouts in ((3, 0), (0, 3), (1, 2)):
        found = (
            rf"step 7: expected at most 10\.0% .*fail or to take too long; found {failures} of 20 failed after 5"
            rf" retries, {timeouts} turns over time, 1 unreadable answers\. Check"
        )
        with pytest.raises(TrainingError, match=found):
            judge(20, failures, timeouts)
