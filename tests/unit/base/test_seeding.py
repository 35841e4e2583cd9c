from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch

from lever_pipe.base.seeding import generator, stream_seed
from lever_pipe.base.torch_streams import ambient_stream, torch_generator


def test_the_same_name_gives_the_same_stream_on_every_machine() -> None:
    # SHA-256 of "0<unit separator>pools<unit separator>17": first eight bytes, top bit dropped
    digest = hashlib.sha256(b"0\x1fpools\x1f17").digest()
    assert stream_seed(0, "pools", 17) == int.from_bytes(digest[:8], "big") // 2
    assert np.array_equal(generator(0, "pools", 17).random(5), generator(0, "pools", 17).random(5))
    draws = [torch.rand(5, generator=torch_generator(0, "pools", 17)) for _ in range(2)]
    assert torch.equal(*draws)


def test_seed_name_order_and_boundaries_matter() -> None:
    keys = [(0, "a", "b"), (1, "a", "b"), (0, "b", "a"), (0, "ab"), (0, "a", "b", ""), (0,)]
    assert len({stream_seed(*key) for key in keys}) == len(keys)
    assert generator(0, "a").random() != generator(0, "b").random()
    first, second = (torch.rand(1, generator=torch_generator(0, name)) for name in "ab")
    assert first.item() != second.item()


def test_drawing_from_one_stream_moves_no_other_and_no_global_state() -> None:
    torch_state = torch.get_rng_state()
    expected = generator(0, "b").random()
    generator(0, "a").random(1000)
    torch.rand(10, generator=torch_generator(0, "a"))
    assert generator(0, "b").random() == expected
    assert torch.equal(torch.get_rng_state(), torch_state)


def test_an_ambient_stream_is_named_and_leaves_no_trace() -> None:
    before = torch.get_rng_state()
    draws = []
    for key in ((0, "dropout", 1), (0, "dropout", 1), (0, "dropout", 2), (1, "dropout", 1)):
        with ambient_stream(*key):
            draws.append(torch.nn.functional.dropout(torch.ones(64), 0.5, training=True))
        assert torch.equal(torch.get_rng_state(), before)
        torch.rand(3)  # whatever the global stream does in between
        torch.set_rng_state(before)
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    assert not torch.equal(draws[0], draws[3])


def test_an_ambient_stream_is_restored_after_a_problem() -> None:
    before = torch.get_rng_state()
    with pytest.raises(KeyError), ambient_stream(0, "dropout"):
        torch.rand(1)
        raise KeyError
    assert torch.equal(torch.get_rng_state(), before)
