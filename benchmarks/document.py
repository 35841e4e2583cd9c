"""The page that `make bench` writes, and the bounds that it holds the engine to."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import jinja2
import torch

from benchmarks.comparison import TOLERANCE, Comparison, Measured
from benchmarks.modes import ENGINE, MODES
from lever_pipe.base.provenance import installed_versions

TEMPLATE = Path(__file__).with_name("benchmarks.md.j2")
GATED = "random"  # the subject whose ratios decide
GOALS = {"rl_data": 20.0, "evaluation": 12.0}
GATES = {"rl_data": 15.0, "evaluation": 8.0}  # below the goals, because a busy machine moves ratios


def gate_faults(comparisons: Sequence[Comparison]) -> list[str]:
    """Return a line for each missed gate."""
    return [
        f"{c.subject.title}, {c.workload.title}: expected the engine at least {GATES[c.workload.name]:g} times as fast "
        f"as plain answering; found {c.ratio(ENGINE.name):.2f}. Repeat on an idle machine, or report only: --no-gate"
        for c in comparisons
        if c.subject.name == GATED and not _holds(c)
    ]


def render(comparisons: Sequence[Comparison], rounds: int) -> str:
    """Return the page."""
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters |= {"goal": _goal, "gate": _gate, "facts": _facts, "rate": _rate}
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        comparisons=comparisons,
        subjects=list({c.subject.name: c.subject for c in comparisons}.values()),
        modes=MODES,
        engine=ENGINE,
        rounds=rounds,
        tolerance=f"{TOLERANCE:g}",
        machine=_machine(),
        times=_times,
        spread=_spread,
        difference=_difference,
        millions=lambda count: f"{count / 1e6:.1f}",
    )


def _holds(comparison: Comparison) -> bool:
    return comparison.ratio(ENGINE.name) >= GATES[comparison.workload.name]


def _goal(comparison: Comparison) -> str:
    return f"{GOALS[comparison.workload.name]:g}"


def _gate(comparison: Comparison) -> str:
    bound = f"{GATES[comparison.workload.name]:g}"
    if comparison.subject.name == GATED:
        return f"{bound}: {'held' if _holds(comparison) else 'missed'}"
    return f"none; {bound} would {'hold' if _holds(comparison) else 'be missed'}"


def _facts(comparison: Comparison) -> str:
    """Return how much of the workload is distinct: the least that any mode could do."""
    requests = comparison.workload.requests
    images = [digest for request in requests for digest in request.prompt.images]
    given = sum(len(request.answers) for request in requests)
    distinct = len({request.prompt for request in requests})
    return (
        f"{len(requests)} prompts, {distinct} of them distinct, show {len(images)} images, {len(set(images))} of them "
        f"distinct; {given} given answers."
    )


def _rate(comparison: Comparison, measured: Measured) -> str:
    return f"{len(comparison.workload.requests) / median(measured.cpu):.1f}"


def _times(ratio: float) -> str:
    return f"{ratio:.1f}"


def _spread(seconds: Sequence[float]) -> str:
    middle, least, most = (f"{value:#.3g}" for value in (median(seconds), min(seconds), max(seconds)))
    return f"{middle} ({least} to {most})"


def _difference(value: float) -> str:
    return f"{value:.1e}" if value else "0"


def _machine() -> str:
    versions = installed_versions()
    threads = torch.get_num_threads()
    return (
        f"{os.cpu_count()} CPUs, {threads} thread{'s' if threads > 1 else ''}, torch {versions['torch']}, "
        f"transformers {versions['transformers']}."
    )
