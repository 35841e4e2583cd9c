"""Rule `train_agent`: GRPO of one arm with one seed, with its validation curve."""

from __future__ import annotations

from lever_pipe.base import storage
from lever_pipe.base.provenance import code_of
from lever_pipe.experiment import execution
from lever_pipe.experiment.agent_stage_configs import TrainAgentConfig
from lever_pipe.experiment.stage_configs import Runtime
from lever_pipe.experiment.stage_files import Input, Inputs, Output, State
from lever_pipe.intention.agent.arithmetic import Arithmetic
from lever_pipe.intention.agent.player import execution_of, load_model, load_player
from lever_pipe.intention.agent.policy import policy_folder
from lever_pipe.intention.agent.resume import identity_of
from lever_pipe.intention.agent.trainer import TrainingRun, save_policies, train
from lever_pipe.intention.records import DoneRow, Task


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
    """Train one run, or go on with it from `state`, and return how far it came.

    Raises:
        CheckpointError: `start` is no policy folder.
        TrainingError: a loss or gradient is not finite, or the simulator fails too often.
    """
    settings = execution_of(runtime)
    arithmetic = Arithmetic(execution.prepare(runtime), config.policy.model.dtype)
    folder = policy_folder(start)
    reference = load_model(folder, arithmetic.device, "float32").requires_grad_(requires_grad=False)
    player = load_player(folder, config, settings, arithmetic, temperature=config.grpo.temperature, dtype="float32")
    run = TrainingRun(
        config, player, reference, storage.read_rows(train_tasks, Task), storage.read_rows(val_tasks, Task)
    )
    identity = identity_of(
        config,
        {"train_tasks": train_tasks, "val_tasks": val_tasks, "start": start},
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
        best_step=progress.best.step if progress.best else 0,
        n_parameters=sum(parameter.numel() for parameter in run.policy.parameters()),
    )
    storage.write_rows(metrics, progress.metrics)
    storage.write_rows(evaluations, progress.evaluations)
    storage.write_rows(episodes, progress.episodes)
    storage.write_row(done, row)
    return row
