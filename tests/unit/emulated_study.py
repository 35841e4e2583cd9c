"""An emulation whose every number can be worked out by hand, and that shows every published pattern but one.

Accuracy: 50 + shots + samples / 100. In the control betas differ by 0.1 for each place among them, epochs by 1.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache, lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd

from lever_pipe.experiment.emulation import EMULATED_ARMS, Emulate
from lever_pipe.experiment.report import ReportedRun
from lever_pipe.report import sources
from lever_pipe.report.context import ReportContext
from lever_pipe.report.evidence import Evidence, EvidenceRow
from lever_pipe.report.selector.emulation import EmulatedStudy
from lever_pipe.stages.emulation import (
    EMULATED_PROMPTS_COLUMNS,
    EMULATED_SCORES_COLUMNS,
    EMULATED_TRAINING_COLUMNS,
)

REFERENCE = Path(__file__).parents[2] / "resources" / "reference" / "lever-plus-published.csv"
COLLAPSED = ("head", "pool")
"""Arms in which betas of one base are indistinguishable."""
FILES = ("scores", "prompts", "training")
Change = Callable[[str, float, int, int, int, float], float]
"""From arm, beta, epoch, samples, shots and accuracy to another accuracy."""


def frames(
    emulate: Emulate,
    *,
    samples: tuple[int, ...] = (100, 200, 400, 800),
    shots: tuple[int, ...] = (1, 2, 3, 4),
    change: Change = lambda arm, beta, epoch, n, k, accuracy: accuracy,
    kl: dict[str, tuple[float, ...]] | None = None,
    prompts: dict[str, int] | None = None,
    repeated: dict[str, float] | None = None,
) -> dict[str, pd.DataFrame]:
    """Return the three files by name; `kl` is the KL without an update in epochs 1 and 2."""
    kl = {"none": (0, 0), "dropout": (0.09, 0.08)} | (kl or {})
    prompts = {"pool": 8, "none": 20} | (prompts or {})
    repeated = {"pool": 1.0} | (repeated or {})
    runs = [(beta, epoch) for beta in emulate.kl_betas for epoch in range(1, emulate.grpo_epochs + 1)]
    scores = []
    for arm in EMULATED_ARMS:
        for beta, epoch in runs:
            for n in samples:
                for k in shots:
                    accuracy = 50 + k + n / 100
                    if arm not in COLLAPSED:
                        accuracy += 0.1 * emulate.kl_betas.index(beta) + epoch
                    accuracy = change(arm, beta, epoch, n, k, accuracy)
                    scores.append((arm, f"{beta:g}", epoch, n, k, accuracy, n, n))
    counts = [
        (arm, k or "", "" if not k else repeated.get(arm, 0.0) if k > 2 else 0.0, 3, prompts.get(arm, 9))
        for arm in EMULATED_ARMS
        for k in (*shots, 0)
    ]
    training = [
        (arm, emulate.base_rce_epoch, epoch, name, value)
        for arm in ("none", "dropout")
        for epoch in (1, 2)
        for name, value in (("kl", kl[arm][epoch - 1]), ("kl_exact", 0.0))
    ]
    return {
        "scores": text(scores, EMULATED_SCORES_COLUMNS),
        "prompts": text(counts, EMULATED_PROMPTS_COLUMNS),
        "training": text(training, EMULATED_TRAINING_COLUMNS),
    }


def text(rows: list[tuple[object, ...]], columns: tuple[str, ...]) -> pd.DataFrame:
    return pd.DataFrame([[str(cell) for cell in row] for row in rows], columns=list(columns), dtype=object)


@lru_cache
def read(name: str, content: str) -> tuple[EvidenceRow, ...]:
    """Return the rows of a file; most rows are equal from study to study."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.csv"
        path.write_text(content, encoding="utf-8")
        return tuple(sources.emulated(**{each: path if each == name else Path(os.devnull) for each in FILES}))


@cache
def published() -> tuple[EvidenceRow, ...]:
    return tuple(sources.published(REFERENCE))


def study_of(emulate: Emulate = Emulate(), **changed: object) -> EmulatedStudy:
    """Return the study with the files of `frames`, next to the published numbers."""
    files = frames(emulate, **changed)  # type: ignore[arg-type]
    emulated = [row for name, frame in files.items() for row in read(name, frame.to_csv(index=False))]
    at = {"subset": "prefix", "samples": "", "shots": "mean"}
    samples = changed.get("samples", (100, 200, 400, 800))
    oracle = [EvidenceRow("lever", "baseline/oracle", "accuracy", 90.0, **{**at, "samples": str(n)}) for n in samples]
    oracle += [row._replace(shots=str(k)) for row in oracle[:1] for k in changed.get("shots", (1, 2, 3, 4))]
    config = ReportedRun(studies=(), main_preset="world", emulate=emulate)
    rows = [*emulated, *oracle, *published()]
    return EmulatedStudy(ReportContext(Evidence(rows), config), emulate)
