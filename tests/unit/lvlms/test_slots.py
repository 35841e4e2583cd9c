from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lever_pipe.lvlms import _memory
from lever_pipe.lvlms._memory import SlotPool

TEXT = SimpleNamespace(num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
DECODER = SimpleNamespace(layers=[SimpleNamespace(self_attn=SimpleNamespace(head_dim=2))])
MODEL = SimpleNamespace(
    config=SimpleNamespace(text_config=TEXT),
    model=SimpleNamespace(language_model=DECODER),
    lm_head=SimpleNamespace(weight=torch.zeros(3, 8)),
)


def pool(limit: int) -> SlotPool:
    return SlotPool(MODEL, limit)


@given(st.lists(st.integers(1, 7), max_size=40), st.randoms(use_true_random=False))
def test_no_slot_is_lent_twice_and_contents_survive_growth(counts, rng) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_memory, "FIRST_SLOTS", 4)
        slots = pool(200)
        lent: list[np.ndarray] = []
        for count in counts:
            if lent and rng.random() < 0.4:
                slots.give(lent.pop(rng.randrange(len(lent))))
            if count > slots.limit - slots.used:
                continue
            taken = slots.take(count)
            lent.append(taken)
            values = torch.as_tensor(taken, dtype=torch.float32)[:, None, None].expand(-1, 2, 2)
            slots.store(1, torch.from_numpy(taken), values, -values)
            every = np.concatenate(lent)
            assert len(set(every.tolist())) == every.size == slots.used <= slots.peak
            keys, stored = slots.read(1, torch.from_numpy(every))
            assert keys[:, 0, 0].tolist() == every.tolist() == (-stored[:, 1, 1]).tolist()


def test_the_limit_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_memory, "FIRST_SLOTS", 4)
    slots = pool(10)
    assert slots.size == 4
    slots.take(9)
    assert slots.size == slots.keys.shape[1] == 10
    with pytest.raises(MemoryError, match="expected 2 free slots of 10; found 1"):
        slots.take(2)
    assert slots.peak == slots.used == 9
