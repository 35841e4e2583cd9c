"""Rule `compare_arms`: endpoints with intervals, every arm against the reference arm, and statistics of every curve."""

from __future__ import annotations

from lever_pipe.experiment.agent_config import START_ARM
from lever_pipe.experiment.agent_stage_configs import CompareArmsConfig
from lever_pipe.experiment.stage_files import Input, Output
from lever_pipe.report.evidence import PRIMARY, SECONDARY
from lever_pipe.report.inference.agent_runs import read_agent_runs
from lever_pipe.report.inference.arm_comparisons import ArmComparisonRow, comparison_rows
from lever_pipe.report.inference.curve_rows import StatisticRow, statistic_rows
from lever_pipe.report.inference.endpoints import Context, EndpointRow, endpoint_rows
from lever_pipe.report.inference.estimates import Draws
from lever_pipe.report.inference.families import SWEEP
from lever_pipe.report.inference.task_values import read_episodes
from lever_pipe.report.long_format import write_csv


def compare_arms(
    *,
    curves: Input,
    episodes_table: Input,
    runs: Input,
    endpoints: Output,
    comparisons: Output,
    statistics: Output,
    config: CompareArmsConfig,
) -> None:
    """Write one line an endpoint of an arm and seed, one a comparison, and one a statistic of a curve.

    Behind the comparisons with the reference arm stand those of each sweep at the primary endpoints: its cells against
    its own arm, families `sweep~NAME/ENDPOINT`.

    Raises:
        RecordError: a malformed file, or runs that were not evaluated on the same tasks.
    """
    of_runs, every = read_agent_runs(curves, runs), read_episodes(episodes_table)
    served = [arm for arm in every.rows["arm"].unique() if arm not in (START_ARM, *of_runs.arms)]
    context = Context(
        runs=of_runs,
        episodes=every.without(served),
        served={arm: every.without([other for other in served if other != arm]) for arm in served},
        arms=(*config.arms, *config.swept),
        reference_arm=config.reference_arm,
        document_arm=config.document_arm,
        evaluation=config.evaluation,
        draws=Draws(config.evaluation.seed, config.n_resamples, over="tasks"),
    )
    write_csv(endpoints, EndpointRow._fields, endpoint_rows(context))
    cells = {arm.name for arm in config.swept}
    rows = comparison_rows(context._replace(runs=context.runs.of(set(context.runs.arms) - cells)))
    for sweep in config.sweeps:
        own = context.runs.of([cell.arm for cell in sweep.cells])
        found = comparison_rows(context._replace(runs=own, reference_arm=sweep.arm, served={}))
        told = [(row, f"{SWEEP}{sweep.name}/{row.family}") for row in found if row.role == PRIMARY]
        rows += [row._replace(family=family, role=SECONDARY) for row, family in told]
    write_csv(comparisons, ArmComparisonRow._fields, rows)
    write_csv(statistics, StatisticRow._fields, statistic_rows(context))
