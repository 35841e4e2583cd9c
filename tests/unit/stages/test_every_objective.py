"""Properties of the epochs of every objective of the selector."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from chains import OBJECTIVES, Chain, SftChain, in_one_process
from golden_curves import rule_scores
from lvlm_world import N_TRAIN

from lever_pipe.base import storage
from lever_pipe.base.checkpoints import load_tensors
from lever_pipe.base.records import EpochMetrics
from lever_pipe.experiment.grpo import AdaptiveKl, Grpo
from lever_pipe.experiment.on_policy import OnPolicy
from lever_pipe.experiment.rce import Rce
from lever_pipe.stages import selector_training


class Case(NamedTuple):
    """An objective: name and kind of its policies, optimiser steps of an epoch, and other settings than the chain's."""

    name: str
    kind: tuple[str, str, float | None]
    n_steps: int
    settings: Mapping[str, Any] = MappingProxyType({})


EVERY_OPTION = Rce(
    batch_queries=3, learning_rate=1e-2, horizon_epochs=3, passes=2, final_learning_rate_share=0.1,
    weight_by_spread=True,
)  # fmt: skip
ADAPTIVE = Grpo(batch_queries=3, learning_rate=1e-2, adaptive_kl=AdaptiveKl())
RUN = "preset~p/{}/base~1/seed~0"
OF_BETA = "preset~p/{}/base~1/beta~0.15/seed~0"
# Steps: 32 train queries with beams, 16 of RL data; 4 a batch; 3 a batch; 8 a batch, 2 updates; 4 a batch, 2 passes.
CASES = {
    "sft": Case("preset~p/sft/seed~0", ("sft", "", None), 8),
    "rce": Case("preset~p/rce/seed~0", ("rce", "", None), 6),
    "rce, other options": Case("preset~p/rce/seed~0", ("rce", "", None), 12, {"rce": EVERY_OPTION}),
    "continued": Case(RUN.format("continued"), ("continued", "", None), 6),
    "grpo": Case(OF_BETA.format("grpo"), ("grpo", "offline", 0.15), 6),
    "grpo, adaptive beta": Case(OF_BETA.format("grpo"), ("grpo", "offline", 0.15), 6, {"grpo": ADAPTIVE}),
    "on_policy": Case(OF_BETA.format("on_policy"), ("grpo", "on_policy", 0.15), 4),
    "reinforce": Case(OF_BETA.format("reinforce"), ("reinforce", "on_policy", 0.15), 4),
    "distil": Case(RUN.format("distil"), ("distil", "", None), 8),
}


@pytest.fixture
def _rewards_by_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule in the place of the LVLM; `test_train_on_policy_epoch.py` asks the LVLM itself."""
    monkeypatch.setattr(selector_training, "load_lvlm", lambda *_: SimpleNamespace(counters={}))
    monkeypatch.setattr(selector_training, "scored_by_lvlm", rule_scores)


pytestmark = pytest.mark.usefixtures("_rewards_by_rule")


def begun(folder: Path, case: str) -> tuple[Chain, str]:
    """Return jobs up to what the objective starts from, with dropout as published, and the objective."""
    objective = case.partition(",")[0]
    chain = SftChain(folder) if objective == "sft" else Chain(folder, n_train=N_TRAIN, **CASES[case].settings)
    if objective != "sft":
        chain.begin()
    return chain, objective


@pytest.mark.parametrize("case", CASES)
def test_three_jobs_are_one_run(tmp_path: Path, case: str) -> None:
    chain, objective = begun(tmp_path, case)
    runs = [f"{objective}{number}" for number in (1, 2, 3)]
    rows = [chain.epoch(objective, number) for number in (1, 2, 3)]
    files = [chain.bytes_of(run) for run in runs]
    assert len({of["selector.safetensors"] for of in files}) == 3
    with in_one_process():
        assert [chain.epoch(objective, number) for number in (1, 2, 3)] == rows
    assert [chain.bytes_of(run) for run in runs] == files


@pytest.mark.parametrize("case", OBJECTIVES)
def test_a_seed_gives_the_same_bytes_whatever_the_global_stream(tmp_path: Path, case: str) -> None:
    chain, objective = begun(tmp_path, case)
    chain.epoch(objective, 1)
    first = chain.bytes_of(f"{objective}1")
    with torch.random.fork_rng():
        torch.manual_seed(99)
        before = torch.get_rng_state()
        chain.epoch(objective, 1)
        assert torch.equal(torch.get_rng_state(), before)
    assert chain.bytes_of(f"{objective}1") == first
    chain.epoch(objective, 1, seed=1)
    other = chain.bytes_of(f"{objective}1")
    assert all(other[name] != first[name] for name in first)


@pytest.mark.parametrize("case", CASES)
def test_an_epoch_is_named_and_counts_its_own_steps_alone(tmp_path: Path, case: str) -> None:
    chain, objective = begun(tmp_path, case)
    for number in (1, 2):
        row, files = chain.epoch(objective, number), chain.outputs(f"{objective}{number}")
        assert str(row.policy) == f"{CASES[case].name}/epoch~{number}"
        assert (row.policy.phase, row.policy.mode, row.policy.beta) == CASES[case].kind
        assert storage.read_row(files["metrics"], EpochMetrics) == row
        moments, about = load_tensors(files["optimiser"])
        assert about == {"stage": objective, "epoch": number}
        steps = {float(value) for name, value in moments.items() if name.endswith(".step")}
        assert steps == {CASES[case].n_steps * number}  # none of the objective's before it


@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("objective", ["grpo", "continued", "on_policy"])
def test_frozen_projections_stay_as_they_are(tmp_path: Path, objective: str, frozen: bool) -> None:
    chain = Chain(
        tmp_path, n_train=N_TRAIN,
        grpo=Grpo(batch_queries=3, learning_rate=1e-2, freeze_projections=frozen),
        on_policy=OnPolicy(batch_queries=8, group=4, learning_rate=1e-2, freeze_projections=frozen),
    )  # fmt: skip
    chain.begin()
    rows = [chain.epoch(objective, number) for number in (1, 2)]
    base, tuned = (load_tensors(chain.outputs(run)["selector"])[0] for run in ("rce1", f"{objective}2"))
    unchanged = {name for name in base if torch.equal(base[name], tuned[name])}
    assert unchanged == ({"input_proj.weight", "query_proj.weight", "cand_proj.weight"} if frozen else set())
    moments, _ = load_tensors(chain.outputs(f"{objective}2")["optimiser"])
    assert any(name.startswith("query_proj") for name in moments) == (not frozen)
    if objective != "continued":
        assert (0 < rows[1].values["trained_share"] < 1) if frozen else rows[1].values["trained_share"] == 1
