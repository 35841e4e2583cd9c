"""The report of both studies."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from lever_pipe.base.sections import Section
from lever_pipe.experiment.agent_results import ComparedArms
from lever_pipe.experiment.agent_training import AgentGrpo
from lever_pipe.experiment.arms import ArmSettings, Preset
from lever_pipe.experiment.emulation import Emulate
from lever_pipe.experiment.sweeps import Sweeps

Guard = Literal["footnote", "strict"]


class ShownStudy(Section):
    """A study on the page: whether its world is the embedded one, its model and its data."""

    name: Literal["lever", "intention"]
    is_world: bool
    model: str
    data: str = Field("", exclude_if=lambda data: not data)
    """File of the evaluated questions or tasks; empty where these are generated."""
    parameters: int = Field(0, exclude_if=lambda count: not count)
    """Number of parameters of an embedded model that answers questions from files."""


class ShownAgents(ComparedArms):
    """The report's values of study `intention`."""

    grpo: AgentGrpo
    scale: str
    """The model and its tasks."""
    start: str = Field("", exclude_if=lambda start: not start)
    """The tiny agent of another run that all arms start from, and its digest; absent if they have a warm start."""


class PlotFiguresConfig(Section):
    studies: tuple[ShownStudy, ...]
    main_preset: str
    arms: tuple[ArmSettings, ...] = ()
    sweeps: Sweeps = ()
    agents: ShownAgents | None = None
    """None if the configuration has no run of study `intention`."""


class ReportedRun(PlotFiguresConfig):
    """Values that tables and sentences need to describe the run."""

    guard: Guard = "footnote"
    presets: dict[str, Preset] = Field({})
    """Presets of the arms."""
    emulate: Emulate | None = None


class BuildReportConfig(ReportedRun):
    title: str
    language: Literal["en", "zh"] = "en"
