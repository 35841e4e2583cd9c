"""Rule `evaluate_agent`: the last and the best policy of a finished run on held-out tasks."""

from __future__ import annotations

from pathlib import Path

from lever_pipe.base import storage
from lever_pipe.experiment import execution
from lever_pipe.experiment.agent_stage_configs import EvaluateAgentConfig
from lever_pipe.experiment.stage_configs import Runtime
from lever_pipe.experiment.stage_files import Input, Output
from lever_pipe.intention.agent.arithmetic import Arithmetic
from lever_pipe.intention.agent.evaluation import PolicyEvaluation, When, evaluate_held_out, relabelled
from lever_pipe.intention.agent.player import execution_of, load_player
from lever_pipe.intention.records import DoneRow, Task


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

    `dialogues` holds the transcripts of the greedy episodes, a `DialogueRow` each.

    Where the last policy is the best one too, it is played once and stands in both rows.

    Raises:
        CheckpointError: a policy folder cannot be read.
        TrainingError: too many of the simulator's requests failed.
    """
    settings = execution_of(runtime)
    dtype = config.policy.model.dtype
    arithmetic = Arithmetic(execution.prepare(runtime), dtype)
    tasks = storage.read_rows(test_tasks, Task)
    finished = storage.read_row(done, DoneRow)

    def play(folder: Path, when: When) -> PolicyEvaluation:
        player = load_player(folder, config, settings, arithmetic, temperature=config.temperature, dtype=dtype)
        return evaluate_held_out(player, tasks, when, config.evaluation)

    found = [play(last, When(finished.executed_steps, "test", "last"))]
    when = When(finished.best_step, "test", "best")
    is_same = finished.best_step == finished.executed_steps
    found.append(relabelled(found[0], when) if is_same else play(best, when))
    storage.write_rows(evaluations, [row for evaluation in found for row in evaluation.rows])
    storage.write_rows(episodes, [row for evaluation in found for row in evaluation.episodes])
    storage.write_rows(dialogues, [row for evaluation in found for row in evaluation.dialogues])
    return found
