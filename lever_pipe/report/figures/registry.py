"""All figures, with their sections of the report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure

from lever_pipe.report.agent.runs import AgentView
from lever_pipe.report.catalogue import Translator
from lever_pipe.report.context import ReportContext
from lever_pipe.report.figures import agent, selector, style, sweeps


class Drawing(NamedTuple):
    """A figure: its section, and a function that draws it or returns None without data."""

    section: str
    draw: Callable[[ReportContext, Translator], Figure | None]


def _of_agents(
    draw: Callable[[AgentView, Translator], Figure | None],
) -> Callable[[ReportContext, Translator], Figure | None]:
    def plotted(context: ReportContext, translator: Translator) -> Figure | None:
        agents = context.config.agents
        return None if agents is None else draw(AgentView(context, agents), translator)

    return plotted


FIGURES: Mapping[str, Drawing] = {
    "frontier": Drawing("selector", selector.frontier),
    "learning": Drawing("selector", selector.learning),
    "primary": Drawing("selector", selector.primary),
    "selections": Drawing("selector", selector.selections),
    "copying": Drawing("selector", selector.copies),
    "agent_arms": Drawing("agent", _of_agents(agent.arms)),
    "agent_validation": Drawing("agent", _of_agents(agent.validation)),
    "agent_kl": Drawing("agent", _of_agents(agent.reward_against_kl)),
    "training_curves": Drawing("000", selector.training_curves),
    "published_rewards": Drawing("003", _of_agents(agent.published)),
    "agent_training": Drawing("004", _of_agents(agent.training)),
    "rce": Drawing("comparisons", selector.by_epoch),
    "sweeps_selector": Drawing("sweeps-selector", partial(sweeps.cells, "selector")),
    "sweeps_agent": Drawing("sweeps-agent", partial(sweeps.cells, "agent")),
}
"""By stem of the files; `captions` of `sentences.html.j2` contains their captions."""


def draw_all(context: ReportContext, translator: Translator, folder: Path, *, with_png: bool) -> list[str]:
    """Write every figure that has data into a folder and return their names."""
    names = []
    with style.styled():
        for name, drawing in FIGURES.items():
            figure = drawing.draw(context, translator)
            if figure is not None:
                style.save(figure, folder, name, with_png=with_png)
                names.append(name)
    return names
