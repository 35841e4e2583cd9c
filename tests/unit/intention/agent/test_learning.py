"""The embedded study truly learns: the default configuration with less to imitate, cut after a quarter of its steps."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from trained_world import train_here

from lever_pipe.base.storage import read_rows
from lever_pipe.experiment.agent_tasks import PrepareTasksConfig
from lever_pipe.experiment.agent_training import TrainAgentConfig
from lever_pipe.experiment.identities import config_of
from lever_pipe.experiment.studies import Experiment, parse_experiment
from lever_pipe.experiment.warm_start import WarmStartAgentConfig
from lever_pipe.intention.records import EvaluationRow, StepRow
from lever_pipe.stages.agent_training import prepare_tasks, warm_start_agent

ROOT = Path(__file__).parents[4]
STEPS = 10
STEPS_OF_STRONG_KL = 5


def experiment(steps: int = STEPS) -> Experiment:
    values = yaml.safe_load((ROOT / "config.yaml").read_text())
    changed = {"grpo": {"steps": steps}, "evaluation": {"every": steps, "samples": 2}, "warm_start": {"batch": 8}}
    for section, keys in changed.items():
        values["intention"][section] |= keys
    return parse_experiment(values)


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with tasks and a warmed-up policy."""
    folder, of = tmp_path_factory.mktemp("agents"), experiment()
    tasks = config_of(of, "prepare_tasks", {})
    warm_start = config_of(of, "warm_start_agent", {})
    assert isinstance(tasks, PrepareTasksConfig)
    assert isinstance(warm_start, WarmStartAgentConfig)
    prepare_tasks(
        train_file=(),
        val_file=(),
        test_file=(),
        details=(),
        **{f"{split}_tasks": folder / f"{split}.jsonl" for split in ("train", "val", "test")},
        summary=folder / "summary.json",
        config=tasks,
    )
    warm_start_agent(
        train_tasks=folder / "train.jsonl",
        start=(),
        weights=folder / "policy" / "model.safetensors",
        settings=folder / "policy" / "config.json",
        codec=(folder / "policy" / "words.json",),
        metrics=folder / "metrics.jsonl",
        config=warm_start,
    )
    return folder


def train(start: Path, folder: Path, arm: str, steps: int) -> Path:
    config = config_of(experiment(steps), "train_agent", {"arm": arm, "seed": "0"})
    assert isinstance(config, TrainAgentConfig)
    train_here(folder, config, tasks=start)
    return folder


def sampled(folder: Path) -> list[float]:
    rows = read_rows(folder / "evaluations.jsonl", EvaluationRow)
    return [row.values["reward"] for row in rows if row.mode == "sampled"]


def test_the_baseline_learns_and_a_strong_kl_holds_it_back(start: Path, tmp_path: Path) -> None:
    baseline = train(start, tmp_path / "baseline", "baseline", STEPS)
    strong = train(start, tmp_path / "kl_strong", "kl_strong", STEPS_OF_STRONG_KL)
    before, after = sampled(baseline)
    assert after - before > 0.2
    assert sampled(strong)[0] == before  # one start for every arm
    steps = {folder: read_rows(folder / "metrics.jsonl", StepRow) for folder in (baseline, strong)}
    kl = {folder: rows[STEPS_OF_STRONG_KL - 1].values["kl"] for folder, rows in steps.items()}
    assert 0 < kl[strong] < kl[baseline]
