"""Rule `collect_evidence`: every measured and published quantity of both studies as rows of one file."""

from __future__ import annotations

from itertools import chain

from lever_pipe.experiment.stage_configs import InputsAlone
from lever_pipe.experiment.stage_files import Input, Inputs, Output
from lever_pipe.report import sources
from lever_pipe.report.evidence import Evidence, write_evidence


def collect_evidence(
    *,
    reference: Input,
    reference_intention: Input,
    intervals: Inputs,
    comparisons: Inputs,
    scores: Inputs,
    training: Inputs,
    agreement: Inputs,
    parameters: Inputs,
    breakdown: Inputs,
    costs: Inputs,
    flips: Inputs,
    selections: Inputs,
    rewards: Inputs,
    rl_data: Inputs,
    pools: Inputs,
    examples: Inputs,
    world: Inputs,
    counters: Inputs,
    emulated: Inputs,
    endpoints: Inputs,
    arm_comparisons: Inputs,
    statistics: Inputs,
    curves: Inputs,
    runs: Inputs,
    tasks: Inputs,
    evidence: Output,
    config: InputsAlone,  # noqa: ARG001 - every stage has one
) -> None:
    """Write `evidence`; files of a study that did not run are absent.

    `emulated` are scores, prompts, agreement and training of the emulated faults.

    Raises:
        RecordError: a file is malformed, or a quantity stands twice.
    """
    kinds = (
        *((sources.intervals, intervals), (sources.comparisons, comparisons), (sources.scores, scores)),
        *((sources.training, training), (sources.agreement, agreement), (sources.parameters, parameters)),
        *((sources.breakdown, breakdown), (sources.costs, costs), (sources.flips, flips)),
        *((sources.selections, selections), (sources.rewards, rewards), (sources.endpoints, endpoints)),
        *((sources.arm_comparisons, arm_comparisons), (sources.curve_statistics, statistics)),
        *((sources.curves, curves), (sources.runs, runs)),
    )
    facts = (("rl_data", rl_data), ("pools", pools), ("examples", examples), ("world", world))
    found = [read(path) for read, paths in kinds for path in paths]
    found += [sources.facts(subject, path) for subject, paths in facts for path in paths]
    found += [sources.work(counters)]
    found += [sources.facts("tasks", path, study=sources.INTENTION) for path in tasks]
    found += [sources.emulated(*emulated)] if emulated else []
    found += [sources.published(reference), sources.published_agents(reference_intention)]
    write_evidence(evidence, Evidence(chain.from_iterable(found)))
