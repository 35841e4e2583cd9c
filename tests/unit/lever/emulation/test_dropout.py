from __future__ import annotations

from pathlib import Path

import pytest
import torch
from chains import Chain

from lever_pipe.base.seeding import ambient_stream, torch_generator
from lever_pipe.experiment.config import Grpo
from lever_pipe.lever import emulation
from lever_pipe.lever.emulation import epoch_without_updates
from lever_pipe.lever.selector.embeddings import FrozenSelector, architecture_of
from lever_pipe.lever.selector.network import PointerSelector, load_selector
from lever_pipe.lever.training.grpo import kept_in_epoch


@pytest.fixture
def chain(tmp_path: Path) -> Chain:
    """Return a chain with its first RCE epoch."""
    made = Chain(tmp_path, grpo=Grpo(batch_queries=3, learning_rate=1e-2))
    made.initialise()
    made.rce_epoch(1)
    return made


def pair_of(chain: Chain) -> tuple[PointerSelector, FrozenSelector]:
    table = chain.inputs().table
    architecture = architecture_of(chain.selector, table)
    base = chain.outputs("rce1")["selector"]
    policy, reference = (load_selector(base, architecture) for _ in range(2))
    return policy, FrozenSelector(reference.train(), table)


def untouched(
    chain: Chain, pair: tuple[PointerSelector, FrozenSelector], epoch: int, *, has_dropout: bool, stream: int = 0
) -> dict[str, float]:
    data = chain.inputs()
    with ambient_stream(stream, "noise"):
        return epoch_without_updates(
            *pair, data.table, kept_in_epoch(data.train, chain.grpo, epoch), has_dropout=has_dropout, clip_epsilon=0.2,
            generator=torch_generator(0),
        )  # fmt: skip


@pytest.mark.parametrize("epoch", [1, 2])
def test_without_an_update_dropout_alone_makes_a_kl(chain: Chain, epoch: int) -> None:
    right = untouched(chain, pair_of(chain), epoch, has_dropout=False)
    assert (right["kl"], right["kl_exact"], right["mean_ratio"], right["clip_fraction"]) == (0, 0, 1, 0)
    noisy = untouched(chain, pair_of(chain), epoch, has_dropout=True)
    assert noisy["kl"] > 0.01
    assert noisy["kl_exact"] > 0.01
    assert noisy["mean_ratio"] != 1
    # what the data alone decide is the same in both
    for name in ("std_advantage", "max_advantage", "gradient_share"):
        assert noisy[name] == right[name]
    assert "kl_loss" not in right


def test_the_noise_follows_its_stream(chain: Chain) -> None:
    values = [untouched(chain, pair_of(chain), 1, has_dropout=True, stream=of)["kl"] for of in (0, 0, 1)]
    assert values[0] == values[1] != values[2]


def test_means_do_not_depend_on_the_batch(chain: Chain, monkeypatch: pytest.MonkeyPatch) -> None:
    policy, reference = pair_of(chain)
    with torch.no_grad():
        policy.query_proj.weight.add_(0.1)
    whole = untouched(chain, (policy, reference), 1, has_dropout=False)
    monkeypatch.setattr(emulation, "BATCH", 3)  # 16 train queries: five whole batches and one of a single query
    parts = untouched(chain, (policy, reference), 1, has_dropout=False)
    assert whole["kl"] > 0
    assert parts == pytest.approx(whole, rel=0, abs=1e-5)  # float32 sums of values near 1, grouped otherwise
