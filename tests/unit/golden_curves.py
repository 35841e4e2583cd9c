"""Short trainings through the real stages, step by step, and the files with their recorded values."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import pytest
import torch
from chains import Chain
from lvlm_world import N_TRAIN
from trained_world import measured, read_run, train_here, training

from lever_pipe.base import numerics
from lever_pipe.experiment.grpo import Grpo
from lever_pipe.experiment.on_policy import OnPolicy
from lever_pipe.experiment.rce import Rce
from lever_pipe.lever.training import epoch as any_epoch
from lever_pipe.lever.training.loop import Step, Updates
from lever_pipe.lever.training.on_policy import ScoredSelection
from lever_pipe.lvlms.asking.prompts import PromptIds
from lever_pipe.stages import selector_training

FOLDER = Path(__file__).parents[1] / "golden" / "curves"
REWRITE = "LEVER_PIPE_REWRITE_GOLDEN"
COMMAND = f"{REWRITE}=1 tests/emulated/run.sh Haswell"
N_STEPS, N_EPOCHS = 20, 5
# Another numeric path adds in another order: float32 differs in its last bits, 1e-7 of a value, and twenty steps of
# AdamW make that grow. Four paths differ by at most 1.5e-5; a changed computation by far more than this.
OTHER_PATHS = 2e-4
Terms = dict[str, float]
Curve = dict[str, Terms]
"""Where (a step or an epoch) -> term -> value, in order."""


class Golden(NamedTuple):
    """A recorded curve and the numeric path on which it was computed."""

    path: str
    curve: Curve


def rce(folder: Path, patch: pytest.MonkeyPatch) -> Curve:
    """Return a run with dropout, a falling learning rate and temperature, and a last batch of one query."""
    settings = Rce(batch_queries=5, learning_rate=1e-2, horizon_epochs=N_EPOCHS, final_learning_rate_share=0.2)
    chain = Chain(folder, rce=settings)
    chain.initialise()
    return recorded(partial(chain.epoch, "rce"), patch)


def grpo(folder: Path, patch: pytest.MonkeyPatch) -> Curve:
    """Return a run from RCE epoch 1 that clips ratios and gradients."""
    chain = Chain(folder, grpo=Grpo(batch_queries=5, learning_rate=2e-2))
    chain.initialise()
    chain.epoch("rce", 1)
    return recorded(partial(chain.epoch, "grpo"), patch)


def on_policy(folder: Path, patch: pytest.MonkeyPatch) -> Curve:
    """Return a run whose selections a rule rewards in the place of the LVLM."""
    settings = OnPolicy(batch_queries=8, group=4, learning_rate=2e-2, final_learning_rate_share=0.2)
    chain = Chain(folder, on_policy=settings, n_train=N_TRAIN)
    chain.begin()
    patch.setattr(selector_training, "load_lvlm", lambda *_: SimpleNamespace(counters={}))
    patch.setattr(selector_training, "scored_by_lvlm", rule_scores)
    return recorded(partial(chain.epoch, "on_policy"), patch)


def agent(folder: Path, _: pytest.MonkeyPatch) -> Curve:
    """Return a run with a penalty, an entropy bonus, a warm-up, two updates a step, and gradients long and short."""
    schedule = {"kind": "cosine", "warmup_steps": 2}
    arm = {"kl": 0.1, "entropy": 0.01, "schedule": schedule}
    train_here(folder, training(steps=N_STEPS, max_gradient_norm=0.3, arm=arm, evaluation={"every": N_STEPS // 2}))
    files = read_run(folder)
    curve = {f"step {row.step}": values for row, values in zip(files.metrics, measured(files.metrics), strict=True)}
    evaluated = {f"evaluation {row.mode} at step {row.step}": row.values for row in files.evaluations}
    return curve | evaluated


CURVES: Mapping[str, Callable[[Path, pytest.MonkeyPatch], Curve]] = {
    "rce": rce,
    "grpo": grpo,
    "on_policy": on_policy,
    "agent": agent,
}


def rule_scores(prompts: Sequence[PromptIds], **_: object) -> list[ScoredSelection]:
    """Reward selections by arithmetic on query, demonstrations and their order, as no LVLM would."""
    codes = [
        query + sum((position + 1) * (one + 1) for position, one in enumerate(chosen)) for query, chosen in prompts
    ]
    return [ScoredSelection(code * 37 % 101 / 100, float(code % 3 == 0)) for code in codes]


class _Recorded(Updates):
    """Notes what each step computes and moves."""

    rows: ClassVar[list[Terms]]

    def take(self, step: Step, n_queries: int) -> None:
        self.rows.append({"queries": float(n_queries), **step.values, "loss": float(step.loss.detach())})
        super().take(step, n_queries)
        parameters = [p for p in self.module.parameters() if p.requires_grad]
        self.rows[-1]["clipped_grad_norm"] = _norm([p.grad for p in parameters if p.grad is not None])
        self.rows[-1]["weights_norm"] = _norm(parameters)
        self.rows[-1]["weights_sum"] = math.fsum(value for p in parameters for value in p.flatten().tolist())


def recorded(epoch: Callable[[int], Any], patch: pytest.MonkeyPatch) -> Curve:
    """Run the epochs of a stage; return all their steps, and each epoch's own row."""
    curve: Curve = {}
    patch.setattr(any_epoch, "Updates", _Recorded)
    for number in range(1, N_EPOCHS + 1):
        _Recorded.rows = []
        row = epoch(number)
        for terms in _Recorded.rows:
            curve[f"step {sum(where.startswith('step') for where in curve) + 1}"] = terms
        curve[f"epoch {number}"] = row.values
    return curve


def difference(golden: Curve, found: Curve, tolerance: float) -> str:
    """Return the first difference of two curves, in words; an empty text if they are equal.

    A value may be off by `tolerance` times max(1, its magnitude).
    """
    for where in dict.fromkeys((*golden, *found)):
        mine, theirs = golden.get(where), found.get(where)
        if mine is None or theirs is None:
            return f"{where}: {'not recorded' if mine is None else 'recorded, but no longer computed'}"
        for term in dict.fromkeys((*mine, *theirs)):
            expected, value = mine.get(term), theirs.get(term)
            if expected is None or value is None or not _near(expected, value, tolerance):
                return f"{where}, {term}: recorded {expected!r}, found {value!r}"
    return ""


def verdict(name: str, golden: Golden, found: Curve, path: str) -> str:
    """Return a failing test's message: the first difference and the remedy; empty for a curve equal to its record."""
    same = golden.path == path
    text = difference(golden.curve, found, 0.0 if same else OTHER_PATHS)
    if not text:
        return ""
    how = "on the same path" if same else f"recorded on {golden.path}, computed on {path}"
    return (
        f"the training curve of {name} is another one ({how}).\nFirst difference: {text}.\n"
        f"If this change of the computation is meant, run\n  {COMMAND}\n"
        f"and commit {FOLDER.name}/{name}.csv together with the change and its reason. If not, the change has a fault."
    )


def write(name: str, path: str, curve: Curve, folder: Path = FOLDER) -> None:
    """Write a curve, one row a step or epoch; `repr` of a float gives every bit back."""
    terms = list(dict.fromkeys(term for values in curve.values() for term in values))
    with (folder / f"{name}.csv").open("w", encoding="utf-8", newline="") as handle:
        handle.write(f"# {path}\n")
        writer = csv.writer(handle, lineterminator="\n")
        writer.writerow(["at", *terms])
        for where, values in curve.items():
            writer.writerow([where, *(repr(values[term]) if term in values else "" for term in terms)])


def read(name: str, folder: Path = FOLDER) -> Golden:
    """Return a curve as it was written."""
    with (folder / f"{name}.csv").open(encoding="utf-8", newline="") as handle:
        path = handle.readline().removeprefix("# ").strip()
        rows = [{term: text for term, text in row.items() if text} for row in csv.DictReader(handle)]
    return Golden(path, {row.pop("at"): {term: float(text) for term, text in row.items()} for row in rows})


def path_here() -> str:
    """Return torch's version and the numeric path of this process."""
    return f"torch {torch.__version__.partition('+')[0]}, {numerics.path()}"


def _near(expected: float, value: float, tolerance: float) -> bool:
    return expected == value or abs(expected - value) <= tolerance * max(1.0, abs(expected))


def _norm(tensors: Iterable[torch.Tensor]) -> float:
    return math.sqrt(math.fsum(value * value for tensor in tensors for value in tensor.flatten().tolist()))
