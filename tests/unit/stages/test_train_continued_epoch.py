from __future__ import annotations

from pathlib import Path

import pytest
from chains import Chain, execution, same_weights

from lever_pipe.base import storage
from lever_pipe.base.checkpoints import load_tensors
from lever_pipe.base.optimiser import AdamW
from lever_pipe.base.records import EpochMetrics
from lever_pipe.base.seeding import ambient_stream, torch_generator
from lever_pipe.experiment.config import Grpo, Rce
from lever_pipe.lever.selector.embeddings import architecture_of
from lever_pipe.lever.selector.network import load_selector
from lever_pipe.lever.training.loop import Updates, validation_loss
from lever_pipe.lever.training.supervised import rce_epoch

RCE = Rce(batch_queries=4, learning_rate=1e-2, passes=3, temperature_end=0.3, final_learning_rate_share=0.1)
GRPO = Grpo(batch_queries=3, learning_rate=2e-3, weight_decay=0.5, freeze_projections=False)


@pytest.fixture
def chain(tmp_path: Path) -> Chain:
    made = Chain(tmp_path, rce=RCE, grpo=GRPO)  # with dropout, as published
    made.initialise()
    made.rce_epoch(1)
    return made


def test_jobs_are_one_run_of_rce_with_the_learning_rate_of_grpo(chain: Chain) -> None:
    rows = [chain.continued_epoch(epoch) for epoch in (1, 2)]
    data = chain.inputs()
    module = load_selector(chain.outputs("rce1")["selector"], architecture_of(chain.selector, data.table))
    adam = AdamW(module, learning_rate=1.0, weight_decay=0.5)
    settings = Rce(batch_queries=3, learning_rate=2e-3, temperature_start=0.3, temperature_end=0.3, weight_decay=0.5)
    found = []
    with execution():
        for epoch in (1, 2):
            with ambient_stream(0, "continued dropout", epoch):
                order = torch_generator(0, "continued", epoch)
                updates = Updates(module, adam, max_gradient_norm=1.0)
                rce_epoch(updates, data.table, data.train, settings, epoch, order)
            found.append(updates.means() | {"val_loss": validation_loss(module, data.table, data.validation)})
    assert same_weights(chain.outputs("continued2")["selector"], module)
    assert [row.values for row in rows] == found
    assert [value["learning_rate"] for value in found] == pytest.approx([2e-3, 2e-3])


def test_it_takes_as_many_optimiser_steps_as_offline_grpo(chain: Chain) -> None:
    steps = {}
    for name, run in (("grpo", chain.grpo_epoch), ("continued", chain.continued_epoch)):
        for epoch in (1, 2):
            run(epoch)
        moments, about = load_tensors(chain.outputs(f"{name}2")["optimiser"])
        assert about == {"stage": name, "epoch": 2}
        steps[name] = {float(value) for key, value in moments.items() if key.endswith(".step")}
    assert steps["continued"] == steps["grpo"]  # none of RCE's before them


def test_what_is_written_is_named(chain: Chain) -> None:
    row = chain.continued_epoch(1)
    assert row.policy.name == "preset~published/continued/base~1/seed~0/epoch~1"
    assert (row.policy.stage, row.policy.mode, row.policy.kl_beta) == ("continued", "", None)
    assert storage.read_row(chain.outputs("continued1")["metrics"], EpochMetrics) == row
