from __future__ import annotations

from pathlib import Path

import pytest
import torch
from chains import execution, same_weights
from on_policy_chain import DISTIL, DrawnChain, world

from lever_pipe.base import storage
from lever_pipe.base.checkpoints import load_tensors
from lever_pipe.base.errors import CheckpointError
from lever_pipe.base.optimiser import AdamW
from lever_pipe.base.records import EpochMetrics
from lever_pipe.base.seeding import ambient_stream, torch_generator
from lever_pipe.base.storage import read_examples
from lever_pipe.experiment.config import Selector
from lever_pipe.lever.selector.embeddings import architecture_of
from lever_pipe.lever.selector.network import load_selector
from lever_pipe.lever.training.loop import Updates, validation_loss
from lever_pipe.lever.training.supervised import distil_epoch, oracle_targets

BYTES = ("selector.safetensors", "optimiser.safetensors", "metrics.json")


@pytest.fixture
def chain(tmp_path: Path) -> DrawnChain:
    made = DrawnChain(tmp_path, selector=Selector(width=16))  # with dropout, as published
    made.begin()
    return made


def test_three_jobs_are_one_run(chain: DrawnChain) -> None:
    rows = [chain.distil_epoch(epoch) for epoch in (1, 2, 3)]
    data = chain.inputs()
    architecture = architecture_of(chain.selector, data.table)
    module = load_selector(chain.outputs("rce1")["selector"], architecture)
    adam = AdamW(module, learning_rate=DISTIL.learning_rate, weight_decay=DISTIL.weight_decay)
    targets = oracle_targets(read_examples(world() / "train.jsonl"), data.train)
    found = []
    with execution():
        for epoch in (1, 2, 3):
            with ambient_stream(0, "distil dropout", epoch):
                order = torch_generator(0, "distil", epoch)
                updates = Updates(module, adam, max_gradient_norm=1.0)
                distil_epoch(updates, data.table, data.train, targets, DISTIL, order)
            found.append(updates.means() | {"val_loss": validation_loss(module, data.table, data.validation)})
    assert same_weights(chain.outputs("distil3")["selector"], module)
    assert [row.values for row in rows] == found
    assert 0 < rows[0].values["gradient_share"] <= 1


def test_the_same_seed_gives_the_same_bytes_and_the_global_stream_does_not_count(chain: DrawnChain) -> None:
    chain.distil_epoch(1)
    first = chain.written("distil1", BYTES)
    with torch.random.fork_rng():
        torch.manual_seed(99)
        before = torch.get_rng_state()
        chain.distil_epoch(1)
        assert torch.equal(torch.get_rng_state(), before)
    assert chain.written("distil1", BYTES) == first


def test_what_is_written_is_named_and_complete(chain: DrawnChain) -> None:
    for epoch in (1, 2):
        row = chain.distil_epoch(epoch)
        assert row.policy.name == f"preset~p/distil/base~1/seed~0/epoch~{epoch}"
        assert (row.policy.stage, row.policy.mode, row.policy.kl_beta) == ("distil", "", None)
        files = chain.outputs(f"distil{epoch}")
        assert storage.read_row(files["metrics"], EpochMetrics) == row
        moments, about = load_tensors(files["optimiser"])
        assert about == {"stage": "distil", "epoch": epoch}
        # 16 train queries, 4 a batch, 2 passes: 8 steps an epoch, none of RCE's before them
        assert {float(value) for name, value in moments.items() if name.endswith(".step")} == {8.0 * epoch}


def test_another_architecture_is_told(chain: DrawnChain) -> None:
    chain.selector = Selector(width=24)
    with pytest.raises(CheckpointError, match="selector"):
        chain.distil_epoch(1)
