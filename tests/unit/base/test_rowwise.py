"""A row's product has the same bits in any company."""

from __future__ import annotations

import logging

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from lever_pipe.base import portable, rowwise
from lever_pipe.base.rowwise import LEAST_ROWS, TILE_ROWS, WORK, linear
from lever_pipe.base.torch_streams import torch_generator


def sampled(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch_generator(0, *shape))


@pytest.fixture
def tiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rowwise, "keeps_rows", lambda *_: False)
    monkeypatch.setattr(portable, "is_installed", lambda: False)


@settings(max_examples=60)
@given(st.integers(1, 150), st.integers(2, 80), st.integers(1, 70), st.integers(1, 40), st.booleans())
def test_rows_alone_are_rows_in_company(inner: int, outer: int, count: int, first: int, biased: bool) -> None:
    weight, bias = sampled(outer, inner), sampled(outer) if biased else None
    rows = sampled(120, inner)
    assert torch.equal(linear(rows[first : first + count], weight, bias), linear(rows, weight, bias)[first:][:count])


@pytest.mark.parametrize("count", [1, LEAST_ROWS, TILE_ROWS - 1, TILE_ROWS, TILE_ROWS + 1, 100])
def test_tiles_have_one_shape_and_leave_no_trace(count: int, tiled: None, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.Size] = []

    def watched(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        seen.append(rows.shape)
        return nn.functional.linear(rows, weight, bias)

    monkeypatch.setattr(rowwise, "product", watched)
    rows, weight, bias = sampled(count, 24), sampled(10, 24), sampled(10)
    before = WORK["tiles"]
    found = linear(rows, weight, bias)
    assert set(seen) == {torch.Size((TILE_ROWS, 24))}
    assert WORK["tiles"] - before == len(seen) == -(-count // TILE_ROWS)
    # float32 sums of 24 products of magnitude 1 in another order
    torch.testing.assert_close(found, nn.functional.linear(rows, weight, bias), atol=1e-5, rtol=0)


def test_gradients_are_those_of_the_plain_product() -> None:
    """Float64, so that the order of sums does not matter at 1e-12."""
    weight, bias, row = sampled(10, 24).double(), sampled(10).double(), sampled(1, 24).double()
    given = [part.clone().requires_grad_() for part in (row, weight, bias)]
    plain = [part.clone().requires_grad_() for part in (row, weight, bias)]
    (linear(*given) ** 2).sum().backward()
    (nn.functional.linear(*plain) ** 2).sum().backward()
    for one, other in zip(given, plain, strict=True):
        torch.testing.assert_close(one.grad, other.grad, atol=1e-12, rtol=0)


def test_only_plain_linear_layers_are_changed_and_keep_their_weights() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.MultiheadAttention(4, 1), nn.LayerNorm(4))
    names = list(model.state_dict())
    rowwise.rowwise(model)
    assert [type(module) for module in model] == [rowwise.RowwiseLinear, nn.MultiheadAttention, nn.LayerNorm]
    assert list(model.state_dict()) == names


def test_a_machine_that_fails_the_self_test_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def by_company(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return nn.functional.linear(rows, weight, bias) + 1e-7 * (len(rows) % 2)

    monkeypatch.setattr(rowwise, "product", by_company)
    monkeypatch.setattr(portable, "is_installed", lambda: False)
    for cached in (rowwise.keeps_rows, rowwise._warn_once):
        cached.cache_clear()
    try:
        with caplog.at_level(logging.WARNING):
            assert not rowwise.keeps_rows(torch.Size((8, 8)), torch.float32, False, torch.get_num_threads())
            assert not rowwise.keeps_rows(torch.Size((8, 9)), torch.float32, True, torch.get_num_threads())
    finally:
        for cached in (rowwise.keeps_rows, rowwise._warn_once):
            cached.cache_clear()
    assert len(caplog.records) == 1
    assert "tiles of 32 rows" in caplog.text
