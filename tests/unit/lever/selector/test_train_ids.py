"""The language model over train ids: its size, its losses, and what it writes."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from lever_pipe.base.seeding import torch_generator
from lever_pipe.base.shapes import ShapeError
from lever_pipe.lever.networks.train_ids import (
    SPECIAL,
    IdsArchitecture,
    TrainIds,
    build_train_ids,
    initialise_train_ids,
    write_greedily,
)

N, WIDTH = 30, 16


def model(seed: int = 0, *, n: int = N, layers: int = 2) -> TrainIds:
    """Return an untrained model whose logits differ enough to choose by."""
    module = initialise_train_ids(
        build_train_ids(IdsArchitecture(n, WIDTH, layers, 4, 0.1)), torch_generator(seed, "x")
    )
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() > 1:
                parameter.mul_(20)
    return module.eval()


def vectors(rows: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, WIDTH, generator=torch_generator(seed, "vectors", rows))


def test_the_published_size() -> None:
    """OK-VQA: (9,009 + 3) x 512 words, 1,024 positions, two layers of 12 x 512^2 + 13 x 512, and the last norm."""
    with torch.device("meta"):
        module = TrainIds(IdsArchitecture(9009, 512, 2, 8, 0.1))
    sizes = 9012 * 512 + 1024 * 512 + 2 * (12 * 512**2 + 13 * 512) + 2 * 512
    assert sum(parameter.numel() for parameter in module.parameters()) == sizes == 11_444_224


@pytest.mark.parametrize("shots", [1, 2, 4])
def test_a_head_that_knows_nothing_has_the_uniform_loss(shots: int) -> None:
    """ln(N + 3), at OK-VQA 9.106; the positions are QUERY, the demonstrations and EOS."""
    module, ids = model(), torch.randint(0, N, (5, shots), generator=torch_generator(0, "ids"))
    with torch.no_grad():
        module.wte.weight.zero_()
        log_probs = module.log_probs(vectors(5), ids, vectors(N))
    assert log_probs.shape == (5, shots + 2)
    assert torch.allclose(-log_probs, torch.tensor(math.log(N + SPECIAL)), atol=1e-6)
    assert math.log(9009 + SPECIAL) == pytest.approx(9.106, abs=1e-3)


def test_a_word_depends_on_those_before_it_alone() -> None:
    module, query, train = model(), vectors(2), vectors(N)
    ids = torch.tensor([[3, 7, 9], [3, 7, 11]])
    with torch.no_grad():
        logits = module(query[:1].expand(2, -1), ids, train)
    assert torch.equal(logits[0, :4], logits[1, :4])
    assert not torch.allclose(logits[0, 4], logits[1, 4])


def test_log_probs_are_those_of_the_words_that_follow() -> None:
    module, query, train, ids = model(), vectors(2), vectors(N), torch.tensor([[3, 7], [8, 1]])
    with torch.no_grad():
        logits, found = module(query, ids, train).log_softmax(dim=-1), module.log_probs(query, ids, train)
    for row in range(2):
        words = [N + 2, *ids[row].tolist(), N]  # QUERY is the last word, EOS the first behind the ids
        assert found[row].tolist() == pytest.approx([float(logits[row, t, word]) for t, word in enumerate(words)])


def test_embeddings_enter_at_their_places() -> None:
    """The query's is seen from QUERY on, a demonstration's from its own place on, and no other is seen at all."""
    module, query, train, ids = model(), vectors(1), vectors(N), torch.tensor([[3, 7]])
    with torch.no_grad():
        base = module(query, ids, train)
        changed = {"query": module(query + 1, ids, train)}
        for item in (3, 7, 9):
            other = train.clone()
            other[item] += 1
            changed[str(item)] = module(query, ids, other)
    first = {"query": 1, "3": 2, "7": 3, "9": 4}
    for name, logits in changed.items():
        same = [torch.equal(base[0, t], logits[0, t]) for t in range(4)]
        assert same == [t < first[name] for t in range(4)], name


def test_attention_is_that_of_the_library() -> None:
    """Each layer against torch's own: pre-norm, causal, GELU by tanh."""
    module = model(layers=1)
    layer = module.layers[0]
    x = torch.randn(3, 5, WIDTH, generator=torch_generator(1, "x"))
    with torch.no_grad():
        found = layer(x)
        h = layer.ln_1(x)  # type: ignore[operator]
        q, k, v = (
            part.view(3, 5, 4, -1).transpose(1, 2)
            for part in layer.attn_in(h).chunk(3, dim=-1)  # type: ignore[operator]
        )
        seen = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = x + layer.attn_out(seen.transpose(1, 2).reshape(3, 5, WIDTH))  # type: ignore[operator]
        hidden = torch.nn.GELU(approximate="tanh")(layer.mlp_in(layer.ln_2(y)))  # type: ignore[operator]
        expected = y + layer.mlp_out(hidden)  # type: ignore[operator]
    assert torch.allclose(found, expected, atol=1e-4)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 6), st.booleans())
def test_no_special_word_no_repeat_and_rows_apart(seed: int, batch: int, of_pool: bool) -> None:
    module, query, train = model(seed), vectors(batch, seed), vectors(N, seed)
    draw = torch_generator(seed, "pools")
    pools = torch.stack([torch.randperm(N, generator=draw)[:5] for _ in range(batch)]) if of_pool else None
    four = write_greedily(module, query, train, 4, pools_BK=pools)
    assert int(four.max()) < N
    assert all(len(set(row)) == 4 for row in four.tolist())
    for shots in (1, 2, 3):
        assert torch.equal(write_greedily(module, query, train, shots, pools_BK=pools), four[:, :shots])
    for row in range(batch):
        own = None if pools is None else pools[row : row + 1]
        assert torch.equal(write_greedily(module, query[row : row + 1], train, 4, pools_BK=own)[0], four[row])
        assert pools is None or set(four[row].tolist()) <= set(pools[row].tolist())


def test_the_whole_train_set_may_be_written() -> None:
    module, query, train = model(n=4), vectors(2), vectors(4)
    assert [sorted(row) for row in write_greedily(module, query, train, 4).tolist()] == [[0, 1, 2, 3]] * 2
    for shots, pools in ((5, None), (3, torch.tensor([[1, 2], [0, 3]])), (0, None)):
        with pytest.raises(ShapeError, match=r"shots must be in 1\.\.K"):
            write_greedily(module, query, train, shots, pools_BK=pools)


def test_fresh_weights_follow_their_stream_and_gpt2() -> None:
    build = IdsArchitecture(400, 64, 2, 8, 0.1)
    one, same, other = (
        initialise_train_ids(build_train_ids(build), torch_generator(seed, "selector")).state_dict()
        for seed in (0, 0, 1)
    )
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["wte.weight"], other["wte.weight"])
    assert float(one["wte.weight"].std()) == pytest.approx(0.02, rel=0.05)
    assert float(one["layers.0.mlp_out.weight"].std()) == pytest.approx(0.01, rel=0.05)  # 0.02 / sqrt(2 x 2)
    assert not one["layers.1.attn_in.bias"].any()
    assert (one["ln_f.weight"] == 1).all()


@torch.no_grad()
def test_it_is_the_librarys_gpt2() -> None:
    """With copied weights the stock class gives the logits; it is given the words' and the examples' embeddings."""
    module, query, train = model(), vectors(5), vectors(N)
    ids = torch.rand(5, N, generator=torch_generator(0, "ids")).argsort(dim=-1)[:, :4]
    noise = torch_generator(1, "noise")
    for parameter in module.parameters():  # norms and biases too
        parameter.add_(0.3 * torch.randn(parameter.shape, generator=noise))
    stock = GPT2LMHeadModel(GPT2Config(vocab_size=N + SPECIAL, n_embd=WIDTH, n_layer=2, n_head=4)).eval()
    own = {"attn_in": "attn.c_attn", "attn_out": "attn.c_proj", "mlp_in": "mlp.c_fc", "mlp_out": "mlp.c_proj"}
    weights = {}
    for name, tensor in module.state_dict().items():
        theirs = name.replace("layers.", "h.")
        for ours, part in own.items():
            theirs = theirs.replace(ours, part)
        is_transposed = any(f"{part}.weight" in name for part in own)
        weights[f"transformer.{theirs}"] = tensor.T.contiguous() if is_transposed else tensor
    missing, unexpected = stock.load_state_dict(weights, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])  # which is that of the words
    words = torch.cat([torch.tensor([[N + 1, N + 2]] * 5), ids], dim=1)
    seen = torch.cat([torch.zeros(5, 1, WIDTH), query[:, None], train[ids]], dim=1)
    expected = stock(inputs_embeds=stock.transformer.wte(words) + seen).logits
    assert float(expected.std()) > 1
    torch.testing.assert_close(module(query, ids, train), expected, atol=1e-4, rtol=0)  # sums in another order
