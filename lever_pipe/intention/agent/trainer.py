"""GRPO of a tool-calling agent: the steps, evaluations and checkpoints of one run.

A step rolls out `group` episodes of each of `prompts` tasks, scores all tokens under the policy and the frozen start
policy, and takes `minibatches` optimiser updates. The distance to the start policy is measured in every run, with or
without a penalty on it, so that runs compare.
"""

from __future__ import annotations

from pathlib import Path

import torch

from lever_pipe.base.optimiser import AdamW
from lever_pipe.base.progress import Progress as Bar
from lever_pipe.intention.agent.evaluation import Evaluation, When, evaluate
from lever_pipe.intention.agent.measures import Clock, memory_peak, rates
from lever_pipe.intention.agent.policy import save_policy
from lever_pipe.intention.agent.processes import is_main, require_equal_shares
from lever_pipe.intention.agent.resume import Best, Progress, load_progress, save_progress, weights_of
from lever_pipe.intention.agent.step import Run, train_step
from lever_pipe.intention.agent.update import prepare_for_updates
from lever_pipe.intention.records import StepRow


def train(run: Run, *, state: Path, checkpoint_every: int, identity: str) -> Progress:
    """Train to the last step, from the run's checkpoint in `state` where there is one, and return all rows.

    Args:
        run: what is trained; its policy is moved in place.
        state: folder of checkpoints; left to the caller to remove.
        checkpoint_every: steps between checkpoints.
        identity: which run a checkpoint must belong to (`resume.identity_of`).

    Raises:
        ConfigError: the processes cannot share a mini-batch evenly.
        DataError: fewer train tasks than a step takes.
        TrainingError: a loss or gradient is not finite, or the simulator fails too often.
    """
    grpo = run.config.grpo
    require_equal_shares(grpo.prompts, grpo.minibatches, run.processes)
    prepare_for_updates(run.policy)
    optimiser = AdamW(run.policy, learning_rate=run.peak_rate, weight_decay=grpo.weight_decay)
    progress = load_progress(state, run.policy, optimiser, run.processes, identity=identity) or Progress()
    if progress.best is None:
        _note(run, progress, _validate(run, step=0))
    with Bar(grpo.steps - progress.step if is_main(run.processes) else 0, "train agent") as bar:
        for step in range(progress.step + 1, grpo.steps + 1):
            clock = Clock(run.processes.device)
            values = train_step(run, optimiser, step, clock)
            progress.step = step
            if step % run.config.evaluation.every == 0 or step == grpo.steps:
                with clock.time("validation"):
                    _note(run, progress, _validate(run, step=step))
            progress.metrics.append(_row(run, step, values, clock))
            if step % checkpoint_every == 0 and step < grpo.steps:
                with clock.time("checkpoint"):
                    save_progress(state, progress, run.policy, optimiser, run.processes, identity=identity)
                progress.metrics[-1] = _row(run, step, values, clock)
            if is_main(run.processes):
                bar.advance()
    return progress


def _row(run: Run, step: int, values: dict[str, float], clock: Clock) -> StepRow:
    """Return a step's row; of each time the longest over processes."""
    seconds = run.processes.combine({f"seconds_{name}": value for name, value in clock.seconds.items()}, "max")
    timed = {**values, **seconds}
    device = run.processes.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    memory = run.processes.combine(memory_peak(device), "max")
    return StepRow(step=step, values={**timed, **memory, **rates(timed, run.processes.size, name)})


def _validate(run: Run, *, step: int) -> Evaluation:
    evaluation = run.config.evaluation
    return evaluate(
        run.player, run.val, When(step, "val", "current"), n_samples=evaluation.samples, seed=evaluation.seed
    )


def _note(run: Run, progress: Progress, evaluation: Evaluation) -> None:
    """Add an evaluation, and keep the policy if none before was as good."""
    progress.evaluations += evaluation.rows
    progress.episodes += evaluation.episodes
    if progress.best is None or evaluation.reward > progress.best.reward:
        weights = run.processes.collect(weights_of(run.policy))
        progress.best = Best(progress.evaluations[-1].step, evaluation.reward, weights)


def save_policies(run: Run, progress: Progress, *, last: Path, best: Path) -> None:
    """Write the last and the best policy as model folders of the configured precision; all processes must call it."""
    found = run.processes.collect(weights_of(run.policy))
    if not is_main(run.processes) or progress.best is None:
        return
    dtype = getattr(torch, run.config.policy.model.dtype)
    for folder, weights in ((last, found), (best, progress.best.weights)):
        cast = {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in weights.items()}
        save_policy(folder, run.policy, run.player.codec, cast)
