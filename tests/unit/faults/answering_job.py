"""A job of `generate_rl_data` on the embedded world, in this process or as the workflow starts it."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from builders import random_pools
from on_policy_chain import CODE, LVLM, N_TRAIN, lvlm_config, world
from private_mounts import ROOT

from lever_pipe.base import storage
from lever_pipe.base.records import Pool, Proposal
from lever_pipe.experiment.run_card import carry_out
from lever_pipe.experiment.stage_configs import GenerateRlDataConfig, Runtime
from lever_pipe.stages.generate_rl_data import generate_rl_data


@dataclass(frozen=True)
class Job:
    """A job whose inputs lie in a folder; several runs of it differ in where their results go."""

    folder: Path

    def files(self, run: str) -> dict[str, Path]:
        """Return the files of a run by their names in the stage."""
        inputs = {
            "proposals": self.folder / "proposals.jsonl",
            "train_pools": self.folder / "pools.jsonl",
            "train_examples": self.folder / "world" / "train.jsonl",
            "train_images": self.folder / "world" / "train_images",
            "lvlm": LVLM,
        }
        out = self.folder / run
        outputs = {"trajectories": "trajectories.jsonl", "counters": "counters.json", "card": "run.json"}
        return inputs | {name: out / file for name, file in outputs.items()}

    @property
    def config(self) -> GenerateRlDataConfig:
        """Return the identity of all runs."""
        return GenerateRlDataConfig(lvlm=lvlm_config(), shard=0, n_shards=1, shots=2, diversity_budget=0, seed=0)

    def ledger(self, run: str) -> Path:
        """Return the folder of a run's answers."""
        return self.folder / run / "ledger"

    def here(self, run: str) -> bytes:
        """Run the stage in this process; return the bytes of its trajectories."""
        files, runtime = self.files(run), Runtime(ledger=str(self.ledger(run)), code=CODE)
        carry_out(generate_rl_data, **files, config=self.config, runtime=runtime)
        return files["trajectories"].read_bytes()

    def command(self, run: str, processes: int) -> list[str]:
        """Return the command of a run with several processes."""
        words = [f"{name}={path}" for name, path in self.files(run).items()]
        spec = json.dumps({"code": CODE, "config": self.config.model_dump(mode="json")})
        options = ["--spec", spec, "--ledger", str(self.ledger(run)), "--processes", str(processes)]
        return [sys.executable, "-m", "lever_pipe", "generate_rl_data", *words, *options]


def make_job(folder: Path, *, n_queries: int, n_selections: int) -> Job:
    """Write the inputs of a job that asks about `n_selections` random selections of each query."""
    pools: Sequence[Pool] = random_pools(n_queries, N_TRAIN)
    rng = np.random.default_rng(0)
    drawn = [(pool, rng.permutation(len(pool.candidates))[:2].tolist()) for pool in pools for _ in range(n_selections)]
    proposals = [
        Proposal(
            query_id=pool.query_id,
            pointer=tuple(pointer),
            pointer_global=tuple(pool.candidates[place] for place in pointer),
            gen_method="random",
        )
        for pool, pointer in drawn
    ]
    storage.write_rows(folder / "pools.jsonl", pools)
    storage.write_rows(folder / "proposals.jsonl", proposals)
    shutil.copytree(world(), folder / "world")
    return Job(folder)


def environment(*places: Path, **values: str) -> dict[str, str]:
    """Return this process's environment with folders to import from, and further values."""
    path = os.pathsep.join(map(str, (ROOT, *places)))
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **values}
