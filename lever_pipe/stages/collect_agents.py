"""Rule `collect_agents`: all runs of study `intention` as three long-format files."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

from lever_pipe.base.errors import RecordError
from lever_pipe.experiment.agent_config import START_ARM
from lever_pipe.experiment.agent_stage_configs import AgentRun, CollectAgentsConfig
from lever_pipe.experiment.stage_files import Inputs, Output
from lever_pipe.report.inference.agent_lines import (
    RunFiles,
    curve_lines,
    episode_lines,
    evaluation_lines,
    read_run,
    read_untrained,
    run_line,
)
from lever_pipe.report.inference.agent_runs import CURVES_COLUMNS, EPISODES_COLUMNS, RUNS_COLUMNS
from lever_pipe.report.long_format import write_csv


def collect_agents(
    *,
    metrics: Inputs,
    evaluations: Inputs,
    episodes: Inputs,
    done: Inputs,
    cards: Inputs,
    test_evaluations: Inputs,
    test_episodes: Inputs,
    start_evaluations: Inputs,
    start_episodes: Inputs,
    served_evaluations: Inputs,
    served_episodes: Inputs,
    curves: Output,
    episodes_table: Output,
    runs: Output,
    config: CollectAgentsConfig,
) -> None:
    """Write one line a number to `curves`, one an evaluated episode to `episodes_table` and one a run to `runs`.

    The files of every kind belong to `config.runs`, in their order; those of held-out tasks may be absent altogether.
    The start policy has its own lines, under the arm's name `start`; its files may be absent, too. So have served
    agents, under their names.

    Raises:
        RecordError: a malformed row, a run that did not get as far as it says, or a number of files that is not that of
            the runs.
    """
    tests = {"test_evaluations": test_evaluations, "test_episodes": test_episodes}
    needed = {"metrics": metrics, "evaluations": evaluations, "episodes": episodes, "done": done, "cards": cards}
    for name, paths in {**needed, **{name: paths for name, paths in tests.items() if paths}}.items():
        _require_one_a_run(name, paths, config.runs)
    found: list[RunFiles] = []
    for index, run in enumerate(config.runs):
        found.append(
            read_run(
                run,
                metrics=metrics[index],
                evaluations=(evaluations[index], *test_evaluations[index : index + 1]),
                episodes=(episodes[index], *test_episodes[index : index + 1]),
                done=done[index],
                card=cards[index],
            )
        )
    start = [read_untrained(START_ARM, *paths) for paths in zip(start_evaluations, start_episodes, strict=True)]
    files = zip(config.served, served_evaluations, served_episodes, strict=True)
    untrained = [*start, *(read_untrained(*of) for of in files)]
    lines = chain(*map(evaluation_lines, untrained), *map(curve_lines, found))
    write_csv(curves, CURVES_COLUMNS, lines)
    write_csv(episodes_table, EPISODES_COLUMNS, chain(*map(episode_lines, [*untrained, *found])))
    write_csv(runs, RUNS_COLUMNS, map(run_line, found))


def _require_one_a_run(name: str, paths: tuple[Path, ...], runs: tuple[AgentRun, ...]) -> None:
    if len(paths) != len(runs):
        raise RecordError(
            f"{name}: expected a file of each of {len(runs)} runs", found=f"{len(paths)}", do="Name one file a run."
        )
