"""Measure the answering engine against plain per-prompt answering, and write `docs/benchmarks.md`.

Status 1 if an answer differs, or if the engine is not as many times as fast as it must be.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.comparison import Comparison, DifferentAnswersError, compare
from benchmarks.document import gate_faults, render
from benchmarks.modes import ENGINE
from benchmarks.subjects import ROOT, random_subject, world_subject
from benchmarks.workloads import evaluation, rl_data
from lever_pipe.experiment import execution
from lever_pipe.experiment.stage_configs import Runtime


def main(words: Sequence[str] | None = None) -> int:
    """Measure, write the document, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="how often every mode runs")
    parser.add_argument("--no-gate", action="store_true", help="report only: a missed ratio is no fault")
    parser.add_argument("--document", type=Path, default=ROOT / "docs" / "benchmarks.md", help="what is written")
    options = parser.parse_args(words)
    execution.prepare(Runtime())
    comparisons = []
    try:
        for comparison in measure(options.rounds):
            comparisons.append(comparison)
            sys.stdout.write(_line(comparison))
            sys.stdout.flush()
    except DifferentAnswersError as fault:
        sys.stderr.write(f"{fault}\n")
        return 1
    options.document.write_text(render(comparisons, options.rounds), encoding="utf-8")
    faults = gate_faults(comparisons)
    sys.stderr.writelines(f"{fault}\n" for fault in faults)
    return 1 if faults and not options.no_gate else 0


def measure(rounds: int) -> Iterator[Comparison]:
    """Yield both workloads of both models."""
    for make in (random_subject, world_subject):
        with tempfile.TemporaryDirectory() as folder:
            subject = make(Path(folder))
            for workload in (rl_data(subject), evaluation(subject)):
                yield compare(subject, workload, rounds=rounds)


def _line(comparison: Comparison) -> str:
    where = f"{comparison.subject.title}, {comparison.workload.title}"
    return f"{where}: engine {comparison.ratio(ENGINE.name):.1f} times as fast as plain answering\n"


if __name__ == "__main__":
    sys.exit(main())
