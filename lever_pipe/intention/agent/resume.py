"""Progress and checkpoints of a training run, so that a killed run resumes with the results of an uninterrupted run.

A checkpoint is a folder `step-N` in the run's state folder. It is written atomically, and only afterwards is the
previous one removed. Removal renames the folder first, so that its name never refers to part of a checkpoint.
No random state is saved: the random streams of a step are named after the step.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel
from safetensors.torch import save_file
from torch import Tensor

from lever_pipe.base import atomic, contents, storage
from lever_pipe.base.checkpoints import load_tensors, require_same_tensors
from lever_pipe.base.optimiser import AdamW
from lever_pipe.base.provenance import canonical_json
from lever_pipe.base.records import Row
from lever_pipe.intention.records import EpisodeRow, EvaluationRow, StepRow

log = logging.getLogger(__name__)

POLICY, OPTIMISER, BEST = "policy.safetensors", "optimiser.safetensors", "best.safetensors"
REFERENCE = "reference.safetensors"
METRICS, EVALUATIONS, EPISODES = "metrics.jsonl", "evaluations.jsonl", "episodes.jsonl"
CHECKPOINT_FILE = "place.json"


@dataclass
class Best:
    """The policy with the highest validation value; the first one if several are equal."""

    step: int
    value: float
    """The sampled reward, or the metric of the arm's `stop`."""
    weights: dict[str, Tensor]
    """On the CPU."""


@dataclass
class RunProgress:
    """Completed steps, rows and best policy of a run."""

    step: int = 0
    """Completed steps."""
    metrics: list[StepRow] = field(default_factory=list)
    evaluations: list[EvaluationRow] = field(default_factory=list)
    episodes: list[EpisodeRow] = field(default_factory=list)
    best: Best = field(default_factory=lambda: Best(0, -math.inf, {}))


class CheckpointRow(Row):
    """Identity and scalars of a checkpoint; other files contain its tensors and rows."""

    identity: str
    step: int
    best_step: int
    best_reward: float


def identity_of(config: BaseModel, inputs: Mapping[str, tuple[Path, ...]], code: str) -> str:
    """Return the digest of configuration, input files and code; a checkpoint is valid only for its own identity."""
    files = {name: [contents.digest(path) for path in paths] for name, paths in inputs.items()}
    parts = {"config": config.model_dump(mode="json"), "files": files, "code": code}
    return hashlib.sha256(canonical_json(parts).encode()).hexdigest()


def weights_of(policy: Any) -> dict[str, Tensor]:
    """Return a policy's parameters, each once, and its persistent buffers."""
    # Tied weights are one parameter with two names; the state dictionary has them twice.
    parameters = dict(policy.named_parameters())
    names = {name for name, _ in policy.named_parameters(remove_duplicate=False)}
    return parameters | {name: tensor for name, tensor in policy.state_dict().items() if name not in names}


def copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies of named tensors on the CPU."""
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}


def set_weights(policy: Any, weights: Mapping[str, Tensor]) -> None:
    """Copy weights into a policy, in place."""
    with torch.no_grad():
        for name, tensor in weights_of(policy).items():
            tensor.copy_(weights[name])


def save_progress(
    folder: Path, progress: RunProgress, policy: Any, optimiser: AdamW, reference: Any, *, identity: str
) -> None:
    """Write a checkpoint and remove the previous ones.

    `reference` is None unless the run changes its reference. In addition to the best policy, main memory contains a
    copy of either the weights or the optimizer's moments, never of both.
    """
    best, former = progress.best, _checkpoints(folder)
    checkpoint = CheckpointRow(identity=identity, step=progress.step, best_step=best.step, best_reward=best.value)

    def fill(path: Path) -> None:
        _write_tensors(path / POLICY, copies(weights_of(policy)))
        _write_tensors(path / OPTIMISER, copies(optimiser.state()))
        _write_tensors(path / BEST, best.weights)
        if reference is not None:
            _write_tensors(path / REFERENCE, copies(weights_of(reference)))
        storage.write_rows(path / METRICS, progress.metrics)
        storage.write_rows(path / EVALUATIONS, progress.evaluations)
        storage.write_rows(path / EPISODES, progress.episodes)
        storage.write_row(path / CHECKPOINT_FILE, checkpoint)

    target = folder / f"step-{progress.step}"
    atomic.write_folder(target, fill)
    for path in former:
        if path != target:
            atomic.drop(path)


def load_progress(folder: Path, policy: Any, optimiser: AdamW, reference: Any, *, identity: str) -> RunProgress | None:
    """Load the latest checkpoint with this identity into policy, optimizer and reference, and return its progress.

    Return None if there is no such checkpoint. Clean up folders that a killed process wrote or removed only in part.
    """
    # Atomic writes and removals use names with a leading dot until they are complete.
    for path in folder.glob(".*"):
        shutil.rmtree(path, ignore_errors=True)
    for path in reversed(_checkpoints(folder)):
        checkpoint = storage.read_row(path / CHECKPOINT_FILE, CheckpointRow)
        if checkpoint.identity != identity:
            log.warning("%s belongs to another configuration, data or code: training starts anew", path)
            continue
        moving = [(POLICY, weights_of(policy)), (OPTIMISER, optimiser.state())]
        for file, tensors in [*moving, *([(REFERENCE, weights_of(reference))] if reference is not None else [])]:
            stored, _ = load_tensors(path / file)
            require_same_tensors(path / file, stored, tensors)
            with torch.no_grad():
                for name, tensor in tensors.items():
                    tensor.copy_(stored[name])
        log.info("resuming after step %d (%s)", checkpoint.step, path)
        return RunProgress(
            step=checkpoint.step,
            metrics=storage.read_rows(path / METRICS, StepRow),
            evaluations=storage.read_rows(path / EVALUATIONS, EvaluationRow),
            episodes=storage.read_rows(path / EPISODES, EpisodeRow),
            best=Best(checkpoint.best_step, checkpoint.best_reward, load_tensors(path / BEST)[0]),
        )
    return None


def _checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints, earliest first."""
    return sorted(folder.glob("step-*"), key=lambda path: int(path.name.removeprefix("step-")))


def _write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write CPU tensors to the disk and flush them, without a second copy of their bytes in memory."""
    save_file(tensors, path)
    with path.open("rb") as handle:
        os.fsync(handle.fileno())
