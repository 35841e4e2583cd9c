"""Manifests as the stages write them, for tests of lineage."""

from __future__ import annotations

from typing import Any

from lever_pipe.base.policy_names import PolicyName
from lever_pipe.base.records import Manifest
from lever_pipe.experiment.distil import Distil, TrainDistilEpochConfig
from lever_pipe.experiment.evaluation import ScoreAnswersConfig
from lever_pipe.experiment.grpo import Grpo, TrainGrpoEpochConfig
from lever_pipe.experiment.lvlm import AnswerPromptsConfig, Decode, LvlmConfig, PromptSettings
from lever_pipe.experiment.on_policy import OnPolicy, TrainOnPolicyEpochConfig
from lever_pipe.experiment.rce import ContinuedRce, Rce, TrainContinuedEpochConfig, TrainRceEpochConfig
from lever_pipe.experiment.reward import Reward, RewardGroupsConfig
from lever_pipe.experiment.selections import SelectBaselineConfig, SelectDemonstrationsConfig
from lever_pipe.experiment.selector import Selector
from lever_pipe.experiment.sft import Sft, TrainSftEpochConfig

TRAINING = {"preset": "p", "selector": Selector(width=8), "train_share": 0.8, "max_gradient_norm": 1.0}
LVLM = LvlmConfig(
    engine="qwen2_5_vl",
    model_identity="0123456789abcdef",
    dtype="float32",
    wave_tokens=2048,
    kv_tokens=65536,
    prompt=PromptSettings(),
    decode=Decode(),
)


def manifest(stage: str, config: Any, **changed: Any) -> Manifest:
    """Return a manifest whose inputs have digests that begin with their names."""
    names = ("reference", "groups", "embeddings", "rl_data", "eval_pools")
    names += ("train_embeddings", "eval_embeddings", "train_examples", "eval_examples")
    values: dict[str, Any] = {
        "stage": stage,
        "config": config.model_dump(mode="json"),
        "inputs": {name: f"{name[:8]:_<8}" + "0" * 56 for name in names},
        "code": f"code of {stage}",
        "commit": "0" * 40,
        "dirty": False,
        "versions": {"python": "3.11.7", "torch": "2.13.0"},
        "device": "cpu",
        "threads": 1,
        "seconds": 1.0,
    }
    return Manifest(**{**values, **changed})


def grpo(
    beta: float = 0.1, seed: int = 0, epoch: int = 1, base: int = 5, grpo: Grpo = Grpo(), **changed: Any
) -> Manifest:
    run = {"base_rce_epoch": base, "kl_beta": beta, "seed": seed, "epoch": epoch}
    config = TrainGrpoEpochConfig(**{**TRAINING, **run, "grpo": grpo})
    return manifest("train_grpo_epoch", config, **changed)


def on_policy(
    beta: float = 0.1, seed: int = 0, epoch: int = 1, base: int = 5, objective: str = "on_policy", **changed: Any
) -> Manifest:
    run = {"base_rce_epoch": base, "kl_beta": beta, "seed": seed, "epoch": epoch, "objective": objective}
    settings = OnPolicy() if objective == "on_policy" else OnPolicy(updates=1, advantages="batch")
    config = TrainOnPolicyEpochConfig(**{**TRAINING, **run, "lvlm": LVLM, "on_policy": settings})
    return manifest("train_on_policy_epoch", config, **changed)


def distil(seed: int = 0, epoch: int = 1, base: int = 5, **changed: Any) -> Manifest:
    run = {"base_rce_epoch": base, "seed": seed, "epoch": epoch}
    return manifest("train_distil_epoch", TrainDistilEpochConfig(**{**TRAINING, **run, "distil": Distil()}), **changed)


def continued(seed: int = 0, epoch: int = 1, base: int = 5, **changed: Any) -> Manifest:
    run = {"base_rce_epoch": base, "seed": seed, "epoch": epoch}
    others = {"continued": ContinuedRce(reward=None, freeze_projections=True)}
    return manifest("train_continued_epoch", TrainContinuedEpochConfig(**{**TRAINING, **run, **others}), **changed)


def rce(seed: int = 0, epoch: int = 5, **changed: Any) -> Manifest:
    config = TrainRceEpochConfig(**{**TRAINING, "seed": seed, "epoch": epoch, "rce": Rce()})
    return manifest("train_rce_epoch", config, **changed)


def sft(seed: int = 0, epoch: int = 2, **changed: Any) -> Manifest:
    config = TrainSftEpochConfig(**{**TRAINING, "seed": seed, "epoch": epoch, "sft": Sft()})
    return manifest("train_sft_epoch", config, **changed)


def reward(**changed: Any) -> Manifest:
    return manifest("reward_groups", RewardGroupsConfig(reward=Reward()), **changed)


def selection(policy: str, **changed: Any) -> Manifest:
    if policy.startswith("baseline/"):
        config = SelectBaselineConfig(baseline=policy.removeprefix("baseline/"), shots=4, seed=42)
        return manifest("select_baseline", config, **changed)
    return manifest("select_demonstrations", SelectDemonstrationsConfig(selector=Selector(width=8), shots=4), **changed)


def answers(lvlm: LvlmConfig = LVLM, **changed: Any) -> Manifest:
    return manifest("answer_prompts", AnswerPromptsConfig(lvlm=lvlm, shots=(1, 2)), **changed)


def scores(*policies: str, **changed: Any) -> Manifest:
    refs = tuple(map(PolicyName.parse, policies))
    config = ScoreAnswersConfig(policies=refs, samples=(8,), shots=(1, 2), n_random_subsets=3, seed=42)
    return manifest("score_answers", config, **changed)
