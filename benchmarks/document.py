"""The page that `make bench` writes, and the minimum ratios of the packed engine."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

import jinja2
import torch

from benchmarks.comparison import TOLERANCE, Comparison
from benchmarks.modes import HF, MODES, PACKED, PLAIN, VLLM
from lever_pipe.base.provenance import installed_versions
from lever_pipe.lvlms.vllm import vllm_version

TEMPLATE = Path(__file__).with_name("benchmarks.md.j2")
GATES = {
    ("random", "rl_data", PLAIN.name): 15.0,
    ("random", "evaluation", PLAIN.name): 8.0,
    ("world", "rl_data", VLLM.name): 3.0,
    ("world", "evaluation", VLLM.name): 3.0,
}
"""Model, workload and peer -> minimum ratio for `packed`; below the usual ratio, because busy machines vary."""
ABSENT = (
    "vLLM is absent, and so its rows. tests/vllm/environment.sh .venv-vllm makes an environment with it (3 GB), in "
    "which make bench then runs."
)


def gate_problems(comparisons: Sequence[Comparison]) -> list[str]:
    """Return a line for each missed gate."""
    return [
        f"{c.subject.title}, {c.workload.title}: expected packed at least {bound:g} times as fast as {peer}; found "
        f"{ratio:.2f}. Repeat on an idle machine, or report only: --no-gate"
        for c in comparisons
        for peer, bound, ratio in _gates(c)
        if ratio < bound
    ]


def render(comparisons: Sequence[Comparison], rounds: int) -> str:
    """Return the page as Markdown."""
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters |= {"gate": _gate, "facts": _facts, "ratio": _ratio}
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        comparisons=comparisons,
        subjects=list({c.subject.name: c.subject for c in comparisons}.values()),
        modes=MODES,
        peers=(PLAIN, HF, VLLM),
        packed=PACKED.name,
        absent="" if VLLM in MODES else ABSENT,
        slower=_slower(comparisons),
        rounds=rounds,
        tolerance=f"{TOLERANCE:g}",
        machine=_machine(),
        spread=_spread,
        difference=_difference,
        millions=lambda count: f"{count / 1e6:.1f}",
    )


def _gates(comparison: Comparison) -> Iterator[tuple[str, float, float]]:
    """Yield peer, bound and ratio of each gate that was measured."""
    for (subject, workload, peer), bound in GATES.items():
        ratio = comparison.ratio(PACKED.name, peer)
        if (subject, workload) == (comparison.subject.name, comparison.workload.name) and ratio is not None:
            yield peer, bound, ratio


def _gate(comparison: Comparison) -> str:
    text = "{:g} over {}: {}".format
    found = [text(bound, peer, "met" if ratio >= bound else "missed") for peer, bound, ratio in _gates(comparison)]
    return "; ".join(found) or "none"


def _facts(comparison: Comparison) -> str:
    """Return the distinct parts of the workload, a lower bound for the work of any mode."""
    requests = comparison.workload.requests
    images = [digest for request in requests for digest in request.prompt.images]
    given = sum(len(request.answers) for request in requests)
    distinct = len({request.prompt for request in requests})
    displayed = f"{len(images)} images ({len(set(images))})"
    return f"{len(requests)} prompts ({distinct} distinct), {displayed}, {given} given answers."


def _ratio(comparison: Comparison, mode: str, over: str) -> str:
    found = comparison.ratio(mode, over)
    return "" if found is None else f"{found:.1f}"


def _slower(comparisons: Sequence[Comparison]) -> str:
    """Return the comparisons in which vLLM is faster."""
    found = [(c, c.ratio(PACKED.name, VLLM.name)) for c in comparisons]
    return "; ".join(f"{c.subject.title}, {c.workload.title}" for c, ratio in found if ratio is not None and ratio < 1)


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
        f"transformers {versions['transformers']}{f', vLLM {vllm_version()}' if VLLM in MODES else ''}."
    )
