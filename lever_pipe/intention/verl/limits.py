"""What the original trainer cannot express: refused where it would change what a run studies, else told in words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from lever_pipe.base.sections import Section
from lever_pipe.experiment.agent_config import Endpoint, Environment, Simulator
from lever_pipe.experiment.agent_stage_configs import RenderVerlConfig

PROMPT_TOKENS = 1152
"""Share of the context that the prompt may fill; the response has the rest (published)."""
MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]*")
UNSAFE = re.compile(r"""["'\\$]""")
"""What a quoted Hydra value would not take as it stands."""
FAULTS = ("leak_details", "silent_failures", "count_duplicates", "last_call_only")
"""Switches of the simulator that the original has no switch for: it always behaves so."""
FIXED = tuple(name for name in Environment.model_fields if name != "max_turns")
"""Rules of the environment that stand in the original's code."""


def faults(config: RenderVerlConfig) -> list[str]:
    """Return a line for each value that the original trainer cannot run with, all at once."""
    parts = (_scores(config), _schedule(config), _model(config), _rules(config), _user(config), _batches(config))
    return [f"intention.{line}" for part in parts for line in part]


def differences(config: RenderVerlConfig) -> list[str]:
    """Return what a run of the original does otherwise than the configuration says; nothing of it can be set there."""
    always_on = [name for name in FAULTS if not getattr(config.simulator, name)]
    told = [
        "The seed orders the tasks, no more: SGLang draws from seeds of its own, so two runs of one seed differ.",
        "Only greedy validation, one episode a task; no sampled curve, no record of single episodes.",
        "Loss terms are means within a micro-batch, and micro-batches count alike: their size moves the loss.",
        "The agent's turns are tokenised again from the parsed call; the sampled token ids are not kept.",
        "Several calls in one turn run at the same time.",
        f"A turn has no token limit of its own (model.max_new_tokens={config.model.max_new_tokens} has none there).",
        f"Failed simulator calls stop nothing (simulator.failure_limit={config.simulator.failure_limit:g} has none).",
    ]
    if always_on:
        named = ", ".join(f"simulator.{name}" for name in always_on)
        told.append(f"It always behaves as if these were true: {named}.")
    return told


def _scores(config: RenderVerlConfig) -> Iterator[str]:
    if config.arm.trajectory_score == "sum":
        yield (
            "grpo.trajectory_score: must be mean or r2g with engine verl, got 'sum': what the original calls \"Sum\" is"
            " the mean over turns. Choose one of them, or engine native."
        )


def _schedule(config: RenderVerlConfig) -> Iterator[str]:
    schedule = config.arm.schedule
    if schedule.kind == "constant" and schedule.warmup_steps and schedule.minimum:
        yield (
            f"arms.{config.arm.name}.schedule.minimum: must be 0 for a constant rate with warm-up, got"
            f" {schedule.minimum:g}: the original warms up from 0. Write 0, or kind: cosine."
        )


def _model(config: RenderVerlConfig) -> Iterator[str]:
    model = config.model
    if not model.folder:
        yield "model.folder: must name a model folder with engine verl, got ''. Name one."
    elif not model.folder.isprintable() or UNSAFE.search(model.folder):
        yield f"model.folder: must be printable and without quotes, \\ and $, got {model.folder!r}. Rename the folder."
    if model.codec != "hf":
        yield f"model.codec: must be 'hf' with engine verl, got {model.codec!r}. Write hf."
    if model.dtype != "bfloat16":
        yield f"model.dtype: must be bfloat16, as the original's rollouts are, got {model.dtype!r}. Write bfloat16."
    if model.max_context <= PROMPT_TOKENS:
        yield (
            f"model.max_context: must exceed the prompt's {PROMPT_TOKENS} tokens, got {model.max_context}. Raise it."
        )
    if not config.version.isprintable():
        yield f"verl.version: must be one printable line, got {config.version!r}. Shorten it."


def _rules(config: RenderVerlConfig) -> Iterator[str]:
    yield from _fixed("environment", config.environment, Environment(), FIXED)


def _user(config: RenderVerlConfig) -> Iterator[str]:
    simulator, endpoint = config.simulator, config.simulator.endpoint
    if simulator.kind != "openai":
        yield f"simulator.kind: must be 'openai' with engine verl, got {simulator.kind!r}. Write openai."
    if not MODEL_NAME.fullmatch(endpoint.model):
        rule = "must be letters, digits and . _ : / @ + -"
        yield f"simulator.endpoint.model: {rule}, got {endpoint.model!r}. Serve it under such a name."
    yield from _fixed("simulator.endpoint", endpoint, Endpoint(), ("temperature", "max_tokens"))
    yield from _fixed("simulator", simulator, Simulator(), ("judge_miss", "reply_noise"))


def _fixed(place: str, section: Section, published: Section, names: Iterable[str]) -> Iterator[str]:
    """Yield the values that differ from the published ones, which stand in the original's code."""
    for name in names:
        value, only = getattr(section, name), getattr(published, name)
        if value != only:
            yield f"{place}.{name}: must be {only!r} with engine verl, got {value!r}. Leave it out."


def _batches(config: RenderVerlConfig) -> Iterator[str]:
    """Yield what does not divide: the original would round down and take another number of updates, or stop."""
    grpo, gpus = config.grpo, config.n_gpus
    episodes = grpo.prompts * grpo.group
    if episodes % gpus:
        product = f"{grpo.prompts} x {grpo.group} = {episodes}"
        yield f"grpo.prompts: times grpo.group must be a multiple of verl.n_gpus={gpus}, got {product}. Change one."
        return
    update = episodes // grpo.minibatches
    if update % gpus:
        yield (
            f"grpo.minibatches: the {update} episodes of an update must be a multiple of verl.n_gpus={gpus}, got"
            f" minibatches {grpo.minibatches}. Change one of them."
        )
        return
    if update // gpus % grpo.micro_batch:
        yield (
            f"grpo.micro_batch: must divide the {update // gpus} episodes that an update has on each of {gpus} GPUs,"
            f" got {grpo.micro_batch}. Choose a divisor."
        )
