"""On a CPU an answer's bits do not depend on what is computed beside it, and so not on what the ledger knows."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from on_policy_chain import LVLM, lvlm_config, world

from lever_pipe.answering import Prompter, load_lvlm, read_examples
from lever_pipe.lvlms._layers import LEAST_ROWS, in_company
from lever_pipe.lvlms.protocol import Lvlm, LvlmReply, LvlmRequest
from lever_pipe.stage_configs import Runtime
from lever_pipe.trajectories import references_of

needs_world = pytest.mark.skipif(not LVLM.is_dir(), reason="the embedded world's model is not there")


@pytest.mark.parametrize("shape", [(1, 3), (LEAST_ROWS - 1, 3), (LEAST_ROWS, 3), (2, 5, 3), (4, LEAST_ROWS, 3)])
def test_few_rows_get_company_that_leaves_no_trace(shape: tuple[int, ...]) -> None:
    seen: list[int] = []

    def doubled(rows: torch.Tensor) -> torch.Tensor:
        seen.append(rows[..., 0].numel())
        return torch.cat([2 * rows, rows], dim=-1)

    rows = torch.arange(float(torch.Size(shape).numel())).view(shape)
    assert torch.equal(in_company(doubled, rows), torch.cat([2 * rows, rows], dim=-1))
    assert seen == [max(LEAST_ROWS, torch.Size(shape[:-1]).numel())]


@pytest.fixture(scope="module")
def requests() -> list[LvlmRequest]:
    """Return 40 prompts of ten queries with 1 to 4 demonstrations."""
    train = read_examples(world() / "train.jsonl")
    prompter, draw = Prompter(lvlm_config(), train), random.Random(0)
    chosen = [(q, draw.sample([j for j in range(64) if j != q], 1 + i)) for q in range(10) for i in range(4)]
    return [LvlmRequest(prompter(train[q], ids), references_of(train[q])) for q, ids in chosen]


def load(ledger: Path | None = None) -> Lvlm:
    train = read_examples(world() / "train.jsonl")
    runtime = Runtime(ledger=str(ledger or ""))
    return load_lvlm(lvlm_config(), LVLM, [(train, world() / "train_images")], runtime)


@pytest.fixture(scope="module")
def together(requests: list[LvlmRequest]) -> list[LvlmReply]:
    return load().run(requests)


@needs_world
@pytest.mark.parametrize("size", [1, 2, 7])
def test_a_prompt_answered_in_any_company_has_the_same_bits(
    requests: list[LvlmRequest], together: list[LvlmReply], size: int
) -> None:
    model = load()
    order = list(range(len(requests)))
    random.Random(size).shuffle(order)
    replies: dict[int, LvlmReply] = {}
    for begin in range(0, len(order), size):
        part = order[begin : begin + size]
        replies |= dict(zip(part, model.run([requests[number] for number in part]), strict=True))
    assert [replies[number] for number in range(len(requests))] == together


@needs_world
@pytest.mark.parametrize("unknown", [1, 2, 20])
def test_what_the_ledger_knows_changes_no_bit(
    requests: list[LvlmRequest], together: list[LvlmReply], tmp_path: Path, unknown: int
) -> None:
    load(tmp_path).run(requests[unknown:])
    model = load(tmp_path)
    assert model.run(requests) == together
    assert model.counters["prompts_from_ledger"] == len(requests) - unknown
    assert model.counters["forwards"] > 0
