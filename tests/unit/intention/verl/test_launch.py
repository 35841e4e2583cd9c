from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from verl_examples import arm, render_config

from lever_pipe.experiment.agent_training import Schedule, Stop
from lever_pipe.experiment.environment import Environment
from lever_pipe.experiment.intention import RenderVerlConfig
from lever_pipe.intention.verl.launch import differences, launch_files, problems

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
LINE = re.compile(r"(\+\+)?([a-z_]+(?:\.[a-z_]+)+)=(.+)")
KNOWN = set((Path(__file__).parent / "known_keys.txt").read_text().split())
"""Keys of the configuration that UserRL's own runs recorded (its repository, `outputs/*/.hydra/config.yaml`).

Hydra refuses any other key; `++` adds the one that this version reads but does not list.
"""


def settings(config: RenderVerlConfig) -> dict[str, str]:
    found = {}
    for line in launch_files(config)["overrides.txt"].splitlines():
        if not line.startswith("#"):
            match = LINE.fullmatch(line)
            assert match, line
            assert match[2] not in found, f"{match[2]} is set twice"
            found[match[2]] = match[3]
    return found


def test_every_key_exists_in_the_original() -> None:
    assert settings(render_config()).keys() == KNOWN | {"data.seed", "algorithm.norm_adv_by_std_in_grpo"}
    assert "\n++data.seed=0\n" in launch_files(render_config())["overrides.txt"]


@pytest.mark.parametrize(
    ("changed", "keys"),
    [
        ({"kl": 0.01}, {f"{ACTOR}.use_kl_loss", f"{ACTOR}.kl_loss_coef"}),
        ({"entropy": 0.01}, {f"{ACTOR}.entropy_coeff"}),
        ({"learning_rate": 5e-7}, {f"{ACTOR}.optim.lr"}),
        (
            {"schedule": Schedule(kind="cosine", warmup_steps=5, minimum=0.1)},
            {f"{ACTOR}.optim.{key}" for key in ("warmup_style", "lr_warmup_steps", "min_lr_ratio")},
        ),
        ({"trajectory_score": "r2g"}, {f"{ROLLOUT}.multi_turn.trajectory_score_method"}),
        ({"kl_form": "k2_loss"}, {f"{ACTOR}.kl_loss_type"}),
        ({"clip_high": 0.28}, {f"{ACTOR}.clip_ratio_high"}),
        ({"advantages": "centred"}, {"algorithm.norm_adv_by_std_in_grpo"}),
    ],
)
def test_arms_differ_in_their_factor_and_name_alone(changed: dict[str, Any], keys: set[str]) -> None:
    one, other = settings(render_config()), settings(render_config(arm=arm("other", **changed)))
    assert one.keys() == other.keys()
    assert {key for key in one if one[key] != other[key]} == keys | {"trainer.experiment_name"}


@pytest.mark.parametrize(
    ("section", "name", "value", "key", "written"),
    [
        ("grpo", "prompts", 12, "data.train_batch_size", "12"),
        ("grpo", "prompts", 12, f"{ACTOR}.ppo_mini_batch_size", "12"),
        ("grpo", "minibatches", 2, f"{ACTOR}.ppo_mini_batch_size", "3"),
        ("grpo", "group", 6, f"{ROLLOUT}.n", "6"),
        ("grpo", "micro_batch", 4, f"{ACTOR}.ppo_micro_batch_size_per_gpu", "4"),
        ("grpo", "weight_decay", 0.1, f"{ACTOR}.optim.weight_decay", "0.1"),
        ("grpo", "max_gradient_norm", 0.5, f"{ACTOR}.grad_clip", "0.5"),
        ("grpo", "clip_low", 0.1, f"{ACTOR}.clip_ratio_low", "0.1"),
        ("grpo", "clip_high", 0.3, f"{ACTOR}.clip_ratio_high", "0.3"),
        ("grpo", "dual_clip", 5.0, f"{ACTOR}.clip_ratio_c", "5.0"),
        ("grpo", "temperature", 0.7, f"{ROLLOUT}.temperature", "0.7"),
        ("grpo", "turn_credit", "em", f"{ROLLOUT}.multi_turn.turn_level_method", "'EM'"),
        ("grpo", "gamma", 0.9, "algorithm.gamma", "0.9"),
        ("grpo", "steps", 465, "trainer.total_training_steps", "465"),
        ("grpo", "steps", 465, "trainer.total_epochs", "465"),  # the original stops at it; an epoch has a step at least
        ("evaluation", "every", 10, "trainer.test_freq", "10"),
        ("environment", "max_turns", 8, f"{ROLLOUT}.multi_turn.max_turns", "8"),
        ("model", "max_context", 5248, "data.max_response_length", "4096"),
        ("simulator", "endpoint", {"model": "gpt-4o"}, f"{ROLLOUT}.multi_turn.model_name", "'gpt-4o'"),
    ],
)
def test_each_setting_arrives(section: str, name: str, value: object, key: str, written: str) -> None:
    micro = {"micro_batch": 2} if section == "grpo" and name != "micro_batch" else {}
    config = render_config(**{section: {name: value, **micro}})
    assert settings(config)[key] == written


@pytest.mark.parametrize(
    ("changed", "key"),
    [
        ({"arm": arm(trajectory_score="sum")}, "grpo.trajectory_score"),
        ({"arm": arm(schedule=Schedule(warmup_steps=5, minimum=0.1))}, "arms.baseline.schedule.minimum"),
        ({"arm": arm(schedule=Schedule(kind="linear"))}, "arms.baseline.schedule"),
        ({"arm": arm(kl=0.1, kl_schedule=Schedule(warmup_steps=5))}, "arms.baseline.kl_schedule"),
        (
            {"arm": arm(entropy=0.1, entropy_schedule=Schedule(kind="adaptive", target=0.3, horizon=480))},
            "arms.baseline.entropy_schedule",
        ),
        ({"arm": arm(stop=Stop())}, "arms.baseline.stop"),
        ({"arm": arm(kl=0.1, kl_form="k1_reward")}, "arms.baseline.kl_form"),
        ({"arm": arm(ratio="sequence")}, "arms.baseline.ratio"),
        ({"arm": arm(reference_reset=10)}, "arms.baseline.reference_reset"),
        ({"arm": arm(proxy=Environment())}, "arms.baseline.proxy"),
        ({"model": {"folder": ""}}, "model.folder"),
        ({"model": {"folder": "models/it's"}}, "model.folder"),
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
        ({"simulator": {"endpoint": {"model": "x; rm -rf /"}}}, "simulator.endpoint.model"),
        ({"simulator": {"endpoint": {"temperature": 0.5}}}, "simulator.endpoint.temperature"),
        ({"simulator": {"endpoint": {"max_tokens": 100}}}, "simulator.endpoint.max_tokens"),
    ],
)
def test_what_the_original_cannot_do_is_one_line_with_its_key(changed: dict[str, Any], key: str) -> None:
    (line,) = problems(render_config(**changed))
    assert line.startswith(f"intention.{key}: must ")
    assert ", got " in line


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
    assert (problems(render_config(grpo=grpo, n_gpus=gpus)) == []) == whole


def test_differences_follow_the_switches() -> None:
    differing = "\n".join(differences(render_config()))
    assert "simulator.leak_details, simulator.silent_failures, simulator.count_duplicates" in differing
    faithful = dict.fromkeys(("leak_details", "silent_failures", "count_duplicates", "last_call_only"), True)
    assert "simulator.leak" not in "\n".join(differences(render_config(simulator=faithful)))
