"""From the files of finished runs to the lines of `curves.csv`, `episodes.csv` and `runs.csv`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lever_pipe.base import storage
from lever_pipe.base.errors import RecordError
from lever_pipe.base.records import RunCard
from lever_pipe.experiment.agent_config import START_ARM
from lever_pipe.experiment.agent_stage_configs import AgentRun
from lever_pipe.intention.records import UNSOUND, DoneRow, EpisodeRow, EvaluationRow, StepRow
from lever_pipe.report.inference import agent_columns as columns
from lever_pipe.report.long_format import decimal

NATIVE = "native"
TEST = "test"
GREEDY, SAMPLED = "greedy", "sampled"
TIMED_APART = ("seconds_validation", "seconds_checkpoint")
"""Parts of a run that its steps do not hold."""
Line = tuple[object, ...]
_ROUNDING = 1e-6
"""Two orders of summing some hundred rewards in float64 or float32 means."""


class Of(NamedTuple):
    """Which evaluation a row belongs to."""

    split: str
    mode: str
    checkpoint: str
    step: int


@dataclass(frozen=True)
class Played:
    """What was evaluated of a policy or run."""

    run: AgentRun
    evaluations: list[EvaluationRow]
    episodes: list[EpisodeRow]


@dataclass(frozen=True)
class RunFiles(Played):
    """One run's rows; those of the held-out tasks stand behind those of the validation curve."""

    steps: list[StepRow]
    done: DoneRow
    card: RunCard

    @property
    def name(self) -> str:
        """Return the run's name in messages."""
        return f"arm {self.run.arm}, seed {self.run.seed}"

    @property
    def seconds(self) -> float:
        """Return the seconds of all steps with their evaluations and checkpoints; NaN where a step has none.

        Our trainer times these apart from a step; a converted log has them within it.
        """
        steps = math.fsum(row.values.get("seconds_step", math.nan) for row in self.steps)
        if self.done.engine != NATIVE:
            return steps
        return steps + math.fsum(row.values.get(name, 0.0) for row in self.steps for name in TIMED_APART)


def read_run(
    run: AgentRun,
    *,
    metrics: Path,
    evaluations: Sequence[Path],
    episodes: Sequence[Path],
    done: Path,
    card: Path,
) -> RunFiles:
    """Return the rows of one run.

    Raises:
        RecordError: a malformed row; the files belong to another run; or steps or evaluations are missing, so that the
            run did not get as far as it says.
    """
    found = RunFiles(
        run=run,
        steps=storage.read_rows(metrics, StepRow),
        evaluations=[row for path in evaluations for row in storage.read_rows(path, EvaluationRow)],
        episodes=[row for path in episodes for row in storage.read_rows(path, EpisodeRow)],
        done=storage.read_row(done, DoneRow),
        card=storage.read_row(card, RunCard),
    )
    faults = list(_faults(found))
    if faults:
        raise RecordError(
            f"{found.name} ({done}): expected a whole run",
            found="; ".join(faults),
            do="Run train_agent again for this arm and seed, or correct its log.",
        )
    return found


def read_start(evaluations: Path, episodes: Path) -> Played:
    """Return the evaluation of the policy that every run starts from.

    Raises:
        RecordError: a malformed row, or other evaluations than of a start policy on held-out tasks.
    """
    found = Played(
        AgentRun(arm=START_ARM, seed=0),
        storage.read_rows(evaluations, EvaluationRow),
        storage.read_rows(episodes, EpisodeRow),
    )
    wanted = {Of(TEST, mode, "last", 0) for mode in (GREEDY, SAMPLED)}
    faults = list(_episode_faults(found))
    if {_of(row) for row in found.evaluations} != wanted:
        faults.append(f"evaluations of {', '.join(str(tuple(_of(row))) for row in found.evaluations)}")
    if faults:
        raise RecordError(
            f"{evaluations}: expected the start policy on held-out tasks, greedy and sampled",
            found="; ".join(faults),
            do="Run evaluate_start again.",
        )
    return found


def curve_lines(files: RunFiles) -> Iterator[Line]:
    """Yield the lines of `curves.csv`."""
    for row in files.steps:
        for metric, value in row.values.items():
            yield (files.run.arm, files.run.seed, row.step, "train", "", metric, decimal(value))
    yield from evaluation_lines(files)


def evaluation_lines(files: Played) -> Iterator[Line]:
    """Yield those of evaluations; a best checkpoint that is the last one has the lines of the last only."""
    key = (files.run.arm, files.run.seed)
    derived = _derived(files.episodes)
    seen: set[tuple[str, str, int]] = set()
    for evaluation in sorted(files.evaluations, key=lambda row: row.checkpoint == "best"):
        place = (evaluation.split, evaluation.mode, evaluation.step)
        if place in seen:
            continue
        seen.add(place)
        n_tasks = evaluation.n_tasks - evaluation.values.get(columns.TASKS_LOST, 0.0)
        counts = {columns.N_TASKS: n_tasks, columns.N_SAMPLES: float(evaluation.n_samples)}
        values = evaluation.values | counts | derived.get(_of(evaluation), {})
        for metric, value in values.items():
            yield (*key, evaluation.step, evaluation.split, evaluation.mode, metric, decimal(value))


def episode_lines(files: Played) -> Iterator[Line]:
    """Yield the lines of `episodes.csv`; a reward is the sum over turns."""
    for row in files.episodes:
        numbers = (decimal(math.fsum(row.rewards)), decimal(row.ceiling), len(row.rewards), row.end, row.n_agent_tokens)
        place = (row.step, row.split, row.mode, row.checkpoint, row.task_id, row.sample)
        yield (files.run.arm, files.run.seed, *place, *numbers)


def run_line(files: RunFiles) -> Line:
    """Return the line of `runs.csv`; the device of a converted log is not known."""
    done = files.done
    return (
        *(done.arm, done.seed, done.engine, done.planned_steps, done.executed_steps, done.reason, done.best_step),
        *(done.n_parameters, done.version, decimal(files.seconds)),
        files.card.device if done.engine == NATIVE else "",
    )


def _faults(files: RunFiles) -> Iterator[str]:
    done, steps = files.done, [row.step for row in files.steps]
    if (done.arm, done.seed) != (files.run.arm, files.run.seed):
        yield f"the files of arm {done.arm}, seed {done.seed}"
    if done.executed_steps > done.planned_steps:
        yield f"{done.executed_steps} executed of {done.planned_steps} planned steps"
    ends_early = done.engine != NATIVE and done.reason == "log ended"
    if done.executed_steps < done.planned_steps and not ends_early:
        yield f"reason '{done.reason}' after {done.executed_steps} of {done.planned_steps} planned steps"
    wanted = list(range(1, done.executed_steps + 1))
    if done.engine == NATIVE and steps != wanted:
        yield f"{len(steps)} of {done.executed_steps} steps in order, " + _missing(sorted(set(wanted) - set(steps)))
    elif sorted(set(steps)) != steps or (steps or [0])[-1] != done.executed_steps:
        yield f"steps that do not rise to the executed {done.executed_steps}"
    yield from _evaluation_faults(files)


def _evaluation_faults(files: RunFiles) -> Iterator[str]:
    done = files.done
    at: dict[str, list[int]] = {GREEDY: [], SAMPLED: []}
    for row in files.evaluations:
        if row.split == "val":
            at[row.mode].append(row.step)
    if not any(at.values()):
        yield "no evaluation"
    for mode, steps in at.items():
        if len(set(steps)) < len(steps):
            yield f"{mode} evaluations that stand twice"
        if any(step > done.executed_steps for step in steps):
            yield f"{mode} evaluations after the last step"
    if done.engine == NATIVE:
        yield from _native_faults(files, at)


def _native_faults(files: RunFiles, at: Mapping[str, Sequence[int]]) -> Iterator[str]:
    """Yield what only our own trainer promises: both modes at both ends, and every episode."""
    ends = {0, files.done.executed_steps}
    for mode, steps in at.items():
        if not ends <= set(steps):
            yield f"no {mode} evaluation at step {min(ends - set(steps))}"
    if set(at[GREEDY]) != set(at[SAMPLED]):
        yield "greedy and sampled evaluations at different steps"
    yield from _episode_faults(files)


def _episode_faults(files: Played) -> Iterator[str]:
    episodes: dict[Of, list[EpisodeRow]] = {}
    for row in files.episodes:
        episodes.setdefault(_of(row), []).append(row)
    for evaluation in files.evaluations:
        wanted, found = evaluation.n_tasks * evaluation.n_samples, episodes.pop(_of(evaluation), [])
        where = f"the {evaluation.mode} evaluation on {evaluation.split} at step {evaluation.step}"
        if len(found) != wanted:
            yield f"{len(found)} of {wanted} episodes of {where}"
            continue
        means = [math.fsum(of) / len(of) for of in _rewards_by_task(found).values()]
        mean, said = math.fsum(means) / max(1, len(means)), evaluation.values.get("reward", math.nan)
        if not abs(mean - said) <= _ROUNDING:
            yield f"mean reward {mean:.6g} of the episodes of {where}, which says {said:.6g}"
    if episodes:
        yield f"{sum(map(len, episodes.values()))} episodes without an evaluation"


def _missing(steps: Sequence[int]) -> str:
    return f"without step {steps[0]}" if steps else "some twice"


def _of(row: EvaluationRow | EpisodeRow) -> Of:
    return Of(row.split, row.mode, row.checkpoint, row.step)


def _derived(episodes: Sequence[EpisodeRow]) -> dict[Of, dict[str, float]]:
    """Return by evaluation the mean ceiling and the standard error over further rollouts of the same tasks.

    Of K sound rollouts of each of N tasks it is sqrt(mean variance within a task / (N K)), K the harmonic mean where
    tasks differ. A greedy evaluation has one rollout a task, so that variance is taken from the sampled one beside it,
    as if a greedy episode were one draw.
    """
    key = _of
    by_evaluation = {of: list(rows) for of, rows in groupby(sorted(episodes, key=key), key=key)}
    within = {of: _variance_within(_rewards_by_task(rows)) for of, rows in by_evaluation.items()}
    found: dict[Of, dict[str, float]] = {}
    for of, rows in by_evaluation.items():
        rewards = _rewards_by_task(rows)
        ceilings = {row.task_id: row.ceiling for row in rows if row.task_id in rewards}
        variance = within[of] if of.mode == SAMPLED else within.get(of._replace(mode=SAMPLED), math.nan)
        found[of] = {columns.CEILING: math.fsum(ceilings.values()) / len(ceilings)}
        if not math.isnan(variance):
            shares = math.fsum(1 / len(values) for values in rewards.values())
            found[of][columns.SAME_TASKS_ERROR] = math.sqrt(variance * shares) / len(rewards)
    return found


def _rewards_by_task(rows: Sequence[EpisodeRow]) -> dict[str, list[float]]:
    """Return the rewards of the sound episodes of each task; one without any is left out."""
    rewards: dict[str, list[float]] = {}
    for row in rows:
        if row.end not in UNSOUND:
            rewards.setdefault(row.task_id, []).append(math.fsum(row.rewards))
    return rewards


def _variance_within(rewards: Mapping[str, Sequence[float]]) -> float:
    """Return the mean over tasks of the variance between rollouts, of which two are needed; NaN without such a task."""
    variances = [np.var(values, ddof=1) for values in rewards.values() if len(values) > 1]
    return float(np.mean(variances)) if variances else math.nan
