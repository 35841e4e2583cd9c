from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from trained_world import TINY

from lever_pipe.experiment.agent_config import AgentArm, AgentGrpo, SyntheticTasks
from lever_pipe.intention.agent.lessons import Credit, Lesson, assign_credit, places_of
from lever_pipe.intention.agent.measures import (
    PER_EPISODE,
    Clock,
    credit_sums,
    episode_sums,
    log_prob_gap,
    memory_peak,
    rates,
    step_means,
    token_sums,
    update_flop,
)
from lever_pipe.intention.agent.policy import build_tiny
from lever_pipe.intention.agent.rollout import Episode, RolloutCounts
from lever_pipe.intention.agent.scoring import Scored, cut
from lever_pipe.intention.records import EndReason
from lever_pipe.intention.sources import synthetic

TASK = synthetic.read(SyntheticTasks(n_train=2, n_val=2, n_test=2)).val[0]


def episode(rewards: list[float], turn: list[int], n_prompt: int = 2) -> Episode:
    """Return an episode with a prompt of two tokens; a turn of -1 is the environment's token."""
    turns = [-1] * n_prompt + turn
    return Episode(
        task=TASK,
        index=0,
        sample=0,
        tokens=list(range(len(turns))),
        is_agent=[each >= 0 for each in turns],
        turn=turns,
        n_prompt=n_prompt,
        ceiling=2.0,
        rewards=rewards,
        coverage=0.5,
        end="closed",
    )


FIRST = episode([1.0, 0.0], [0, 0, -1, 1])
SECOND = episode([0.4], [0, -1])


def test_values_of_an_episode() -> None:
    assert {name: of(FIRST) for name, of in PER_EPISODE.items()} == {
        "reward": 1.0,
        "reward_per_turn": 0.5,
        "normalised_reward": 0.5,
        "coverage": 0.5,
        "turns": 2,
        "sequence_length": 6,
        "prompt_length": 2,
        "response_length": 4,
        "agent_tokens": 3,
    }


def test_places_are_those_of_the_response_and_of_the_agent() -> None:
    places = places_of(FIRST)
    assert places.response.tolist() == [2, 3, 4, 5]
    assert places.agent.tolist() == [2, 3, 5]


def test_credit_goes_to_the_tokens_of_a_turn() -> None:
    """Scores 1.0 and 0.4: z = +-0.3 / (0.3 * sqrt 2 + 1e-6). Rewards to go of the first: 1 and 0."""
    z = 0.3 / (0.3 * 2**0.5 + 1e-6)
    plain = assign_credit([[FIRST, SECOND]], AgentArm(name="a", trajectory_score="sum"), AgentGrpo())
    assert [row.tolist() for row in plain.advantages] == [
        pytest.approx([z] * 3, abs=1e-6),
        pytest.approx([-z], abs=1e-6),
    ]
    to_go = assign_credit([[FIRST, SECOND]], AgentArm(name="a", trajectory_score="sum"), AgentGrpo(turn_credit="r2g"))
    assert to_go.advantages[0].tolist() == pytest.approx([z, z, 0], abs=1e-6)
    mean = assign_credit([[FIRST, SECOND]], AgentArm(name="a"), AgentGrpo(trajectory_score="mean"))
    assert [scores.tolist() for scores in mean.scores] == [[0.5, 0.4]]


@pytest.mark.parametrize("end", ["failed", "timeout"])
def test_an_episode_that_the_user_ended_is_compared_with_nothing(end: EndReason) -> None:
    arm, lost = AgentArm(name="a", trajectory_score="sum"), replace(FIRST, end=end)
    credit = assign_credit([[lost, FIRST, SECOND], [lost, FIRST, lost]], arm, AgentGrpo())
    alone = assign_credit([[FIRST, SECOND]], arm, AgentGrpo())
    assert [None if row is None else row.tolist() for row in credit.advantages] == [
        *(None, *(row.tolist() for row in alone.advantages)),
        *(None, None, None),  # one is compared with nobody
    ]
    assert [scores.tolist() for scores in credit.scores] == [[1.0, 0.4]]
    assert assign_credit([[lost, FIRST]], arm, AgentGrpo()).advantages == [None, None]
    sums = episode_sums([lost, FIRST, SECOND])
    assert {**episode_sums([FIRST, SECOND]), f"end_{end}": 1.0, "tokens": 16, "episodes": 3} == sums


def test_step_means_divide_by_what_they_are_means_of() -> None:
    user = {"requests": 7, "failures": 1, "retries": 4, "malformed": 6}
    named = {f"simulator_{name}": count for name, count in user.items()}
    counts = RolloutCounts(forwards=5, environment_timeouts=2, multi_call_turns=3, **named)
    credit = Credit([torch.tensor([1.0, 0.4]), torch.tensor([0.3, 0.3])], [])
    tokens = {"kl": 4.0, "kl_k1": 2.0, "entropy": 8.0, "entropy_all": 12.0, "flop_update": 9.0}
    sums = {**episode_sums([FIRST, SECOND]), **credit_sums(credit), **counts.values(), **tokens}
    values = step_means(sums)
    assert (values["reward"], values["turns"], values["agent_tokens"]) == (0.7, 1.5, 2.0)
    assert (values["kl"], values["kl_k1"], values["entropy"]) == (1.0, 0.5, 2.0)  # of 4 agent tokens
    assert values["entropy_all"] == 2.0  # of 6 response tokens
    assert values["score"] == pytest.approx(0.5, abs=1e-6)  # of 4 compared episodes
    assert values["score_sd"] == pytest.approx(0.3 * 2**0.5 / 2, abs=1e-6)
    assert values["groups_without_spread"] == 0.5
    assert (values["tokens_total"], values["tokens_per_rank"]) == (10, 10)
    assert (values["simulator_requests"], values["simulator_failures"]) == (7, 1)
    assert (values["simulator_retries"], values["simulator_malformed"]) == (4, 6)
    assert (values["environment_timeouts"], values["multi_call_turns"]) == (2, 3)


def test_tokens_are_measured_before_the_update() -> None:
    """d = reference - policy = 1 and -1: k1 = -d, k3 = e^d - 1 - d; entropies of the agent's places and of all."""
    places = torch.tensor([2, 4])
    lesson = Lesson(torch.arange(5), places, torch.zeros(2), torch.tensor([-2.0, -1.0]), torch.tensor([-1.0, -2.0]))
    sums = token_sums([Scored(torch.zeros(3), torch.tensor([0.5, 7.0, 0.25]))], [lesson])
    e = 2.718281828459045
    assert sums["kl_k1"] == pytest.approx(0, abs=1e-12)
    assert sums["kl"] == pytest.approx((e - 2) + (1 / e - 0), abs=1e-12)
    assert (sums["entropy"], sums["entropy_all"]) == (0.75, 7.75)
    with pytest.raises(ValueError, match="entropies must be given"):
        token_sums([Scored(torch.zeros(3), None)], [lesson])
    assert token_sums([], []) == dict.fromkeys(sums, 0.0)


def test_the_gap_is_the_largest_between_sampling_and_scoring() -> None:
    spoken, silent = replace(FIRST, log_probs=[-2.0, -1.25, 0.0]), replace(SECOND, log_probs=[])
    lessons = [
        Lesson(torch.arange(5), torch.tensor([2, 3, 4]), torch.zeros(3), torch.tensor([-2.0, -1.0, -0.125]), None),
        Lesson(torch.arange(2), torch.tensor([], dtype=torch.long), torch.zeros(0), torch.zeros(0), None),
    ]
    assert log_prob_gap([spoken, silent], lessons) == 0.25
    assert log_prob_gap([silent], lessons[1:]) == 0.0


def test_memory_is_that_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert memory_peak(torch.device("cpu")) == {}
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: {"cuda:1": 2_500_000_000}[str(device)])
    assert memory_peak(torch.device("cuda", 1)) == {"memory_peak_gb": 2.5}


def test_flop_of_the_tiny_model() -> None:
    """6 d s + 12 s^2 head_dim heads layers; d = (3 h m + h head_dim (2 q + 2 kv)) layers + 2 V h."""
    dense = (3 * 32 * 64 + 32 * 16 * (2 * 2 + 2 * 1)) * 1 + 2 * 63 * 32
    assert update_flop(build_tiny(TINY, 63, 0).config, [10, 20]) == 6 * dense * 30 + 12 * (100 + 400) * 16 * 2


def test_rates_know_the_peak_of_known_hardware_only() -> None:
    values = {
        "seconds_step": 10.0,
        "seconds_update": 2.0,
        "tokens_total": 600.0,
        "agent_tokens": 5.0,
        "episodes": 20.0,
        "flop_update": 989e12,
    }
    assert rates(values, "") == {
        "tokens_per_second": 60.0,
        "tokens_per_second_per_device": 60.0,
        "agent_tokens_per_second": 10.0,
    }
    known = rates(values, "NVIDIA H100 80GB HBM3")
    assert known["mfu_update"] == pytest.approx(0.5, abs=1e-12)
    assert known["mfu_step"] == pytest.approx(0.1, abs=1e-12)


def test_a_clock_adds_up() -> None:
    clock = Clock(torch.device("cpu"))
    with clock.time("rollout"):
        pass
    once = clock.seconds["rollout"]
    with clock.time("rollout"):
        pass
    assert 0 < once < clock.seconds["rollout"]
    assert clock.seconds["update"] == 0


def test_micro_batches_hold_each_sequence_once_and_its_like() -> None:
    assert list(cut([5, 2, 9, 2, 7], 2)) == [[1, 3], [0, 4], [2]]
    assert list(cut([], 2)) == []
