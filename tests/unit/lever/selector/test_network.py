from __future__ import annotations

import copy
import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from lever_pipe.base.torch_streams import ambient_stream, torch_generator
from lever_pipe.lever.networks.cross_attention import attend
from lever_pipe.lever.selector.network import Architecture, PointerSelector, build_selector, initialise

PUBLISHED = Architecture(
    embedding=512, width=256, layers=1, heads=1, dropout=0.5, attention_dropout=0.1, temperature=0.1
)
SMALL = replace(PUBLISHED, embedding=12, width=16)
GRU = replace(SMALL, head="gru")


def selector(architecture: Architecture = SMALL, seed: int = 0) -> PointerSelector:
    return initialise(build_selector(architecture), torch_generator(seed, "selector")).eval()


def inputs(batch: int = 3, size: int = 8, width: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch_generator(1, "inputs")
    query = torch.randn(batch, width, generator=generator)
    pool = torch.randn(batch, size, width, generator=generator)
    return nn.functional.normalize(query, dim=-1), nn.functional.normalize(pool, dim=-1)


def along(module: PointerSelector, query: torch.Tensor, pool: torch.Tensor, picks: torch.Tensor) -> torch.Tensor:
    """Give the scores of each step along selections that are known: [batch, groups, shots, pool]."""
    return module.following(module.encode(query, pool), picks)


def test_parameters_of_the_published_architecture() -> None:
    # input 512*256; query and candidate 2*256*256; attention 4*256*256 + 4*256; norm 2*256
    total = 512 * 256 + 2 * 256**2 + 4 * 256**2 + 4 * 256 + 2 * 256
    assert total == 525_824
    module = build_selector(PUBLISHED)
    assert sum(p.numel() for p in module.parameters()) == total
    module.freeze_projections()
    trainable = sum(p.numel() for p in module.parameters() if p.requires_grad)
    assert trainable == 263_680
    assert round(100 * trainable / total, 3) == 50.146


def numpy_forward(module: PointerSelector, query: NDArray[np.float64], pool: NDArray[np.float64]) -> list[float]:
    """Score one query by the published formulas, candidate by candidate, for 1 layer and 1 head."""
    w = {name: value.double().numpy() for name, value in module.state_dict().items()}
    q = w["input_proj.weight"] @ query
    candidates = [w["input_proj.weight"] @ c for c in pool]
    to_query, to_key, to_value = np.split(w["cross_attn_layers.0.in_proj_weight"], 3)
    bias_query, bias_key, bias_value = np.split(w["cross_attn_layers.0.in_proj_bias"], 3)
    projected_query = to_query @ q + bias_query
    energies = [projected_query @ (to_key @ c + bias_key) / math.sqrt(len(q)) for c in candidates]
    shares = [math.exp(e) / sum(math.exp(other) for other in energies) for e in energies]
    mixed = sum(share * (to_value @ c + bias_value) for share, c in zip(shares, candidates, strict=True))
    x = w["cross_attn_layers.0.out_proj.weight"] @ mixed + w["cross_attn_layers.0.out_proj.bias"] + q
    x = (x - x.mean()) / math.sqrt(x.var() + 1e-5) * w["attn_norms.0.weight"] + w["attn_norms.0.bias"]
    u = w["query_proj.weight"] @ x
    projected = [w["cand_proj.weight"] @ c for c in candidates]
    return [float(u @ v / np.linalg.norm(u) / np.linalg.norm(v) / 0.1) for v in projected]


def test_forward_is_the_published_formula() -> None:
    module = selector()
    with torch.no_grad():
        for parameter in module.parameters():  # biases and norms start at 0 and 1, which would hide them
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch_generator(2, str(parameter.shape))))
        query, pool = inputs()
        scores = module(query, pool)
    for row in range(len(query)):
        expected = numpy_forward(module, query[row].double().numpy(), pool[row].double().numpy())
        # float32 logits of size 10: 10 * 2^-23 per operation, about a hundred operations
        np.testing.assert_allclose(scores[row].numpy(), expected, atol=1e-4)


def spread_out(module: nn.Module) -> nn.Module:
    """Move all parameters off their symmetric start, biases and norms included."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch_generator(2, name)))
    return module


@pytest.mark.parametrize("heads", [1, 2, 4])
def test_attending_is_the_librarys_attention(heads: int) -> None:
    with ambient_stream(0, "attention"):
        attention = spread_out(nn.MultiheadAttention(16, heads, batch_first=True)).double().eval()
    assert isinstance(attention, nn.MultiheadAttention)
    query = torch.randn(3, 1, 16, generator=torch_generator(3), dtype=torch.float64, requires_grad=True)
    candidates = torch.randn(3, 8, 16, generator=torch_generator(4), dtype=torch.float64, requires_grad=True)
    leaves = [query, candidates, attention.in_proj_weight, attention.out_proj.weight]
    library, _ = attention(query, candidates, candidates, need_weights=False)
    ours = attend(attention, query, candidates)
    # float64 sums of 16 products of size 1, in another order
    torch.testing.assert_close(ours, library, atol=1e-13, rtol=0)
    for mine, theirs in zip(
        torch.autograd.grad(ours.square().sum(), leaves),
        torch.autograd.grad(library.square().sum(), leaves),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs, atol=1e-11, rtol=0)  # sums of 24 such terms, squared: up to 100


def test_attention_dropout_hides_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    with ambient_stream(0, "attention"):
        attention = spread_out(nn.MultiheadAttention(16, 1, dropout=0.5, batch_first=True)).train()
    assert isinstance(attention, nn.MultiheadAttention)
    query, candidates = (torch.randn(2, n, 16, generator=torch_generator(n)) for n in (1, 4))
    factors = torch.tensor([0.0, 2.0, 0.0, 2.0])  # inverted dropout of half
    monkeypatch.setattr(
        "lever_pipe.lever.networks.cross_attention.F.dropout", lambda weights, p, training: weights * factors
    )
    ours = attend(attention, query, candidates)
    w_q, w_k, w_v = attention.in_proj_weight.chunk(3)
    b_q, b_k, b_v = attention.in_proj_bias.chunk(3)
    for row in range(2):
        energies = (candidates[row] @ w_k.T + b_k) @ (w_q @ query[row, 0] + b_q) / 4  # sqrt(16)
        mixed = (energies.softmax(0) * factors) @ (candidates[row] @ w_v.T + b_v)
        torch.testing.assert_close(ours[row, 0], attention.out_proj(mixed), atol=1e-5, rtol=0)  # as above


def numpy_steps(
    module: PointerSelector, query: torch.Tensor, pool: torch.Tensor, picks: list[int]
) -> list[list[float]]:
    """Score each step of one selection by the library's cell."""
    with torch.no_grad():
        encoded = module.encode(query[None], pool[None])
    u, v = encoded.queries[0].double().numpy(), encoded.candidates[0].double().numpy()
    cell = copy.deepcopy(module.decoder_gru).double()
    steps = []
    for pick in picks:
        steps.append([float(u @ candidate) / 0.1 for candidate in v])
        moved = cell(torch.from_numpy(v[pick])[None], torch.from_numpy(u)[None])[0].detach().numpy()
        u = moved / math.sqrt(sum(x * x for x in moved))
    return steps


def test_each_pick_moves_the_query_through_the_cell() -> None:
    module, (query, pool) = selector(GRU), inputs()
    picks = torch.tensor([[[3, 1, 6, 0], [2, 7, 4, 5]], [[0, 1, 2, 3], [3, 2, 1, 0]], [[5, 4, 6, 7], [7, 0, 1, 2]]])
    with torch.no_grad():
        scores = along(module, query, pool, picks)
        first = module(query, pool)
    for b, g in itertools.product(range(3), range(2)):
        expected = numpy_steps(module, query[b], pool[b], picks[b, g].tolist())
        np.testing.assert_allclose(scores[b, g].numpy(), expected, atol=1e-4)  # as above, in float32
        torch.testing.assert_close(scores[b, g, 0], first[b], atol=1e-5, rtol=0)


def test_initial_weights_have_the_published_law() -> None:
    module = selector(PUBLISHED)
    state = module.state_dict()
    for name in ("query_proj.weight", "cand_proj.weight"):
        noise = state[name] - torch.eye(256)
        assert abs(float(noise.std()) - 0.01) < 1e-4  # 65,536 draws: standard error 0.01 / sqrt(2 * 65536) = 2.8e-5
        assert float(noise.abs().max()) < 0.06  # six deviations
    # Xavier uniform: +-sqrt(6 / (in + out)); Kaiming uniform with a = sqrt(5): +-1 / sqrt(in)
    for name, bound in (
        ("input_proj.weight", math.sqrt(6 / 768)),
        ("cross_attn_layers.0.in_proj_weight", math.sqrt(6 / 1024)),
        ("cross_attn_layers.0.out_proj.weight", 1 / 16),
    ):
        largest = float(state[name].abs().max())
        assert 0.999 * bound < largest <= bound * (1 + 1e-6), name
    assert float(state["cross_attn_layers.0.in_proj_bias"].abs().max()) == 0
    assert torch.equal(state["attn_norms.0.weight"], torch.ones(256))
