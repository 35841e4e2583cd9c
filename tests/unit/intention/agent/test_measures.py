from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from trained_world import TINY

from lever_pipe.experiment.agent_tasks import SyntheticTasks
from lever_pipe.experiment.agent_training import AgentArm, AgentGrpo
from lever_pipe.intention.agent.measures import rates, step_values, update_flop
from lever_pipe.intention.agent.policy import build_tiny
from lever_pipe.intention.agent.rollout import Episode, RolloutCounts
from lever_pipe.intention.agent.scoring import Scored, cut
from lever_pipe.intention.agent.update import TrainingSample, assign_credit, token_positions_of
from lever_pipe.intention.records import END_REASONS, EndReason
from lever_pipe.intention.sources import synthetic

TASK = synthetic.read(SyntheticTasks(n_train=2, n_val=2, n_test=2)).val[0]
SUM, GRPO = AgentArm(name="a", trajectory_score="sum"), AgentGrpo()


def episode(rewards: list[float], turn: list[int], log_probs: list[float]) -> Episode:
    """Return an episode with a prompt of two tokens; a turn of -1 is the environment's token."""
    turns = [-1, -1, *turn]
    return Episode(
        TASK, 0, 0, 2.0, 2, list(range(len(turns))), turns, rewards, log_probs=log_probs, coverage=0.5, end="closed"
    )


FIRST = episode([1.0, 0.0], [0, 0, -1, 1], [-2.0, -1.25, 0.0])
SECOND = episode([0.4], [0, -1], [-1.0])


def test_places_are_those_of_the_response_and_of_the_agent() -> None:
    positions = token_positions_of(FIRST)
    assert positions.response.tolist() == [2, 3, 4, 5]
    assert positions.agent.tolist() == [2, 3, 5]


def test_credit_goes_to_the_tokens_of_a_turn() -> None:
    """Scores 1.0 and 0.4: z = +-0.3 / (0.3 * sqrt 2 + 1e-6). Rewards to go of the first: 1 and 0."""
    z = 0.3 / (0.3 * 2**0.5 + 1e-6)
    plain = assign_credit([[FIRST, SECOND]], SUM, GRPO)
    assert [row.tolist() for row in plain.advantages] == [
        pytest.approx([z] * 3, abs=1e-6),
        pytest.approx([-z], abs=1e-6),
    ]
    to_go = assign_credit([[FIRST, SECOND]], SUM, AgentGrpo(turn_credit="r2g"))
    assert to_go.advantages[0].tolist() == pytest.approx([z, z, 0], abs=1e-6)
    mean = assign_credit([[FIRST, SECOND]], AgentArm(name="a"), AgentGrpo(trajectory_score="mean"))
    assert [scores.tolist() for scores in mean.scores] == [[0.5, 0.4]]


@pytest.mark.parametrize("end", ["failed", "timeout"])
def test_an_episode_that_the_user_ended_is_compared_with_nothing(end: EndReason) -> None:
    lost, other = replace(FIRST, end=end), replace(FIRST, end=end)
    credit = assign_credit([[lost, FIRST, SECOND], [lost, replace(FIRST), other]], SUM, GRPO)
    alone = assign_credit([[FIRST, SECOND]], SUM, GRPO)
    assert [None if row is None else row.tolist() for row in credit.advantages] == [
        *(None, *(row.tolist() for row in alone.advantages)),
        *(None, None, None),  # a single episode has no comparison
    ]
    assert [scores.tolist() for scores in credit.scores] == [[1.0, 0.4]]
    assert assign_credit([[lost, FIRST]], SUM, GRPO).advantages == [None, None]


def measured(episodes: list[Episode], **counts: int) -> dict[str, float]:
    """Return the values of a step whose samples lie 1 above and 1 below the reference, their entropies 0.5 a token."""
    training_samples, before = [], []
    for each in episodes:
        positions = token_positions_of(each)
        n = len(positions.agent)
        behaviour = torch.tensor([-2.0, -1.0, -0.125][:n])
        away = torch.tensor([1.0, -1.0, 0.0][:n])
        training_samples.append(
            TrainingSample(positions.tokens, positions.agent, torch.zeros(n), behaviour, behaviour + away)
        )
        before.append(
            Scored(torch.zeros(len(positions.response)), torch.tensor([0.5, 7.0, 0.25, 1.0])[: len(positions.response)])
        )
    credit = assign_credit([episodes], SUM, GRPO)
    return step_values(
        episodes, RolloutCounts(**counts), credit, before, training_samples, build_tiny(TINY, 63, 0).config
    )


def test_values_of_a_step() -> None:
    """d = reference - policy: k1 = -d, k3 = e^d - 1 - d, at d = 1, -1, 0 and 1."""
    values, e = measured([FIRST, SECOND], forwards=5, environment_timeouts=2, simulator_malformed=6), math.e
    assert {name: values[name] for name in list(values)[:9]} == {
        "reward": 0.7,
        "reward_per_turn": pytest.approx((0.5 + 0.4) / 2, abs=1e-12),
        "normalised_reward": 0.35,
        "coverage": 0.5,
        "turns": 1.5,
        "sequence_length": 5,
        "prompt_length": 2,
        "response_length": 3,
        "agent_tokens": 2,
    }
    assert (values["end_closed"], sum(values[f"end_{end}"] for end in END_REASONS)) == (1, 1)
    assert values["kl_k1"] == pytest.approx(-1 / 4, abs=1e-12)  # of 4 agent tokens
    assert values["kl"] == pytest.approx((2 * (e - 2) + 1 / e) / 4, abs=1e-12)
    assert values["entropy"] == (0.5 + 7 + 1 + 0.5) / 4
    assert values["entropy_all"] == (8.75 + 7.5) / 6  # of 6 response tokens
    assert values["score"] == pytest.approx(0.7, abs=1e-6)
    assert values["score_sd"] == pytest.approx(0.3 * 2**0.5, abs=1e-6)
    assert values["groups_without_spread"] == 0
    assert (values["tokens_total"], values["tokens_per_rank"], values["episodes"]) == (10, 10, 2)
    assert (values["forwards"], values["environment_timeouts"], values["simulator_malformed"]) == (5, 2, 6)
    assert (values["reward_min"], values["reward_max"]) == (0.4, 1.0)
    assert values["rollout_log_prob_gap"] == 1.0  # of the second's only token; of the first 0.25
    equal = replace(SECOND)
    assert measured([SECOND, equal])["groups_without_spread"] == 1


@pytest.mark.parametrize("end", ["failed", "timeout"])
def test_an_episode_that_the_user_ended_is_counted_and_not_averaged(end: EndReason) -> None:
    sound, found = measured([FIRST, SECOND]), measured([replace(FIRST, end=end), FIRST, SECOND])
    other = {"end_closed": 2 / 3, f"end_{end}": 1 / 3, "episodes": 3, "tokens_total": 16, "tokens_per_rank": 16}
    assert found == {**sound, **other, "flop_update": found["flop_update"]}


def test_flop_of_the_tiny_model() -> None:
    """6 d s + 12 s^2 head_dim heads layers; d = (3 h m + h head_dim (2 q + 2 kv)) layers + 2 V h."""
    dense = (3 * 32 * 64 + 32 * 16 * (2 * 2 + 2 * 1)) * 1 + 2 * 63 * 32
    assert update_flop(build_tiny(TINY, 63, 0).config, [10, 20]) == 6 * dense * 30 + 12 * (100 + 400) * 16 * 2


def test_rates_know_the_peak_of_known_hardware_only(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {"seconds_step": 10.0, "seconds_update": 2.0}
    values = {**seconds, "tokens_total": 600.0, "agent_tokens": 5.0, "episodes": 20.0, "flop_update": 989e12}
    plain = {"tokens_per_second": 60.0, "tokens_per_second_per_device": 60.0, "agent_tokens_per_second": 10.0}
    assert rates(values, torch.device("cpu")) == plain
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H100 80GB HBM3")
    known = {"mfu_update": pytest.approx(0.5, abs=1e-12), "mfu_step": pytest.approx(0.1, abs=1e-12)}
    assert rates(values, torch.device("cuda")) == plain | known


def test_micro_batches_hold_each_sequence_once_and_its_like() -> None:
    assert list(cut([5, 2, 9, 2, 7], 2)) == [[1, 3], [0, 4], [2]]
    assert list(cut([], 2)) == []
