"""Rule `evaluate_served`: an agent behind a server on held-out tasks."""

from __future__ import annotations

from lever_pipe.base import storage
from lever_pipe.experiment import execution
from lever_pipe.experiment.agent_stage_configs import EvaluateServedConfig
from lever_pipe.experiment.stage_configs import Runtime
from lever_pipe.experiment.stage_files import Input, Output
from lever_pipe.intention.agent.evaluation import PolicyEvaluation, When, evaluate_held_out
from lever_pipe.intention.agent.player import execution_of
from lever_pipe.intention.agent.served import load_served
from lever_pipe.intention.records import Task


def evaluate_served(
    *,
    test_tasks: Input,
    evaluations: Output,
    episodes: Output,
    dialogues: Output,
    config: EvaluateServedConfig,
    runtime: Runtime = Runtime(),
) -> PolicyEvaluation:
    """Evaluate a served agent in its decodings, as the last checkpoint of a run of no steps.

    `dialogues` holds the transcripts of the greedy episodes, a `DialogueRow` each.

    Raises:
        SimulatorError: the user or the agent cannot be asked as configured.
        TrainingError: too many of the user's or of the agent's requests failed.
    """
    execution.prepare(runtime)
    player = load_served(config, execution_of(runtime))
    tasks = storage.read_rows(test_tasks, Task)
    found = evaluate_held_out(player, tasks, When(0, "test", "last"), config.evaluation, config.agent.modes)
    storage.write_rows(evaluations, found.rows)
    storage.write_rows(episodes, found.episodes)
    storage.write_rows(dialogues, found.dialogues)
    return found
