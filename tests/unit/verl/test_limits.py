from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from verl_examples import arm, render_config

from lever_pipe.base.errors import ConfigError
from lever_pipe.experiment.agent_config import Schedule
from lever_pipe.intention.verl.launch import differences, faults, launch_files


def test_the_production_configuration_can_be_run() -> None:
    assert faults(render_config()) == []


@pytest.mark.parametrize(
    ("changed", "place"),
    [
        ({"arm": arm(trajectory_score="sum")}, "grpo.trajectory_score"),
        ({"arm": arm(schedule=Schedule(warmup_steps=5, minimum=0.1))}, "arms.baseline.schedule.minimum"),
        ({"model": {"folder": ""}}, "model.folder"),
        ({"model": {"folder": "models/it's"}}, "model.folder"),
        ({"model": {"folder": "models/$HOME"}}, "model.folder"),
        ({"model": {"folder": "models/a\\b"}}, "model.folder"),
        ({"model": {"folder": "models/a\nb"}}, "model.folder"),
        ({"model": {"codec": "word"}}, "model.codec"),
        ({"model": {"dtype": "float32"}}, "model.dtype"),
        ({"model": {"max_context": 1152}}, "model.max_context"),
        ({"version": "a\nrm -rf /"}, "verl.version"),
        ({"environment": {"execute_last_turn": True}}, "environment.execute_last_turn"),
        ({"environment": {"multi_detail_penalty": 0.1}}, "environment.multi_detail_penalty"),
        ({"environment": {"importance_reward": {"high": 2.0}}}, "environment.importance_reward"),
        ({"environment": {"show_reward": False}}, "environment.show_reward"),
        ({"environment": {"step_timeout_seconds": 10}}, "environment.step_timeout_seconds"),
        ({"simulator": {"kind": "rule"}}, "simulator.kind"),
        ({"simulator": {"judge_miss": 0.1}}, "simulator.judge_miss"),
        ({"simulator": {"endpoint": {"model": "x; rm -rf /"}}}, "simulator.endpoint.model"),
        ({"simulator": {"endpoint": {"model": "--help"}}}, "simulator.endpoint.model"),
        ({"simulator": {"endpoint": {"temperature": 0.5}}}, "simulator.endpoint.temperature"),
        ({"simulator": {"endpoint": {"max_tokens": 100}}}, "simulator.endpoint.max_tokens"),
    ],
)
def test_what_the_original_cannot_do_is_one_line_with_its_key(changed: dict[str, Any], place: str) -> None:
    (line,) = faults(render_config(**changed))
    assert line.startswith(f"intention.{place}: must ")
    assert ", got " in line


def test_all_faults_come_at_once() -> None:
    config = render_config(arm=arm(trajectory_score="sum"), model={"codec": "word"}, simulator={"kind": "rule"})
    with pytest.raises(ConfigError, match=r"engine verl, arm baseline: .*; found 3 faults") as caught:
        launch_files(config)
    assert all(key in str(caught.value) for key in ("trajectory_score", "model.codec", "simulator.kind"))


def test_what_can_be_set_is_no_fault() -> None:
    assert faults(render_config(environment={"max_turns": 8}, grpo={"turn_credit": "em", "gamma": 0.5})) == []
    assert faults(render_config(arm=arm(schedule=Schedule(warmup_steps=5)))) == []
    assert faults(render_config(arm=arm(trajectory_score="r2g", kl=0.5, entropy=0.1))) == []
    cosine = Schedule(kind="cosine", warmup_steps=5, minimum=0.1)
    assert faults(render_config(arm=arm(schedule=cosine), model={"folder": "/models/Qwen3 8B (a, b)"})) == []


@pytest.mark.parametrize(
    ("prompts", "minibatches", "micro", "gpus", "key"),
    [
        (6, 1, 8, 3, None),  # 48 episodes: 16 on each of 3 GPUs
        (6, 2, 8, 3, None),  # updates of 3 prompts: 8 on each
        (6, 1, 2, 3, None),
        (128, 8, 8, 8, None),  # the repository's script on 8 GPUs: 16 x 8 / 8 = 16
        (128, 8, 8, 3, "prompts"),  # 1,024 episodes do not divide by 3
        (48, 3, 8, 3, "minibatches"),  # updates of 16 prompts: 128 / 3 = 42.67, which the original would floor to 42
        (6, 6, 8, 3, "minibatches"),  # 8 episodes of an update on 3 GPUs
        (6, 1, 3, 3, "micro_batch"),  # 16 by 3
        (6, 1, 32, 3, "micro_batch"),  # more than there are
    ],
)
def test_batches_divide(prompts: int, minibatches: int, micro: int, gpus: int, key: str | None) -> None:
    grpo = {"prompts": prompts, "minibatches": minibatches, "micro_batch": micro}
    found = faults(render_config(grpo=grpo, n_gpus=gpus))
    if key is None:
        assert found == []
    else:
        (line,) = found
        assert line.startswith(f"intention.grpo.{key}:")


@given(
    prompts=st.integers(1, 24),
    group=st.integers(2, 9),
    minibatches=st.integers(1, 4),
    micro=st.integers(1, 9),
    gpus=st.integers(1, 8),
)
def test_batches_are_refused_exactly_when_the_original_would_round(
    prompts: int, group: int, minibatches: int, micro: int, gpus: int
) -> None:
    """Oracle: the original's own arithmetic, which divides with // everywhere."""
    prompts *= minibatches
    grpo = {"prompts": prompts, "group": group, "minibatches": minibatches, "micro_batch": micro}
    on_each = prompts // minibatches * group // gpus
    whole = on_each * gpus * minibatches == prompts * group and on_each > 0 and on_each % micro == 0
    assert (faults(render_config(grpo=grpo, n_gpus=gpus)) == []) == whole


def test_differences_follow_the_switches() -> None:
    told = "\n".join(differences(render_config()))
    assert "simulator.leak_details, simulator.silent_failures, simulator.count_duplicates" in told
    faithful = dict.fromkeys(("leak_details", "silent_failures", "count_duplicates", "last_call_only"), True)
    assert "simulator.leak" not in "\n".join(differences(render_config(simulator=faithful)))
