"""GRPO of a policy of 0.6 billion random parameters: that it runs on a CUDA device, and what it takes there."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from lever_pipe.base import storage
from lever_pipe.experiment.agent_evaluation import AgentEvaluation
from lever_pipe.experiment.agent_model import AgentModel, PolicyConfig, TinyQwen3
from lever_pipe.experiment.agent_tasks import SyntheticTasks
from lever_pipe.experiment.agent_training import AgentArm, AgentGrpo, TrainAgentConfig
from lever_pipe.experiment.environment import Environment, Simulator
from lever_pipe.experiment.job_runtime import Runtime
from lever_pipe.intention.agent.policy import build_tiny, save_policy
from lever_pipe.intention.codecs.word import WordCodec
from lever_pipe.intention.records import DoneRow, StepRow
from lever_pipe.intention.sources import synthetic
from lever_pipe.stages.agent_training import train_agent

PRODUCTION = TinyQwen3(hidden=1024, layers=28, heads=16, kv_heads=8, head_dim=128, mlp=3072, positions=1024)
TOY = TinyQwen3(hidden=32, layers=2, heads=4, kv_heads=2, head_dim=8, mlp=48, positions=1024)
VOCABULARY = 151_936
"""Words, as many as Qwen3 has tokens, with the embedded world's first. A random policy's turns run to their limit."""
STEPS = 3


def train(run: Path, size: TinyQwen3, n_words: int, device: str, group: int) -> tuple[DoneRow, list[StepRow]]:
    """Train random weights on embedded tasks for `STEPS` steps through the stage."""
    splits = synthetic.read(SyntheticTasks(n_train=8, n_val=2, n_test=2))
    for name in ("train", "val"):
        storage.write_rows(run / f"{name}.jsonl", getattr(splits, name))
    words = WordCodec.of_world().words
    codec = WordCodec([*words, *(f"word{i}" for i in range(len(words), n_words))])
    save_policy(run / "policy", build_tiny(size, codec.vocabulary_size, 0), codec)
    model = AgentModel(folder="", codec="word", dtype="bfloat16", max_context=512, max_new_tokens=128)
    config = TrainAgentConfig(
        arm=AgentArm(name="test", kl=0.01),
        grpo=AgentGrpo(steps=STEPS, prompts=8, group=group, micro_batch=16, trajectory_score="sum"),
        policy=PolicyConfig(model=model, model_identity="random"),
        environment=Environment(max_turns=4),
        simulator=Simulator(kind="rule"),
        evaluation=AgentEvaluation(every=STEPS, samples=1, batch=64),
    )
    rows = {name: run / f"{name}.jsonl" for name in ("metrics", "evaluations", "episodes")}
    done = train_agent(
        train_tasks=run / "train.jsonl",
        val_tasks=run / "val.jsonl",
        start=(run / "policy",),
        state=run / "state",
        **rows,
        last=run / "last",
        best=run / "best",
        done=run / "done.json",
        config=config,
        runtime=Runtime(device=device, code="of the test"),
    )
    return done, storage.read_rows(rows["metrics"], StepRow)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_policy_of_production_size_trains(tmp_path: Path) -> None:
    done, rows = train(tmp_path, PRODUCTION, VOCABULARY, "cuda", group=8)
    # Embedding, also the output: 1024 * 151,936. A layer: 1024 * 128 * (16 + 16 + 8 + 8) of attention, 2 * 128 of its
    # norms, 3 * 1024 * 3072 of the MLP, 2 * 1024 of norms. A last norm of 1024.
    layer = 1024 * 128 * 48 + 2 * 128 + 3 * 1024 * 3072 + 2 * 1024
    assert done.n_parameters == 1024 * VOCABULARY + 28 * layer + 1024 == 596_049_920
    for row in rows:
        displayed = {
            name: row.values.get(name, math.nan)
            for name in (
                "tokens_per_second",
                "mfu_update",
                "mfu_step",
                "memory_peak_gb",
                "seconds_step",
                "tokens_total",
            )
        }
        print(row.step, ", ".join(f"{name} {value:.4g}" for name, value in displayed.items()))  # noqa: T201
    # Float32 weights, gradients and two moments, and the reference.
    assert rows[-1].values["memory_peak_gb"] > 4 * 4 * done.n_parameters / 1e9
    assert all(math.isfinite(value) for row in rows for value in row.values.values())


def test_the_same_run_goes_at_toy_size(tmp_path: Path) -> None:
    done, rows = train(tmp_path, TOY, 100, "cpu", group=2)
    assert done.executed_steps == len(rows) == STEPS
    assert all("memory_peak_gb" not in row.values for row in rows)
