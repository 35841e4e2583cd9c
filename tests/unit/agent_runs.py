"""Finished runs of study `intention` with known curves: the files of each run, and everything derived from them.

A task's details are found one a turn. Of `n` details with importances 3, 2, 2, 1 and so on, the first `found` are: the
reward of an episode is their sum over 1.0, 0.7, 0.7, 0.4. Their number is `study.found(...)`, drawn from a
named stream around the skill of an arm at a step, so that every number is repeatable.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import numpy as np

from lever_pipe.base import seeding, storage
from lever_pipe.base.records import Manifest
from lever_pipe.experiment.agent_evaluation import AgentEvaluation, AgentRun
from lever_pipe.experiment.agent_results import CollectAgentsConfig, CompareArmsConfig
from lever_pipe.experiment.agent_training import AgentArm, AgentGrpo, Schedule
from lever_pipe.experiment.report import BuildReportConfig, ShownAgents, ShownStudy
from lever_pipe.intention.records import DoneRow, EpisodeRow, EvaluationRow, StepRow
from lever_pipe.stages.agent_results import collect_agents

IMPORTANCES = (1.0, 0.7, 0.7, 0.4)
COSINE = Schedule(kind="cosine", warmup_steps=5)
ARMS = (
    AgentArm(name="baseline", seeds=(0, 1, 2), learning_rate=2e-4, trajectory_score="sum"),
    AgentArm(name="kl_only", kl=0.01, learning_rate=2e-4, trajectory_score="sum"),
    AgentArm(name="entropy_only", entropy=0.01, learning_rate=2e-4, trajectory_score="sum"),
    AgentArm(name="schedule_only", schedule=COSINE, learning_rate=2e-4, trajectory_score="sum"),
    AgentArm(
        name="bundle", kl=0.01, entropy=0.01, schedule=COSINE, seeds=(0, 1, 2), learning_rate=2e-4,
        trajectory_score="sum",
    ),
    AgentArm(name="kl_strong", kl=0.5, learning_rate=2e-4, trajectory_score="sum"),
)  # fmt: skip
SKILL = {"kl_strong": 0.1, "schedule_only": 0.2, "bundle": 0.2}
"""How much of the way from 0.6 to 0.9 an arm does not go by the last step; 0 for the others."""
RATES = {"baseline": 1.0, "kl_strong": 0.2}

COSTS = {
    "agent_requests": 40.0, "agent_failures": 1.0, "prompt_tokens": 9000.0, "completion_tokens": 700.0,
    "agent_refused": 3.0, "agent_filtered": 2.0, "agent_empty": 1.0,
}  # fmt: skip
"""Of one evaluation of a served agent."""

Skill = Callable[[str, int, int], float]


@dataclass(frozen=True)
class Study:
    """The runs and their quality."""

    arms: tuple[AgentArm, ...] = ARMS
    steps: int = 45
    every: int = 5
    n_val: int = 8
    n_test: int = 12
    samples: int = 4
    engine: str = "native"
    executed: int | None = None
    lengths: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """Executed steps of runs that stopped early."""
    has_test: bool = True
    modes: tuple[str, ...] = ("greedy", "sampled")
    skill: Skill | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Training metrics that replace those below."""
    device: str = "cpu"
    served: tuple[str, ...] = ()
    temperatures: tuple[float, ...] = ()

    @property
    def runs(self) -> tuple[AgentRun, ...]:
        return tuple(AgentRun(arm=arm.name, seed=seed) for arm in self.arms for seed in arm.seeds)

    @property
    def last(self) -> int:
        return self.steps if self.executed is None else self.executed

    @property
    def evaluated(self) -> list[int]:
        start = 0 if self.engine == "native" else self.every
        return sorted({*range(start, self.last + 1, self.every), self.last})

    @property
    def evaluation(self) -> AgentEvaluation:
        samples = {"samples": self.samples, "test_samples": self.samples}
        return AgentEvaluation(every=self.every, **samples, temperatures=self.temperatures)

    def arm(self, name: str) -> AgentArm:
        return next(arm for arm in self.arms if arm.name == name)

    def skill_of(self, arm: str, seed: int, step: int) -> float:
        """Return the chance that a detail is found."""
        if self.skill is not None:
            return self.skill(arm, seed, step)
        return 0.6 + 0.3 * (1 - SKILL.get(arm, 0.0)) * step / self.last + 0.01 * (seed - 1)


def details(split: str, task: int) -> tuple[float, ...]:
    """Return the weights of a task's details: 2 to 4 of them."""
    return IMPORTANCES[: 2 + (task + (split == "test")) % 3]


@cache
def draws(seed: int, *name: str | int, n: int) -> tuple[float, ...]:
    """Return the random draws of an episode, the same in every study."""
    return tuple(seeding.generator(seed, *name).random(n).tolist())


def episode(study: Study, run: AgentRun, split: str, mode: str, checkpoint: str, step: int, task: int, sample: int):  # type: ignore[no-untyped-def]
    worth = details(split, task)
    skill = study.skill_of(run.arm, run.seed, step)
    found = [draw < skill for draw in draws(run.seed, run.arm, split, mode, step, task, sample, n=len(worth))]
    rewards = tuple(value if hit else 0.0 for value, hit in zip(worth, found, strict=True))
    return EpisodeRow(
        step=step,
        split=split,
        mode=mode,
        checkpoint=checkpoint,
        task_id=f"{split}-{task:03d}",
        sample=sample,
        rewards=(*rewards, 0.0),
        ceiling=math.fsum(worth),
        end="complete" if all(found) else "closed",
        n_agent_tokens=7 * (len(worth) + 1),
    )


def evaluate(study: Study, run: AgentRun, split: str, checkpoint: str, step: int):  # type: ignore[no-untyped-def]
    """Return the evaluations of one policy, and their episodes."""
    n_tasks = study.n_val if split == "val" else study.n_test
    evaluations, episodes = [], []
    for mode in (*study.modes, *(study.evaluation.by_temperature if split == "test" else ())):
        n_samples = 1 if mode == "greedy" else study.samples
        rows = [
            episode(study, run, split, mode, checkpoint, step, task, sample)
            for task in range(n_tasks)
            for sample in range(n_samples)
        ]
        episodes += rows if study.engine == "native" else []
        evaluations.append(
            EvaluationRow(
                step=step,
                split=split,
                mode=mode,
                checkpoint=checkpoint,
                n_tasks=n_tasks,
                n_samples=n_samples,
                values=evaluation_values(rows, n_tasks),
            )
        )
    return evaluations, episodes


def evaluation_values(rows: Sequence[EpisodeRow], n_tasks: int) -> dict[str, float]:
    rewards = np.array([math.fsum(row.rewards) for row in rows]).reshape(n_tasks, -1)
    ceilings = np.array([row.ceiling for row in rows]).reshape(n_tasks, -1)
    return {
        "reward": float(rewards.mean()),
        "reward_se": float(rewards.mean(axis=1).std(ddof=1) / math.sqrt(n_tasks)),
        "reward_min": float(rewards.min()),
        "reward_max": float(rewards.max()),
        "normalised_reward": float((rewards / ceilings).mean()),
        "coverage": 0.5,
        "turns": 4.0,
        "simulator_failures": 0.0,
    }


def learning_rate(arm: AgentArm, step: int, steps: int) -> float:
    """Return the rate of a step: the first update of a warm-up has none."""
    peak, done, warm = arm.learning_rate or 2e-4, step - 1, arm.schedule.warmup_steps
    if arm.schedule.kind == "constant":
        return peak
    if done < warm:
        return peak * done / warm
    return peak * 0.5 * (1 + math.cos(math.pi * (done - warm) / max(1, steps - warm)))


def step_values(study: Study, run: AgentRun, step: int) -> dict[str, float]:
    """Return the training metrics of a step: 64 episodes of 30 + 60 tokens at 90 tokens of the limit's 512."""
    arm, wave = study.arm(run.arm), math.sin(step + run.seed)
    kl = 0.001 * RATES.get(run.arm, 0.9) * step + 1e-4 * run.seed
    seconds = 1.5 + 0.1 * (step % study.every == 0) + 0.01 * run.seed
    values = {
        "pg_loss": -0.05 + 0.01 * wave,
        "kl": kl,
        "kl_k1": kl,
        "kl_loss": kl,
        "entropy": 0.4 - 0.002 * step + 0.01 * (arm.entropy > 0),
        "entropy_all": 0.35 - 0.002 * step,
        "loss": -0.05,
        "grad_norm": 1.0 + 0.1 * wave,
        "grad_clipped": 0.5,
        "clip_fraction": 0.01,
        "learning_rate": learning_rate(arm, step, study.steps),
        "reward": 1.6 + 0.01 * step,
        "normalised_reward": 0.6 + 0.004 * step,
        "end_closed": 0.75,
        "end_complete": 0.25,
        "turns": 4.0,
        "sequence_length": 90.0 + wave,
        "episodes": 64.0,
        "seconds_step": seconds,
        "seconds_rollout": 0.6 * seconds,
        "seconds_validation": 0.0,
        "seconds_checkpoint": 0.0,
    }
    return values | study.metrics


def write_runs(folder: Path, study: Study) -> dict[str, tuple[Path, ...]]:
    """Write the files of every run; return them as `collect_agents` takes them."""
    paths: dict[str, list[Path]] = {}
    for run in study.runs:
        of_run = folder / f"arm~{run.arm}" / f"seed~{run.seed}"
        for name, path in write_run(of_run, study, run).items():
            paths.setdefault(name, []).append(path)
    names = ("metrics", "evaluations", "episodes", "done", "manifests", "test_evaluations", "test_episodes")
    found = {name: tuple(paths.get(name, ())) for name in names}
    found |= write_untrained(folder, study, "start", *(["start"] if study.has_test else []))
    return found | write_untrained(folder, study, "served", *study.served)


def write_untrained(folder: Path, study: Study, kind: str, *names: str) -> dict[str, tuple[Path, ...]]:
    """Write the outputs of `evaluate_start`, or `evaluate_served`, whose agents have costs and miss a task."""
    files: dict[str, tuple[Path, ...]] = {f"{kind}_evaluations": (), f"{kind}_episodes": ()}
    for name in names:
        evaluations, episodes = evaluate(study, AgentRun(arm=name, seed=0), "test", "last", 0)
        if kind == "served":
            episodes[0] = episodes[0].model_copy(update={"end": "failed"})
            sound = evaluation_values(episodes[1 : study.n_test], study.n_test - 1) | {"tasks_lost": 1.0}
            evaluations = [
                row.model_copy(update={"values": row.values | (sound if row.mode == "greedy" else {}) | COSTS})
                for row in evaluations
            ]
        for rows, what in ((evaluations, "evaluations"), (episodes, "episodes")):
            path = folder / name / f"{kind}_{what}.jsonl"
            storage.write_rows(path, rows)
            files[f"{kind}_{what}"] += (path,)
    return files


def write_run(folder: Path, study: Study, run: AgentRun) -> dict[str, Path]:
    study = replace(study, executed=study.lengths.get((run.arm, run.seed), study.executed))
    found = [evaluate(study, run, "val", "current", step) for step in study.evaluated]
    curve = [row for rows, _ in found for row in rows]
    of_last_mode = [row for row in curve if row.mode == study.modes[-1]]
    best = max(of_last_mode, key=lambda row: (row.values["reward"], -row.step)).step
    files = {
        "metrics": folder / "metrics.jsonl",
        "evaluations": folder / "evaluations.jsonl",
        "episodes": folder / "episodes.jsonl",
        "done": folder / "done.json",
        "manifests": folder / "run.json",
    }
    steps = [StepRow(step=step, values=step_values(study, run, step)) for step in range(1, study.last + 1)]
    storage.write_rows(files["metrics"], steps)
    storage.write_rows(files["evaluations"], curve)
    storage.write_rows(files["episodes"], [row for _, rows in found for row in rows])
    storage.write_row(files["done"], done_row(study, run, best))
    storage.write_row(files["manifests"], manifest(study))
    if study.has_test:
        tested = [evaluate(study, run, "test", name, step) for name, step in (("last", study.last), ("best", best))]
        files |= {name: folder / "test" / f"{name[5:]}.jsonl" for name in ("test_evaluations", "test_episodes")}
        storage.write_rows(files["test_evaluations"], [row for rows, _ in tested for row in rows])
        storage.write_rows(files["test_episodes"], [row for _, rows in tested for row in rows])
    return files


def done_row(study: Study, run: AgentRun, best: int) -> DoneRow:
    return DoneRow(
        arm=run.arm,
        seed=run.seed,
        engine=study.engine,
        planned_steps=study.steps,
        executed_steps=study.last,
        reason="finished" if study.last == study.steps else "stopped early" if study.lengths else "log ended",
        best_step=best,
        n_parameters=227_808 if study.engine == "native" else 0,
        version="" if study.engine == "native" else "UserRL cf55a30 (verl 0.4.0.dev)",
    )


def manifest(study: Study) -> Manifest:
    return Manifest(
        stage="train_agent",
        config={},
        inputs={},
        code="c",
        commit="",
        dirty=False,
        versions={},
        device=study.device,
        threads=1,
        seconds=70.0,
    )


def collect(folder: Path, study: Study = Study()) -> dict[str, Path]:
    """Run `collect_agents`; return the paths of what it writes."""
    outputs = {name: folder / "tables" / f"{name}.csv" for name in ("curves", "episodes_table", "runs")}
    collect_agents(
        **write_runs(folder, study),
        **outputs,
        config=CollectAgentsConfig(runs=study.runs, served=study.served),
    )
    return outputs


def compare_config(study: Study, **changes: object) -> CompareArmsConfig:
    return CompareArmsConfig(
        **{
            "arms": study.arms,
            "reference_arm": "baseline",
            "document_arm": "bundle",
            "evaluation": study.evaluation,
            "n_resamples": 500,
            **changes,
        }
    )


def displayed_config(study: Study, **changes: object) -> BuildReportConfig:
    """Return the report's input for a study; `changes` replace values of its arms."""
    agents = {
        "arms": study.arms,
        "reference_arm": "baseline",
        "document_arm": "bundle",
        "grpo": AgentGrpo(
            steps=study.steps, prompts=8, group=8, minibatches=2, learning_rate=2e-4, trajectory_score="sum"
        ),
        "evaluation": study.evaluation,
        "scale": "embedded world, tiny Qwen3",
        **changes,
    }
    displayed = ShownStudy(name="intention", is_world=True, model="tiny Qwen3")
    return BuildReportConfig(title="", studies=(displayed,), main_preset="world", agents=ShownAgents(**agents))


def compare(folder: Path, study: Study = Study(), **changes: object) -> dict[str, Path]:
    """Run `collect_agents` and `compare_arms`; return the paths of what both write."""
    from lever_pipe.stages.agent_results import compare_arms

    inputs = collect(folder, study)
    outputs = {name: folder / "tables" / f"{name}.csv" for name in ("endpoints", "comparisons")}
    compare_arms(**inputs, **outputs, config=compare_config(study, **changes))
    return inputs | outputs
