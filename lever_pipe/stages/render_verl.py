"""Rule `render_verl`: the folder from which one arm and seed is trained with the original trainer."""

from __future__ import annotations

from lever_pipe.base.atomic import write_texts
from lever_pipe.experiment.agent_stage_configs import RenderVerlConfig
from lever_pipe.experiment.stage_files import Output
from lever_pipe.intention.verl.launch import launch_files


def render_verl(*, launch: Output, config: RenderVerlConfig) -> tuple[str, ...]:
    """Write the launch files and return their names; nothing is launched.

    Raises:
        ConfigError: the original cannot express the configuration; all such values at once.
    """
    files = launch_files(config)
    write_texts(launch, files)
    return tuple(sorted(files))
