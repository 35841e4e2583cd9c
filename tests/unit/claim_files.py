"""Everything from which the claims are evaluated: the published files, and our own results, computable by hand.

Accuracy of ours: 50 + gain(beta) + 0.5 epoch + 2 shots + (seed - 1), the same at every sample count.
KL: 0.1 - 0.01 epoch - 0.1 beta + 0.0001 seed, in the training-curve runs with a small wave on it; PPO loss: 0.02 +
0.001 epoch with the same wave.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import agent_runs
import pandas as pd
from agent_runs import Study

from lever_pipe.experiment.report import BuildReportConfig, ShownStudy
from lever_pipe.report import sources
from lever_pipe.report.catalogue import Translator
from lever_pipe.report.claim_evaluation import evaluate_claims
from lever_pipe.report.claims import Claim, EvaluatedClaim, Finding, read_claims
from lever_pipe.report.context import ReportContext
from lever_pipe.report.evidence import Evidence, EvidenceRow
from lever_pipe.report.lineage import Lineages, read_lineage, read_published_lineage
from lever_pipe.stages.collect_results import SCORES_COLUMNS, TRAINING_COLUMNS

RESOURCES = Path(__file__).parents[2] / "resources"
CLAIMS = RESOURCES / "claims.yaml"
REFERENCE = RESOURCES / "reference" / "lever-plus-published.csv"
REFERENCE_INTENTION = RESOURCES / "reference" / "userrl-published.csv"
REFERENCE_LINEAGE = RESOURCES / "reference" / "lineage.yaml"
PRESET = "main"
ENGLISH = Translator("en")
COMPARISONS = [
    *("family", "left", "right", "samples", "shots", "difference", "low", "high", "test"),
    *("p", "p_holm", "detectable", "n_runs", "n_questions"),
]
INTERVALS = ["group", "samples", "shots", "accuracy", "low", "high", "n_runs", "n_questions"]

STEPS = list(range(5, 50, 5))
NO_KL = [1.818, 2.140, 1.840, 1.830, 1.750, 1.788, 2.040, 2.003, 2.202]
KL = [1.695, 1.992, 1.768, 1.915, 1.970, 1.828, 1.840, 2.123, 2.005]
"""The rewards that documents 003 and 004 print."""

Change = Callable[[pd.DataFrame], None]


@dataclass(frozen=True)
class Ours:
    """A configuration with its numbers."""

    betas: tuple[float, ...] = (0.12, 0.145, 0.15, 0.155, 0.18)
    epochs: int = 3
    seeds: tuple[int, ...] = (0, 1, 2)
    samples: tuple[int, ...] = (100, 200, 400, 800)
    shots: tuple[int, ...] = (1, 2, 3, 4)
    long_betas: tuple[float, ...] = (0.12, 0.15)
    long_epochs: int = 50
    gain: Mapping[float, float] = field(default_factory=dict)
    p: float = 0.5
    on_policy_betas: tuple[float, ...] = ()
    """Of on-policy runs, whose numbers are all 77: no claim is about them."""

    def accuracy(self, beta: float, epoch: int, shots: float) -> float:
        return 50 + self.gain.get(beta, 0.0) + 0.5 * epoch + 2 * shots


def agrees(value: float, text: str) -> bool:
    """Three or more decimals to 5e-4; fewer to half a unit of the last, the resolution of the print."""
    decimals = len(text.partition(".")[2])
    return abs(value - float(text)) <= min(max(5e-4, 0.5 * 10.0**-decimals), 0.05) + 1e-9


@cache
def book() -> tuple[Claim, ...]:
    return read_claims(CLAIMS)


def sentence(of: Finding) -> str:
    """Return the numbers of a finding in English."""
    return ENGLISH.text(of.numbers)


def references(lever: Change | None = None, intention: Change | None = None) -> Evidence:
    """Return the published rows, after changing rows of their files in place."""
    found = Evidence()
    for path, change, read in ((REFERENCE, lever, sources.published), (REFERENCE_INTENTION, intention, _agents)):
        if change is None:
            found.add(_unchanged(path))
            continue
        rows = pd.read_csv(path, dtype=str, keep_default_na=False)
        change(rows)
        with tempfile.TemporaryDirectory() as folder:
            rows.to_csv(Path(folder, path.name), index=False)
            found.add(list(read(Path(folder, path.name))))
    return found


@cache
def _unchanged(path: Path) -> list[EvidenceRow]:
    """Return the rows of a reference file; cached, because the files are large and read often."""
    return list(sources.published(path) if path == REFERENCE else _agents(path))


def _agents(path: Path) -> Iterator[EvidenceRow]:
    return sources.published_agents(path)


def evaluated(
    evidence: Evidence, lineages: Lineages | None = None, study: Study = Study()
) -> dict[str, EvaluatedClaim]:
    """Return every claim of the file, evaluated by evidence, by id; `lineages` are added to the published ones."""
    studies = (ShownStudy(name=name, is_world=True, model="tiny") for name in ("lever", "intention"))
    agents = agent_runs.displayed_config(study).agents
    config = BuildReportConfig(title="", studies=tuple(studies), main_preset=PRESET, agents=agents)
    context = ReportContext(evidence, config, {**read_published_lineage(REFERENCE_LINEAGE), **(lineages or {})})
    return {of.claim.id: of for of in evaluate_claims(book(), context)}


def by_ours(files: Mapping[str, Path]) -> dict[str, Finding]:
    """Return ours of every claim, by files of the selector as `write_ours` writes them."""
    evidence = references()
    evidence.add(our_rows(files))
    return {name: of.ours for name, of in evaluated(evidence, read_lineage(files["lineage"])).items()}


def our_rows(files: Mapping[str, Path]) -> Iterator[EvidenceRow]:
    """Yield the evidence of the files that `write_ours` writes."""
    for name in ("intervals", "comparisons", "scores", "training"):
        yield from getattr(sources, name)(files[name])


def write_ours(folder: Path, of: Ours) -> dict[str, Path]:
    """Write the earlier stages' outputs for a configuration; return our inputs of the stage."""
    frames_of = {
        "scores": pd.DataFrame(_scores(of), columns=list(SCORES_COLUMNS)),
        "training": pd.DataFrame(_training(of), columns=list(TRAINING_COLUMNS)),
        "intervals": pd.DataFrame(_intervals(of), columns=INTERVALS),
        "comparisons": pd.DataFrame(_comparisons(of), columns=COMPARISONS),
        "lineage": pd.DataFrame(_lineage(of), columns=["group", "field", "value"]),
    }
    paths = {name: folder / f"{name}.csv" for name in frames_of}
    for name, frame in frames_of.items():
        frame.to_csv(paths[name], index=False)
    return paths


def group(beta: float, epoch: int) -> str:
    return f"preset~{PRESET}/grpo/base~5/beta~{beta:g}/epoch~{epoch}"


def policy(beta: float, seed: int, epoch: int) -> str:
    return f"preset~{PRESET}/grpo/base~5/beta~{beta:g}/seed~{seed}/epoch~{epoch}"


def metrics(beta: float, seed: int, epoch: int, *, is_long: bool = False) -> dict[str, float]:
    wave = 0.001 * beta * math.sin(epoch) if is_long else 0.0
    kl = 0.1 - 0.01 * min(epoch, 5) - 0.1 * beta + 0.0001 * seed + wave
    ppo = 0.02 + 0.001 * epoch + wave
    return {
        "kl": kl,
        "kl_loss": beta * kl,
        "ppo_loss": ppo,
        "loss": ppo + beta * kl,
        "val_loss": 8 + 0.001 * (epoch - 30) ** 2 + beta * (seed - 1),
        "mean_ratio": 1 - beta,
        "mean_advantage": 1e-9,
        "std_advantage": 0.25,
        "max_advantage": 0.3,
        "gradient_share": 0.252,
        "entropy": 3 - beta + 0.001 * seed * beta,
    }


def _runs(of: Ours) -> list[tuple[float, int, int]]:
    return [(b, s, e) for b in of.betas for s in of.seeds for e in range(1, of.epochs + 1)]


def _on_policy(of: Ours) -> list[tuple[str, tuple[object, ...]]]:
    """Return the name and the first columns of on-policy GRPO and the marks, of one seed and one epoch more."""
    runs = [(f"on_policy/base~5/beta~{b:g}", ("grpo", "on_policy", 5, b)) for b in of.on_policy_betas]
    if runs:
        runs += [
            ("reinforce/base~5/beta~0", ("reinforce", "on_policy", 5, 0.0)),
            ("distil/base~5", ("distil", "", 5, None)),
        ]
    epochs = range(1, of.epochs + 2)
    return [(f"preset~{PRESET}/{run}/seed~0/epoch~{e}", (*first, 0, e)) for run, first in runs for e in epochs]


def _scores(of: Ours) -> list[tuple[object, ...]]:
    on_policy = [
        (name, *first, "prefix", n, k, 77.0, n, n, PRESET)
        for name, first in _on_policy(of)
        for n in of.samples
        for k in of.shots
    ]
    return on_policy + [
        (policy(b, s, e), "grpo", "offline", 5, b, s, e, "prefix", n, k, of.accuracy(b, e, k) + s - 1, n, n, PRESET)
        for b, s, e in _runs(of)
        for n in of.samples
        for k in of.shots
    ]


def _intervals(of: Ours) -> list[tuple[object, ...]]:
    """Return the mean over the seeds, equal to `Ours.accuracy` for seeds 0, 1 and 2."""
    shift = sum(of.seeds) / max(1, len(of.seeds)) - 1
    return [
        (group(b, e), n, k, of.accuracy(b, e, k) + shift, 0.0, 100.0, len(of.seeds), n)
        for b in of.betas
        for e in range(1, of.epochs + 1)
        for n in of.samples
        for k in of.shots
    ]


def _training(of: Ours) -> list[tuple[object, ...]]:
    later = [(b, 0, e) for b in of.long_betas for e in range(of.epochs + 1, of.long_epochs + 1)]
    on_policy = [(*first, name, 77.0, PRESET) for _, first in _on_policy(of) for name in metrics(0.0, 0, 1)]
    return on_policy + [
        ("grpo", "offline", 5, b, s, e, name, value, PRESET)
        for b, s, e in [*_runs(of), *later]
        for name, value in metrics(b, s, e, is_long=b in of.long_betas and s == 0).items()
    ]


def document_pairs(betas: Sequence[float], epochs: int) -> Iterator[tuple[str, int, float, float]]:
    """Yield what documents 001 and 002 compare: the document, an epoch, and two of the betas."""
    named = {"001": [(beta, 0.15) for beta in betas if beta != 0.15], "002": [(0.18, 0.15), (0.12, 0.15), (0.18, 0.12)]}
    for document, pairs in named.items():
        for epoch in range(1, epochs + 1):
            yield from ((document, epoch, *pair) for pair in pairs if {*pair} <= {*betas})


def comparison(
    family: str,
    sides: tuple[str, str],
    samples: int,
    shots: str,
    difference: float,
    *,
    half: float,
    p: float,
    runs: int,
) -> dict[str, object]:
    """Return a row of `comparisons.csv`, whose interval reaches `half` to each side."""
    return {
        "family": family, "left": sides[0], "right": sides[1], "samples": samples, "shots": shots,
        "difference": difference, "low": difference - half, "high": difference + half, "test": "Student's t",
        "p": p / 5, "p_holm": p, "detectable": 3.0, "n_runs": runs, "n_questions": samples,
    }  # fmt: skip


def near_200(samples: Sequence[int]) -> int:
    """Return the sample count at which the documents compare."""
    return min(samples, key=lambda n: abs(n - 200))


def _comparisons(of: Ours) -> list[dict[str, object]]:
    return [
        comparison(
            f"document-{document}/epoch~{epoch}{'' if shots == 'mean' else '-by-shots'}",
            (group(left, epoch), group(right, epoch)),
            near_200(of.samples),
            shots,
            of.gain.get(left, 0.0) - of.gain.get(right, 0.0),
            half=0.1,
            p=of.p,
            runs=len(of.seeds),
        )
        for document, epoch, left, right in document_pairs(of.betas, of.epochs)
        for shots in [*map(str, of.shots), "mean"]
    ]


def _lineage(of: Ours) -> list[tuple[str, str, str]]:
    rows = []
    for beta in of.betas:
        for epoch in range(1, of.epochs + 1):
            own = {"method": "grpo", "kl_beta": f"{beta:g}", "epoch": str(epoch), "base_rce_epoch": "5"}
            own |= {"base_checkpoint": "abc", "rl_data": "def"}
            rows += [(group(beta, epoch), name, value) for name, value in own.items()]
    return rows
