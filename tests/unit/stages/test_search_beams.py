"""Beam search with the embedded LVLM and its ledger."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from builders import pool
from lvlm_world import CODE, LVLM, N_TRAIN, lvlm_config, world

from lever_pipe.base import storage
from lever_pipe.base.errors import DataError
from lever_pipe.base.records import QueryBeams
from lever_pipe.experiment.beams import Beams, SearchBeamsConfig
from lever_pipe.experiment.job_runtime import Runtime
from lever_pipe.lvlms.asking.answering import load_lvlm
from lever_pipe.lvlms.asking.prompts import Wording
from lever_pipe.lvlms.protocol import LvlmRequest
from lever_pipe.stages.rl_data import anchors_of, search_beams

pytestmark = pytest.mark.skipif(not LVLM.is_dir(), reason="the embedded world's model is not there")

K, SIZE, ANCHORS = 6, 2, 8
A_QUERY = (1 + K) + SIZE * (1 + K - 1)


class Search:
    """Two runs of the stage with one ledger."""

    def __init__(self, folder: Path) -> None:
        rng = np.random.default_rng(0)
        others = [[i for i in range(N_TRAIN) if i != query] for query in range(ANCHORS + 4)]
        self.pools = [pool(query, rng.permutation(of)[:K]) for query, of in enumerate(others)]
        self.folder, self.config = folder, SearchBeamsConfig(lvlm=lvlm_config(), anchors=ANCHORS, size=SIZE)
        storage.write_rows(folder / "pools.jsonl", self.pools)
        self.counters = [self.run(name) for name in ("first", "second")]
        self.rows = storage.read_rows(folder / "first.jsonl", QueryBeams)

    def run(self, name: str) -> dict[str, float]:
        out = {kind: self.folder / f"{name}.{kind}" for kind in ("jsonl", "safetensors", "json")}
        count = search_beams(
            train_pools=self.folder / "pools.jsonl", train_examples=world() / "train.jsonl",
            train_images=world() / "train_images", lvlm=LVLM, beams=out["jsonl"], groups=out["safetensors"],
            counters=out["json"], config=self.config, runtime=Runtime(ledger=str(self.folder / "ledger"), code=CODE),
        )  # fmt: skip
        assert count == self.config.anchors
        found: dict[str, float] = json.loads(out["json"].read_text())
        return found


@pytest.fixture(scope="module")
def search(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Search]:
    threads = torch.get_num_threads()
    yield Search(tmp_path_factory.mktemp("beams"))
    torch.set_num_threads(threads)


def test_no_call_is_paid_twice(search: Search) -> None:
    first, second = search.counters
    assert first["prompts_asked"] == second["prompts_asked"] == ANCHORS * A_QUERY
    assert first["prompts_from_ledger"] == ANCHORS * SIZE  # the parents of the second step
    assert second["prompts_from_ledger"] == second["prompts_distinct"]
    assert second["forwards"] == 0
    assert (search.folder / "second.jsonl").read_bytes() == (search.folder / "first.jsonl").read_bytes()
    assert (search.folder / "second.safetensors").read_bytes() == (search.folder / "first.safetensors").read_bytes()


def test_probabilities_are_those_of_the_real_tokens(search: Search) -> None:
    """RL data contains the sum over the answer and the end of its turn; the span excludes the end."""
    row = search.rows[0]
    train = storage.read_examples(world() / "train.jsonl")
    model = load_lvlm(search.config.lvlm, LVLM, [(train, world() / "train_images")], Runtime())
    query, best = train[row.query_id], row.beams[0]
    prompt = Wording(search.config.lvlm.prompt).prompt(query, [train[i] for i in best.demonstrations])
    (reply,) = model.run([LvlmRequest(prompt, (query.answer,))])
    *span, end = reply.token_log_probs[0]
    assert len(span) == len(model.family.tokenizer(query.answer, add_special_tokens=False).input_ids)
    assert best.probability == pytest.approx(math.exp(sum(span) / len(span)), abs=1e-5)
    assert reply.answer_log_probs[0] == pytest.approx(sum(span) + end)
    others = tuple(dict.fromkeys(example.answer for example in train))
    (reply,) = model.run([LvlmRequest(prompt, others)])
    assert len(others) > 2
    assert sum(math.exp(of[0]) for of in reply.token_log_probs) <= 1 + 1e-5  # of distinct first tokens, no ends


def test_anchors_are_drawn_by_their_own_stream(search: Search) -> None:
    sampled = [tuple(of.query_id for of in anchors_of(search.pools, Beams(anchors=4, seed=seed))) for seed in range(5)]
    assert len(set(sampled)) > 1
    assert all(list(one) == sorted(one) for one in sampled)
    assert [row.query_id for row in search.rows] == [of.query_id for of in anchors_of(search.pools, search.config)]
    with pytest.raises(DataError, match=r"beams\.anchors: "):
        anchors_of(search.pools, Beams(anchors=13))
