"""Rule `evaluate_start`: the policy that every run starts from, on held-out tasks."""

from __future__ import annotations

from lever_pipe.base import storage
from lever_pipe.experiment import execution
from lever_pipe.experiment.agent_stage_configs import EvaluateStartConfig
from lever_pipe.experiment.stage_configs import Runtime
from lever_pipe.experiment.stage_files import Input, Inputs, Output
from lever_pipe.intention.agent.arithmetic import Arithmetic
from lever_pipe.intention.agent.evaluation import PolicyEvaluation, When, evaluate_held_out
from lever_pipe.intention.agent.player import execution_of, load_player
from lever_pipe.intention.agent.policy import policy_folder
from lever_pipe.intention.records import Task


def evaluate_start(
    *,
    test_tasks: Input,
    start: Inputs,
    evaluations: Output,
    episodes: Output,
    config: EvaluateStartConfig,
    runtime: Runtime = Runtime(),
) -> PolicyEvaluation:
    """Evaluate the start policy, greedy and sampled, as the last checkpoint of a run of no steps.

    Raises:
        CheckpointError: `start` is no policy folder.
        TrainingError: too many of the simulator's requests failed.
    """
    settings = execution_of(runtime)
    dtype = config.policy.model.dtype
    arithmetic = Arithmetic(execution.prepare(runtime), dtype)
    player = load_player(
        policy_folder(start), config, settings, arithmetic, temperature=config.temperature, dtype=dtype
    )
    tasks = storage.read_rows(test_tasks, Task)
    found = evaluate_held_out(player, tasks, When(0, "test", "last"), config.evaluation)
    storage.write_rows(evaluations, found.rows)
    storage.write_rows(episodes, found.episodes)
    return found
