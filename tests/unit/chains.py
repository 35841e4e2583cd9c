"""One-epoch jobs through files, as the workflow runs them, and whole runs in one process to compare them with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from builders import training_files

from lever_pipe.base.checkpoints import load_tensors
from lever_pipe.base.optimiser import AdamW
from lever_pipe.base.records import EpochMetrics
from lever_pipe.base.seeding import ambient_stream, torch_generator
from lever_pipe.experiment.config import Grpo, Preset, Rce, Reward, Selector
from lever_pipe.experiment.stage_configs import (
    InitialiseSelectorConfig,
    RewardGroupsConfig,
    TrainContinuedEpochConfig,
    TrainGrpoEpochConfig,
    TrainRceEpochConfig,
)
from lever_pipe.experiment.studies import Experiment
from lever_pipe.lever.selector.embeddings import FrozenSelector, architecture_of
from lever_pipe.lever.selector.network import PointerSelector, build_selector, initialise, load_selector
from lever_pipe.lever.training.epoch import TrainingInputs, read_training_inputs
from lever_pipe.lever.training.groups import keep_best
from lever_pipe.lever.training.grpo import grpo_epoch
from lever_pipe.lever.training.loop import Updates, trained_share, validation_loss
from lever_pipe.lever.training.supervised import rce_epoch
from lever_pipe.runtime.plan import stage_config
from lever_pipe.stages.rewards import reward_groups
from lever_pipe.stages.selector_training import (
    initialise_selector,
    train_continued_epoch,
    train_grpo_epoch,
    train_rce_epoch,
)

SELECTOR = Selector(width=16)  # dropout 0.5 and attention dropout 0.1, as published
RCE = Rce(batch_queries=3, learning_rate=1e-2)
GRPO = Grpo(batch_queries=3, learning_rate=1e-2)
REWARD = Reward()
LIMITS = {"z_clamp": 3.0, "advantage_std_floor": 0.1, "advantage_clamp": 5.0}  # as published
OUTPUTS = ("selector.safetensors", "optimiser.safetensors", "metrics.json")


@dataclass
class Chain:
    """Jobs of one seed below a folder; each epoch reads only what the epoch before it wrote."""

    folder: Path
    rce: Rce = RCE
    grpo: Grpo = GRPO
    selector: Selector = SELECTOR
    reward: Reward = REWARD
    preset: str = "p"
    files: dict[str, Path] = field(default_factory=dict)

    def __post_init__(self) -> None:
        made = self.files or training_files(self.folder)
        groups = self.folder / "groups.safetensors"
        config = RewardGroupsConfig(reward=self.reward)
        reward_groups(rl_data=made["rl_data"], groups=groups, config=config)
        self.files = {"groups": groups, "embeddings": made["embeddings"]}

    def outputs(self, run: str) -> dict[str, Path]:
        folder = self.folder / run
        names = {"selector": "selector.safetensors", "optimiser": "optimiser.safetensors", "metrics": "metrics.json"}
        return {name: folder / file for name, file in names.items()}

    def bytes_of(self, run: str) -> tuple[bytes, ...]:
        return tuple((self.folder / run / name).read_bytes() for name in OUTPUTS)

    def inputs(self) -> TrainingInputs:
        return read_training_inputs(**self.files, train_share=0.8, device=torch.device("cpu"))

    def initialise(self) -> EpochMetrics:
        config = InitialiseSelectorConfig(preset=self.preset, selector=self.selector, seed=0)
        return initialise_selector(embeddings=self.files["embeddings"], start=(), **self.outputs("rce0"), config=config)

    def rce_config(self, epoch: int) -> TrainRceEpochConfig:
        return TrainRceEpochConfig(
            preset=self.preset, selector=self.selector, rce=self.rce, train_share=0.8,
            max_gradient_norm=1.0, seed=0, epoch=epoch,
        )  # fmt: skip

    def rce_epoch(self, epoch: int) -> EpochMetrics:
        start = self.outputs(f"rce{epoch - 1}")
        return train_rce_epoch(
            **self.files, start=start["selector"], start_optimiser=start["optimiser"],
            **self.outputs(f"rce{epoch}"), config=self.rce_config(epoch),
        )  # fmt: skip

    def grpo_config(self, epoch: int, kl_beta: float) -> TrainGrpoEpochConfig:
        return TrainGrpoEpochConfig(
            preset="p", selector=self.selector, grpo=self.grpo, train_share=0.8,
            max_gradient_norm=1.0, base_rce_epoch=1, kl_beta=kl_beta, seed=0, epoch=epoch,
        )  # fmt: skip

    def grpo_epoch(self, epoch: int, *, kl_beta: float = 0.15, start_optimiser: Path | None = None) -> EpochMetrics:
        """Run one GRPO epoch; epoch 0 stands for the base, RCE epoch 1."""
        start = self.outputs(f"grpo{epoch - 1}" if epoch > 1 else "rce1")
        return train_grpo_epoch(
            **self.files, start=start["selector"], start_optimiser=start_optimiser or start["optimiser"],
            reference=self.outputs("rce1")["selector"], **self.outputs(f"grpo{epoch}"),
            config=self.grpo_config(epoch, kl_beta),
        )  # fmt: skip

    def continued_config(self, epoch: int) -> TrainContinuedEpochConfig:
        preset = Preset(selector=self.selector, rce=self.rce, grpo=self.grpo, reward=self.reward)
        given = Experiment(presets={"published": preset}, emulate=None)
        wild = {"preset": "published", "base": "1", "seed": "0", "epoch": str(epoch)}
        config = stage_config(given, "train_continued_epoch", wild)
        assert isinstance(config, TrainContinuedEpochConfig)
        return config

    def continued_epoch(self, epoch: int) -> EpochMetrics:
        """Run one epoch of continued RCE; what comes before its first one is RCE epoch 1."""
        start = self.outputs(f"continued{epoch - 1}" if epoch > 1 else "rce1")
        return train_continued_epoch(
            **self.files, start=start["selector"], start_optimiser=start["optimiser"],
            **self.outputs(f"continued{epoch}"), config=self.continued_config(epoch),
        )  # fmt: skip


@dataclass
class Straight:
    """The same run in one process: module and optimiser stay in memory from the first epoch to the last."""

    chain: Chain
    values: list[dict[str, float]] = field(default_factory=list)

    def rce(self, epochs: int) -> PointerSelector:
        chain, data = self.chain, self.chain.inputs()
        module = initialise(build_selector(architecture_of(chain.selector, data.table)), torch_generator(0, "selector"))
        adam = AdamW(module, learning_rate=1.0, weight_decay=chain.rce.weight_decay)
        with execution():
            for epoch in range(1, epochs + 1):
                order = torch_generator(0, "rce", epoch)
                with ambient_stream(0, "rce dropout", epoch):
                    updates = Updates(module, adam, max_gradient_norm=1.0)
                    rce_epoch(updates, data.table, data.train, chain.rce, epoch, order)
                self.values.append(updates.means() | {"val_loss": validation_loss(module, data.table, data.validation)})
        return module

    def grpo(self, epochs: int, *, kl_beta: float) -> PointerSelector:
        chain, data = self.chain, self.chain.inputs()
        architecture = architecture_of(chain.selector, data.table)
        base = chain.outputs("rce1")["selector"]
        module, anchor = (load_selector(base, architecture) for _ in range(2))
        if chain.grpo.freeze_projections:
            module.freeze_projections()
        adam = AdamW(module, learning_rate=chain.grpo.learning_rate, weight_decay=chain.grpo.weight_decay)
        reference = FrozenSelector(anchor, data.table)
        with execution():
            for epoch in range(1, epochs + 1):
                k = chain.grpo.top_k_first_epoch if epoch == 1 else chain.grpo.top_k
                kept = keep_best(data.train, k, **LIMITS)
                updates = Updates(module, adam, max_gradient_norm=1.0)
                kl_beta = grpo_epoch(
                    updates, reference, data.table, kept, kl_beta=kl_beta, settings=chain.grpo,
                    generator=torch_generator(0, "grpo", epoch),
                )  # fmt: skip
                values = updates.means() | {"kl_beta": kl_beta, "trained_share": trained_share(module)}
                self.values.append(values | {"val_loss": validation_loss(module, data.table, data.validation)})
        return module


@contextmanager
def execution() -> Iterator[None]:
    """Compute as the stages do: one thread, deterministic kernels."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.set_deterministic_debug_mode("error")
    yield
    torch.set_num_threads(threads)


def same_weights(path: Path, module: PointerSelector) -> bool:
    saved = load_tensors(path)[0]
    return all(torch.equal(saved[name], value) for name, value in module.state_dict().items())
