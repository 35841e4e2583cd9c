"""Rule `warm_start_agent`: the tiny policy that every arm starts from, taught by demonstrations."""

from __future__ import annotations

from lever_pipe.base import storage
from lever_pipe.base.errors import ConfigError
from lever_pipe.experiment import execution
from lever_pipe.experiment.agent_config import AgentExecution, Simulator
from lever_pipe.experiment.agent_stage_configs import WarmStartAgentConfig
from lever_pipe.experiment.stage_configs import Runtime
from lever_pipe.experiment.stage_files import Input, Output
from lever_pipe.intention.agent.policy import build_tiny, save_policy_files
from lever_pipe.intention.agent.warm_start import Demonstrator, draw_batches, imitate
from lever_pipe.intention.codecs.word import WordCodec
from lever_pipe.intention.records import StepRow, Task
from lever_pipe.intention.simulators import rule


def warm_start_agent(
    *,
    train_tasks: Input,
    weights: Output,
    settings: Output,
    words: Output,
    metrics: Output,
    config: WarmStartAgentConfig,
    runtime: Runtime = Runtime(),
) -> StepRow:
    """Build the tiny policy, let it imitate demonstrations, and return its last step.

    `weights`, `settings` and `words` make one policy folder.

    Raises:
        ConfigError: another codec than `word`.
        DataError: tasks of another world.
        TrainingError: a loss or a gradient is not finite.
    """
    device = execution.prepare(runtime)
    if config.policy.model.codec != "word":
        raise ConfigError(
            "intention.model.codec: expected 'word' for the tiny model, whose vocabulary it is",
            found=repr(config.policy.model.codec),
            do="Set codec: word, or name a model folder.",
        )
    codec = WordCodec.of_world()
    model = build_tiny(config.policy.model.tiny, codec.vocabulary_size, config.warm_start.seed).to(device)
    user = rule.load(Simulator(kind="rule"), AgentExecution())
    max_context = config.policy.model.max_context
    demonstrator = Demonstrator(codec, user, config.environment, config.warm_start, max_context=max_context)
    batches = draw_batches(demonstrator, storage.read_rows(train_tasks, Task), config.warm_start)
    steps = imitate(model, batches, config.warm_start, pad_id=codec.pad_id)
    rows = [StepRow(step=number, values=values) for number, values in enumerate(steps, start=1)]
    save_policy_files((weights, settings, words), model, codec)
    storage.write_rows(metrics, rows)
    return rows[-1]
