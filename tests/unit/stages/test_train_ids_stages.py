"""The language model over train ids through the stages of every selector."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from builders import WIDTH, embedding_arrays, random_pools
from chains import N_BEAM_QUERIES, SftChain, execution

from lever_pipe.base import storage
from lever_pipe.base.errors import CheckpointError, ConfigError
from lever_pipe.base.records import Selection
from lever_pipe.experiment.config import Selector, Sft
from lever_pipe.experiment.stage_configs import SelectDemonstrationsConfig
from lever_pipe.lever.networks.train_ids import (
    INPUTS,
    ids_architecture,
    ids_terms,
    ids_validation_loss,
    load_train_ids,
)
from lever_pipe.lever.selector.embeddings import EmbeddingTable, read_table
from lever_pipe.lever.training.epoch import read_training_inputs
from lever_pipe.lever.training.supervised import targets_of
from lever_pipe.stages.selections import select_demonstrations

SELECTOR = Selector(network="train_ids", width=WIDTH, layers=1, heads=2, dropout=0.0)
SFT = Sft(batch_queries=8, passes=40, horizon_epochs=2, learning_rate=2e-2, warmup_share=0.0, weight_decay=0.0)


@pytest.fixture
def chain(tmp_path: Path) -> SftChain:
    return SftChain(tmp_path, selector=SELECTOR, sft=SFT)


def test_an_example_is_seen_as_the_sum_of_its_parts(chain: SftChain) -> None:
    arrays = embedding_arrays(60)
    table = read_table(chain.files["embeddings"], torch.device("cpu"), inputs=INPUTS)
    assert table.vectors.numpy() == pytest.approx(arrays["image"] + arrays["question"], abs=1e-6)


def test_it_learns_its_beams_by_heart_and_writes_them(chain: SftChain, tmp_path: Path) -> None:
    rows = [chain.epoch("sft", epoch) for epoch in (1, 2)]
    assert rows[1].values["loss"] < 0.1 < rows[0].values["loss"]
    table, train, validation = read_training_inputs(
        **chain.files, train_share=0.8, device=torch.device("cpu"), inputs=INPUTS
    )
    module = load_train_ids(chain.outputs("sft2")["selector"], ids_architecture(SELECTOR, table))
    with execution():
        found = ids_validation_loss(module, table, targets_of(validation, SFT), SFT)
    assert found == rows[1].values["val_loss"]
    # Queries of the evaluation are the train queries here, so that it writes what it has learned.
    pools = random_pools(N_BEAM_QUERIES, 60)
    storage.write_rows(tmp_path / "pools.jsonl", pools)
    chosen = {}
    for candidates in ("pool", "all"):
        out = tmp_path / f"{candidates}.jsonl"
        select_demonstrations(
            selector=chain.outputs("sft2")["selector"], eval_pools=tmp_path / "pools.jsonl",
            train_embeddings=chain.files["embeddings"], eval_embeddings=chain.files["embeddings"], selections=out,
            config=SelectDemonstrationsConfig(selector=SELECTOR.model_copy(update={"candidates": candidates}), shots=4),
        )  # fmt: skip
        chosen[candidates] = [row.demonstrations for row in storage.read_rows(out, Selection)]
    learned = [
        tuple(of.pools[0][of.selections[0, 0]].tolist()) for of in (train.take(torch.tensor([i])) for i in range(32))
    ]
    for rows_of in chosen.values():
        assert [row[:2] for row in rows_of[:32]] == learned
        assert all(len(set(row)) == 4 for row in rows_of)
    assert all(set(row) <= set(of.candidates) for row, of in zip(chosen["pool"], pools, strict=True))
    assert not all(set(row) <= set(of.candidates) for row, of in zip(chosen["all"], pools, strict=True))


def test_beams_are_weighted_by_their_probability(chain: SftChain) -> None:
    table, train, _ = read_training_inputs(**chain.files, train_share=0.8, device=torch.device("cpu"), inputs=INPUTS)
    module = load_train_ids(chain.outputs("rce0")["selector"], ids_architecture(SELECTOR, table))
    settings = Sft(targets="beams", temperature=0.5)
    with torch.no_grad():
        total = float(ids_terms(module, table, train, settings).total)
        each = []
        for beam in range(3):
            ids = train.pools.gather(1, train.selections[:, beam])
            each.append(-module.log_probs(table.vectors[train.queries], ids, table.vectors).mean(dim=1))
    weights = (train.rewards / 0.5).softmax(dim=1)
    assert total == pytest.approx(float((weights * torch.stack(each, dim=1)).sum(dim=1).mean()), abs=1e-5)


def test_another_width_or_train_set_is_refused(chain: SftChain, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=rf"width of the encoder's embeddings, {WIDTH}, .*found {2 * WIDTH}. Write width: {WIDTH}"
    ):
        SftChain(tmp_path / "other", selector=SELECTOR.model_copy(update={"width": 2 * WIDTH}))
    fewer = EmbeddingTable(torch.zeros(59, WIDTH))
    with pytest.raises(CheckpointError, match="wte"):
        load_train_ids(chain.outputs("rce0")["selector"], ids_architecture(SELECTOR, fewer))
