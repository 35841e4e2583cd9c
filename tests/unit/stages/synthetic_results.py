"""Results whose every mean can be worked out by hand.

Accuracy of GRPO: 40 + 2 i + 0.5 epoch + 0.25 shots + (seed - 1) - log2(samples / 100), where i counts the betas.
Seeds 0, 1 and 2 cancel in the mean and have standard deviation 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from lever_pipe import storage
from lever_pipe.config import Grpo, Reward
from lever_pipe.records import Cell, EpochMetrics, PolicyRef, SubsetScore
from lever_pipe.stage_configs import (
    BuildReportConfig,
    CollectResultsConfig,
    PlotCurvesConfig,
    TabulateDocumentsConfig,
)
from lever_pipe.stages.collect_results import collect_results

REFERENCE = Path(__file__).parents[3] / "resources" / "reference" / "lever-plus-published.csv"
TEMPLATE = Path(__file__).parents[3] / "lever_pipe" / "templates" / "report.md.j2"
ALL_BETAS = (0.0, 0.12, 0.145, 0.15, 0.155, 0.18)
BASELINES = {"zero_shot": 10.0, "random-0": 29.0, "random-1": 31.0, "similar_both": 38.0, "oracle": 80.0}
RL_SUMMARY = {"queries": 800, "positive_pct": 25.5, "all_negative_queries": 100, "mean_reward": 0.61}
RL_SUMMARY |= {"dropped_rows_error": 3}


@dataclass(frozen=True)
class Size:
    betas: tuple[float, ...] = ALL_BETAS
    epochs: int = 3
    seeds: tuple[int, ...] = (0, 1, 2)
    samples: tuple[int, ...] = (100, 200, 400, 800)
    shots: tuple[int, ...] = (1, 2, 3, 4)
    long_betas: tuple[float, ...] = (0.12, 0.15)
    long_epochs: int = 50
    rce_epochs: int = 5
    subsets: int = 4
    arms: tuple[str, ...] = ("published",)


FULL = Size()
SMOKE = Size(
    betas=(0.0, 0.15),
    epochs=1,
    seeds=(0,),
    samples=(8, 16),
    shots=(1, 2),
    long_betas=(),
    rce_epochs=2,
    subsets=2,
    arms=(),
)


def grpo_accuracy(beta: float, epoch: int, samples: int, shots: int) -> float:
    """Return the mean over seeds 0, 1, 2."""
    return 40 + 2 * ALL_BETAS.index(beta) + 0.5 * epoch + 0.25 * shots - math.log2(samples / 100)


def grpo_values(beta: float, epoch: int, seed: int) -> dict[str, float]:
    i = ALL_BETAS.index(beta)
    kl = 0.1 - 0.001 * epoch + 0.01 * i + 0.0001 * (seed - 1)
    ppo = 0.02 + 0.0001 * epoch
    return {
        "kl": kl,
        "kl_loss": beta * kl,
        "ppo_loss": ppo,
        "loss": ppo + beta * kl,
        "val_loss": 8 + 0.001 * (epoch - 30 - i) ** 2,
        "mean_ratio": 1 - 0.001 * epoch,
        "mean_advantage": -1e-12,
        "std_advantage": 0.2,
        "max_advantage": 0.3,
        "kl_beta": beta,
        "kl_exact": 0.5 * kl,
        "trained_share": 0.50146,
    }


def cell(policy: PolicyRef, accuracy: float, samples: int, shots: int, subsets: int) -> Cell:
    """Random subset i lies i points above the prefix."""
    prompts = samples - shots
    rows = [SubsetScore(subset="prefix", accuracy=accuracy, n_questions=samples, n_distinct_prompts=prompts)]
    rows += [
        SubsetScore(subset=f"random-{i}", accuracy=accuracy + i, n_questions=samples, n_distinct_prompts=prompts)
        for i in range(subsets)
    ]
    return Cell(policy=policy, samples=samples, shots=shots, subsets=tuple(rows))


def policies(size: Size, preset: str) -> list[PolicyRef]:
    rce = [
        PolicyRef(name=f"preset~{preset}/rce/seed~{s}/epoch~{e}", stage="rce", preset=preset, seed=s, epoch=e)
        for s in size.seeds
        for e in range(1, size.rce_epochs + 1)
    ]
    return rce + [
        grpo_policy(preset, b, s, e) for b in size.betas for s in size.seeds for e in range(1, size.epochs + 1)
    ]


def grpo_policy(preset: str, beta: float, seed: int, epoch: int) -> PolicyRef:
    return PolicyRef(
        name=f"preset~{preset}/grpo/base~5/beta~{beta:g}/seed~{seed}/epoch~{epoch}",
        stage="grpo",
        preset=preset,
        base_rce_epoch=5,
        kl_beta=beta,
        seed=seed,
        epoch=epoch,
    )


def accuracy_of(policy: PolicyRef, samples: int, shots: int) -> float:
    seed, epoch = policy.seed or 0, policy.epoch or 0
    if policy.kl_beta is None:
        return 35 + epoch + 0.25 * shots + (seed - 1) - math.log2(samples / 100)
    return grpo_accuracy(policy.kl_beta, epoch, samples, shots) + (seed - 1)


def write_raw(folder: Path, size: Size) -> dict[str, tuple[Path, ...] | Path]:
    """Write cells, metrics and summary as the earlier stages would; return the stage's inputs."""
    refs = [PolicyRef(name=f"baseline/{name}", stage="baseline") for name in BASELINES]
    values = {ref.name: BASELINES[ref.name.removeprefix("baseline/")] for ref in refs}
    for preset in ("main", *size.arms):
        refs += policies(size, preset)
    cells = []
    for index, ref in enumerate(reversed(refs)):  # the stage must not depend on the order of its files
        path = folder / "cells" / f"{index}.jsonl"
        rows = [
            cell(ref, values.get(ref.name, accuracy_of(ref, n, k)), n, k, size.subsets)
            for n in size.samples
            for k in size.shots
        ]
        storage.write_rows(path, rows)
        cells.append(path)
    metrics = [_write_metrics(folder, index, row) for index, row in enumerate(_metrics(size))]
    storage.write_json(folder / "summary.json", RL_SUMMARY)
    return {"cells": tuple(cells), "metrics": tuple(metrics), "rl_summary": folder / "summary.json"}


def _metrics(size: Size) -> list[EpochMetrics]:
    rows = []
    for preset in ("main", *size.arms):
        for ref in policies(size, preset):
            if ref.stage == "rce":
                losses = {"loss": 9.0 - 0.1 * (ref.epoch or 0), "val_loss": 8.5 - 0.1 * (ref.epoch or 0)}
                rows.append(EpochMetrics(policy=ref, values=losses))
            else:
                rows.append(
                    EpochMetrics(policy=ref, values=grpo_values(ref.kl_beta or 0.0, ref.epoch or 0, ref.seed or 0))
                )
    for beta in size.long_betas:  # the long run goes on where the short one of seed 0 stops
        for epoch in range(size.epochs + 1, size.long_epochs + 1):
            ref = grpo_policy("main", beta, 0, epoch)
            rows.append(EpochMetrics(policy=ref, values=grpo_values(beta, epoch, 0)))
    return rows


def _write_metrics(folder: Path, index: int, row: EpochMetrics) -> Path:
    path = folder / "metrics" / f"{index}.json"
    storage.write_row(path, row)
    return path


def collect(folder: Path, size: Size) -> dict[str, Path]:
    """Run `collect_results` on synthetic files and return its outputs."""
    raw = write_raw(folder, size)
    outputs = {name: folder / f"{name}.csv" for name in ("scores", "training", "rl_data", "arms", "arms_training")}
    collect_results(
        **raw,  # type: ignore[arg-type]
        **outputs,
        card=folder / "run.json",
        config=CollectResultsConfig(main_preset="main"),
    )
    return outputs


def tabulate_config(size: Size, data: str = "world") -> TabulateDocumentsConfig:
    counts = {"samples": size.samples, "shots": size.shots}
    return TabulateDocumentsConfig(
        main_preset="main", data=data, lvlm="tiny-reader", grpo=Grpo(), reward=Reward(), **counts
    )


def plot_config(size: Size, data: str = "world") -> PlotCurvesConfig:
    return PlotCurvesConfig(main_preset="main", data=data, lvlm="tiny-reader", samples=size.samples, shots=size.shots)


def report_config() -> BuildReportConfig:
    return BuildReportConfig(title="Test title", main_preset="main", data="world", lvlm="tiny-reader")
