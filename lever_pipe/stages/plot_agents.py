"""Rule `plot_agents`: the curves and the arms of study `intention` as SVG and PNG."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from lever_pipe.base.atomic import write_folder
from lever_pipe.experiment.agent_stage_configs import PlotAgentsConfig
from lever_pipe.experiment.stage_files import Input, Output
from lever_pipe.intention.records import UNSOUND
from lever_pipe.report.figures import agents, style
from lever_pipe.report.tables import frames
from lever_pipe.report.tables.evidence import Interval
from lever_pipe.report.tables.intention import columns
from lever_pipe.report.tables.intention.agent_runs import read_columns
from lever_pipe.report.tables.intention.arm_comparisons import ArmComparisonRow
from lever_pipe.report.tables.intention.endpoints import EndpointRow, primary_names

PUBLISHED = "Published: Qwen3-8B on IntentionGym, one run each."


def plot_agents(
    *,
    curves: Input,
    episodes_table: Input,
    endpoints: Input,
    comparisons: Input,
    reference_intention: Input,
    figures: Output,
    config: PlotAgentsConfig,
) -> None:
    """Write one SVG and one PNG a figure into the folder `figures`; a figure without data is left out.

    Raises:
        RecordError: a malformed input file.
    """
    arms = [arm.name for arm in config.arms]
    steps = read_columns(curves, columns.CURVES_COLUMNS, numbers=("step", "value"))
    episodes = read_columns(episodes_table, columns.EPISODES_COLUMNS, numbers=("step", "reward", "ceiling"))
    episodes = episodes[~episodes["end"].isin(UNSOUND)]
    primary = primary_names(config.evaluation.primary)[0]
    of_arms = _endpoints(endpoints, primary)
    with style.styled():
        drawn: dict[str, Figure | None] = {
            "agent_validation": agents.validation(episodes, [config.reference_arm, config.document_arm]),
            "agent_validation_arms": agents.validation(episodes, arms),
            "agent_training": agents.training(steps, arms),
            "agent_arms": agents.endpoint(
                of_arms,
                _differences(comparisons, primary),
                reference=config.reference_arm,
                metric=config.evaluation.primary.metric,
            ),
            "published_rewards": agents.published(frames.read_text_columns(reference_intention)),
        }
        footers = dict.fromkeys(drawn, f"Ours: {config.scale}.") | {"published_rewards": PUBLISHED}
        write_folder(figures, lambda folder: _save_all(folder, drawn, footers))


def _endpoints(path: Path, primary: str) -> dict[str, Interval]:
    """Return each arm's primary endpoint, mean over seeds; nothing where no run has it."""
    frame = read_columns(path, EndpointRow._fields, numbers=("value", "low", "high", "n_seeds"))
    return _intervals(frame[(frame["endpoint"] == primary) & (frame["seed"] == "")], value="value")


def _differences(path: Path, primary: str) -> dict[str, Interval]:
    """Return each arm's difference to the reference arm at the primary endpoint."""
    frame = read_columns(path, ArmComparisonRow._fields, numbers=("difference", "low", "high", "n_seeds"))
    return _intervals(frame[frame["endpoint"] == primary], value="difference")


def _intervals(rows: pd.DataFrame, *, value: str) -> dict[str, Interval]:
    columns_read = rows[["arm", value, "low", "high", "n_seeds"]].itertuples(index=False)
    return {arm: Interval(v, low, high, int(n)) for arm, v, low, high, n in columns_read if math.isfinite(low)}


def _save_all(folder: Path, drawn: Mapping[str, Figure | None], footers: Mapping[str, str]) -> None:
    for name, figure in drawn.items():
        if figure is not None:
            style.save(figure, folder, name, footer=footers[name])
