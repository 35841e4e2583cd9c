from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from builders import embedding_arrays, example, random_pools, trajectory
from chains import Chain
from small_selectors import groups, selector

from lever_pipe.base import storage
from lever_pipe.base.errors import TrainingError
from lever_pipe.base.optimiser import AdamW
from lever_pipe.base.torch_streams import torch_generator
from lever_pipe.experiment.rce import Rce
from lever_pipe.experiment.reward import Reward
from lever_pipe.experiment.selector import Selector
from lever_pipe.lever.selector.embeddings import EmbeddingTable, fuse
from lever_pipe.lever.selector.network import Architecture, build_selector, initialise
from lever_pipe.lever.training.loop import Step, Updates, validation_loss
from lever_pipe.lever.trajectories import make_group


def test_the_logged_temperature_is_the_mean_of_the_epoch(tmp_path: Path) -> None:
    chain = Chain(tmp_path, rce=Rce(batch_queries=4, final_learning_rate_share=0.5))
    chain.initialise()
    chain.epoch("rce", 1)
    values = chain.epoch("rce", 2).values
    # 16 train queries: 4 steps an epoch, 20 in the horizon; epoch 2 has steps 4..7
    shares = [step / 19 for step in (4, 5, 6, 7)]
    assert values["temperature"] == pytest.approx(sum(2 - 1.5 * share for share in shares) / 4, abs=1e-12)
    rate = [0.5e-4 + 0.5e-4 * (1 + math.cos(math.pi * share)) / 2 for share in shares]
    assert values["learning_rate"] == pytest.approx(sum(rate) / 4, rel=1e-12)


def test_validation_weighs_every_query_the_same() -> None:
    architecture = Architecture(4, 8, 1, 1, 0.5, 0.1, 0.1)
    module = initialise(build_selector(architecture), torch_generator(0)).train()
    table = EmbeddingTable(torch.randn(300, 4, generator=torch_generator(1)))
    batch = groups(300, shots=2, size=16, n_examples=300)
    each = [validation_loss(module, table, batch.take(torch.tensor([row]))) for row in range(300)]
    assert validation_loss(module, table, batch) == pytest.approx(sum(each) / 300, rel=1e-5)
    assert not module.training  # dropout would make the yardstick random


def test_the_epoch_mean_weighs_queries_not_batches() -> None:
    module = initialise(build_selector(Architecture(4, 8, 1, 1, 0.0, 0.0, 0.1)), torch_generator(0))
    adam = torch.optim.SGD(module.parameters(), lr=0.0)
    updates = Updates(module, adam, max_gradient_norm=1.0)  # type: ignore[arg-type]
    for n_queries, value in ((3, 1.0), (1, 5.0)):
        updates.take(Step(value * module.input_proj.weight.sum() ** 0, {"x": value}), n_queries)
    values = updates.means()
    assert values["x"] == 2.0  # (3 * 1 + 1 * 5) / 4
    assert values["loss"] == 2.0


def test_a_loss_that_is_no_number_stops_the_epoch() -> None:
    module = build_selector(Architecture(4, 8, 1, 1, 0.0, 0.0, 0.1))
    for factor, found in ((math.nan, "after 0 queries .* loss nan, grad_norm nan"), (1e38, "loss inf|grad_norm inf")):
        weight = module.input_proj.weight
        with torch.no_grad():
            weight.fill_(1.0)
        updates = Updates(module, torch.optim.SGD(module.parameters()), max_gradient_norm=1.0)  # type: ignore[arg-type]
        with pytest.raises(TrainingError, match=found):
            updates.take(Step((factor * weight).sum(), {}), 20)
        assert torch.equal(weight, torch.ones_like(weight))  # nothing moved


def test_a_missing_gradient_is_refused() -> None:
    module = selector(head="gru")
    updates = Updates(module, AdamW(module, learning_rate=0.01, weight_decay=0.0), max_gradient_norm=1.0)
    with pytest.raises(RuntimeError, match="no gradient"):
        updates.take(Step(module.input_proj.weight.sum(), {}), 5)


def test_gradients_are_clipped_to_the_norm() -> None:
    module = initialise(build_selector(Architecture(4, 8, 1, 1, 0.0, 0.0, 0.1)), torch_generator(0))
    before = module.input_proj.weight.detach().clone()
    updates = Updates(module, torch.optim.SGD(module.parameters(), lr=1.0), max_gradient_norm=0.5)  # type: ignore[arg-type]
    updates.take(Step(1000 * module.input_proj.weight.sum(), {}), 20)
    # Logged before the clip; 8 x 4 ones.
    assert updates.means()["grad_norm"] == pytest.approx(1000 * math.sqrt(32), rel=1e-5)
    moved = (module.input_proj.weight.detach() - before).norm()
    assert float(moved) == pytest.approx(0.5, rel=1e-4)  # clip adds 1e-6 to the norm it divides by


def test_rce_learns_a_rotation(tmp_path: Path) -> None:
    chain = Chain(
        tmp_path,
        rce=Rce(batch_queries=8, learning_rate=3e-3, passes=4, temperature_start=0.5, temperature_end=0.5),
        selector=Selector(width=32, dropout=0.0, attention_dropout=0.0),
        reward=Reward(mode="hard_only", hard=5.0),  # e^5 to 1: at temperature 1 nearly all weight is on the good one
        files=learnable_files(tmp_path),
    )
    chain.initialise()
    losses = [chain.epoch("rce", epoch).values["val_loss"] for epoch in (1, 2, 3, 4)]
    # ln 16 + ln 15 = 5.48 is guessing, on queries that training has not seen
    assert losses[-1] < math.log(16) + math.log(15) - 1.0, losses
    assert losses[-1] < losses[0]


def learnable_files(folder: Path) -> dict[str, Path]:
    """Write a problem whose rewarded candidates are the two nearest after a fixed rotation of the query."""
    n_queries, n_train, size = 300, 600, 16
    arrays = embedding_arrays(n_train)
    rotation = np.linalg.qr(np.random.default_rng(5).standard_normal((12, 12)))[0]
    vectors = fuse(arrays["image"], arrays["question"])
    rng = np.random.default_rng(6)
    groups = []
    for of in random_pools(n_queries, n_train, size=size):
        nearest = np.argsort(-(vectors[list(of.candidates)] @ (rotation @ vectors[of.query_id])))
        rows = [trajectory(of, nearest[:2].tolist(), 1.0)]
        rows += [trajectory(of, rng.permutation(nearest[2:])[:2].tolist(), 0.0) for _ in range(4)]
        groups.append(make_group(example(of.query_id), of, rows))
    files = {"rl_data": folder / "rl_data.jsonl", "embeddings": folder / "embeddings.safetensors"}
    storage.write_rows(files["rl_data"], groups)
    storage.write_arrays(files["embeddings"], arrays)
    return files
