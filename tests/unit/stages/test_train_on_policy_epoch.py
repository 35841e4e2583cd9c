from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import example
from chains import execution, same_weights
from on_policy_chain import LVLM, ON_POLICY, SELECTOR, TRAINED, DrawnChain, lvlm_config, world

from lever_pipe.base import storage
from lever_pipe.base.checkpoints import load_tensors
from lever_pipe.base.errors import CheckpointError
from lever_pipe.base.optimiser import AdamW
from lever_pipe.base.records import EpochMetrics, ExampleId
from lever_pipe.base.seeding import torch_generator
from lever_pipe.base.storage import read_examples
from lever_pipe.experiment.config import OnPolicy, Reward
from lever_pipe.experiment.stage_configs import Runtime
from lever_pipe.lever.selector.embeddings import FrozenSelector, architecture_of
from lever_pipe.lever.selector.network import load_selector
from lever_pipe.lever.training.loop import Updates, trained_share, validation_loss
from lever_pipe.lever.training.on_policy import Asked, Judged, Spent, judged_by_lvlm, on_policy_epoch
from lever_pipe.lever.trajectories import references_of
from lever_pipe.lvlms.asking.answering import load_lvlm
from lever_pipe.lvlms.asking.prompts import Prompter, Wording
from lever_pipe.lvlms.protocol import LvlmReply, LvlmRequest
from lever_pipe.stages import selector_training

pytestmark = pytest.mark.skipif(not LVLM.is_dir(), reason="the embedded world's model is not there")


class First:
    """Two epochs from a cold ledger, and what they asked, call by call."""

    def __init__(self, folder: Path) -> None:
        self.chain = DrawnChain(folder)
        self.chain.begin()
        self.ledger = folder / "ledger"
        self.calls: list[list[Asked]] = []
        self.rows = []

        def listening(asked: Sequence[Asked], **how: Any) -> list[Judged]:
            self.calls.append(list(asked))
            return judged_by_lvlm(asked, **how)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(selector_training, "judged_by_lvlm", listening)
            self.rows = [self.chain.on_policy_epoch(epoch, ledger=self.ledger) for epoch in (1, 2)]

    @property
    def asked(self) -> list[Asked]:
        """Return the different prompts of epoch 1, as they were first asked."""
        return list(dict.fromkeys(one for call in self.calls[:2] for one in call))

    def counters(self, run: str) -> dict[str, float]:
        found: dict[str, float] = json.loads((self.chain.folder / run / "counters.json").read_text())
        return found


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Iterator[First]:
    threads = torch.get_num_threads()
    yield First(tmp_path_factory.mktemp("drawn"))
    torch.set_num_threads(threads)


def requests_of(asked: Sequence[Asked]) -> list[LvlmRequest]:
    train = read_examples(world() / "train.jsonl")
    prompter = Prompter(Wording(lvlm_config().prompt), train)
    return [LvlmRequest(prompter(train[query], chosen), references_of(train[query])) for query, chosen in asked]


def ask(ledger: Path, asked: Sequence[Asked], size: int) -> None:
    """Ask in calls of `size` prompts, in another order than training does."""
    train = read_examples(world() / "train.jsonl")
    model = load_lvlm(lvlm_config(), LVLM, [(train, world() / "train_images")], Runtime(ledger=str(ledger)))
    requests = requests_of(random.Random(0).sample(list(asked), len(asked)))
    for begin in range(0, len(requests), size):
        model.run(requests[begin : begin + size])


def test_the_same_seed_gives_the_same_bytes(first: First) -> None:
    first.chain.on_policy_epoch(1, run="again")  # without a ledger
    assert first.chain.written("again1") == first.chain.written("drawn1")
    before, after = (load_tensors(first.chain.outputs(run)["selector"])[0] for run in ("rce1", "drawn1"))
    assert not any(torch.equal(before[name], after[name]) for name in before if name.endswith("proj.weight"))


def test_a_rerun_asks_the_lvlm_nothing(first: First) -> None:
    for epoch in (1, 2):
        first.chain.on_policy_epoch(epoch, run="warm", ledger=first.ledger)
        assert first.chain.written(f"warm{epoch}") == first.chain.written(f"drawn{epoch}")
        counters = first.counters(f"warm{epoch}")
        assert counters["prompts_from_ledger"] == counters["prompts_distinct"] > 0
        assert (counters["forwards"], counters["images_encoded"], counters["flop"]) == (0, 0, 0)


@pytest.mark.parametrize(("unknown", "size"), [(1, 11), (2, 8), (20, 9)])
def test_what_a_ledger_knows_changes_no_bit(first: First, unknown: int, size: int) -> None:
    """The prompts that are known were asked in other company."""
    ledger = first.chain.folder / f"ledger-without-{unknown}"
    known = random.Random(1).sample(first.asked, len(first.asked) - unknown)
    ask(ledger, known, size)
    run = f"knowing{unknown}-"
    first.chain.on_policy_epoch(1, run=run, ledger=ledger)
    assert first.chain.written(f"{run}1") == first.chain.written("drawn1")
    counters = first.counters(f"{run}1")
    calls = [set(call) for call in first.calls[:2]]
    met = set(known)
    from_ledger = 0
    for call in calls:
        from_ledger += len(call & met)
        met |= call
    assert counters["prompts_from_ledger"] == from_ledger
    assert counters["prompts_distinct"] == sum(map(len, calls))
    assert counters["forwards"] > 0


def test_another_betas_run_that_came_before_changes_no_bit(first: First) -> None:
    ledger = first.chain.folder / "ledger-of-another-beta"
    first.chain.on_policy_epoch(1, run="other", kl_beta=10.0, ledger=ledger)
    first.chain.on_policy_epoch(1, run="after", ledger=ledger)
    assert first.chain.written("after1") == first.chain.written("drawn1")
    assert first.chain.written("other1") != first.chain.written("drawn1")
    counters = first.counters("after1")
    first_batch = len(set(first.calls[0]))  # drawn before anything was learned: shared by all betas
    assert counters["prompts_from_ledger"] >= first_batch
    assert counters["forwards"] > 0


def test_two_jobs_are_one_run(first: First) -> None:
    """In one process weights, moments, LVLM and its memory of answers go on from the first epoch to the second."""
    chain, data = first.chain, first.chain.inputs()
    architecture = architecture_of(chain.selector, data.table)
    module, anchor = (load_selector(chain.outputs("rce1")["selector"], architecture) for _ in range(2))
    adam = AdamW(module, learning_rate=1.0, weight_decay=chain.on_policy.weight_decay)
    train = read_examples(world() / "train.jsonl")
    model = load_lvlm(lvlm_config(), LVLM, [(train, world() / "train_images")], Runtime())
    with execution():
        for epoch in (1, 2):
            prompter = Prompter(Wording(lvlm_config().prompt), train)
            judge = partial(judged_by_lvlm, train=train, model=model, prompter=prompter, reward=chain.on_policy.reward)
            updates = Updates(module, adam, max_gradient_norm=1.0)
            spent = list(
                on_policy_epoch(
                    updates, FrozenSelector(anchor, data.table), data.table, data.train, judge,
                    chain.on_policy, epoch=epoch, kl_beta=0.15, clips=True,
                    generator=torch_generator(0, "on policy", epoch),
                )
            )  # fmt: skip
            held_out = validation_loss(module, data.table, data.validation)
            values = updates.means() | {"val_loss": held_out, "kl_beta": 0.15}
            values |= {"trained_share": trained_share(module), "lvlm_prompts": float(spent[-1].prompts)}
            assert same_weights(chain.outputs(f"drawn{epoch}")["selector"], module)
            moments, about = load_tensors(chain.outputs(f"drawn{epoch}")["optimiser"])
            assert about == {"stage": "on_policy", "epoch": epoch}
            assert all(torch.equal(moments[name], value) for name, value in adam.state().items())
            assert first.rows[epoch - 1].values == values
            rows = chain.steps(f"drawn{epoch}")
            assert [Spent(row.step, row.prompts, row.values) for row in rows] == spent
    # 16 train queries, 8 a batch, 2 updates: 4 optimiser steps an epoch
    assert {float(value) for name, value in moments.items() if name.endswith(".step")} == {8.0}


def test_everything_asked_is_counted(first: First) -> None:
    for epoch in (1, 2):
        calls = first.calls[2 * epoch - 2 : 2 * epoch]
        assert [len(call) for call in calls] == [8 * 4] * 2
        for call in calls:
            assert Counter(len(chosen) for _, chosen in call) == dict.fromkeys((1, 2, 3, 4), 8)
        rows = first.chain.steps(f"drawn{epoch}")
        met: set[Asked] = set()
        for number, (row, call) in enumerate(zip(rows, calls, strict=True)):
            met |= set(call)
            assert (row.step, row.prompts) == (number, len(met))
            assert row.policy == first.rows[epoch - 1].policy
        assert first.rows[epoch - 1].values["lvlm_prompts"] == len(met)
        counters = first.counters(f"drawn{epoch}")
        distinct = sum(len(set(call)) for call in calls)
        assert counters["prompts_asked"] == counters["prompts_distinct"] == distinct
        images = sum(len(chosen) + 1 for call in calls for _, chosen in set(call))
        assert counters["images_shown"] == images
    queries = [query for call in first.calls[:2] for query, _ in call]
    assert Counter(queries) == dict.fromkeys(range(16), 4)  # one pass over the train part


def test_metrics_are_those_of_the_epoch(first: First) -> None:
    for epoch, row in enumerate(first.rows, start=1):
        files = first.chain.outputs(f"drawn{epoch}")
        assert storage.read_row(files["metrics"], EpochMetrics) == row
        assert row.policy.name == f"preset~p/on_policy/base~1/beta~0.15/seed~0/epoch~{epoch}"
        assert (row.policy.stage, row.policy.mode, row.policy.kl_beta) == ("grpo", "on_policy", 0.15)
        written = {path.name for path in files["metrics"].parent.iterdir() if not path.is_dir()}
        assert written == {*TRAINED, "counters.json"}
    assert first.rows[0].values["kl"] < first.rows[1].values["kl"]  # the anchor stays at the base


def test_reinforce_clips_nothing_and_is_named_apart(first: First) -> None:
    settings = OnPolicy(**ON_POLICY.model_dump() | {"advantages": "batch", "clip_epsilon": 1e-9})
    chain = DrawnChain(first.chain.folder, on_policy=settings)
    row = chain.on_policy_epoch(1, run="score", objective="reinforce", kl_beta=0.0, ledger=first.ledger)
    assert row.policy.name == "preset~p/reinforce/base~1/beta~0/seed~0/epoch~1"
    assert (row.policy.stage, row.policy.mode) == ("reinforce", "on_policy")
    assert row.values["clip_fraction"] == 0.0
    assert row.values["mean_ratio"] != 1.0
    _, about = load_tensors(chain.outputs("score1")["optimiser"])
    assert about == {"stage": "reinforce", "epoch": 1}
    ours, theirs = chain.steps("score1")[0], chain.steps("drawn1")[0]
    for name in ("reward", "accuracy", "entropy"):  # the first batch is drawn by the base in both
        assert ours.values[name] == theirs.values[name]


def test_frozen_projections_stay_as_they_are(first: First) -> None:
    frozen = OnPolicy(**ON_POLICY.model_dump() | {"freeze_projections": True})
    chain = DrawnChain(first.chain.folder, on_policy=frozen)
    row = chain.on_policy_epoch(1, run="frozen", ledger=first.ledger)
    base, tuned = (load_tensors(chain.outputs(run)["selector"])[0] for run in ("rce1", "frozen1"))
    kept = {name for name in base if torch.equal(base[name], tuned[name])}
    assert kept == {"input_proj.weight", "query_proj.weight", "cand_proj.weight"}
    assert 0 < row.values["trained_share"] < 1


def test_another_architecture_is_told(first: First) -> None:
    chain = DrawnChain(first.chain.folder, selector=first.chain.selector.model_copy(update={"width": 24}))
    with pytest.raises(CheckpointError, match="selector"):
        chain.on_policy_epoch(1, run="wide", ledger=first.ledger)


class Echo:
    """An LVLM that answers `yes` with as many percent as the prompt has segments."""

    leads = True

    def __init__(self) -> None:
        self.calls: list[list[LvlmRequest]] = []

    def run(self, requests: Sequence[LvlmRequest]) -> list[LvlmReply]:
        self.calls.append(list(requests))
        return [self.reply(request) for request in requests]

    @staticmethod
    def reply(request: LvlmRequest) -> LvlmReply:
        shown = len(request.prompt.blocks)
        probability = torch.tensor(shown / 100, dtype=torch.float64).log().item()
        return LvlmReply("yes" if shown % 2 else "no", 1, ((probability,),) * len(request.answers))


def test_the_judge_asks_equal_selections_once_and_answers_in_order() -> None:
    train = [example(i, answer="yes") for i in range(6)]
    model = Echo()
    prompter = Prompter(Wording(lvlm_config().prompt), train)
    reward = Reward(mode="accuracy_plus_expected", hard=0.5, soft=10.0)
    judge = partial(judged_by_lvlm, train=train, model=model, prompter=prompter, reward=reward)
    one, two = (ExampleId(3), (ExampleId(1),)), (ExampleId(0), (ExampleId(5), ExampleId(2)))
    other_order = (ExampleId(0), (ExampleId(2), ExampleId(5)))
    verdicts = judge([one, two, one, other_order])
    assert [len(call) for call in model.calls] == [3]
    for asked, verdict in zip([one, two, one, other_order], verdicts, strict=True):
        shown = len(prompter(train[asked[0]], asked[1]).blocks)
        accuracy = float(shown % 2)  # all ten annotators say yes
        assert verdict.accuracy == accuracy
        assert verdict.reward == pytest.approx(0.5 * accuracy + 10.0 * shown / 100)
    assert verdicts[0] != verdicts[1]
    asked_now = {request.prompt for request in model.calls[0]}
    assert asked_now == {prompter(train[query], chosen) for query, chosen in (one, two, other_order)}
    judge([one, (ExampleId(1), (ExampleId(4),))])
    assert [len(call) for call in model.calls] == [3, 2]


def test_a_policy_that_stops_pays_for_what_it_shows(tmp_path: Path) -> None:
    price, rows = 1.0, {}
    for paid in (0.0, price):  # a reward lies in [0, 1], so at this price no demonstration is worth its own
        chain = DrawnChain(
            tmp_path / str(paid),
            selector=SELECTOR.model_copy(update={"head": "stop"}),
            on_policy=ON_POLICY.model_copy(update={"shots": (4,), "stop_price": paid, "learning_rate": 3e-2}),
        )
        chain.begin()
        rows[paid] = [chain.on_policy_epoch(epoch, kl_beta=0.0, ledger=tmp_path / "ledger") for epoch in (1, 2, 3)]
        before, after = (load_tensors(chain.outputs(run)["selector"])[0] for run in ("rce1", "drawn3"))
        assert not torch.equal(before["stop_token"], after["stop_token"])
    first = {paid: chains[0].values["shots"] for paid, chains in rows.items()}
    assert 1 < first[price] <= 4
    last = {paid: chains[-1].values["shots"] for paid, chains in rows.items()}
    assert last[price] < last[0.0]
    assert last[price] < first[price]
    steps = chain.steps("drawn1")
    # the reward of an answer lies in [0, 1], and each demonstration took the price off
    assert 0 <= steps[0].values["reward"] + price * steps[0].values["shots"] <= 1
    assert rows[price][0].values["val_loss"] > 0
