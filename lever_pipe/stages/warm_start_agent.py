"""Rule `warm_start_agent`: the policy that every arm starts from, taught by demonstrations."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from lever_pipe.base import storage
from lever_pipe.base.errors import ConfigError
from lever_pipe.base.parsing import load_member
from lever_pipe.experiment import execution
from lever_pipe.experiment.agent_config import AgentExecution, Simulator
from lever_pipe.experiment.agent_stage_configs import WarmStartAgentConfig
from lever_pipe.experiment.stage_configs import Runtime
from lever_pipe.experiment.stage_files import Input, Inputs, Output, Outputs
from lever_pipe.intention.agent.arithmetic import Arithmetic
from lever_pipe.intention.agent.policy import build_tiny, load_policy, policy_folder, save_policy_files
from lever_pipe.intention.agent.warm_start import Demonstrator, draw_batches, imitate
from lever_pipe.intention.codecs.protocol import ChatCodec
from lever_pipe.intention.codecs.word import WordCodec
from lever_pipe.intention.records import StepRow, Task
from lever_pipe.intention.simulators import rule


def warm_start_agent(
    *,
    train_tasks: Input,
    start: Inputs,
    weights: Output,
    settings: Output,
    codec: Outputs,
    metrics: Output,
    config: WarmStartAgentConfig,
    runtime: Runtime = Runtime(),
) -> StepRow:
    """Take the policy of a folder or build the tiny one, let it imitate demonstrations, and return its last step.

    `weights`, `settings` and the files of the `codec` make one policy folder; `start` is the folder, or nothing.

    Raises:
        CheckpointError: `start` is no policy folder.
        ConfigError: the tiny policy with another codec than `word`.
        DataError: tasks of another world.
        TrainingError: a loss or a gradient is not finite.
    """
    arithmetic = Arithmetic(execution.prepare(runtime), config.policy.model.dtype)
    model, chat = _of_folder(policy_folder(start), config) if start else _tiny(config)
    model.to(arithmetic.device)
    user = rule.load(Simulator(kind="rule"), AgentExecution())
    max_context = config.policy.model.max_context
    demonstrator = Demonstrator(chat, user, config.environment, config.warm_start, max_context=max_context)
    batches = draw_batches(demonstrator, storage.read_rows(train_tasks, Task), config.warm_start)
    steps = imitate(model, batches, config.warm_start, pad_id=chat.pad_id, computing=arithmetic.context)
    rows = [StepRow(step=number, values=values) for number, values in enumerate(steps, start=1)]
    save_policy_files((weights, settings, *codec), model, chat)
    storage.write_rows(metrics, rows)
    return rows[-1]


def _of_folder(folder: Path, config: WarmStartAgentConfig) -> tuple[Any, ChatCodec]:
    codec = load_member("intention/codecs", config.policy.model.codec).load(folder)
    return load_policy(folder, "float32"), cast("ChatCodec", codec)


def _tiny(config: WarmStartAgentConfig) -> tuple[Any, ChatCodec]:
    if config.policy.model.codec != "word":
        raise ConfigError(
            "intention.model.codec: expected 'word' for the tiny model, whose vocabulary it is",
            found=repr(config.policy.model.codec),
            do="Set codec: word, or name a model folder.",
        )
    codec = WordCodec.of_world()
    return build_tiny(config.policy.model.tiny, codec.vocabulary_size, config.warm_start.seed), codec
