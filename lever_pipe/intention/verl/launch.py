"""The folder from which one arm and seed is trained with the original trainer, as texts by file name."""

from __future__ import annotations

import math
import shlex

import jinja2

from lever_pipe.base.parsing import require_none
from lever_pipe.experiment.agent_stage_configs import RenderVerlConfig
from lever_pipe.intention.verl import limits, scripts
from lever_pipe.intention.verl.overrides import override_lines

SECONDS_OF_A_STEP = 300
"""Time limit of a job; the published steps took 193 to 220 s."""
TEMPLATES = {
    "README.txt": scripts.README,
    "export_scalars.py": scripts.EXPORT_SCALARS,
    "launch.sbatch": scripts.LAUNCH_JOB,
    "launch.sh": scripts.LAUNCH,
    "simulator.sbatch": scripts.SIMULATOR_JOB,
    "submit.sh": scripts.SUBMIT,
    "tool_config.yaml": scripts.TOOL_CONFIG,
}


def launch_files(config: RenderVerlConfig) -> dict[str, str]:
    """Return every launch file of one arm and seed; the same configuration gives the same bytes.

    Raises:
        ConfigError: the original cannot express the configuration; all such values at once.
    """
    require_none(limits.faults(config), f"engine verl, arm {config.arm.name}")
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # shell and plain text: every value passes the filter `sh` or stands in prose
    )
    environment.filters["sh"] = shlex.quote
    values = _values(config)
    files = {name: environment.from_string(text).render(values) for name, text in TEMPLATES.items()}
    return {**files, "overrides.txt": "\n".join(override_lines(config)) + "\n"}


def run_folder(arm: str, seed: int) -> str:
    """Return where a run's log lies below `intention.verl.logs`."""
    return f"{arm}/seed-{seed}"


def _values(config: RenderVerlConfig) -> dict[str, object]:
    arm, seed = config.arm.name, config.arm.seeds[0]
    return {
        "arm": arm,
        "seed": seed,
        "run_folder": run_folder(arm, seed),
        "model_folder": config.model.folder,
        "user_model": config.simulator.endpoint.model,
        "version": config.version,
        "n_gpus": config.n_gpus,
        "hours": math.ceil(config.grpo.steps * SECONDS_OF_A_STEP / 3600) + 1,
        "differences": limits.differences(config),
    }
