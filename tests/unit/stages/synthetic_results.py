"""Results whose every mean can be worked out by hand.

Accuracy of GRPO: 40 + 2 i + 0.5 epoch + 0.25 shots + (seed - 1) - log2(samples / 100), where i counts the betas.
Seeds 0, 1 and 2 cancel in the mean and have standard deviation 1. An interval reaches 2 points to each side, one of a
difference 1 point; a difference above 4 points has an adjusted p of 0.01, any other of 0.5.

On-policy runs and extra objectives of seed 0 have `ON_POLICY_VALUE` everywhere, so that it shows where a table takes
them for the published objective. Step i of their epoch e asked 10 (i + 1) + e prompts, and its reward is e + 0.1 i.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from claim_files import comparison, document_pairs, group, near_200

from lever_pipe.base import storage
from lever_pipe.base.policy_names import PolicyName, beta_text, group_of
from lever_pipe.base.records import (
    Cell,
    EpochMetrics,
    RewardTies,
    StepMetrics,
    SubsetScore,
)
from lever_pipe.experiment.collected import CollectResultsConfig
from lever_pipe.stages.collect_results import collect_results

REFERENCE = Path(__file__).parents[3] / "resources" / "reference" / "lever-plus-published.csv"
ALL_BETAS = (0.0, 0.12, 0.145, 0.15, 0.155, 0.18)
BASELINES = {"zero_shot": 10.0, "random-0": 29.0, "random-1": 31.0, "similar_both": 38.0, "oracle": 80.0}
RL_SUMMARY = {"queries": 800, "positive_pct": 25.5, "all_negative_queries": 100, "mean_reward": 0.61}
RL_SUMMARY |= {"dropped_rows_error": 3}
ON_POLICY_VALUE = 90.0
N_STEPS = 3
WEIGHTS: dict[str, float | str] = {"hard": 1.0, "soft": 0.5, "relevance": 0.1, "alpha": 0.0, "correctness": "01"}
TIES = RewardTies(
    mode="soft_only", weights=WEIGHTS, queries=8, differ=0.75, differ_clearly=0.5, best_differ={"3": 0.25, "5": 0.5}
)


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
    on_policy_betas: tuple[float, ...] = (0.0, 0.12, 1.0)
    on_policy_epochs: int = 2


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
    on_policy_betas=(),
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


def cell(policy: PolicyName, accuracy: float, samples: int, shots: int, subsets: int) -> Cell:
    """Random subset i is i points above the prefix."""
    prompts = samples - shots
    rows = [SubsetScore(subset="prefix", accuracy=accuracy, n_questions=samples, n_distinct_prompts=prompts)]
    rows += [
        SubsetScore(subset=f"random-{i}", accuracy=accuracy + i, n_questions=samples, n_distinct_prompts=prompts)
        for i in range(subsets)
    ]
    return Cell(policy=policy, samples=samples, shots=shots, subsets=tuple(rows))


def policies(size: Size, preset: str) -> list[PolicyName]:
    rce = [
        PolicyName(kind="rce", preset=preset, seed=s, epoch=e)
        for s in size.seeds
        for e in range(1, size.rce_epochs + 1)
    ]
    return rce + [
        grpo_policy(preset, b, s, e) for b in size.betas for s in size.seeds for e in range(1, size.epochs + 1)
    ]


def on_policy_policies(size: Size) -> list[PolicyName]:
    """Return the epochs of on-policy GRPO and of the extra objectives; none without a beta."""
    runs = [f"on_policy/base~5/beta~{beta_text(beta)}" for beta in size.on_policy_betas]
    runs += ["reinforce/base~5/beta~0", "distil/base~5"] if runs else []
    epochs = range(1, size.on_policy_epochs + 1)
    return [PolicyName.parse(f"preset~main/{run}/seed~0/epoch~{e}") for run in runs for e in epochs]


def grpo_policy(preset: str, beta: float, seed: int, epoch: int) -> PolicyName:
    return PolicyName(kind="grpo", preset=preset, base=5, beta=beta, seed=seed, epoch=epoch)


def accuracy_of(policy: PolicyName, samples: int, shots: int) -> float:
    seed, epoch = policy.seed or 0, policy.epoch or 0
    if policy.mode == "on_policy" or policy.kind == "distil":
        return ON_POLICY_VALUE
    if policy.beta is None:
        return 35 + epoch + 0.25 * shots + (seed - 1) - math.log2(samples / 100)
    return grpo_accuracy(policy.beta, epoch, samples, shots) + (seed - 1)


def write_raw(folder: Path, size: Size) -> dict[str, tuple[Path, ...] | Path]:
    """Write cells, metrics and summary as the earlier stages would; return the stage's inputs."""
    refs = [PolicyName.parse(f"baseline/{name}") for name in BASELINES]
    values = {ref: BASELINES[str(ref).removeprefix("baseline/")] for ref in refs}
    for preset in ("main", *size.arms):
        refs += policies(size, preset)
    refs += on_policy_policies(size)
    cells = []
    for index, ref in enumerate(reversed(refs)):  # the stage must not depend on the order of its files
        path = folder / "cells" / f"{index}.jsonl"
        rows = [
            cell(ref, values.get(ref, accuracy_of(ref, n, k)), n, k, size.subsets)
            for n in size.samples
            for k in size.shots
        ]
        storage.write_rows(path, rows)
        cells.append(path)
    metrics = [_write_metrics(folder, index, row) for index, row in enumerate(_metrics(size))]
    sampled = [ref for ref in on_policy_policies(size) if ref.mode == "on_policy"]
    steps = [write_steps(folder / "steps" / f"{index}.jsonl", ref) for index, ref in enumerate(reversed(sampled))]
    storage.write_json(folder / "summary.json", RL_SUMMARY)
    storage.write_rows(folder / "ties.jsonl", [TIES])
    groups = []
    for preset in ("main", *size.arms):
        groups.append(folder / f"{preset}.safetensors")
        storage.write_arrays(groups[-1], {"valid": np.arange(30).reshape(5, 6) % 6 < 4})  # 4 of each of 5 queries
    files = {"rl_summary": folder / "summary.json", "ties": folder / "ties.jsonl", "groups": tuple(groups)}
    return {"cells": tuple(cells), "metrics": tuple(metrics), "steps": tuple(steps), **files}


def write_steps(path: Path, ref: PolicyName) -> Path:
    rows = [
        StepMetrics(policy=ref, step=i, prompts=10 * (i + 1) + (ref.epoch or 0), values={"reward": ref.epoch + 0.1 * i})
        for i in range(N_STEPS)
    ]
    storage.write_rows(path, rows)
    return path


def _metrics(size: Size) -> list[EpochMetrics]:
    rows = []
    for preset in ("main", *size.arms):
        for ref in policies(size, preset):
            if ref.kind == "rce":
                losses = {"loss": 9.0 - 0.1 * (ref.epoch or 0), "val_loss": 8.5 - 0.1 * (ref.epoch or 0)}
                rows.append(EpochMetrics(policy=ref, values=losses))
            else:
                rows.append(
                    EpochMetrics(policy=ref, values=grpo_values(ref.beta or 0.0, ref.epoch or 0, ref.seed or 0))
                )
    for beta in size.long_betas:  # the long run continues from the end of the short one of seed 0
        for epoch in range(size.epochs + 1, size.long_epochs + 1):
            ref = grpo_policy("main", beta, 0, epoch)
            rows.append(EpochMetrics(policy=ref, values=grpo_values(beta, epoch, 0)))
    poisoned = dict.fromkeys([*grpo_values(0.0, 1, 0), "lvlm_prompts"], ON_POLICY_VALUE)
    return [*rows, *(EpochMetrics(policy=ref, values=poisoned) for ref in on_policy_policies(size))]


def _write_metrics(folder: Path, index: int, row: EpochMetrics) -> Path:
    path = folder / "metrics" / f"{index}.json"
    storage.write_row(path, row)
    return path


def collect(folder: Path, size: Size) -> dict[str, Path]:
    """Run `collect_results` on synthetic files and return its outputs."""
    raw = write_raw(folder, size)
    outputs = outputs_in(folder)
    collect_results(
        **raw,  # type: ignore[arg-type]
        **outputs,
        config=collect_config(size),
    )
    return outputs


def outputs_in(folder: Path) -> dict[str, Path]:
    """Return the CSV files that `collect_results` writes, by the names of its parameters."""
    names = ("scores", "training", "rl_data", "arms", "arms_training", "steps_csv", "ties_csv", "costs")
    return {name: folder / f"{name.removesuffix('_csv')}.csv" for name in names}


def collect_config(size: Size) -> CollectResultsConfig:
    return CollectResultsConfig(
        main_preset="main",
        presets=("main", *size.arms),
        train_shares=(0.8,) * (1 + len(size.arms)),
    )


def write_evidence(folder: Path, size: Size, outputs: dict[str, Path]) -> dict[str, Path]:
    """Write the outputs of `compare_policies` for the collected scores; return its files."""
    scores = pd.concat([pd.read_csv(outputs[name]) for name in ("scores", "arms")])
    scores = scores[scores["subset"] == "prefix"]
    scores["policy"] = scores["policy"].where(scores["stage"] != "baseline", "baseline/" + scores["policy"])
    scores["group"] = scores["policy"].map(group_of)
    cells = scores.groupby(["group", "samples", "shots"])["accuracy"].agg(["mean", "count"]).reset_index()
    cells["shots"] = cells["shots"].map(lambda shots: [shots] if shots else list(size.shots))  # zero-shot has none
    cells = cells.explode("shots")
    over = cells.groupby(["group", "samples"]).agg({"mean": "mean", "count": "first"}).reset_index()
    cells = pd.concat([cells.astype({"shots": str}), over.assign(shots="mean")])
    cells["accuracy"], cells["low"], cells["high"] = cells["mean"], cells["mean"] - 2, cells["mean"] + 2
    cells["n_runs"], cells["n_questions"] = cells["count"], cells["samples"]
    paths = {name: folder / f"{name}.csv" for name in ("intervals", "comparisons")}
    columns = ["group", "samples", "shots", "accuracy", "low", "high", "n_runs", "n_questions"]
    cells[columns].to_csv(paths["intervals"], index=False)
    accuracy = {(row.group, row.samples, row.shots): row.accuracy for row in cells.itertuples()}
    pd.DataFrame(_comparisons(size, accuracy)).to_csv(paths["comparisons"], index=False)
    return paths


def write_lineage(folder: Path, size: Size, intervals: Path) -> dict[str, Path]:
    """Write the lineage of every group, as `collect_lineage` does; the published lineage is the real one."""
    long = [group(beta, size.long_epochs) for beta in size.long_betas]
    groups = sorted({*pd.read_csv(intervals)["group"], *long})
    rows = [
        {"group": name, "field": field, "value": value} for name in groups for field, value in _lineage(name).items()
    ]
    path = folder / "lineage.csv"
    pd.DataFrame(rows).to_csv(path, index=False)
    return {"lineage": path, "reference_lineage": REFERENCE.with_name("lineage.yaml")}


def _lineage(name: str) -> dict[str, str]:
    common = {"pool": "0123abcd", "scale": "embedded world"}
    if name.startswith("baseline/"):
        return common
    values = dict(part.split("~", 1) for part in name.split("/") if "~" in part)
    trained = {"preset": values["preset"], "epoch": values["epoch"], "seeds": "0, 1, 2", "rl_data": "4567cdef"}
    grpo = {"kl_beta": values["beta"], "base_rce_epoch": values["base"]} if "beta" in values else {}
    return {**common, **trained, **grpo}


def _comparisons(size: Size, accuracy: dict[tuple[str, int, str], float]) -> list[dict[str, object]]:
    pairs = [
        (f"document-{document}/epoch~{epoch}", (group(left, epoch), group(right, epoch)), near_200(size.samples))
        for document, epoch, left, right in document_pairs(size.betas, size.epochs)
    ]
    if size.rce_epochs >= 5:
        base = "preset~main/rce/epoch~5"
        pairs += [("grpo-against-rce", (group(b, size.epochs), base), max(size.samples)) for b in size.betas]
    rows = []
    for family, (left, right), samples in pairs:
        for shots in [*map(str, size.shots), "mean"]:
            difference = accuracy[left, samples, shots] - accuracy[right, samples, shots]
            p = 0.01 if abs(difference) > 4 else 0.5
            rows.append(comparison(family, (left, right), samples, shots, difference, half=1, p=p, runs=3))
    return rows


def write_facts(folder: Path) -> list[Path]:
    """Write the earlier stages' summaries of data and pools; return the files."""
    contents = {
        folder / "eval.summary.json": {"eval_questions": 800, "train_questions": 2000},
        folder / "bound.json": {"best_answer": 86.2625, "exact_demonstration": 73.75, "queries": 800.0},
    }
    for path, content in contents.items():
        storage.write_json(path, content)
    return list(contents)
