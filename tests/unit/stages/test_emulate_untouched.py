from __future__ import annotations

from pathlib import Path

from chains import Chain

from lever_pipe.base import storage
from lever_pipe.base.records import EpochMetrics
from lever_pipe.experiment.emulation import EmulateUntouchedConfig
from lever_pipe.stages.emulation import emulate_untouched


def untouched(chain: Chain) -> dict[tuple[str, int], dict[str, float]]:
    rows = emulate_untouched(
        **chain.files, reference=chain.outputs("rce1")["selector"],
        untouched=chain.folder / "untouched",
        config=EmulateUntouchedConfig(
            preset="p", selector=chain.selector, grpo=chain.grpo, train_share=0.8, base_rce_epoch=1, seed=0
        ),
    )  # fmt: skip
    assert storage.read_rows(chain.folder / "untouched", EpochMetrics) == rows
    assert all(row.policy.beta is None and row.policy.base == 1 for row in rows)
    return {(row.policy.variant, row.policy.epoch or 0): row.values for row in rows}


def test_it_is_what_a_real_epoch_logs_before_its_first_step(tmp_path: Path) -> None:
    chain = Chain(tmp_path)
    chain.grpo = chain.grpo.model_copy(update={"learning_rate": 1e-30, "weight_decay": 0.0, "batch_queries": 16})
    chain.initialise()
    chain.epoch("rce", 1)
    (first, _), values = (chain.epoch("grpo", epoch) for epoch in (1, 2)), untouched(chain)
    right = values["none", 1]
    for name in ("kl", "mean_ratio", "clip_fraction", "std_advantage", "max_advantage", "gradient_share"):
        assert abs(first.values[name] - right[name]) < 1e-6, name  # one batch of 16, in float32
