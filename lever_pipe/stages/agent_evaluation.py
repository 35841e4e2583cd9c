"""Evaluate agents on held-out tasks: of a finished run, the start policy, and served agents."""

from __future__ import annotations

from pathlib import Path

from lever_pipe.base import storage
from lever_pipe.experiment import execution
from lever_pipe.experiment.agent_evaluation import EvaluateAgentConfig, EvaluateStartConfig
from lever_pipe.experiment.job_runtime import Runtime
from lever_pipe.experiment.served_agents import EvaluateServedConfig
from lever_pipe.experiment.stage_files import Input, Inputs, Output
from lever_pipe.intention.agent.evaluation import PolicyEvaluation, When, evaluate, relabelled
from lever_pipe.intention.agent.policy import policy_folder
from lever_pipe.intention.agent.rollout import load_player
from lever_pipe.intention.agent.served import load_served
from lever_pipe.intention.environment import execution_of
from lever_pipe.intention.records import DoneRow, Task

UNTRAINED = When(0, "test", "last")
"""Untrained agents are recorded as the last checkpoint of a run of 0 steps."""


def evaluate_agent(
    *,
    test_tasks: Input,
    last: Input,
    best: Input,
    done: Input,
    evaluations: Output,
    episodes: Output,
    dialogues: Output,
    config: EvaluateAgentConfig,
    runtime: Runtime = Runtime(),
) -> list[PolicyEvaluation]:
    """Evaluate both policies, greedy and sampled, and return the last one's evaluation first.

    `dialogues` contains the transcripts of the greedy episodes, one `DialogueRow` each.
    """
    finished = storage.read_row(done, DoneRow)
    parts = [_play(last, test_tasks, When(finished.executed_steps, "test", "last"), config, runtime)]
    when = When(finished.best_step, "test", "best")
    is_same = finished.best_step == finished.executed_steps  # then evaluate one policy and record it twice
    parts.append(relabelled(parts[0], when) if is_same else _play(best, test_tasks, when, config, runtime))
    storage.write_rows(evaluations, [row for evaluation in parts for row in evaluation.rows])
    storage.write_rows(episodes, [row for evaluation in parts for row in evaluation.episodes])
    storage.write_rows(dialogues, [row for evaluation in parts for row in evaluation.dialogues])
    return parts


def _play(folder: Path, tasks: Path, when: When, config: EvaluateStartConfig, runtime: Runtime) -> PolicyEvaluation:
    """Evaluate the policy of a folder."""
    player = load_player(folder, config, execution_of(runtime), execution.prepare(runtime))
    return evaluate(player, storage.read_rows(tasks, Task), when, config.evaluation)


def evaluate_start(
    *,
    test_tasks: Input,
    start: Inputs,
    evaluations: Output,
    episodes: Output,
    config: EvaluateStartConfig,
    runtime: Runtime = Runtime(),
) -> PolicyEvaluation:
    """Evaluate the start policy, greedy and sampled."""
    evaluation = _play(policy_folder(start), test_tasks, UNTRAINED, config, runtime)
    storage.write_rows(evaluations, evaluation.rows)
    storage.write_rows(episodes, evaluation.episodes)
    return evaluation


def evaluate_served(
    *,
    test_tasks: Input,
    evaluations: Output,
    episodes: Output,
    dialogues: Output,
    config: EvaluateServedConfig,
    runtime: Runtime = Runtime(),
) -> PolicyEvaluation:
    """Evaluate a served agent in its decodings.

    `dialogues` contains the transcripts of the greedy episodes, one `DialogueRow` each.
    """
    execution.prepare(runtime)  # for the threads only: the agent runs on its server
    player = load_served(config, execution_of(runtime))
    tasks = storage.read_rows(test_tasks, Task)
    evaluation = evaluate(player, tasks, UNTRAINED, config.evaluation, config.agent.modes)
    storage.write_rows(evaluations, evaluation.rows)
    storage.write_rows(episodes, evaluation.episodes)
    storage.write_rows(dialogues, evaluation.dialogues)
    return evaluation
