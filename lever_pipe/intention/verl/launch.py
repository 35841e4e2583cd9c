"""Launch files for training one arm and seed with the original trainer.

Settings that the original trainer does not support are refused if they would change the object of a study. Other
differences are described in the folder's README.
"""

from __future__ import annotations

import hashlib
import math
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import jinja2

from lever_pipe.base.errors import RecordError
from lever_pipe.base.parsing import refusal
from lever_pipe.base.sections import Section
from lever_pipe.experiment.agent_training import SCHEDULES, Schedule
from lever_pipe.experiment.environment import Endpoint, Environment
from lever_pipe.experiment.intention import RenderVerlConfig

TEMPLATES = Path(__file__).with_name("templates")
"""One template per launch file. Scripts use the filter `sh`, which quotes a value for the shell. The shell never parses
the trainer's own settings, because `launch.sh` reads them from `overrides.txt`."""
TEMPLATES_DIGEST = "dc8ed02969e69854"
"""Digest of the templates. The identity of a job covers only code and settings, so the code must change with them."""
SECONDS_OF_A_STEP = 300
"""Seconds per step for a job's time limit; the published steps took 193 to 220 s."""
PROMPT_TOKENS = 1152
"""Maximum length of the prompt; the response has the rest of the context (published)."""
MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]*")
UNSAFE = re.compile(r"""["'\\$]""")
"""Characters that a quoted Hydra value cannot contain literally."""
ALWAYS_ON = ("leak_details", "silent_failures", "count_duplicates", "last_call_only")
"""Switches of the simulator that are always on in the original."""
UNKNOWN = {
    "kl_form": ("k1_reward", "k3_loss or k2_loss with engine verl, whose multi-turn advantages never read that reward"),
    "ratio": ("sequence", "token with engine verl, which has no other"),
}
"""Values of an arm's keys that the original does not support, and the text for the required values."""
FIXED = (
    ("environment", Environment(), tuple(name for name in Environment.model_fields if name != "max_turns")),
    ("simulator.endpoint", Endpoint(), ("temperature", "max_tokens")),
)
"""Sections with their published values, and the fields that are fixed in the original's code."""


def launch_files(config: RenderVerlConfig) -> dict[str, str]:
    """Return the text of every launch file of one arm and seed; equal configurations give equal texts.

    Raises:
        ConfigError: a setting that the original trainer does not support.
        RecordError: the templates do not match `TEMPLATES_DIGEST`.
    """
    if lines := problems(config):
        raise refusal(lines, f"engine verl, arm {config.arm.name}")
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # shell and plain text: every value passes the filter `sh` or is part of prose
    )
    environment.filters["sh"] = shlex.quote
    seed = config.arm.seeds[0]
    values = {
        **dict(config),
        "seed": seed,
        "run": f"{config.arm.name}/seed-{seed}",
        "hours": math.ceil(config.grpo.steps * SECONDS_OF_A_STEP / 3600) + 1,
        "prompt_tokens": PROMPT_TOKENS,
        "differences": differences(config),
    }
    texts = {path.name: path.read_text(encoding="utf-8") for path in sorted(TEMPLATES.glob("*.j2"))}
    digest = hashlib.sha256("\0".join(part for item in texts.items() for part in item).encode()).hexdigest()[:16]
    if digest != TEMPLATES_DIGEST:
        expected = f"{TEMPLATES}: expected templates with digest {TEMPLATES_DIGEST}"
        raise RecordError(expected, found=digest, do="Write it into launch.py, so that their files are made again.")
    return {name.removesuffix(".j2"): environment.from_string(text).render(values) for name, text in texts.items()}


def differences(config: RenderVerlConfig) -> list[str]:
    """Return descriptions of the differences between the original trainer and the configuration."""
    lines = [
        "The seed orders the tasks, no more: SGLang draws from seeds of its own, so two runs of one seed differ.",
        "Only greedy validation, one episode a task; no sampled curve, no record of single episodes.",
        "Loss terms are means within a micro-batch, and micro-batches count alike: their size moves the loss.",
        "The agent's turns are tokenised again from the parsed call; the sampled token ids are not kept.",
        "Several calls in one turn run at the same time.",
        f"A turn has no token limit of its own (model.max_new_tokens={config.model.max_new_tokens} has none there).",
        f"Failed simulator calls stop nothing (simulator.failure_limit={config.simulator.failure_limit:g} has none).",
    ]
    options = ", ".join(f"simulator.{name}" for name in ALWAYS_ON if not getattr(config.simulator, name))
    return [*lines, *([f"It always behaves as if these were true: {options}."] if options else [])]


def problems(config: RenderVerlConfig) -> list[str]:
    """Return a line for each value that the original trainer does not support."""
    parts = (_unfit(config), _unknown(config), _scheduled(config), _otherwise_fixed(config), _undivided(config))
    return [f"intention.{line}" for part in parts for line in part]


def _scheduled(config: RenderVerlConfig) -> Iterator[str]:
    """Yield schedules and other changes during training that the original does not support.

    Its KL controller applies only to a KL in rewards.
    """
    arm, do = config.arm, "Write so, or engine native."
    for key in SCHEDULES:
        schedule, is_rate = getattr(arm, key), key == "schedule"
        if not (schedule.kind in ("constant", "cosine") if is_rate else schedule == Schedule()):
            shape = "constant or cosine" if is_rate else "constant without warm-up"
            found = schedule.model_dump(exclude_defaults=True)
            yield f"arms.{arm.name}.{key}: must be {shape} with engine verl, got {found}. {do}"
    for key in ("reference_reset", "proxy"):
        value = arm.model_dump(exclude_defaults=True).get(key)
        if value is not None:
            yield f"arms.{arm.name}.{key}: must be absent with engine verl, got {value}. Drop it, or engine native."
    if arm.stop is not None:
        metric = arm.stop.metric
        yield f"arms.{arm.name}.stop: must be absent with engine verl, got one by {metric}. Drop it, or engine native."


def _unknown(config: RenderVerlConfig) -> Iterator[str]:
    """Yield the forms of the loss that the original does not support, or accepts without any effect."""
    for key, (value, only) in UNKNOWN.items():
        if getattr(config.arm, key) == value:
            yield f"arms.{config.arm.name}.{key}: must be {only}, got {value!r}. Change it, or engine native."


def _unfit(config: RenderVerlConfig) -> Iterator[str]:
    model, simulator, schedule = config.model, config.simulator, config.arm.schedule
    folder, user, minimum = model.folder, simulator.endpoint.model, f"arms.{config.arm.name}.schedule.minimum"
    is_risen = schedule.kind == "constant" and schedule.warmup_steps and schedule.minimum
    is_odd = not folder.isprintable() or UNSAFE.search(folder)
    if config.arm.trajectory_score == "sum":
        rule = 'must be mean or r2g with engine verl, whose "Sum" is the mean over turns'
        yield f"grpo.trajectory_score: {rule}, got 'sum'. Choose one of them, or engine native."
    if is_risen:
        rule = "must be 0 for a constant rate with warm-up, which the original begins at 0"
        yield f"{minimum}: {rule}, got {schedule.minimum}. Write 0, or kind: cosine."
    if not folder or is_odd:
        yield f"model.folder: must name a folder, printable and without quotes, \\ and $, got {folder!r}. Name one."
    if model.max_context <= PROMPT_TOKENS:
        yield f"model.max_context: must exceed the prompt's {PROMPT_TOKENS} tokens, got {model.max_context}. Raise it."
    if not config.version.isprintable():
        yield f"verl.version: must be one printable line, got {config.version!r}. Shorten it."
    if not MODEL_NAME.fullmatch(user):
        rule = "must be letters, digits and . _ : / @ + -"
        yield f"simulator.endpoint.model: {rule}, got {user!r}. Serve it under such a name."
    only = (("model.codec", model.codec, "hf"), ("model.dtype", model.dtype, "bfloat16"))
    for location, found, required in (*only, ("simulator.kind", simulator.kind, "openai")):
        if found != required:
            yield f"{location}: must be {required!r} with engine verl, got {found!r}. Write {required}."


def _otherwise_fixed(config: RenderVerlConfig) -> Iterator[str]:
    """Yield the values that differ from the published ones, which are fixed in the original's code."""
    sections: tuple[Section, ...] = (config.environment, config.simulator.endpoint)
    for section, (location, published, names) in zip(sections, FIXED, strict=True):
        for name in names:
            value, only = getattr(section, name), getattr(published, name)
            if value != only:
                yield f"{location}.{name}: must be {only!r} with engine verl, got {value!r}. Leave it out."


def _undivided(config: RenderVerlConfig) -> Iterator[str]:
    """Yield sizes that are not divisible: the original would round down and change the number of updates, or stop."""
    grpo, gpus = config.grpo, config.n_gpus
    episodes = grpo.prompts * grpo.group
    update = episodes // grpo.minibatches
    if episodes % gpus:
        product = f"{grpo.prompts} x {grpo.group} = {episodes}"
        yield f"grpo.prompts: times grpo.group must be a multiple of verl.n_gpus={gpus}, got {product}. Change one."
    elif update % gpus:
        yield (
            f"grpo.minibatches: the {update} episodes of an update must be a multiple of verl.n_gpus={gpus}, got"
            f" minibatches {grpo.minibatches}. Change one of them."
        )
    elif update // gpus % grpo.micro_batch:
        yield (
            f"grpo.micro_batch: must divide the {update // gpus} episodes that an update has on each of {gpus} GPUs,"
            f" got {grpo.micro_batch}. Choose a divisor."
        )
