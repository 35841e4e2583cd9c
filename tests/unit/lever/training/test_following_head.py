"""A head that follows the picks, through training and choice, and what it learns that a ranking cannot."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import small_selectors
import torch
from chains import Chain, in_one_process
from torch import Tensor, nn

from lever_pipe.base.checkpoints import load_tensors
from lever_pipe.base.optimiser import AdamW
from lever_pipe.base.seeding import torch_generator
from lever_pipe.experiment.config import Rce, Selector
from lever_pipe.lever.selector.decoding import greedy
from lever_pipe.lever.selector.embeddings import EmbeddingTable
from lever_pipe.lever.selector.network import Architecture, PointerSelector, build_selector, initialise
from lever_pipe.lever.training.groups import Groups
from lever_pipe.lever.training.grpo import exact_kl
from lever_pipe.lever.training.loop import Step, Updates, policy_entropy, validation_loss
from lever_pipe.lever.training.supervised import rce_epoch
from lever_pipe.losses.sequence import outcome_log_probs, selection_log_probs, step_logits

GRU = Selector(width=16, head="gru")  # dropout 0.5 and attention dropout 0.1, as published


def selector(seed: int = 0, **changed: Any) -> PointerSelector:
    return small_selectors.selector(seed, head="gru", **changed)


def table() -> EmbeddingTable:
    return small_selectors.table(30)


def groups(n: int = 5, shots: int = 3) -> Groups:
    return small_selectors.groups(n, shots=shots, n_examples=30)


def test_gradients_of_the_log_probabilities_are_finite_differences() -> None:
    module, batch = selector(width=4).double(), groups(n=2)
    vectors = table().vectors.double()

    def log_probs(weight: Tensor, bias: Tensor, projection: Tensor) -> Tensor:
        tensors = {"decoder_gru.weight_hh": weight, "decoder_gru.bias_hh": bias, "query_proj.weight": projection}
        scores = torch.func.functional_call(
            Along(module, batch), {f"module.{k}": v for k, v in tensors.items()}, vectors
        )
        return selection_log_probs(scores, batch.selections)

    leaves = (module.decoder_gru.weight_hh, module.decoder_gru.bias_hh, module.query_proj.weight)
    assert torch.autograd.gradcheck(log_probs, tuple(leaf.detach().clone().requires_grad_() for leaf in leaves))


class Along(nn.Module):
    """The scores of a batch as the forward of a module, whose parameters can then be exchanged."""

    def __init__(self, module: PointerSelector, batch: Groups) -> None:
        super().__init__()
        self.module, self.batch = module, batch

    def forward(self, vectors: Tensor) -> Tensor:
        return EmbeddingTable(vectors).scores(self.module, self.batch)


def test_entropy_and_divergence_are_those_of_the_steps() -> None:
    policy, anchor, batch = selector(3), selector(4), groups()
    scores, anchors = (table().scores(module, batch).detach() for module in (policy, anchor))
    first = policy(table().vectors[batch.queries], table().vectors[batch.pools]).detach().softmax(dim=-1).double()
    assert float(policy_entropy(scores)) == pytest.approx(float(-(first * first.log()).sum(dim=-1).mean()), rel=1e-5)
    # step by step over the candidates that are left, one selection after the other
    total = 0.0
    for b, g, s in itertools.product(range(5), range(4), range(3)):
        left = [k for k in range(7) if k not in batch.selections[b, g, :s].tolist()]
        p, r = (x[b, g, s, left].double().softmax(dim=-1) for x in (scores, anchors))
        total += float((p * (p / r).log()).sum()) / (5 * 4 * 3)
    outcomes = [outcome_log_probs(of, batch.selections) for of in (scores, anchors)]
    assert float(exact_kl(*outcomes, batch.valid)) == pytest.approx(total, rel=1e-5)  # float32
    assert total > 0.01


def test_jobs_of_one_epoch_are_one_run_and_the_head_trains_in_both_phases(tmp_path: Path) -> None:
    chain = Chain(tmp_path, selector=GRU)
    chain.initialise()
    runs = [("rce", 1), ("rce", 2), ("grpo", 1), ("grpo", 2)]
    jobs = [(chain.epoch(*run), chain.bytes_of("{}{}".format(*run))) for run in runs]
    with in_one_process():
        assert [(chain.epoch(*run), chain.bytes_of("{}{}".format(*run))) for run in runs[:2]] == jobs[:2]
    with in_one_process():
        assert [(chain.epoch(*run), chain.bytes_of("{}{}".format(*run))) for run in runs[2:]] == jobs[2:]
    assert chain.grpo.freeze_projections
    weights = {run: load_tensors(chain.outputs(run)["selector"])[0] for run in ("rce0", "rce1", "grpo2")}
    cell = {f"decoder_gru.{kind}_{side}" for kind in ("weight", "bias") for side in ("ih", "hh")}
    assert cell <= moved(weights["rce0"], weights["rce1"])
    assert moved(weights["rce1"], weights["grpo2"]) == weights["rce1"].keys() - {
        f"{n}.weight" for n in ("input_proj", "query_proj", "cand_proj")
    }


def moved(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    return {name for name in before if not torch.equal(before[name], after[name])}


def test_selections_of_one_shot_leave_the_head_where_it_is() -> None:
    module = selector()
    adam = AdamW(module, learning_rate=0.01, weight_decay=0.0)

    updates = Updates(module, adam, max_gradient_norm=1.0)

    def take(batch: Groups) -> None:
        loss = -selection_log_probs(table().scores(module, batch), batch.selections).mean()
        updates.take(Step(loss, {}), len(batch))

    before, query = module.decoder_gru.weight_hh.detach().clone(), module.query_proj.weight.detach().clone()
    take(groups(shots=1))
    assert torch.equal(module.decoder_gru.weight_hh, before)
    assert not torch.equal(module.query_proj.weight, query)
    take(groups(shots=2))
    assert not torch.equal(module.decoder_gru.weight_hh, before)


def test_a_missing_gradient_elsewhere_is_still_refused() -> None:
    module = selector()
    updates = Updates(module, AdamW(module, learning_rate=0.01, weight_decay=0.0), max_gradient_norm=1.0)
    with pytest.raises(RuntimeError, match="no gradient"):
        updates.take(Step(module.input_proj.weight.sum(), {}), len(groups()))


# A world in which demonstrations complement each other: a question needs two keys out of four, and its pool has three
# candidates of each of them and one of each of the others. All candidates of a key look alike.

COPIES, KEYS = 3, 4
NEEDED = list(itertools.combinations(range(KEYS), 2))
PAIRS = list(itertools.permutations(range(2 * COPIES + KEYS - 2), 2))


def complementary_world() -> tuple[EmbeddingTable, Groups]:
    """Return all ordered pairs of each question, with reward 1 for those that show both keys."""
    keys = torch.eye(KEYS)
    questions = torch.stack([(keys[a] + keys[b]) / math.sqrt(2) for a, b in NEEDED])
    rows = [[*needed * COPIES, *(k for k in range(KEYS) if k not in needed)] for needed in NEEDED]
    pools = torch.stack([torch.tensor(r)[torch.randperm(8, generator=torch_generator(0, *r))] for r in rows])
    selections = torch.tensor(PAIRS).expand(len(NEEDED), -1, -1)
    shown = pools[:, None].expand(-1, len(PAIRS), -1).gather(2, selections).sort(dim=-1).values
    rewards = (shown == torch.tensor(NEEDED)[:, None]).all(dim=-1).float()
    groups = Groups(
        torch.arange(KEYS, KEYS + 6), pools, selections, rewards, torch.ones_like(rewards, dtype=torch.bool)
    )
    return EmbeddingTable(torch.cat([keys, questions])), groups


def expected_reward(scores: Tensor, groups: Groups) -> Tensor:
    return (selection_log_probs(scores, groups.selections).exp() * groups.rewards).sum(dim=1).mean()


BEST_RANKING = COPIES / (2 * COPIES - 1)
"""What a static head can reach. Candidates of a key look alike and so score alike. Let each of m candidates of one key
have the share x/m of all weight and each of the other (1-x)/m; weight on further candidates only loses. Then
    P(both keys) = x (1-x) / (1 - x/m) + (1-x) x / (1 - (1-x)/m) = m (2m-1) y / (m (m-1) + y),  y = x (1-x),
which rises with y up to y = 1/4, where it is m / (2m-1)."""


def test_the_best_ranking_is_the_derived_one() -> None:
    _, groups = complementary_world()
    one = groups.take(torch.tensor([0]))
    keys = one.pools[0]

    def reward(first: float, second: float, others: float) -> float:
        scores = torch.where(keys == 0, first, torch.where(keys == 1, second, others))
        return float(expected_reward(scores[None].double(), one))

    assert reward(0.0, 0.0, -50.0) == pytest.approx(BEST_RANKING, abs=1e-12)
    for gap, others in itertools.product((-3.0, -0.3, 0.0, 0.3, 3.0), (-50.0, -3.0, 0.0)):
        assert reward(gap, 0.0, others) <= BEST_RANKING + 1e-12
    assert reward(0.3, 0.0, -50.0) < BEST_RANKING - 0.001


def trained(head: str, *, objective: str) -> tuple[float, float]:
    """Return expected reward of drawn pairs and reward of greedy ones after 400 steps on the exact objective."""
    table, groups = complementary_world()
    architecture = Architecture(KEYS, 16, 1, 1, 0.0, 0.0, 0.1, head=head)
    module = initialise(build_selector(architecture), torch_generator(0))
    adam = AdamW(module, learning_rate=1e-2, weight_decay=0.0)

    # 0.1: e^10 to 1, so that nearly all weight is on the pairs with a reward
    settings = Rce(
        learning_rate=1e-2, batch_queries=len(groups), temperature_start=0.1, temperature_end=0.1, horizon_epochs=1
    ).model_copy(update={"passes": 400})
    updates = Updates(module, adam, max_gradient_norm=1.0)
    if objective == "rce":
        rce_epoch(updates, table, groups, settings, 1, torch_generator(0))
    else:
        for _ in range(400):
            updates.take(Step(-expected_reward(table.scores(module, groups), groups), {}), len(groups))
    with torch.no_grad():
        drawn = float(expected_reward(table.scores(module.eval(), groups), groups))
        picks = greedy(module, module.encode(table.vectors[groups.queries], table.vectors[groups.pools]), 2)
    best = [PAIRS.index((a, b)) for a, b in picks.tolist()]
    return drawn, float(groups.rewards.gather(1, torch.tensor(best)[:, None]).mean())


@pytest.mark.parametrize("objective", ["rce", "policy gradient"])
def test_a_head_that_follows_learns_to_complement_where_no_ranking_can(objective: str) -> None:
    ranked, _ = trained("static", objective=objective)
    assert BEST_RANKING - 0.01 < ranked <= BEST_RANKING + 1e-6  # it learns all that it can
    drawn, chosen = trained("gru", objective=objective)
    assert drawn > BEST_RANKING + 0.3
    assert chosen == 1.0


def test_validation_is_the_loss_of_its_selections() -> None:
    table, groups = complementary_world()
    module = selector(embedding=KEYS)
    log_probs = selection_log_probs(table.scores(module, groups), groups.selections).detach()
    weights = groups.rewards.softmax(dim=1)  # raw rewards at temperature 1
    assert validation_loss(module, table, groups) == pytest.approx(
        float(-(weights * log_probs).sum(1).mean()), rel=1e-5
    )
    assert step_logits(table.scores(module, groups), groups.selections).shape == (6, 56, 2, 8)
