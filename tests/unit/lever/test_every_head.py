"""Properties of every head with every network, and each head's and network's formula by hand."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.stats import chi2
from small_selectors import groups, table
from torch import Tensor

from lever_pipe.base.optimiser import AdamW
from lever_pipe.base.plugins import available, plugin
from lever_pipe.base.records import Pool
from lever_pipe.base.torch_streams import torch_generator
from lever_pipe.experiment.distil import Distil
from lever_pipe.experiment.grpo import Grpo
from lever_pipe.experiment.on_policy import OnPolicy
from lever_pipe.experiment.rce import Rce
from lever_pipe.lever.heads.protocol import Head, HeadSettings
from lever_pipe.lever.selector.decoding import choose, draw, greedy, gumbel
from lever_pipe.lever.selector.drift import kl_to_base
from lever_pipe.lever.selector.embeddings import EmbeddingTable, FrozenSelector, scores_of
from lever_pipe.lever.selector.network import Architecture, Encoded, PointerSelector, build_selector, initialise
from lever_pipe.lever.training.distil import distil_epoch
from lever_pipe.lever.training.grpo import grpo_epoch, grpo_step, reference_log_probs
from lever_pipe.lever.training.loop import Updates, validation_loss
from lever_pipe.lever.training.on_policy import EpochSettings, ScoredSelection, draw_groups, on_policy_epoch
from lever_pipe.lever.training.supervised import rce_epoch
from lever_pipe.losses.sequence import MASKED_SCORE, selection_log_probs, step_log_probs
from lever_pipe.lvlms.asking.prompts import PromptIds

HEADS = available("lever/heads")
NETWORKS = available("lever/networks")
STEPPING = ("gru", "stop")
"""Heads with a step embedding for each shot, if `steps` is above 0."""
BOTH = list(itertools.product(NETWORKS, HEADS))
SMALL = Architecture(embedding=6, width=8, layers=2, heads=2, dropout=0.0, attention_dropout=0.0, temperature=0.5)
PUBLISHED = Architecture(512, 256, 1, 1, 0.5, 0.1, 0.1, steps=2)
N_EXAMPLES, K = 40, 7

every_head = pytest.mark.parametrize("head", HEADS)
every_pair = pytest.mark.parametrize(("network", "head"), BOTH)


def selector(head: str, network: str = "cross_attention", seed: int = 0, **changed: object) -> PointerSelector:
    """Return a selector whose head is far from its start, so that a pick matters to the next."""
    architecture = replace(SMALL, head=head, network=network, **changed)
    module = initialise(build_selector(architecture), torch_generator(seed)).eval()
    with torch.no_grad():
        for name, tensor in module.head.named_parameters():
            tensor.add_(torch.randn(tensor.shape, generator=torch_generator(seed, name)))
    return module


def inputs(batch: int, size: int = K, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch_generator(seed, "inputs")
    return torch.randn(batch, 6, generator=generator), torch.randn(batch, size, 6, generator=generator)


# The parts of each


@every_head
def test_its_tensors_stand_next_to_those_of_the_network_under_the_published_names(head: str) -> None:
    module, bare = (build_selector(replace(PUBLISHED, head=each)) for each in (head, "static"))
    own = {name: tuple(tensor.shape) for name, tensor in module.head.state_dict().items()}
    assert module.state_dict().keys() == bare.state_dict().keys() | own.keys()
    assert not bare.state_dict().keys() & own.keys()
    assert {id(p) for p in module.head.parameters()} <= {id(p) for p in module.parameters()}
    recurrent = {
        "decoder_gru.weight_ih": (768, 256),
        "decoder_gru.weight_hh": (768, 256),
        "decoder_gru.bias_ih": (768,),
        "decoder_gru.bias_hh": (768,),
        "step_emb.weight": (2, 256),
    }
    names = {
        "static": {},
        "blend": {"query_update_weight": ()},
        "gru": recurrent,
        "stop": recurrent | {"stop_token": (1, 256)},
    }
    assert own == names[head]


@every_pair
def test_initial_weights_are_complete_and_come_from_the_generator_alone(network: str, head: str) -> None:
    architecture, states = replace(SMALL, head=head, network=network, steps=3), []
    for seed in (0, 0, 1):
        module, before = build_selector(architecture), torch.get_rng_state()
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.fill_(math.nan)
        states.append(initialise(module, torch_generator(seed)).state_dict())
        assert torch.equal(torch.get_rng_state(), before)
    assert all(bool(value.isfinite().all()) for value in states[0].values())
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
    assert any(not torch.equal(value, states[2][name]) for name, value in states[0].items())


# What must be true of all


@every_pair
def test_permuting_the_pool_permutes_the_picks(network: str, head: str) -> None:
    module, order = selector(head, network).double(), torch.randperm(K, generator=torch_generator(3))
    query, pool = (tensor.double() for tensor in inputs(12))
    noise = gumbel((12, 3, 4, K), torch_generator(4))
    ends = gumbel((12, 3, 4, int(module.head.stops)), torch_generator(5))
    straight, moved = module.encode(query, pool), module.encode(query, pool[:, order])
    back = torch.cat([order, torch.tensor([K])])  # the end of a selection has no place in the pool
    # in float64 two candidates never come as near to each other as rounding
    assert torch.equal(back[greedy(module, moved, 4)], greedy(module, straight, 4))
    sampled = draw(module, straight, torch.cat([noise, ends], dim=-1))
    assert torch.equal(back[draw(module, moved, torch.cat([noise[..., order], ends], dim=-1))], sampled)


@every_pair
def test_fewer_shots_are_a_prefix_without_repeats(network: str, head: str) -> None:
    module, (query, pool) = selector(head, network), inputs(30)
    encoded = module.encode(query, pool)
    every = greedy(module, encoded, K)
    for shots in range(1, K):
        assert torch.equal(greedy(module, encoded, shots), every[:, :shots])
    for row in every.tolist():
        selected = [pick for pick in row if pick < K]
        assert len(set(selected)) == len(selected) >= 1
        assert row == selected + [K] * (K - len(selected))
    if not module.head.stops:
        assert every.sort().values.tolist() == [list(range(K))] * 30


@every_pair
def test_teacher_forcing_and_decoding_see_the_same_logits(network: str, head: str) -> None:
    module, (query, pool) = selector(head, network), inputs(8)
    encoded = module.encode(query, pool)
    picks = greedy(module, encoded, 4)[:, None]
    with torch.no_grad():
        along = module.following(encoded, picks, may_stop=True)[:, 0]
        first = module(query, pool)
    torch.testing.assert_close(along[:, 0, :K], first, atol=1e-5, rtol=0)  # kernels differ by shape
    for row, logits in zip(picks[:, 0].tolist(), along.double().tolist(), strict=True):
        for step, pick in enumerate(row):
            left = [k for k in range(along.shape[-1]) if k not in row[:step]]
            if pick < K:  # an end is compared with all candidates together
                assert logits[step][pick] >= max(logits[step][k] for k in left if k < K) - 1e-5


@every_head
def test_draws_have_the_enumerated_probabilities(head: str) -> None:
    n, module, (query, pool) = 20_000, selector(head), inputs(1, 4)
    encoded = module.encode(query, pool)
    outcomes = module.outcomes(encoded)
    every = [s for s in itertools.product(range(outcomes), repeat=3) if is_selection(s, 4)]
    with torch.no_grad():
        shared = torch.tensor(every)[None]
        steps = step_log_probs(module.following(encoded, shared, may_stop=True).double(), shared)
    # after an end nothing is drawn
    taken = torch.tensor([[4 not in s[:step] for step in range(3)] for s in every])
    expected = n * (steps[0] * taken).sum(dim=-1).exp()
    assert float(expected.sum()) == pytest.approx(n, rel=1e-6)
    found = draw(module, encoded, gumbel((1, n, 3, outcomes), torch_generator(5)))[0].tolist()
    counts = torch.tensor([0.0] * len(every))
    index = {selection: i for i, selection in enumerate(every)}
    for selection in found:
        counts[index[tuple(selection)]] += 1
    enough = expected > 5  # sample sizes for which the chi-square law is valid
    assert int(enough.sum()) > 4
    distance = float(((counts - expected) ** 2 / expected)[enough].sum())
    assert distance < float(chi2.isf(1e-6, int(enough.sum())))


def is_selection(outcomes: tuple[int, ...], stop: int) -> bool:
    """Whether candidates come first, at least one and without repeats, and then the end alone."""
    selected = [pick for pick in outcomes if pick != stop]
    return (
        bool(selected)
        and len(set(selected)) == len(selected)
        and outcomes == (*selected, *[stop] * (len(outcomes) - len(selected)))
    )


@every_pair
def test_a_frozen_selector_says_the_same_bits(network: str, head: str) -> None:
    module = selector(head, network, dropout=0.5, feed_forward=12 * (network == "cross_attention"))
    frozen = FrozenSelector(module.train(), table())
    for n in (1, 2, 33):
        batch = groups(n)
        with torch.no_grad():
            together = table().scores(module.eval(), batch)
            plain = module.encode(table().vectors[batch.queries], table().vectors[batch.pools])
        assert torch.equal(frozen.scores(batch), together)
        assert torch.equal(scores_of(module, plain, batch.selections), together)
    alone = frozen.scores(batch.take(torch.tensor([4])))
    torch.testing.assert_close(alone[0], together[4], atol=1e-5, rtol=0)  # products of candidates are no row's own


@every_pair
def test_a_choice_does_not_depend_on_its_company(network: str, head: str) -> None:
    module, pools = selector(head, network), pools_of(300)  # more queries than are scored at one time
    queries = EmbeddingTable(torch.randn(300, 6, generator=torch_generator(3)))
    rows = choose(module, table(), queries, pools, 4)
    assert choose(module, table(), queries, pools[280:281], 4) == rows[280:281]
    assert choose(module, table(), queries, pools[:7], 4) == rows[:7]


def pools_of(n: int) -> list[Pool]:
    sampled = [torch.randperm(N_EXAMPLES, generator=torch_generator(4, query))[:K].tolist() for query in range(n)]
    return [Pool(query_id=query, candidates=of_query) for query, of_query in enumerate(sampled)]  # type: ignore[arg-type]


@every_pair
def test_the_distance_from_a_base_is_enumerated_where_the_base_would_choose(network: str, head: str) -> None:
    policy, base, queries, pools = selector(head, network, seed=1), selector(head, network), table(), pools_of(12)
    rows, steps = choose(base, table(), queries, pools, 3), list[float]()
    for pool, row in zip(pools, rows, strict=True):
        names = list(pool.candidates)
        picks = [names.index(i) for i in row.demonstrations]
        of_policy, of_base = (list(outcomes_of(module, queries, pool, picks)) for module in (policy, base))
        for p, r in zip(of_policy[:3], of_base[:3], strict=True):
            steps.append(sum(float(a) * math.log(a / b) for a, b in zip(p, r, strict=True) if a > 0))
    assert kl_to_base(policy, base, table(), queries, pools, 3) == pytest.approx(sum(steps) / len(steps), abs=1e-5)
    assert kl_to_base(base, base, table(), queries, pools, 3) == 0
    assert max(steps) > 0.01


@torch.no_grad()
def outcomes_of(
    module: PointerSelector, queries: EmbeddingTable, pool: Pool, picks: list[int]
) -> Iterator[list[float]]:
    """Yield the probabilities of all outcomes, before each pick and after the last, by one step at a time."""
    encoded = module.encode(queries.vectors[[pool.query_id]], queries.vectors[list(pool.candidates)][None])
    state = module.start(encoded, 1)
    for step in range(len(picks) + 1):
        logits = module.head.logits([state], encoded.candidates, may_stop=True)[0, 0, 0].double()
        logits[picks[:step]] = -math.inf
        yield logits.softmax(-1).tolist()
        if step < len(picks):
            state = module.head.after(state, torch.tensor([[picks[step]]]), encoded.candidates)


@every_pair
def test_a_gradient_reaches_every_parameter(network: str, head: str) -> None:
    module, batch = selector(head, network, steps=3 if head in STEPPING else 0).train(), groups()
    scores = module.following(table().encoded(module, batch), batch.selections, may_stop=True)
    loss = selection_log_probs(scores, batch.selections).mean()
    loss.backward()
    dead = [name for name, p in module.named_parameters() if p.grad is None or not bool((p.grad != 0).any())]
    assert dead == []


@every_pair
def test_every_objective_trains_it(network: str, head: str) -> None:
    module, batch = selector(head, network), groups()
    adam = AdamW(module, learning_rate=1e-3, weight_decay=0.0)
    reference = FrozenSelector(selector(head, network, seed=0), table())
    targets = torch.full((len(batch), K), 1 / K)
    sampled = OnPolicy(batch_queries=3, group=4, shots=(1, 3))
    anchored = reference_log_probs(reference, batch)
    scores, chosen = table().scores(module, batch), batch.rewards - 0.5
    same = grpo_step(scores, anchored, batch, chosen, kl_beta=0.1, clip_epsilon=0.2).values
    assert (same["kl"], same["kl_exact"], same["clip_fraction"], same["mean_ratio"]) == (0, 0, 0, 1)
    objectives = (
        lambda of: rce_epoch(of, table(), batch, Rce(batch_queries=3), 1, torch_generator(0)),
        lambda of: grpo_epoch(
            of, reference, table(), (batch, chosen), kl_beta=0.1, settings=Grpo(), generator=torch_generator(0)
        ),
        lambda of: distil_epoch(of, table(), batch, targets, Distil(batch_queries=3), torch_generator(0)),
        lambda of: list(
            on_policy_epoch(
                of, reference, table(), batch, Scorer(),
                EpochSettings(sampled, 1, 0.1), torch_generator(1),
            )
        ),
    )  # fmt: skip
    for epoch in objectives:
        before = {name: p.detach().clone() for name, p in module.named_parameters()}
        updates = Updates(module, adam, max_gradient_norm=1.0)
        epoch(updates)
        assert all(math.isfinite(value) for value in updates.means().values())
        assert any(not torch.equal(p, before[name]) for name, p in module.named_parameters())
    assert math.isfinite(validation_loss(module, table(), batch))


class Scorer:
    """Reward each selection with a number that identifies it."""

    def __init__(self, needed: int = 0) -> None:
        self.prompts: list[PromptIds] = []
        self.needed = needed

    def __call__(self, prompts: list[PromptIds]) -> list[ScoredSelection]:
        self.prompts += prompts
        if self.needed:
            return [ScoredSelection(float(len(chosen) >= self.needed), 0.0) for _, chosen in prompts]
        return [ScoredSelection(math.sin(query + sum(chosen)), float(query % 2)) for query, chosen in prompts]


# Formulas of single heads


def built(head: str, width: int = 2, temperature: float = 1.0, **settings: float) -> Head:
    module: Head = plugin("lever/heads", head).build(HeadSettings(width, temperature, **settings))
    module.initialise(torch_generator(0))
    return module


def test_the_blend_by_hand() -> None:
    blend = built("blend")
    a = 1 / (1 + math.exp(-0.6))
    expected = [a / math.hypot(a, 1 - a), (1 - a) / math.hypot(a, 1 - a)]
    assert [round(a, 3), *(round(x, 3) for x in expected)] == [0.646, 0.877, 0.481]
    after = blend.moved(torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[0.0, 1.0]]]))
    np.testing.assert_allclose(after[0, 0].detach().numpy(), expected, atol=1e-6)
    with torch.no_grad():
        blend.query_update_weight.fill_(40.0)  # type: ignore[operator]
        assert blend.moved(torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[0.0, 1.0]]])).tolist() == [[[1.0, 0.0]]]


def test_the_bi_encoder_is_the_published_formula() -> None:
    module, (query, pool) = selector("blend", "bi_encoder"), inputs(3)
    w = {name: value.double().numpy() for name, value in module.state_dict().items()}

    def mapped(x: np.ndarray, side: str) -> np.ndarray:
        for first, norm, is_last in ((0, 1, False), (4, 5, True)):
            x = w[f"{side}_proj.{first}.weight"] @ x + w[f"{side}_proj.{first}.bias"]
            x = (x - x.mean()) / math.sqrt(x.var() + 1e-5)
            x = x * w[f"{side}_proj.{norm}.weight"] + w[f"{side}_proj.{norm}.bias"]
            x = x if is_last else np.maximum(x, 0)
        return x / np.linalg.norm(x)

    with torch.no_grad():
        scores = module(query, pool)
    for row in range(3):
        u = mapped(query[row].double().numpy(), "query")
        expected = [u @ mapped(one.double().numpy(), "cand") / 0.5 for one in pool[row]]
        np.testing.assert_allclose(scores[row].numpy(), expected, atol=1e-5)


def test_step_embeddings_move_what_is_scored_and_not_the_state() -> None:
    head, plain = built("gru", width=8, steps=2).double(), built("gru", width=8).double()
    plain.load_state_dict({name: value for name, value in head.state_dict().items() if name != "step_emb.weight"})
    generator = torch_generator(1)
    h, candidates = (
        torch.randn(2, 1, 8, generator=generator).double(),
        torch.randn(2, 5, 8, generator=generator).double(),
    )
    picks = torch.tensor([[1], [3]])
    states, bare = [head.start(h)], [plain.start(h)]
    states.append(head.after(states[0], picks, candidates))
    bare.append(plain.after(bare[0], picks, candidates))
    for step in (0, 1):
        assert torch.equal(states[step].vectors, bare[step].vectors)
        e = head.state_dict()["step_emb.weight"][step]
        expected = F.normalize(bare[step].vectors + e, dim=-1) @ candidates.transpose(1, 2)
        found = head.logits([states[step]], candidates)[:, :, 0]
        torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)
    assert not torch.equal(head.logits(states, candidates), plain.logits(bare, candidates))
    with pytest.raises(IndexError):
        head.logits([head.after(states[1], picks, candidates)], candidates)


# A head that may stop


def test_an_end_is_never_first_and_absorbs() -> None:
    module, (query, pool) = selector("stop"), inputs(40)
    with torch.no_grad():
        module.stop_token.mul_(3.0)
    encoded = module.encode(query, pool)
    sampled = draw(module, encoded, gumbel((40, 50, 5, K + 1), torch_generator(0)))
    for picks in (greedy(module, encoded, 5)[:, None], sampled):
        ended = picks == K
        assert not ended[..., 0].any()
        assert torch.equal(ended, ended.cummax(dim=-1).values)  # once ended, always
        assert float(ended[..., -1].float().mean()) > 0
    with torch.no_grad():
        logits = module.following(encoded, sampled, may_stop=True)
    assert float(logits[:, :, 0, K].max()) == MASKED_SCORE
    state = module.head.after(module.start(encoded, 50), sampled[..., 0], encoded.candidates).vectors
    odds = (state * module.stop_token[0]).sum(dim=-1).double() / 0.5 - 1
    found = step_log_probs(logits.double(), sampled)[:, :, 1][sampled[:, :, 1] == K]
    expected = F.logsigmoid(odds)[sampled[:, :, 1] == K].detach()
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(ends_at(logits.double(), sampled), odds.sigmoid().detach(), atol=1e-5, rtol=0)


def ends_at(logits: Tensor, sampled: Tensor) -> Tensor:
    """Return the probability of the end after one pick, whatever was drawn then."""
    ended = sampled.clone()
    ended[..., 1] = K
    return step_log_probs(logits, ended)[:, :, 1].exp()


def sampled_with(price: float, shots: tuple[int, ...] = (2, 5)) -> tuple[PointerSelector, Scorer, object]:
    module, scorer = selector("stop"), Scorer()
    settings = OnPolicy(group=6, shots=shots, stop_price=price)
    return module, scorer, draw_groups(module, table(), groups(), scorer, settings, torch_generator(0))


def test_draws_are_asked_up_to_their_end_and_pay_for_it() -> None:
    module, scorer, free = sampled_with(0.0)
    _, _, paid = sampled_with(0.25)
    most = [2, 5, 2, 5, 2, 5]  # lengths come in turn
    prompts = iter(scorer.prompts)
    ended = 0
    for row, of_query in enumerate(free.groups.selections.tolist()):
        for g, selection in enumerate(of_query):
            query, chosen = next(prompts)
            selected = [pick for pick in selection[: most[row]] if pick < K]
            assert query == row
            assert list(chosen) == [int(free.groups.pools[row, pick]) for pick in selected]
            assert int(free.lengths[row, g]) == len(selected)
            steps = min(len(selected) + 1, most[row])  # the draw of the end counts, a bound is no draw
            assert free.taken[row, g].tolist() == [step < steps for step in range(5)]
            worth = float(free.groups.rewards[row, g])
            assert float(paid.groups.rewards[row, g]) == pytest.approx(worth - 0.25 * len(selected), abs=1e-6)
            ended += len(selected) < most[row]
    assert 0 < ended < 36
    with torch.no_grad():
        scores = table().scores(module, free.groups, may_stop=True)
    steps = step_log_probs(scores, free.groups.selections)
    expected = torch.where(free.taken, steps, torch.zeros(())).sum(dim=-1)
    torch.testing.assert_close(free.log_probs, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("needed", [1, 2])
def test_it_learns_to_stop_where_more_costs_more_than_it_gives(needed: int) -> None:
    module = initialise(build_selector(replace(SMALL, head="stop")), torch_generator(0)).eval()
    reference = FrozenSelector(module, table())
    adam, batch = AdamW(module, learning_rate=1.0, weight_decay=0.0), groups(n=24)
    settings = OnPolicy(learning_rate=3e-2, batch_queries=8, group=8, shots=(4,), stop_price=0.1, updates=1)
    lengths = []
    for epoch in range(1, 16):
        scorer = Scorer(needed=needed)
        updates = Updates(module, adam, max_gradient_norm=1.0)
        list(
            on_policy_epoch(
                updates, reference, table(), batch, scorer,
                EpochSettings(settings, epoch, 0.0), torch_generator(1, epoch),
            )
        )  # fmt: skip
        lengths.append(updates.means()["shots"])
    assert lengths[0] > 2.5  # untrained it hardly stops
    picks = greedy(module, Encoded(*table().encoded(module, batch)), 4)
    chosen = (picks < K).sum(dim=1)
    assert float((chosen == needed).float().mean()) > 0.9
