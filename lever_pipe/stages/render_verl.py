"""Rule `render_verl`: the folder from which one arm and seed is trained with the original trainer."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from lever_pipe.base import storage
from lever_pipe.base.folders import write_folder
from lever_pipe.experiment.agent_stage_configs import RenderVerlConfig
from lever_pipe.experiment.run_card import write_card
from lever_pipe.experiment.stage_configs import Runtime
from lever_pipe.intention.verl.launch import launch_files


def render_verl(
    *,
    launch: Path,
    card: Path,
    config: RenderVerlConfig,
    runtime: Runtime = Runtime(),
) -> tuple[str, ...]:
    """Write the launch files and return their names; nothing is launched.

    Raises:
        ConfigError: the original cannot express the configuration; all such values at once.
    """
    started = time.perf_counter()
    files = launch_files(config)
    write_folder(launch, lambda folder: _write_all(folder, files))
    write_card(card, stage="render_verl", config=config, inputs={}, started=started, runtime=runtime)
    return tuple(sorted(files))


def _write_all(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        storage.write_text(folder / name, text)
