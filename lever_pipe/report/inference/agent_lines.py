"""Convert the files of finished runs to lines of `curves.csv`, `episodes.csv` and `runs.csv`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from lever_pipe.base import storage
from lever_pipe.base.errors import RecordError
from lever_pipe.base.records import Manifest
from lever_pipe.experiment.agent_evaluation import AgentRun
from lever_pipe.experiment.agent_training import START_ARM
from lever_pipe.intention.records import UNSOUND, DoneRow, EpisodeRow, EvaluationRow, StepRow
from lever_pipe.report.inference.agent_runs import (
    CEILING,
    GREEDY,
    MODES,
    N_SAMPLES,
    N_TASKS,
    RUNS_COLUMNS,
    SAMPLED,
    TASKS_LOST,
    TEST,
    TRAIN,
    VAL,
)

NATIVE = "native"
TIMED_APART = ("seconds_validation", "seconds_checkpoint")
"""Times of a run that our trainer measures outside its steps."""
Line = tuple[object, ...]
_ROUNDING = 1e-6
"""Tolerance for means of some hundred rewards, which depend on the order and precision of summation."""


class EvaluationPoint(NamedTuple):
    """The evaluation of a row."""

    split: str
    mode: str
    checkpoint: str
    step: int


@dataclass(frozen=True)
class EvaluatedPolicy:
    """The evaluations and episodes of a policy or run."""

    run: AgentRun
    evaluations: list[EvaluationRow]
    episodes: list[EpisodeRow]


@dataclass(frozen=True)
class RunFiles(EvaluatedPolicy):
    """The rows of one run; rows of held-out tasks follow rows of the validation curve."""

    steps: list[StepRow]
    done: DoneRow
    manifest: Manifest

    @property
    def seconds(self) -> float:
        """Return the seconds of all steps with their evaluations and checkpoints; NaN if a step has none.

        Our trainer measures evaluations and checkpoints separately; a converted log includes them in its steps.
        """
        apart = TIMED_APART if self.done.engine == NATIVE else ()
        steps = math.fsum(row.values.get("seconds_step", math.nan) for row in self.steps)
        return steps + math.fsum(row.values.get(name, 0.0) for row in self.steps for name in apart)


def read_run(
    run: AgentRun, *, metrics: Path, evaluations: Sequence[Path], episodes: Sequence[Path], done: Path, manifest: Path
) -> RunFiles:
    """Return the rows of one run.

    Raises:
        RecordError: a malformed row, files of another run, or fewer steps or evaluations than the run states.
    """
    files = RunFiles(
        run=run,
        steps=storage.read_rows(metrics, StepRow),
        evaluations=[row for path in evaluations for row in storage.read_rows(path, EvaluationRow)],
        episodes=[row for path in episodes for row in storage.read_rows(path, EpisodeRow)],
        done=storage.read_row(done, DoneRow),
        manifest=storage.read_row(manifest, Manifest),
    )
    problems = list(_problems(files))
    if problems:
        raise RecordError(
            f"arm {run.arm}, seed {run.seed} ({done}): expected a whole run",
            found="; ".join(problems),
            do="Run train_agent again for this arm and seed, or correct its log.",
        )
    return files


def read_untrained(name: str, evaluations: Path, episodes: Path) -> EvaluatedPolicy:
    """Return the evaluation of a policy that no run trains: the start policy, or a served agent.

    Raises:
        RecordError: a malformed row, or evaluations that such a policy does not have on held-out tasks.
    """
    rows, episode_rows = storage.read_rows(evaluations, EvaluationRow), storage.read_rows(episodes, EpisodeRow)
    policy = EvaluatedPolicy(AgentRun(arm=name, seed=0), rows, episode_rows)
    problems, both = list(_episode_problems(policy)), {EvaluationPoint(TEST, mode, "last", 0) for mode in MODES}
    points, is_start = {point for point in map(_point, rows) if point.mode in MODES}, name == START_ARM
    if points != both if is_start else not points or points - both:
        problems.append(f"evaluations of {', '.join(str(tuple(_point(row))) for row in rows) or 'nothing'}")
    if problems:
        raise RecordError(
            f"{evaluations}: expected the {'start policy' if is_start else f'served agent {name!r}'} on held-out tasks",
            found="; ".join(problems),
            do=f"Run {'evaluate_start' if is_start else 'evaluate_served'} again.",
        )
    return policy


def curve_lines(files: RunFiles) -> Iterator[Line]:
    """Yield the lines of `curves.csv`."""
    for row in files.steps:
        for metric, value in row.values.items():
            yield (files.run.arm, files.run.seed, row.step, TRAIN, "", metric, value)
    yield from evaluation_lines(files)


def evaluation_lines(files: EvaluatedPolicy) -> Iterator[Line]:
    """Yield the evaluations' lines of `curves.csv`; a best checkpoint that is the last one has only its lines."""
    ceilings = _ceilings(files.episodes)
    locations: set[tuple[int, str, str]] = set()
    # Best checkpoints come last, so that duplicates of the last checkpoint are skipped.
    for row in sorted(files.evaluations, key=lambda row: row.checkpoint == "best"):
        location = (row.step, row.split, row.mode)
        if location in locations:
            continue
        locations.add(location)
        counts = {N_TASKS: row.n_tasks - row.values.get(TASKS_LOST, 0.0), N_SAMPLES: float(row.n_samples)}
        ceiling = {CEILING: ceilings[_point(row)]} if _point(row) in ceilings else {}
        for metric, value in (row.values | counts | ceiling).items():
            yield (files.run.arm, files.run.seed, *location, metric, value)


def episode_lines(files: EvaluatedPolicy) -> Iterator[Line]:
    """Yield the lines of `episodes.csv`; a reward is the sum over turns."""
    for row in files.episodes:
        location = (row.step, row.split, row.mode, row.checkpoint, row.task_id, row.sample)
        numbers = (math.fsum(row.rewards), row.ceiling, len(row.rewards), row.end, row.n_agent_tokens)
        yield (files.run.arm, files.run.seed, *location, *numbers)


def run_line(files: RunFiles) -> Line:
    """Return the line of `runs.csv`; the device of a converted log is unknown."""
    device = files.manifest.device if files.done.engine == NATIVE else ""
    return (*(getattr(files.done, name) for name in RUNS_COLUMNS[:-2]), files.seconds, device)


def _problems(files: RunFiles) -> Iterator[str]:
    done, steps = files.done, [row.step for row in files.steps]
    if (done.arm, done.seed) != (files.run.arm, files.run.seed):
        yield f"the files of arm {done.arm}, seed {done.seed}"
    if done.executed_steps > done.planned_steps:
        yield f"{done.executed_steps} executed of {done.planned_steps} planned steps"
    ends_early = done.reason == ("stopped early" if done.engine == NATIVE else "log ended")
    if done.executed_steps < done.planned_steps and not ends_early:
        yield f"reason '{done.reason}' after {done.executed_steps} of {done.planned_steps} planned steps"
    expected = list(range(1, done.executed_steps + 1))
    if done.engine == NATIVE and steps != expected:
        missing = sorted(set(expected) - set(steps))
        lack = f"without step {missing[0]}" if missing else "some twice"
        yield f"{len(steps)} of {done.executed_steps} steps in order, {lack}"
    # A converted log may skip steps.
    elif sorted(set(steps)) != steps or (steps or [0])[-1] != done.executed_steps:
        yield f"steps that do not rise to the executed {done.executed_steps}"
    yield from _evaluation_problems(files)


def _evaluation_problems(files: RunFiles) -> Iterator[str]:
    """Yield the problems of evaluations; only our trainer guarantees both modes, both ends and every episode."""
    last, is_native = files.done.executed_steps, files.done.engine == NATIVE
    by_mode = {mode: [row.step for row in files.evaluations if (row.split, row.mode) == (VAL, mode)] for mode in MODES}
    if not any(by_mode.values()):
        yield "no evaluation"
    for mode, steps in by_mode.items():
        if len(set(steps)) < len(steps):
            yield f"{mode} evaluations that stand twice"
        if any(step > last for step in steps):
            yield f"{mode} evaluations after the last step"
        if is_native and not {0, last} <= set(steps):
            yield f"no {mode} evaluation at step {min({0, last} - set(steps))}"
    if is_native:
        if set(by_mode[GREEDY]) != set(by_mode[SAMPLED]):
            yield "greedy and sampled evaluations at different steps"
        yield from _episode_problems(files)


def _episode_problems(files: EvaluatedPolicy) -> Iterator[str]:
    episodes: dict[EvaluationPoint, list[EpisodeRow]] = {}
    for row in files.episodes:
        episodes.setdefault(_point(row), []).append(row)
    for evaluation in files.evaluations:
        count, rows = evaluation.n_tasks * evaluation.n_samples, episodes.pop(_point(evaluation), [])
        where = f"the {evaluation.mode} evaluation on {evaluation.split} at step {evaluation.step}"
        if len(rows) != count:
            yield f"{len(rows)} of {count} episodes of {where}"
            continue
        means = [math.fsum(rewards) / len(rewards) for rewards in _rewards_by_task(rows).values()]
        mean, logged = math.fsum(means) / max(1, len(means)), evaluation.values.get("reward", math.nan)
        # `not ... <=`, so that NaN is a problem, too.
        if not abs(mean - logged) <= _ROUNDING:
            yield f"mean reward {mean:.6g} of the episodes of {where}, which says {logged:.6g}"
    if episodes:
        yield f"{sum(map(len, episodes.values()))} episodes without an evaluation"


def _point(row: EvaluationRow | EpisodeRow) -> EvaluationPoint:
    return EvaluationPoint(row.split, row.mode, row.checkpoint, row.step)


def _ceilings(episodes: Sequence[EpisodeRow]) -> dict[EvaluationPoint, float]:
    """Return by evaluation the mean ceiling of the tasks with a sound episode."""
    means: dict[EvaluationPoint, float] = {}
    for point, by_evaluation in groupby(sorted(episodes, key=_point), key=_point):
        ceilings = {row.task_id: row.ceiling for row in by_evaluation if row.end not in UNSOUND}
        means[point] = math.fsum(ceilings.values()) / len(ceilings)
    return means


def _rewards_by_task(rows: Sequence[EpisodeRow]) -> dict[str, list[float]]:
    """Return the rewards of the sound episodes of each task; tasks without one are omitted."""
    rewards: dict[str, list[float]] = {}
    for row in rows:
        if row.end not in UNSOUND:
            rewards.setdefault(row.task_id, []).append(math.fsum(row.rewards))
    return rewards
