"""Prepare the agent's tasks, warm-start it, and train one arm with one seed by GRPO."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from lever_pipe.base import storage
from lever_pipe.base.errors import ConfigError
from lever_pipe.base.plugins import plugin
from lever_pipe.base.provenance import code_of
from lever_pipe.experiment import execution
from lever_pipe.experiment.agent_tasks import PrepareTasksConfig
from lever_pipe.experiment.agent_training import TrainAgentConfig
from lever_pipe.experiment.environment import AgentExecution, Environment, Simulator
from lever_pipe.experiment.job_runtime import Runtime
from lever_pipe.experiment.stage_files import Input, Inputs, Output, Outputs, State
from lever_pipe.experiment.warm_start import WarmStartAgentConfig
from lever_pipe.intention.agent.policy import build_tiny, load_policy, policy_folder, save_policy_files
from lever_pipe.intention.agent.resume import identity_of
from lever_pipe.intention.agent.rollout import load_player
from lever_pipe.intention.agent.trainer import TrainingRun, save_policies, train
from lever_pipe.intention.agent.warm_start import Demonstrator, draw_batches, imitate
from lever_pipe.intention.codecs.protocol import ChatCodec
from lever_pipe.intention.codecs.word import WordCodec
from lever_pipe.intention.environment import ceiling, execution_of
from lever_pipe.intention.records import DoneRow, StepRow, Task
from lever_pipe.intention.simulators import rule
from lever_pipe.intention.sources.protocol import RawFiles, Splits


def prepare_tasks(
    *,
    train_file: Inputs,
    val_file: Inputs,
    test_file: Inputs,
    details: Inputs,
    train_tasks: Output,
    val_tasks: Output,
    test_tasks: Output,
    summary: Output,
    config: PrepareTasksConfig,
) -> dict[str, Any]:
    """Write the tasks of each split and return their `summary`.

    The input files are empty for generated tasks. The test split excludes training and validation tasks, by id or by
    request.
    """
    files = RawFiles(train_file, val_file, test_file, details)
    splits: Splits = plugin("intention/sources", config.source).read(config.synthetic, files)
    storage.write_rows(train_tasks, splits.train)
    storage.write_rows(val_tasks, splits.val)
    storage.write_rows(test_tasks, splits.test)
    counts: dict[str, Any] = {
        "train": _summary_of(splits.train),
        "val": {**_summary_of(splits.val), **_shared(splits.val, splits.train)},
        "test": {
            **_summary_of(splits.test),
            **_shared(splits.test, splits.train),
            "n_left_out": splits.n_left_out,
        },
    }
    storage.write_json(summary, counts)
    return counts


def _summary_of(tasks: Sequence[Task]) -> dict[str, Any]:
    """Return counts, and the reward ceilings under the published rewards, independent of the run's environment."""
    ceilings = [ceiling(task, Environment()) for task in tasks]
    details = [detail for task in tasks for detail in task.missing_details]
    return {
        "n_tasks": len(tasks),
        "n_categories": len({task.category for task in tasks}),
        "ceiling_mean": round(statistics.fmean(ceilings), 9),
        "ceiling_sd": round(statistics.stdev(ceilings), 9) if len(ceilings) > 1 else 0.0,
        "ceiling_min": min(ceilings),
        "ceiling_max": max(ceilings),
        "n_details": _histogram([len(task.missing_details) for task in tasks]),
        "n_importance": _histogram([detail.importance for detail in details]),
    }


def _histogram(values: Sequence[int]) -> dict[str, int]:
    return {str(value): count for value, count in sorted(Counter(values).items())}


def _shared(tasks: Sequence[Task], trained: Sequence[Task]) -> dict[str, int]:
    """Count the tasks that share the request, or category and hidden details, with a training task."""
    return {
        "n_requests_also_trained": len([task for task in tasks if task.task in {other.task for other in trained}]),
        "n_hidden_also_trained": len([task for task in tasks if _hidden(task) in set(map(_hidden, trained))]),
    }


def _hidden(task: Task) -> tuple[str, frozenset[str]]:
    return task.category, frozenset(detail.description for detail in task.missing_details)


def warm_start_agent(
    *,
    train_tasks: Input,
    start: Inputs,
    weights: Output,
    settings: Output,
    codec: Outputs,
    metrics: Output,
    config: WarmStartAgentConfig,
    runtime: Runtime = Runtime(),
) -> StepRow:
    """Fine-tune the policy of a folder, or a new tiny one, on demonstrations; return the metrics of the last step.

    `weights`, `settings` and the files of the `codec` form one policy folder; `start` is a model folder, or empty.
    """
    device = execution.prepare(runtime)
    model, chat = _of_folder(policy_folder(start), config) if start else _tiny(config)
    model.to(device)
    user = rule.load(Simulator(kind="rule"), AgentExecution())
    max_context = config.policy.model.max_context
    demonstrator = Demonstrator(chat, user, config.environment, config.warm_start, max_context=max_context)
    batches = draw_batches(demonstrator, storage.read_rows(train_tasks, Task))
    steps = imitate(model, batches, config.warm_start, pad_id=chat.pad_id, precision=config.policy.model.dtype)
    rows = [StepRow(step=number, values=values) for number, values in enumerate(steps, start=1)]
    save_policy_files((weights, settings, *codec), model, chat)
    storage.write_rows(metrics, rows)
    return rows[-1]


def _of_folder(folder: Path, config: WarmStartAgentConfig) -> tuple[Any, ChatCodec]:
    codec = plugin("intention/codecs", config.policy.model.codec).load(folder)
    return load_policy(folder, "float32"), cast("ChatCodec", codec)  # `dtype` affects arithmetic, not weights


def _tiny(config: WarmStartAgentConfig) -> tuple[Any, ChatCodec]:
    if config.policy.model.codec != "word":
        raise ConfigError(
            "intention.model.codec: expected 'word' for the tiny model, whose vocabulary it is",
            found=repr(config.policy.model.codec),
            do="Set codec: word, or name a model folder.",
        )
    codec = WordCodec.of_world()
    return build_tiny(config.policy.model.tiny, codec.vocabulary_size, config.warm_start.seed), codec


def train_agent(
    *,
    train_tasks: Input,
    val_tasks: Input,
    start: Inputs,
    state: State,
    metrics: Output,
    evaluations: Output,
    episodes: Output,
    last: Output,
    best: Output,
    done: Output,
    config: TrainAgentConfig,
    runtime: Runtime = Runtime(),
) -> DoneRow:
    """Train one run, resuming from `state` if it exists, and return the finished run's summary."""
    settings = execution_of(runtime)
    device, folder = execution.prepare(runtime), policy_folder(start)
    # A stored state counts only for this identity: a killed run of other inputs or code must not be resumed.
    reference = load_policy(folder, "float32", device).requires_grad_(requires_grad=False)
    player = load_player(folder, config, settings, device)
    run = TrainingRun(
        config, player, reference, storage.read_rows(train_tasks, Task), storage.read_rows(val_tasks, Task)
    )
    identity = identity_of(
        config,
        {"train_tasks": (train_tasks,), "val_tasks": (val_tasks,), "start": start},
        runtime.code or code_of("train_agent"),
    )
    progress = train(run, state=state, checkpoint_every=settings.checkpoint_every, identity=identity)
    save_policies(run, progress, last=last, best=best)
    row = DoneRow(
        arm=config.arm.name,
        seed=config.seed,
        engine="native",
        planned_steps=config.grpo.steps,
        executed_steps=progress.step,
        reason="finished" if progress.step == config.grpo.steps else "stopped early",
        best_step=progress.best.step,
        n_parameters=sum(parameter.numel() for parameter in player.policy.parameters()),
    )
    storage.write_rows(metrics, progress.metrics)
    storage.write_rows(evaluations, progress.evaluations)
    storage.write_rows(episodes, progress.episodes)
    storage.write_row(done, row)
    return row
