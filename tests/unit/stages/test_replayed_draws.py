"""Offline GRPO on what on-policy GRPO drew."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from chains import Chain, execution, sampled_chain
from lvlm_world import LVLM

from lever_pipe.base import storage
from lever_pipe.base.checkpoints import load_tensors
from lever_pipe.base.errors import RecordError
from lever_pipe.base.optimiser import AdamW
from lever_pipe.base.torch_streams import torch_generator
from lever_pipe.experiment.grpo import Grpo
from lever_pipe.experiment.on_policy import OnPolicy
from lever_pipe.lever.selector.embeddings import FrozenSelector
from lever_pipe.lever.selector.network import architecture_of, load_selector
from lever_pipe.lever.training.draws import load_draws
from lever_pipe.lever.training.groups import Groups
from lever_pipe.lever.training.grpo import grpo_epoch, selected_in_epoch
from lever_pipe.lever.training.loop import Updates

pytestmark = pytest.mark.skipif(not LVLM.is_dir(), reason="the embedded world's model is not there")

GRPO = Grpo(batch_queries=8, learning_rate=1e-2, top_k_first_epoch=4, top_k=4, replays=True)
ON_POLICY = OnPolicy(batch_queries=8, group=4, learning_rate=1e-2, shots=(2,))


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Chain:
    chain = sampled_chain(tmp_path_factory.mktemp("replayed"), grpo=GRPO, on_policy=ON_POLICY)
    chain.begin()
    chain.epoch("on_policy", 1)
    return chain


def draws_of(chain: Chain) -> Path:
    return chain.folder / "on_policy1/draws.safetensors"


def test_a_replayed_epoch_is_grpo_on_each_train_query_with_its_own_draws(chain: Chain) -> None:
    row, data = chain.epoch("grpo", 1, replayed=(draws_of(chain),)), chain.inputs()
    stored = storage.read_arrays(draws_of(chain))
    assert sorted(stored["queries"].tolist()) == data.train.queries.tolist()
    pools = dict(zip(data.train.queries.tolist(), data.train.pools, strict=True))
    sampled = Groups(
        queries=torch.from_numpy(stored["queries"]),
        pools=torch.stack([pools[query] for query in stored["queries"].tolist()]),
        selections=torch.from_numpy(stored["selections"]).long(),
        rewards=torch.from_numpy(stored["rewards"]),
        valid=torch.ones(len(pools), ON_POLICY.group, dtype=torch.bool),
    )
    assert sampled.selections.shape[1:] == (4, 2)
    architecture = architecture_of(chain.selector, data.table.width)
    trained, base = (load_selector(chain.outputs("rce1")["selector"], architecture) for _ in range(2))
    trained.freeze_projections()
    updates = Updates(trained, AdamW(trained, learning_rate=1e-2, weight_decay=0.01), max_gradient_norm=1.0)
    selected = selected_in_epoch(sampled, GRPO, 1)
    with execution():
        anchor, stream = FrozenSelector(base, data.table), torch_generator(0, "grpo", 1)
        grpo_epoch(updates, anchor, data.table, selected, kl_beta=0.15, settings=GRPO, generator=stream)
    theirs, _ = load_tensors(chain.outputs("grpo1")["selector"])
    assert all(torch.equal(theirs[name], tensor) for name, tensor in trained.state_dict().items())
    assert row.values["loss"] == updates.means()["loss"]
    chain.epoch("grpo", 1, run="stored")
    assert chain.bytes_of("stored1")["selector.safetensors"] != chain.bytes_of("grpo1")["selector.safetensors"]


def test_lengths_that_differ_and_queries_that_do_not_train_are_refused(chain: Chain, tmp_path: Path) -> None:
    stored, train = storage.read_arrays(draws_of(chain)), chain.inputs().train
    for name, values, text in (
        ("lengths", stored["lengths"] - (stored["lengths"] == stored["lengths"][0, 0]), "one length"),
        ("queries", stored["queries"] + 10_000, "queries that train"),
    ):
        storage.write_arrays(tmp_path / f"{name}.safetensors", stored | {name: values})
        with pytest.raises(RecordError, match=text):
            load_draws(tmp_path / f"{name}.safetensors", train)
