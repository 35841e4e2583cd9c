"""A tiny embedded world with a policy that has just learnt to call its tool: what the trainer's tests train."""

from __future__ import annotations

import atexit
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from lever_pipe.base import storage
from lever_pipe.base.optimiser import AdamW
from lever_pipe.experiment import execution
from lever_pipe.experiment.agent_evaluation import AgentEvaluation, EvaluateAgentConfig
from lever_pipe.experiment.agent_model import AgentModel, PolicyConfig, TinyQwen3
from lever_pipe.experiment.agent_tasks import SyntheticTasks
from lever_pipe.experiment.agent_training import AgentArm, AgentGrpo, TrainAgentConfig
from lever_pipe.experiment.environment import AgentExecution, Environment, Simulator
from lever_pipe.experiment.job_runtime import Runtime
from lever_pipe.experiment.manifests import carry_out
from lever_pipe.experiment.warm_start import WarmStart
from lever_pipe.intention.agent import trainer
from lever_pipe.intention.agent.evaluation import PolicyEvaluation
from lever_pipe.intention.agent.measures import Clock
from lever_pipe.intention.agent.policy import build_tiny, save_policy
from lever_pipe.intention.agent.rollout import Player, load_player
from lever_pipe.intention.agent.trainer import TrainingRun
from lever_pipe.intention.agent.warm_start import Demonstrator, draw_batches, imitate
from lever_pipe.intention.codecs.word import WordCodec
from lever_pipe.intention.environment import load_simulator
from lever_pipe.intention.records import DoneRow, EpisodeRow, EvaluationRow, StepRow
from lever_pipe.intention.sources import synthetic
from lever_pipe.stages.agent_evaluation import evaluate_agent
from lever_pipe.stages.agent_training import train_agent

TINY = TinyQwen3(hidden=32, layers=1, heads=2, kv_heads=1, head_dim=16, mlp=64)
MODEL = AgentModel(folder="", codec="word", dtype="float32", max_context=160, max_new_tokens=12, tiny=TINY)
ENVIRONMENT = Environment(max_turns=4)
RULE = Simulator(kind="rule")
N_TRAIN, N_VAL, N_TEST = 10, 3, 4
CODE = "of the test"
"""Identity of the code, so that a run in a separate process agrees on it."""


def make_world(folder: Path) -> Path:
    """Write tasks of all splits and a start policy of 12 thousand parameters; return the folder."""
    execution.prepare(Runtime())  # later tests share these weights, whose bits must not depend on their order
    splits = synthetic.read(SyntheticTasks(n_train=N_TRAIN, n_val=N_VAL, n_test=N_TEST))
    for name in ("train", "val", "test"):
        storage.write_rows(folder / f"{name}.jsonl", getattr(splits, name))
    codec = WordCodec.of_world()
    policy = build_tiny(TINY, codec.vocabulary_size, 0)
    warm_start = WarmStart(steps=120, batch=16, learning_rate=1e-2, warmup_steps=5)
    user = load_simulator(RULE, AgentExecution())
    demonstrator = Demonstrator(codec, user, ENVIRONMENT, warm_start, max_context=MODEL.max_context)
    batches = draw_batches(demonstrator, splits.train)
    for _ in imitate(policy, batches, warm_start, pad_id=codec.pad_id):
        pass
    save_policy(folder / "policy", policy.eval(), codec)
    return folder


def training(
    *, arm: dict[str, Any] | None = None, evaluation: dict[str, Any] | None = None, seed: int = 0, **grpo: Any
) -> TrainAgentConfig:
    """Return the identity of a run; by default, of 2 steps with 4 tasks of 3 episodes in 2 updates."""
    settings = {"steps": 2, "prompts": 4, "group": 3, "minibatches": 2, "micro_batch": 4, "learning_rate": 2e-3}
    rewarded = {"trajectory_score": "sum", **grpo}
    return TrainAgentConfig(
        arm=AgentArm(name="test", seeds=(seed,), **(arm or {})),
        grpo=AgentGrpo(**{**settings, **rewarded}),
        policy=PolicyConfig(model=MODEL, model_identity="embedded"),
        environment=ENVIRONMENT,
        simulator=RULE,
        evaluation=AgentEvaluation(**{"every": 2, "samples": 2, "batch": 64, **(evaluation or {})}),
    )


class Files(NamedTuple):
    """The results of a run."""

    metrics: list[StepRow]
    evaluations: list[EvaluationRow]
    episodes: list[EpisodeRow]
    done: DoneRow


@cache
def world() -> Path:
    """Return the folder of the one world of this test process."""
    folder = Path(tempfile.mkdtemp(prefix="trained-world-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return make_world(folder)


def files_of(run: Path, tasks: Path | None = None, start: tuple[Path, ...] = ()) -> dict[str, Path | tuple[Path, ...]]:
    """Return the file arguments of `train_agent`, on the tasks and from the policy of a folder, if not of the world."""
    tasks = tasks or world()
    names = {"metrics": "jsonl", "evaluations": "jsonl", "episodes": "jsonl", "done": "json"}
    return {
        "train_tasks": tasks / "train.jsonl",
        "val_tasks": tasks / "val.jsonl",
        "start": start or (tasks / "policy",),
        "state": run / "state",
        **{name: run / f"{name}.{suffix}" for name, suffix in names.items()},
        "last": run / "last",
        "best": run / "best",
        "manifest": run / "run.json",
    }


def train_here(
    run: Path,
    config: TrainAgentConfig,
    *,
    tasks: Path | None = None,
    start: tuple[Path, ...] = (),
    **execution: Any,
) -> DoneRow:
    """Run the stage in this process."""
    agent = AgentExecution(**execution).model_dump_json()
    return carry_out(train_agent, **files_of(run, tasks, start), config=config, runtime=Runtime(agent=agent, code=CODE))  # type: ignore[arg-type]


def player_of(folder: Path) -> Player:
    """Return the player of a policy folder."""
    return load_player(folder, training(), AgentExecution(), torch.device("cpu"))


def evaluation_of(config: TrainAgentConfig) -> EvaluateAgentConfig:
    """Return the identity of the evaluation of a run."""
    return EvaluateAgentConfig(
        arm=config.arm.name,
        seed=config.seed,
        temperature=config.grpo.temperature,
        policy=config.policy,
        environment=config.environment,
        simulator=config.simulator,
        evaluation=config.evaluation,
    )


def evaluate_here(run: Path, out: Path, done: Path, config: TrainAgentConfig) -> list[PolicyEvaluation]:
    """Evaluate a finished run in this process."""
    return evaluate_agent(
        test_tasks=world() / "test.jsonl",
        last=run / "last",
        best=run / "best",
        done=done,
        evaluations=out / "evaluations.jsonl",
        episodes=out / "episodes.jsonl",
        dialogues=out / "dialogues.jsonl",
        config=evaluation_of(config),
        runtime=Runtime(code=CODE),
    )


class KilledError(Exception):
    """What ends an interrupted run."""


def interrupted(run: Path, config: TrainAgentConfig, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the stage with a checkpoint after each step, and stop it at the beginning of one."""
    whole = trainer.train_step

    def train_step(run: TrainingRun, arm: AgentArm, optimiser: AdamW, number: int, clock: Clock) -> dict[str, float]:
        if number == step:
            raise KilledError
        return whole(run, arm, optimiser, number, clock)

    with monkeypatch.context() as patch, pytest.raises(KilledError):
        patch.setattr(trainer, "train_step", train_step)
        train_here(run, config, checkpoint_every=1)


def command(run: Path, config: TrainAgentConfig, **execution: Any) -> list[str]:
    """Return the command that runs the stage in a separate process."""
    words = []
    for name, value in files_of(run).items():
        words += [f"{name}={path}" for path in (value if isinstance(value, tuple) else (value,))]
    agent = ["--agent", AgentExecution(**execution).model_dump_json()]
    spec = json.dumps({"code": CODE, "config": config.model_dump(mode="json")})
    call = [sys.executable, "-m", "lever_pipe", "stage", "train_agent", *words, "--spec", spec]
    return [*call, *agent]


def read_run(run: Path) -> Files:
    """Return the rows of a finished run."""
    return Files(
        storage.read_rows(run / "metrics.jsonl", StepRow),
        storage.read_rows(run / "evaluations.jsonl", EvaluationRow),
        storage.read_rows(run / "episodes.jsonl", EpisodeRow),
        storage.read_row(run / "done.json", DoneRow),
    )


def is_measured(name: str) -> bool:
    """Return whether a value of a step is no time and no rate: those differ between equal runs."""
    return not name.startswith("seconds_") and "per_second" not in name


def measured(rows: Sequence[StepRow]) -> list[dict[str, float]]:
    """Return the values of each step that equal runs share."""
    return [{name: value for name, value in row.values.items() if is_measured(name)} for row in rows]
