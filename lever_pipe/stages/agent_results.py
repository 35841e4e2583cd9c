"""Collect the results of all agent runs, and compare the arms."""

from __future__ import annotations

from itertools import chain

from lever_pipe.base import storage
from lever_pipe.experiment.agent_results import CollectAgentsConfig, CollectDialoguesConfig, CompareArmsConfig
from lever_pipe.experiment.agent_training import START_ARM
from lever_pipe.experiment.stage_files import Input, Inputs, Output
from lever_pipe.intention.dialogues import dialogues, samples_of
from lever_pipe.intention.records import DialogueRow
from lever_pipe.report.evidence import SECONDARY
from lever_pipe.report.inference.agent_lines import (
    curve_lines,
    episode_lines,
    evaluation_lines,
    read_run,
    read_untrained,
    run_line,
)
from lever_pipe.report.inference.agent_runs import CURVES_COLUMNS, EPISODES_COLUMNS, RUNS_COLUMNS, read_agent_runs
from lever_pipe.report.inference.arm_comparisons import ArmComparisonRow, comparison_rows, sharpened
from lever_pipe.report.inference.endpoints import Context, EndpointRow, endpoint_rows
from lever_pipe.report.inference.estimates import Draws
from lever_pipe.report.inference.families import SWEEP
from lever_pipe.report.inference.task_values import read_episodes
from lever_pipe.report.long_format import write_csv


def collect_agents(
    *,
    metrics: Inputs,
    evaluations: Inputs,
    episodes: Inputs,
    done: Inputs,
    manifests: Inputs,
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
    """Write one line per number to `curves`, one per evaluated episode to `episodes_table`, one per run to `runs`.

    The files of every kind belong to `config.runs`, in the same order; the files of held-out tasks may be absent
    altogether. The start policy has separate lines, with `start` as the arm's name; its files may be absent, too.
    Served agents have separate lines under their names.
    """
    trained = [
        read_run(
            run,
            metrics=metrics[i],
            evaluations=(evaluations[i], *test_evaluations[i : i + 1]),
            episodes=(episodes[i], *test_episodes[i : i + 1]),
            done=done[i],
            manifest=manifests[i],
        )
        for i, run in enumerate(config.runs)
    ]
    start = [read_untrained(START_ARM, *paths) for paths in zip(start_evaluations, start_episodes, strict=True)]
    files = zip(config.served, served_evaluations, served_episodes, strict=True)
    untrained = [*start, *(read_untrained(*pair) for pair in files)]
    lines = chain(*map(evaluation_lines, untrained), *map(curve_lines, trained))
    write_csv(curves, CURVES_COLUMNS, lines)
    write_csv(episodes_table, EPISODES_COLUMNS, chain(*map(episode_lines, [*untrained, *trained])))
    write_csv(runs, RUNS_COLUMNS, map(run_line, trained))


def collect_dialogues(
    *, transcripts: Inputs, samples: Output, side_by_side: Output, config: CollectDialoguesConfig
) -> None:
    """Write an `AgentSample` for each greedy episode of the primary endpoint's checkpoint, and the JSON of `dialogues`.

    `transcripts` belong to `config.runs`, in the same order; they are absent with another engine.
    """
    runs = {
        (run.arm, run.seed): [r for r in storage.read_rows(path, DialogueRow) if r.checkpoint == config.checkpoint]
        for run, path in zip(config.runs if transcripts else (), transcripts, strict=True)
    }
    storage.write_rows(samples, samples_of(runs))
    storage.write_json(side_by_side, dialogues(runs, config.arms, config.reference_arm))


def compare_arms(
    *,
    curves: Input,
    episodes_table: Input,
    runs: Input,
    endpoints: Output,
    comparisons: Output,
    config: CompareArmsConfig,
) -> None:
    """Write one line per endpoint of an arm and seed, and one line per comparison.

    Comparisons with the reference arm come first. Then the reference arm is compared with the start policy at every
    configured temperature. Last, the cells of each sweep are compared with its arm at the primary endpoints, in
    families `sweep~NAME/ENDPOINT`.
    """
    of_runs, every = read_agent_runs(curves, runs), read_episodes(episodes_table)
    served = [arm for arm in every.rows["arm"].unique() if arm not in (START_ARM, *of_runs.arms)]
    context = Context(
        runs=of_runs,
        episodes=every.without(served),
        served={arm: every.without([other for other in served if other != arm]) for arm in served},
        reference_arm=config.reference_arm,
        evaluation=config.evaluation,
        draws=Draws(config.evaluation.seed, config.n_resamples, over="tasks"),
    )
    write_csv(endpoints, EndpointRow._fields, endpoint_rows(context))
    # Cells of a sweep are compared with their own arm only, in families of their own, below.
    cells = {arm.name for arm in config.swept}
    rows = comparison_rows(context._replace(runs=context.runs.of(set(context.runs.arms) - cells)))
    rows += sharpened(context)
    for sweep in config.sweeps:
        runs_of_sweep = context.runs.of([cell.arm for cell in sweep.cells])
        swept = comparison_rows(context._replace(runs=runs_of_sweep, reference_arm=sweep.arm, served={}))
        rows += [row._replace(family=f"{SWEEP}{sweep.name}/{row.family}", role=SECONDARY) for row in swept]
    write_csv(comparisons, ArmComparisonRow._fields, rows)
