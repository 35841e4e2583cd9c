"""Epochs of every objective through files, a job each, as the workflow runs them; and whole runs in one process."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builders import embedding_arrays, ids, random_pools, training_files
from lvlm_world import CODE, LVLM, N_TRAIN, lvlm_config, world

from lever_pipe.base import storage
from lever_pipe.base.optimiser import AdamW
from lever_pipe.base.records import Beam, EpochMetrics, QueryBeams, StepMetrics
from lever_pipe.experiment.arms import Preset
from lever_pipe.experiment.distil import Distil, TrainDistilEpochConfig
from lever_pipe.experiment.grpo import Grpo, TrainGrpoEpochConfig
from lever_pipe.experiment.identities import config_of
from lever_pipe.experiment.job_runtime import Runtime
from lever_pipe.experiment.on_policy import OnPolicy, TrainOnPolicyEpochConfig
from lever_pipe.experiment.rce import Rce, TrainContinuedEpochConfig, TrainRceEpochConfig
from lever_pipe.experiment.reward import Reward, RewardGroupsConfig
from lever_pipe.experiment.selector import InitialiseSelectorConfig, Selector, TrainingConfig
from lever_pipe.experiment.sft import Sft, TrainSftEpochConfig
from lever_pipe.experiment.studies import Experiment
from lever_pipe.lever.training import epoch as any_epoch
from lever_pipe.lever.training.epoch import TrainingInputs, read_training_inputs
from lever_pipe.lever.training.groups import Groups, groups_of_beams, save_groups
from lever_pipe.stages import selector_training as stages
from lever_pipe.stages.rewards import reward_groups

SFT = Sft(batch_queries=4, learning_rate=1e-2, horizon_epochs=3, warmup_share=0.2)
RCE = Rce(batch_queries=3, learning_rate=1e-2)
GRPO = Grpo(batch_queries=3, learning_rate=1e-2)
ON_POLICY = OnPolicy(batch_queries=8, group=4, learning_rate=1e-2)
DISTIL = Distil(batch_queries=4, passes=2, learning_rate=1e-2)
REWARD = Reward()
SELECTOR = Selector(width=16)  # dropout 0.5 and attention dropout 0.1, as published
LIMITS = {"z_clamp": 3.0, "advantage_std_floor": 0.1, "advantage_clamp": 5.0}  # as published
OBJECTIVES: dict[str, tuple[Any, type[TrainingConfig]]] = {
    "sft": (stages.train_sft_epoch, TrainSftEpochConfig),
    "rce": (stages.train_rce_epoch, TrainRceEpochConfig),
    "continued": (stages.train_continued_epoch, TrainContinuedEpochConfig),
    "grpo": (stages.train_grpo_epoch, TrainGrpoEpochConfig),
    "on_policy": (stages.train_on_policy_epoch, TrainOnPolicyEpochConfig),
    "reinforce": (stages.train_on_policy_epoch, TrainOnPolicyEpochConfig),
    "distil": (stages.train_distil_epoch, TrainDistilEpochConfig),
}
"""Stage and identity of each."""
N_BEAM_QUERIES = 40


@dataclass
class Chain:
    """Jobs of one seed below a folder; each epoch reads only what the epoch before it wrote."""

    folder: Path
    sft: Sft = SFT
    rce: Rce = RCE
    grpo: Grpo = GRPO
    on_policy: OnPolicy = ON_POLICY
    distil: Distil = DISTIL
    selector: Selector = SELECTOR
    reward: Reward = REWARD
    preset: str = "p"
    n_train: int = 40
    """`N_TRAIN` where the world's own examples are required."""
    files: dict[str, Path] = field(default_factory=dict)

    def __post_init__(self) -> None:
        files = self.files or training_files(self.folder, n_train=self.n_train)  # 20 queries: 16 train, 4 validate
        groups = self.folder / "groups.safetensors"
        reward_groups(rl_data=files["rl_data"], groups=groups, config=RewardGroupsConfig(reward=self.reward))
        self.files = {"groups": groups, "embeddings": files["embeddings"]}

    def outputs(self, run: str) -> dict[str, Path]:
        """Return the three files of every job."""
        names = {"selector": "selector.safetensors", "optimiser": "optimiser.safetensors", "metrics": "metrics.json"}
        return {name: self.folder / run / file for name, file in names.items()}

    def bytes_of(self, run: str) -> dict[str, bytes]:
        """Return the files of a job by name, without counters of what it cost."""
        paths = [path for path in (self.folder / run).iterdir() if path.is_file() and path.name != "counters.json"]
        return {path.name: path.read_bytes() for path in paths}

    def inputs(self) -> TrainingInputs:
        return read_training_inputs(**self.files, train_share=0.8, device=torch.device("cpu"))

    def steps(self, run: str) -> list[StepMetrics]:
        return storage.read_rows(self.folder / run / "steps.jsonl", StepMetrics)

    def initialise(self) -> EpochMetrics:
        """Write the untrained selector as RCE epoch 0."""
        config = InitialiseSelectorConfig(preset=self.preset, selector=self.selector, seed=0)
        return stages.initialise_selector(
            embeddings=self.files["embeddings"], start=(), **self.outputs("rce0"), config=config
        )

    def begin(self) -> None:
        """Run what runs from a base start from."""
        self.initialise()
        self.epoch("rce", 1)

    def config(self, objective: str, number: int, **changed: Any) -> Any:
        """Return the identity of an epoch."""
        _, model = OBJECTIVES[objective]
        values = {name: getattr(self, name, None) for name, field in model.model_fields.items() if field.is_required()}
        values |= {name: getattr(self, name) for name in model.model_fields if hasattr(self, name)}
        values |= {"train_share": 0.8, "max_gradient_norm": 1.0, "seed": 0, "epoch": number, "rce_from_sft_epoch": 0}
        values |= {"base_rce_epoch": 1, "kl_beta": 0.15, "objective": objective}
        values |= {"lvlm": lvlm_config()} if "lvlm" in values else {}
        values |= {"continued": self._continued()} if objective == "continued" else {}
        return model(**{name: value for name, value in (values | changed).items() if name in model.model_fields})

    def _continued(self) -> Any:
        preset = Preset(selector=self.selector, rce=self.rce, grpo=self.grpo, reward=self.reward)
        wildcards = {"preset": "published", "base": "1", "seed": "0", "epoch": "1"}
        given = Experiment(presets={"published": preset}, emulate=None)
        return config_of(given, "train_continued_epoch", wildcards).continued  # type: ignore[attr-defined]

    def epoch(
        self,
        objective: str,
        number: int,
        *,
        run: str = "",
        ledger: Path | None = None,
        replayed: tuple[Path, ...] = (),
        **changed: Any,
    ) -> EpochMetrics:
        """Run one epoch of a run named after its objective; `changed` are values of its identity.

        Offline GRPO may learn from the draws `replayed`.
        """
        stage, _ = OBJECTIVES[objective]
        run = run or objective
        first = "rce0" if objective in ("sft", "rce") else "rce1"
        start, out = self.outputs(f"{run}{number - 1}" if number > 1 else first), self.outputs(f"{run}{number}")
        files = {
            **self.files, **out, "start": start["selector"], "start_optimiser": start["optimiser"],
            "reference": self.outputs("rce1")["selector"], "lvlm": LVLM,
            "steps": out["metrics"].with_name("steps.jsonl"), "counters": out["metrics"].with_name("counters.json"),
            "draws": replayed if objective == "grpo" else out["metrics"].with_name("draws.safetensors"),
        }  # fmt: skip
        wanted = inspect.signature(stage).parameters
        if "train_examples" in wanted:
            files |= {"train_examples": world() / "train.jsonl", "train_images": world() / "train_images"}
        return stage(  # type: ignore[no-any-return]
            **{name: path for name, path in files.items() if name in wanted},
            config=self.config(objective, number, **changed),
            runtime=Runtime(ledger=str(ledger or ""), code=CODE),
        )


class SftChain(Chain):
    """Jobs on beam data: SFT epochs from the untrained selector."""

    def __post_init__(self) -> None:
        self.files = {name: self.folder / f"{name}.safetensors" for name in ("groups", "embeddings")}
        storage.write_arrays(self.files["embeddings"], embedding_arrays(60))
        save_groups(self.files["groups"], beam_groups())
        self.initialise()


def sampled_chain(folder: Path, **settings: Any) -> Chain:
    """Return jobs on train examples of the world, for objectives that read them; without dropout."""
    plain = Selector(width=16, dropout=0.0, attention_dropout=0.0)
    return Chain(folder, **{"selector": plain, "n_train": N_TRAIN, **settings})


def beam_groups(n: int = N_BEAM_QUERIES) -> Groups:
    """Return random beams, three a query, the best first, of 60 train examples."""
    rng, rows = np.random.default_rng(0), []
    pools = random_pools(n, 60)
    for of in pools:
        sampled = [rng.permutation(of.candidates)[:2] for _ in range(3)]
        beams = tuple(
            Beam(demonstrations=ids(chosen), gains=(0.1, 0.1), probability=p)
            for chosen, p in zip(sampled, (0.9, 0.5, 0.2), strict=True)
        )
        rows.append(QueryBeams(query_id=of.query_id, empty=0.1, beams=beams))
    return groups_of_beams(rows, pools, lambda chosen: chosen)


@contextmanager
def in_one_process() -> Iterator[None]:
    """Continue epochs with the module, moments and beta that the last one kept in memory: no epoch reads files."""
    modules: dict[Path, Any] = {}
    optimisers: dict[Any, AdamW] = {}
    betas: dict[Path, float] = {}
    load, resume = any_epoch.load_selector, any_epoch.resume_optimiser
    save, save_moments = any_epoch.save_selector, any_epoch.save_optimiser

    def save_selector(path: Path, module: Any, **about: Any) -> None:
        modules[path] = module
        save(path, module, **about)

    def save_optimiser(path: Path, optimiser: AdamW, *, kl_beta: float, **about: Any) -> None:
        betas[path] = kl_beta
        save_moments(path, optimiser, kl_beta=kl_beta, **about)

    def optimiser_of(module: Any, **settings: float) -> AdamW:
        return optimisers.setdefault(module, AdamW(module, **settings))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(any_epoch, "save_selector", save_selector)
        patch.setattr(any_epoch, "save_optimiser", save_optimiser)
        patch.setattr(any_epoch, "AdamW", optimiser_of)
        patch.setattr(any_epoch, "load_selector", lambda path, of: modules[path] if path in modules else load(path, of))
        patch.setattr(
            any_epoch, "resume_optimiser",
            lambda path, *of, **stage: betas[path] if path in betas else resume(path, *of, **stage),
        )  # fmt: skip
        yield


@contextmanager
def execution() -> Iterator[None]:
    """Compute as the stages do: one thread, deterministic kernels."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.set_deterministic_debug_mode("error")
    yield
    torch.set_num_threads(threads)
