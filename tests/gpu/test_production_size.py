"""At the size of Qwen2.5-VL-3B the engine stays near the limit of its own counted work."""

from __future__ import annotations

import pytest
import torch

from tests.gpu.production import PRODUCTION, TINY, make_requests, measure

GOAL = 2.5  # seconds over those of the counted work at the rate of a large matrix product


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_engine_stays_near_its_limit() -> None:
    found = measure(PRODUCTION, device="cuda", dtype=torch.bfloat16, n_stock=4)
    ratio = found.seconds / found.limit
    shown = f"{found.seconds:.1f} s, {ratio:.2f} x the limit, stock {found.stock / found.seconds:.1f} x as long"
    print(shown)  # noqa: T201
    assert ratio <= GOAL, shown


def test_the_same_measurement_runs_at_toy_size() -> None:
    found = measure(TINY, device="cpu", dtype=torch.float32, n_stock=2)
    requests = make_requests(TINY)
    assert found.counters["images_encoded"] == len({d for r in requests for d in r.prompt.images})
    assert found.counters["tokens_prefilled"] == found.counters["trie_tokens_distinct"]
    assert found.seconds > 0 < found.stock
