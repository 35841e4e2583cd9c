"""Measure the packed engine against plain answering, `hf` and vLLM, and write `docs/benchmarks.md`.

The exit status is 1 if an answer differs, or if the packed engine misses a required ratio.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from benchmarks.comparison import Comparison, DifferentAnswersError, compare
from benchmarks.document import ABSENT, gate_problems, render
from benchmarks.modes import HF, MODES, PACKED, PLAIN, VLLM
from benchmarks.subjects import ROOT, random_subject, world_subject
from benchmarks.workloads import evaluation, rl_data
from lever_pipe.experiment import execution
from lever_pipe.experiment.job_runtime import Runtime


def main(words: Sequence[str] | None = None) -> int:
    """Measure, write the document, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="how often every mode runs")
    parser.add_argument("--no-gate", action="store_true", help="report only: a missed ratio is no problem")
    parser.add_argument("--document", type=Path, default=ROOT / "docs" / "benchmarks.md", help="what is written")
    options = parser.parse_args(words)
    execution.prepare(Runtime())
    if VLLM not in MODES:
        sys.stderr.write(f"{ABSENT}\n")
    comparisons = []
    try:
        for comparison in measure(options.rounds):
            comparisons.append(comparison)
            sys.stdout.write(_line(comparison))
            sys.stdout.flush()
    except DifferentAnswersError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    options.document.write_text(render(comparisons, options.rounds), encoding="utf-8")
    problems = gate_problems(comparisons)
    sys.stderr.writelines(f"{problem}\n" for problem in problems)
    return 1 if problems and not options.no_gate else 0


def measure(rounds: int) -> Iterator[Comparison]:
    """Yield both workloads of each model; the larger model has fewer prompts and skips the plain mode."""
    slow = [mode for mode in MODES if mode is not PLAIN]
    larger = partial(random_subject, scale=4)
    for make, few, modes in ((random_subject, {}, MODES), (world_subject, {}, MODES), (larger, {"n_queries": 2}, slow)):
        with tempfile.TemporaryDirectory() as folder:
            subject = make(Path(folder))
            sequences, checkpoints = ({"n_sequences": 8}, {"n_checkpoints": 4}) if few else ({}, {})
            for workload in (rl_data(subject, **few, **sequences), evaluation(subject, **few, **checkpoints)):
                yield compare(subject, workload, rounds=rounds, modes=modes)


def _line(comparison: Comparison) -> str:
    others = [(mode.name, comparison.ratio(PACKED.name, mode.name)) for mode in (PLAIN, HF, VLLM)]
    text = ", ".join(f"{ratio:.1f} times {name}" for name, ratio in others if ratio)
    return f"{comparison.subject.title}, {comparison.workload.title}: packed as fast as {text}\n"


if __name__ == "__main__":
    sys.exit(main())
