"""Conversion of the original trainer's console log to the metrics of this project.

A metric is converted only if its definition is the same. Only lines such as `step:5 - actor/lr:0.000 - ...` are read.
If a resumed run repeats steps, the later values replace the earlier ones.

The names can mislead, in UserRL's fork of verl 0.4.0.dev (other versions differ, so each run records its version):

* `actor/pg_loss` and the clip fractions are of rank 0 only; `actor/kl_loss` is its last micro-batch and unweighted;
* `actor/entropy` is over all response tokens, including the tool's: it corresponds to `entropy_all`, not `entropy`;
* `global_seqlen/mean` is not a sequence length: it is the tokens of a step divided by the number of GPUs;
* `perf/throughput` is per GPU, `perf/mfu/actor` of the update only, and 0 on a GPU without a known peak;
* `perf/time_per_step` includes the validation and the checkpoint of a step;
* `critic/score` is the sum of turn rewards, independent of the trajectory score;
* the console prints three decimals: a learning rate below 0.0005 is printed as 0.000 and therefore omitted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from lever_pipe.base.errors import RecordError, shortened
from lever_pipe.experiment.intention import ConvertVerlConfig
from lever_pipe.intention.records import DoneRow, EvaluationRow, StepRow

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
MARK = r"(?:\((?![^()]*Worker)[^()]*\bpid=\d+[^()]*\)\s*)?"
"""Ray's prefix with the process that printed a line; lines of workers are excluded, because they are dialogues."""
BAR = r"(?:Training Progress:.*?\]\s*)?"
"""A progress bar before the step, because it does not end its line."""
STEP_LINE = re.compile(rf"\s*{MARK}{BAR}{MARK}step:(\d+) - (.+)", re.ASCII)
NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|[+-]?(?:nan|inf)", re.ASCII | re.IGNORECASE)
NUMPY = re.compile(r"np\.\w+\((.*)\)")
THREE_DECIMALS = re.compile(r"-?\d+\.\d{3}", re.ASCII)
TRAINING = re.compile(r"(?:actor|critic|training|global_seqlen)/")
"""Keys that only a training step logs. A resumed run validates its first step again and logs it without these keys."""
NAMES = {
    "actor/pg_loss": "pg_loss",
    "actor/kl_loss": "kl_loss",
    "actor/entropy": "entropy_all",
    "actor/grad_norm": "grad_norm",
    "actor/pg_clipfrac": "clip_fraction",
    "actor/pg_clipfrac_lower": "dual_clip_fraction",
    "actor/lr": "learning_rate",
    "critic/score/mean": "reward",
    "critic/score/max": "reward_max",
    "critic/score/min": "reward_min",
    "global_seqlen/mean": "tokens_per_rank",
    "prompt_length/mean": "prompt_length",
    "response_length/mean": "response_length",
    "perf/time_per_step": "seconds_step",
    "perf/throughput": "tokens_per_second_per_device",
    "perf/mfu/actor": "mfu_update",
    "timing_s/gen": "seconds_rollout",
    "timing_s/old_log_prob": "seconds_log_probs",
    "timing_s/ref": "seconds_reference",
    "timing_s/update_actor": "seconds_update",
    "timing_s/testing": "seconds_validation",
    "timing_s/save_checkpoint": "seconds_checkpoint",
}
"""Key of the original trainer -> name of the metric in this project."""
TOTAL = "perf/total_num_tokens"
VALIDATION = re.compile(r"val-(?:core|aux)/(?P<source>.+)/(?P<quantity>reward|acc)/mean@(?P<samples>[1-9]\d*)")
"""A mean over validation tasks. It is `acc` instead of `reward` if the reward function returns that key. A source may
contain slashes, as `openai/gsm8k`; `mean@8` is a mean of eight samples per task."""
DISPLAY_LIMIT = 5
"""Maximum number of keys in an error message."""
LARGEST = 1e15
"""Upper limit of plausible values."""


class Reading(NamedTuple):
    """One logged number."""

    value: float
    """May be NaN or infinite, with a meaning that depends on the key."""
    location: str
    """File and line."""
    is_rounded: bool
    """Whether it was printed with three decimals, as the fork's console does."""


Readings = dict[str, Reading]


def read_log(path: Path) -> dict[int, Readings]:
    """Return the logged values of each step in rising order; step 0 is before training.

    Raises:
        RecordError: no line of a step, or a damaged one.
    """
    steps: dict[int, Readings] = {}
    for step, readings in _lines_in(path):
        is_again = _is_trained(readings) and _is_trained(steps.get(step, {}))
        # A resumed run starts from a checkpoint: later steps in the log so far are obsolete.
        for stale in [other for other in steps if other > step or (other == step and is_again)]:
            del steps[stale]
        steps.setdefault(step, {}).update(readings)
    if not steps:
        raise RecordError(
            f"{path}: expected the console's log of verl, lines `step:5 - actor/lr:0.000 - ...`",
            found="no line of a step",
            do="Put the trainer's log there.",
        )
    return dict(sorted(steps.items()))


def _is_trained(keys: Iterable[str]) -> bool:
    return any(TRAINING.match(key) for key in keys)


def _lines_in(path: Path) -> Iterator[tuple[int, Readings]]:
    with path.open(encoding="utf-8", errors="replace", newline="\n") as handle:
        for number, line in enumerate(handle, start=1):
            match = STEP_LINE.fullmatch(COLOUR.sub("", line).rstrip())
            if match:
                location = f"{path}:{number}"
                if not line.endswith("\n"):  # a number at the end may be cut off and still parse
                    raise _damaged(location, "a whole line", "the file's end in the middle of it")
                yield int(match[1]), dict(_items(match[2], location))


def _items(text: str, location: str) -> Iterator[tuple[str, Reading]]:
    for item in text.split(" - "):
        key, _, digits = item.rpartition(":")
        value = _number(digits.strip())
        if not key or value is None:
            raise _damaged(location, "`key:value` items", shortened(repr(item.strip())))
        yield key.strip(), Reading(value, location, bool(THREE_DECIMALS.fullmatch(digits)))


def _number(digits: str) -> float | None:
    if digits in ("True", "False"):
        return float(digits == "True")
    match = NUMPY.fullmatch(digits)
    text = match[1] if match else digits
    return float(text) if NUMBER.fullmatch(text) else None


def _damaged(location: str, expected: str, found: str) -> RecordError:
    return RecordError(f"{location}: expected {expected}", found=found, do="Fix or remove that line.")


class Converted(NamedTuple):
    """The rows of a run directory, and notes about gaps of the log."""

    metrics: list[StepRow]
    evaluations: list[EvaluationRow]
    done: DoneRow
    notes: list[str]


def convert(steps: Mapping[int, Readings], config: ConvertVerlConfig) -> Converted:
    """Return the rows of one run; values that the log does not contain stay absent.

    Raises:
        RecordError: the log does not match the configuration, or contains no validation or implausible values.
    """
    executed = max(steps)
    last = next(reading.location for reading in steps[executed].values())
    if executed > config.planned_steps:
        raise RecordError(
            f"{last}: expected at most {config.planned_steps} steps",
            found=f"step {executed}",
            do="Set intention.grpo.steps to what was planned, or put the log of this configuration there.",
        )
    metrics = [
        StepRow(step=step, values=values)
        for step, readings in steps.items()
        if step and (values := _training(readings, config.n_gpus))
    ]
    key = _validation_key(steps, last)
    rewards = {step: readings[key] for step, readings in steps.items() if key in readings}
    n_samples = int(key.rpartition("@")[2])
    row = EvaluationRow(
        step=0,
        split="val",
        mode="greedy" if n_samples == 1 else "sampled",  # several greedy answers would be identical
        n_tasks=config.n_tasks,
        n_samples=n_samples,
        values={},
    )
    evaluations = [
        row.model_copy(update={"step": step, "values": {"reward": _finite(key, reading)}})
        for step, reading in rewards.items()
    ]
    done = DoneRow(
        arm=config.arm,
        seed=config.seed,
        engine="verl",
        planned_steps=config.planned_steps,
        executed_steps=executed,
        reason="finished" if executed == config.planned_steps else "log ended",
        best_step=max(rewards, key=lambda step: rewards[step].value),  # the log has a single validation metric
        n_parameters=0,
        version=config.version,
    )
    return Converted(metrics, evaluations, done, list(_notes(steps, metrics, key, config)))


def _training(readings: Readings, n_gpus: int) -> dict[str, float]:
    values = {}
    for key, name in NAMES.items():
        if key in readings and not _is_empty(key, readings[key]):
            values[name] = _finite(key, readings[key])
    if "tokens_per_rank" in values:
        values["tokens_total"] = _total(readings, values["tokens_per_rank"], n_gpus)
    if "tokens_per_second_per_device" in values:
        values["tokens_per_second"] = values["tokens_per_second_per_device"] * n_gpus
    return values


def _is_empty(key: str, reading: Reading) -> bool:
    """Return whether a 0 is not a measurement: a rounded learning rate, or utilization without a known peak."""
    return reading.value == 0 and (key == "perf/mfu/actor" or (key == "actor/lr" and reading.is_rounded))


def _total(readings: Readings, per_rank: float, n_gpus: int) -> float:
    """Return the number of the step's tokens, which the rounded mean over ranks determines uniquely.

    Raises:
        RecordError: the logged total does not match.
    """
    total = float(round(per_rank * n_gpus))
    if TOTAL in readings and abs(_finite(TOTAL, readings[TOTAL]) - total) > n_gpus:
        raise RecordError(
            f"{readings[TOTAL].location}: expected {TOTAL} to be global_seqlen/mean x {n_gpus} GPUs = {total:.0f}",
            found=f"{readings[TOTAL].value:.0f}",
            do="Set intention.verl.n_gpus to what the run had.",
        )
    return total


def _validation_key(steps: Mapping[int, Readings], last: str) -> str:
    """Return the key of the validation rewards; a reward has precedence over an accuracy in the same log.

    Raises:
        RecordError: no such key, or keys of several data sources.
    """
    keys = sorted({key for readings in steps.values() for key in readings})
    means = [match for key in keys if (match := VALIDATION.fullmatch(key))]
    rewards = [match for match in means if match["quantity"] == "reward"] or means
    if len(rewards) == 1:
        return rewards[0][0]
    if rewards:
        raise RecordError(
            f"{next(r[rewards[0][0]].location for r in steps.values() if rewards[0][0] in r)}: "
            "expected the validation of one data source",
            found=", ".join(match[0] for match in rewards),
            do="Validate on IntentionGym's rows alone.",
        )
    others = [key for key in keys if key.startswith("val")]
    raise RecordError(
        f"{last}: expected validation rewards, val-core/SOURCE/reward/mean@N or val-core/SOURCE/acc/mean@N",
        found=f"{', '.join(others[:DISPLAY_LIMIT])} in {len(steps)} steps" if others else f"none in {len(steps)} steps",
        do="Return the reward as `reward` or `acc` from the reward function, or rename that key in the log."
        if others
        else "Let the trainer validate (trainer.test_freq), or put a whole log there.",
    )


def _notes(
    steps: Mapping[int, Readings], metrics: list[StepRow], validation: str, config: ConvertVerlConfig
) -> Iterator[str]:
    executed = max(steps)
    if executed < config.planned_steps:
        yield f"log ended: {executed} of {config.planned_steps} planned steps"
    if missing := executed - len(metrics):
        yield f"{missing} of {executed} steps have no training values in the log"
    if "/acc/" in validation:
        yield f"validation logs no reward; {validation} is used instead"
    keys = {key for readings in steps.values() for key in readings}
    if unknown := sorted(keys - NAMES.keys() - {TOTAL, validation}):
        yield f"{len(unknown)} keys have no counterpart here and are omitted: {', '.join(unknown)}"


def _finite(key: str, reading: Reading) -> float:
    if not abs(reading.value) < LARGEST:  # false for NaN too
        raise RecordError(
            f"{reading.location}: expected {key} to be a number below {LARGEST:g}",
            found=str(reading.value),
            do="The run has diverged there: cut its log before this step, or omit the run.",
        )
    return reading.value
