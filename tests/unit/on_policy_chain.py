"""On-policy and distillation jobs through files, on a small part of the embedded world and with its own LVLM."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from builders import prepared, shipped, training_files, world_files
from chains import Chain

from lever_pipe.base import storage
from lever_pipe.base.records import EpochMetrics, StepMetrics
from lever_pipe.experiment.config import Distil, OnPolicy, Selector
from lever_pipe.experiment.data_config import WorldData
from lever_pipe.experiment.stage_configs import (
    LvlmConfig,
    Runtime,
    TrainDistilEpochConfig,
    TrainOnPolicyEpochConfig,
)
from lever_pipe.experiment.studies import parse_experiment
from lever_pipe.runtime import plan
from lever_pipe.stages.selector_training import train_distil_epoch, train_on_policy_epoch

ROOT = Path(__file__).parents[2]
LVLM = ROOT / "resources" / "world" / "lvlm"
N_TRAIN, N_QUERIES = 64, 20  # the world's least; 16 of the queries train, 4 validate
SELECTOR = Selector(width=16, dropout=0.0, attention_dropout=0.0)
ON_POLICY = OnPolicy(batch_queries=8, group=4, learning_rate=1e-2)
DISTIL = Distil(batch_queries=4, passes=2, learning_rate=1e-2)
CODE = "of the test"
TRAINED = ("selector.safetensors", "optimiser.safetensors", "metrics.json", "steps.jsonl")

Objective = Literal["on_policy", "reinforce"]


@cache
def world() -> Path:
    """Return the folder of the one world of this test process: `train.jsonl` and the images of its questions."""
    folder = Path(tempfile.mkdtemp(prefix="on-policy-world-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    world = WorldData(n_train=N_TRAIN, n_eval=8)
    prepared(folder, world_files(folder, world), parse_experiment(shipped()).data, n_eval=8)
    return folder


@cache
def lvlm_config() -> LvlmConfig:
    """Return what the default run asks its LVLM with."""
    wildcards = {"objective": "on_policy", "preset": "world", "base": "1", "beta": "0", "seed": "0", "epoch": "1"}
    config = plan.stage_config(parse_experiment(shipped()), "train_on_policy_epoch", wildcards)
    assert isinstance(config, TrainOnPolicyEpochConfig)
    return config.lvlm


@dataclass
class DrawnChain(Chain):
    """Jobs of one seed below a folder, from RCE epoch 1 on; each epoch reads only what the epoch before it wrote."""

    selector: Selector = SELECTOR
    on_policy: OnPolicy = ON_POLICY
    distil: Distil = DISTIL

    def __post_init__(self) -> None:
        self.files = self.files or training_files(self.folder, n_queries=N_QUERIES, n_train=N_TRAIN)
        super().__post_init__()

    def begin(self) -> None:
        """Run what all runs start from."""
        self.initialise()
        self.rce_epoch(1)

    def on_policy_config(
        self, epoch: int, *, kl_beta: float = 0.15, objective: Objective = "on_policy"
    ) -> TrainOnPolicyEpochConfig:
        return TrainOnPolicyEpochConfig(
            objective=objective, lvlm=lvlm_config(), preset="p", selector=self.selector, on_policy=self.on_policy,
            train_share=0.8, max_gradient_norm=1.0, base_rce_epoch=1, kl_beta=kl_beta, seed=0, epoch=epoch,
        )  # fmt: skip

    def on_policy_epoch(
        self,
        epoch: int,
        *,
        run: str = "drawn",
        kl_beta: float = 0.15,
        objective: Objective = "on_policy",
        ledger: Path | None = None,
    ) -> EpochMetrics:
        """Run one epoch of the run `run`; what comes before its first one is RCE epoch 1."""
        start, out = self.outputs(f"{run}{epoch - 1}" if epoch > 1 else "rce1"), self.outputs(f"{run}{epoch}")
        return train_on_policy_epoch(
            **self.files, **out, start=start["selector"], start_optimiser=start["optimiser"],
            reference=self.outputs("rce1")["selector"], train_examples=world() / "train.jsonl",
            train_images=world() / "train_images", lvlm=LVLM, steps=out["metrics"].with_name("steps.jsonl"),
            counters=out["metrics"].with_name("counters.json"),
            config=self.on_policy_config(epoch, kl_beta=kl_beta, objective=objective),
            runtime=Runtime(ledger=str(ledger or ""), code=CODE),
        )  # fmt: skip

    def distil_config(self, epoch: int) -> TrainDistilEpochConfig:
        return TrainDistilEpochConfig(
            preset="p", selector=self.selector, distil=self.distil, train_share=0.8, max_gradient_norm=1.0,
            base_rce_epoch=1, seed=0, epoch=epoch,
        )  # fmt: skip

    def distil_epoch(self, epoch: int) -> EpochMetrics:
        """Run one epoch of oracle distillation; what comes before its first one is RCE epoch 1."""
        start = self.outputs(f"distil{epoch - 1}" if epoch > 1 else "rce1")
        return train_distil_epoch(
            **self.files, train_examples=world() / "train.jsonl", start=start["selector"],
            start_optimiser=start["optimiser"], **self.outputs(f"distil{epoch}"), config=self.distil_config(epoch),
            runtime=Runtime(code=CODE),
        )  # fmt: skip

    def written(self, run: str, names: Sequence[str] = TRAINED) -> dict[str, bytes]:
        """Return the bytes of a job's results, by file name."""
        return {name: (self.folder / run / name).read_bytes() for name in names}

    def steps(self, run: str) -> list[StepMetrics]:
        return storage.read_rows(self.folder / run / "steps.jsonl", StepMetrics)
