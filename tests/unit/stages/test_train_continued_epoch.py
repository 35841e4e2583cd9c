"""Continued RCE, the control for the gain of GRPO over its RCE base."""

from __future__ import annotations

from pathlib import Path

import pytest
from chains import Chain, execution

from lever_pipe.base.checkpoints import load_tensors
from lever_pipe.base.optimiser import AdamW
from lever_pipe.base.torch_streams import ambient_stream, torch_generator
from lever_pipe.experiment.grpo import Grpo
from lever_pipe.experiment.rce import Rce
from lever_pipe.lever.selector.network import architecture_of, load_selector
from lever_pipe.lever.training.loop import Updates, validation_loss
from lever_pipe.lever.training.supervised import rce_epoch


def test_it_is_rce_with_the_data_and_the_optimiser_steps_of_grpo(tmp_path: Path) -> None:
    rce = Rce(batch_queries=4, learning_rate=1e-2, passes=3, temperature_end=0.3, final_learning_rate_share=0.1)
    grpo = Grpo(batch_queries=3, learning_rate=2e-3, weight_decay=0.5, freeze_projections=False)
    chain = Chain(tmp_path, rce=rce, grpo=grpo)
    chain.begin()
    chain.epoch("grpo", 1)
    row, data = chain.epoch("continued", 1), chain.inputs()
    module = load_selector(chain.outputs("rce1")["selector"], architecture_of(chain.selector, data.table.width))
    updates = Updates(module, AdamW(module, learning_rate=1.0, weight_decay=0.5), max_gradient_norm=1.0)
    settings = Rce(batch_queries=3, learning_rate=2e-3, temperature_start=0.3, temperature_end=0.3, weight_decay=0.5)
    with execution():
        with ambient_stream(0, "continued dropout", 1):
            rce_epoch(updates, data.table, data.train, settings, 1, torch_generator(0, "continued", 1))
        assert row.values == updates.means() | {"val_loss": validation_loss(module, data.table, data.validation)}
    assert row.values["learning_rate"] == pytest.approx(2e-3)
    moments = [load_tensors(chain.outputs(run)["optimiser"])[0] for run in ("grpo1", "continued1")]
    of_grpo, own = ({float(of[name]) for name in of if name.endswith(".step")} for of in moments)
    assert own == of_grpo
