"""The collected files of an on-policy study whose every mean can be worked out by hand.

Accuracy of the RCE base: 40 + shots + seed - log2(samples / 100). A run adds `GAINS[kind](i, epoch)` points at every
shot count, where i counts the betas. An interval reaches 2 points to each side, one of a difference 1 point; a
difference above 4 points has an adjusted p of 0.01, any other of 0.5. Each epoch has 8 steps of 100 prompts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from lever_pipe.base.policy_names import beta_text, group_of
from lever_pipe.report.tables.columns import SCORES_COLUMNS, STEPS_COLUMNS
from lever_pipe.report.tables.comparisons.estimates import ComparisonRow
from lever_pipe.report.tables.costs import CostRow
from lever_pipe.report.tables.evidence import BY_SHOTS

BASE = 5
STEPS, PROMPTS = 8, 100
RL_PROMPTS = 4000
GAINS = {
    "rce": lambda i, epoch: 0.0,
    "on_policy": lambda i, epoch: 0.5 * (6 - i) * epoch,
    "offline": lambda i, epoch: 0.25 * epoch,
    "reinforce": lambda i, epoch: 1.0 * epoch,
    "distil": lambda i, epoch: 5.0 * epoch,
}
STAGES = {"offline": ("grpo", "offline"), "on_policy": ("grpo", "on_policy"), "reinforce": ("reinforce", "on_policy")}
BASELINES = {"random": 30.0, "oracle": 80.0}


@dataclass(frozen=True)
class Size:
    betas: tuple[float, ...] = (0.0, 0.15, 1.0)
    offline_betas: tuple[float, ...] = (0.0, 0.15)
    seeds: tuple[int, ...] = (0, 1, 2)
    drawn_seeds: tuple[int, ...] = (0,)
    epochs: int = 3
    samples: tuple[int, ...] = (100, 400)
    shots: tuple[int, ...] = (1, 2, 3, 4)
    marks: tuple[str, ...] = ("reinforce", "distil")
    presets: tuple[str, ...] = ("main",)


@dataclass(frozen=True)
class Run:
    """One policy of one seed."""

    preset: str
    kind: str
    index: int
    beta: float | None
    epoch: int
    seed: int

    @property
    def name(self) -> str:
        head, tail = f"preset~{self.preset}", f"seed~{self.seed}/epoch~{self.epoch}"
        if self.kind == "rce":
            return f"{head}/rce/{tail}"
        run = "grpo" if self.kind == "offline" else self.kind
        beta = "" if self.beta is None else f"beta~{beta_text(self.beta)}/"
        return f"{head}/{run}/base~{BASE}/{beta}{tail}"

    def accuracy(self, samples: int, shots: int) -> float:
        gain = GAINS[self.kind](self.index, self.epoch)
        return 40 + shots + self.seed - math.log2(samples / 100) + gain


def runs(size: Size) -> Iterator[Run]:
    for preset in size.presets:
        yield from (Run(preset, "rce", 0, None, BASE, seed) for seed in size.seeds)
        betas = {"offline": size.offline_betas, "on_policy": size.betas, "reinforce": (0.0,), "distil": (None,)}
        for kind in ("offline", "on_policy", *size.marks):
            seeds = size.seeds if kind == "offline" else size.drawn_seeds
            for index, beta in enumerate(betas[kind]):
                for epoch in range(1, size.epochs + 1):
                    yield from (Run(preset, kind, index, beta, epoch, seed) for seed in seeds)


def write(folder: Path, size: Size) -> dict[str, Path]:
    """Write what `tabulate_on_policy` reads and return its inputs."""
    every = list(runs(size))
    frames = {
        "scores": _scores([run for run in every if run.preset == "main"], size, baselines=True),
        "arms": _scores([run for run in every if run.preset != "main"], size, baselines=False),
        "steps": pd.DataFrame(_steps(every), columns=list(STEPS_COLUMNS)),
        "ties": _ties(),
        "costs": pd.DataFrame(_costs(every), columns=list(CostRow._fields)).astype({"base_rce_epoch": "Int64"}),
        "agreement": pd.DataFrame(_agreement(every, size), columns=["left", "right", "shots", "as_sequence"]),
    }
    cells = _cells(every, size)
    frames["intervals"] = pd.DataFrame(_intervals(cells, every))
    frames["comparisons"] = pd.DataFrame(_comparisons(cells, every, size), columns=list(ComparisonRow._fields))
    names = sorted({*(group_of(run.name) for run in every), *(f"baseline/{name}" for name in BASELINES)})
    frames["lineage"] = pd.DataFrame({"group": names, "field": "scale", "value": "embedded world"})
    for name, frame in frames.items():
        frame.to_csv(folder / f"{name}.csv", index=False)
    return {name: folder / f"{name}.csv" for name in frames}


def kl_exact(index: int, step: int) -> float:
    """Return 0 at the first step, rising by 0.1 / (1 + i) a step."""
    return 0.1 * step / (1 + index)


def _scores(found: list[Run], size: Size, *, baselines: bool) -> pd.DataFrame:
    rows: list[dict[str, Any]] = []
    for run in found:
        stage, mode = STAGES.get(run.kind, (run.kind, ""))
        ref = {"policy": run.name, "stage": stage, "mode": mode, "kl_beta": run.beta, "seed": run.seed}
        ref |= {"epoch": run.epoch, "preset": run.preset, "base_rce_epoch": None if run.kind == "rce" else BASE}
        rows += [{**ref, **_cell(n, k, run.accuracy(n, k))} for n in size.samples for k in size.shots]
    if baselines:
        for name, accuracy in BASELINES.items():
            ref = {"policy": f"{name}-0" if name == "random" else name, "stage": "baseline", "mode": ""}
            rows += [{**ref, **_cell(n, k, accuracy)} for n in size.samples for k in size.shots]
    frame = pd.DataFrame(rows, columns=list(SCORES_COLUMNS))
    return frame.astype(dict.fromkeys(("base_rce_epoch", "seed", "epoch"), "Int64"))


def _cell(samples: int, shots: int, accuracy: float) -> dict[str, Any]:
    counts = {"n_questions": samples, "n_distinct_prompts": samples}
    return {"subset": "prefix", "samples": samples, "shots": shots, "accuracy": accuracy, **counts}


def _steps(found: list[Run]) -> list[dict[str, Any]]:
    rows = []
    for run in found:
        if run.kind not in ("on_policy", "reinforce"):
            continue
        for number in range(STEPS):
            step = (run.epoch - 1) * STEPS + number
            values = {"kl_exact": kl_exact(run.index, step) * (1 + 0.1 * run.seed), "entropy": 3 - 0.05 * step}
            values |= {"gradient_share": 0.9, "gradient_share_hard": 0.5 - 0.01 * step}
            ref = {"stage": STAGES[run.kind][0], "mode": "on_policy", "base_rce_epoch": BASE, "kl_beta": run.beta}
            ref |= {"seed": run.seed, "epoch": run.epoch, "step": step, "prompts": PROMPTS * (step + 1)}
            rows += [{**ref, "metric": name, "value": value, "preset": run.preset} for name, value in values.items()]
    return rows


def _costs(found: list[Run]) -> list[CostRow]:
    rows = []
    for run in found:
        stage, mode = STAGES.get(run.kind, (run.kind, ""))
        own = STEPS * PROMPTS * run.epoch if mode == "on_policy" else 0
        beta, base = "" if run.beta is None else beta_text(run.beta), None if run.kind == "rce" else BASE
        prompts = (RL_PROMPTS, own, RL_PROMPTS + own)
        rows.append(CostRow(stage, mode, base, beta, run.seed, run.epoch, *prompts, run.preset))
    return rows


def _ties() -> pd.DataFrame:
    hard = {"mode": "hard_plus_soft", "hard": 1, "soft": 1, "relevance": 0.1, "queries": 160}
    dense = {"mode": "expected_only", "hard": 0, "soft": 1, "relevance": 0, "queries": 160}
    return pd.DataFrame(
        [
            {**hard, "differ": 0.625, "differ_clearly": 0.5, "best_3": 0.219, "best_5": 0.4},
            {**dense, "differ": 1, "differ_clearly": 0.75, "best_3": 0.99, "best_5": 1},
        ]
    )


def _agreement(found: list[Run], size: Size) -> list[tuple[str, str, int, float]]:
    """A run agrees with its base in 10 (i + 1) % of the questions at one shot, one point less for each further one."""
    base = {(run.preset, run.seed): run.name for run in found if run.kind == "rce"}
    return [
        (base[run.preset, run.seed], run.name, k, 0.1 * (run.index + 1) - 0.01 * (k - 1))
        for run in found
        if run.kind != "rce"
        for k in size.shots
    ]


Cells = dict[tuple[str, int, int, str], float]


def _cells(found: list[Run], size: Size) -> Cells:
    """Return accuracies by group, seed, samples and shots, the mean over shots among them."""
    cells: Cells = {}
    for run in found:
        for n in size.samples:
            by_shots = {str(k): run.accuracy(n, k) for k in size.shots}
            for shots, value in {**by_shots, "mean": sum(by_shots.values()) / len(by_shots)}.items():
                cells[group_of(run.name), run.seed, n, shots] = value
    for name, accuracy in BASELINES.items():
        for n in size.samples:
            cells |= {(f"baseline/{name}", 0, n, shots): accuracy for shots in [*map(str, size.shots), "mean"]}
    return cells


def _intervals(cells: Cells, found: list[Run]) -> list[dict[str, Any]]:
    by_group: dict[tuple[str, int, str], list[float]] = {}
    for (group, _, n, shots), value in cells.items():
        by_group.setdefault((group, n, shots), []).append(value)
    rows = []
    for (group, n, shots), values in by_group.items():
        mean = sum(values) / len(values)
        row = {"group": group, "samples": n, "shots": shots, "accuracy": mean, "low": mean - 2, "high": mean + 2}
        rows.append({**row, "n_runs": len(values), "n_questions": n})
    return rows


def _comparisons(cells: Cells, found: list[Run], size: Size) -> list[ComparisonRow]:
    rows = []
    for preset in size.presets:
        prefix = "" if preset == "main" else f"preset~{preset}/"
        last = {
            (run.kind, run.beta): group_of(run.name)
            for run in found
            if run.preset == preset and run.epoch in (size.epochs, BASE)
        }
        base, first = last["rce", None], last["on_policy", size.betas[0]]
        pairs = [("on-policy-against-rce", last["on_policy", beta], base) for beta in size.betas]
        pairs += [("grpo-against-rce", last["offline", beta], base) for beta in size.offline_betas]
        pairs += [("on-policy-betas", last["on_policy", beta], first) for beta in size.betas[1:]]
        if "reinforce" in size.marks:
            pairs += [("marks", last["reinforce", 0.0], base), ("marks", first, last["reinforce", 0.0])]
        if "distil" in size.marks:
            pairs += [("marks", last["distil", None], right) for right in (base, first, "baseline/oracle")]
        for family, left, right in pairs:
            for shots in [*map(str, size.shots), "mean"]:
                end = "" if shots == "mean" or family == "marks" else BY_SHOTS
                rows.append(_compare(cells, f"{prefix}{family}{end}", left, right, max(size.samples), shots))
    return rows


def _compare(cells: Cells, family: str, left: str, right: str, n: int, shots: str) -> ComparisonRow:
    sides = [
        {s: v for (group, s, m, k), v in cells.items() if (group, m, k) == (name, n, shots)} for name in (left, right)
    ]
    shared = sorted(sides[0].keys() & sides[1].keys())
    value = sum(sides[0][seed] - sides[1][seed] for seed in shared) / len(shared)
    p = 0.01 if abs(value) > 4 else 0.5
    test = "sign flip" if len(shared) == 1 else "Student's t"
    numbers = (value, value - 1, value + 1, p / 5, p, 3.0)
    levels = (sum(side[seed] for seed in shared) / len(shared) for side in sides)
    return ComparisonRow(family, left, right, n, shots, *numbers, len(shared), n, test, "primary", *levels)
