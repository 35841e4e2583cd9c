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
from chains import sampled_chain
from lvlm_world import LVLM, lvlm_config, world

from lever_pipe.base.checkpoints import load_tensors
from lever_pipe.base.records import ExampleId
from lever_pipe.base.storage import read_examples
from lever_pipe.experiment.job_runtime import Runtime
from lever_pipe.experiment.reward import Reward
from lever_pipe.lever.training.on_policy import ScoredSelection, scored_by_lvlm
from lever_pipe.lvlms.asking.answering import load_lvlm
from lever_pipe.lvlms.asking.prompts import Prompt, PromptIds, Wording
from lever_pipe.lvlms.protocol import LvlmReply, LvlmRequest, request_of
from lever_pipe.stages import selector_training

pytestmark = pytest.mark.skipif(not LVLM.is_dir(), reason="the embedded world's model is not there")


class First:
    """Two epochs from a cold ledger, and what they asked, call by call."""

    def __init__(self, folder: Path) -> None:
        self.chain = sampled_chain(folder)
        self.chain.begin()
        self.ledger = folder / "ledger"
        self.calls: list[list[PromptIds]] = []
        self.rows = []

        def listening(prompts: Sequence[PromptIds], **how: Any) -> list[ScoredSelection]:
            self.calls.append(list(prompts))
            return scored_by_lvlm(prompts, **how)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(selector_training, "scored_by_lvlm", listening)
            self.rows = [self.chain.epoch("on_policy", epoch, ledger=self.ledger) for epoch in (1, 2)]

    @property
    def prompts(self) -> list[PromptIds]:
        """Return the different prompts of epoch 1, as they were first asked."""
        return list(dict.fromkeys(one for call in self.calls[:2] for one in call))

    def counters(self, run: str) -> dict[str, float]:
        found: dict[str, float] = json.loads((self.chain.folder / run / "counters.json").read_text())
        return found


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Iterator[First]:
    threads = torch.get_num_threads()
    yield First(tmp_path_factory.mktemp("on_policy"))
    torch.set_num_threads(threads)


def requests_of(prompts: Sequence[PromptIds]) -> list[LvlmRequest]:
    train = read_examples(world() / "train.jsonl")
    wording = Wording(lvlm_config().prompt)
    return [request_of(train[query], [train[i] for i in chosen], wording) for query, chosen in prompts]


def ask(ledger: Path, prompts: Sequence[PromptIds], size: int) -> None:
    """Ask in calls of `size` prompts, in another order than training does."""
    train = read_examples(world() / "train.jsonl")
    model = load_lvlm(lvlm_config(), LVLM, [(train, world() / "train_images")], Runtime(ledger=str(ledger)))
    requests = requests_of(random.Random(0).sample(list(prompts), len(prompts)))
    for begin in range(0, len(requests), size):
        model.run(requests[begin : begin + size])


def test_the_same_seed_gives_the_same_bytes(first: First) -> None:
    first.chain.epoch("on_policy", 1, run="again")  # without a ledger
    assert first.chain.bytes_of("again1") == first.chain.bytes_of("on_policy1")
    before, after = (load_tensors(first.chain.outputs(run)["selector"])[0] for run in ("rce1", "on_policy1"))
    assert not any(torch.equal(before[name], after[name]) for name in before if name.endswith("proj.weight"))


@pytest.mark.parametrize(("unknown", "size"), [(1, 11), (2, 8), (20, 9)])
def test_what_a_ledger_knows_changes_no_bit(first: First, unknown: int, size: int) -> None:
    """The prompts that are known were asked in other company."""
    ledger = first.chain.folder / f"ledger-without-{unknown}"
    known = random.Random(1).sample(first.prompts, len(first.prompts) - unknown)
    ask(ledger, known, size)
    run = f"knowing{unknown}-"
    first.chain.epoch("on_policy", 1, run=run, ledger=ledger)
    assert first.chain.bytes_of(f"{run}1") == first.chain.bytes_of("on_policy1")
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


def test_everything_asked_is_counted(first: First) -> None:
    for epoch in (1, 2):
        calls = first.calls[2 * epoch - 2 : 2 * epoch]
        assert [len(call) for call in calls] == [8 * 4] * 2
        for call in calls:
            assert Counter(len(chosen) for _, chosen in call) == dict.fromkeys((1, 2, 3, 4), 8)
        rows = first.chain.steps(f"on_policy{epoch}")
        met: set[PromptIds] = set()
        for number, (row, call) in enumerate(zip(rows, calls, strict=True)):
            met |= set(call)
            assert (row.step, row.prompts) == (number, len(met))
            assert row.policy == first.rows[epoch - 1].policy
        assert first.rows[epoch - 1].values["lvlm_prompts"] == len(met)
        counters = first.counters(f"on_policy{epoch}")
        distinct = sum(len(set(call)) for call in calls)
        assert counters["prompts_asked"] == counters["prompts_distinct"] == distinct
        images = sum(len(chosen) + 1 for call in calls for _, chosen in set(call))
        assert counters["images_shown"] == images
    queries = [query for call in first.calls[:2] for query, _ in call]
    assert Counter(queries) == dict.fromkeys(range(16), 4)  # one pass over the train part


class Echo:
    """An LVLM that answers `yes` with as many percent as the prompt has segments."""

    def __init__(self) -> None:
        self.calls: list[list[LvlmRequest]] = []

    def run(self, requests: Sequence[LvlmRequest]) -> list[LvlmReply]:
        self.calls.append(list(requests))
        return [self.reply(request) for request in requests]

    @staticmethod
    def reply(request: LvlmRequest) -> LvlmReply:
        displayed = len(request.prompt.blocks)
        probability = torch.tensor(displayed / 100, dtype=torch.float64).log().item()
        return LvlmReply("yes" if displayed % 2 else "no", 1, ((probability,),) * len(request.answers))


def test_the_scorer_asks_equal_selections_once_and_answers_in_order() -> None:
    train = [example(i, answer="yes") for i in range(6)]
    model = Echo()
    wording = Wording(lvlm_config().prompt)

    def prompt(query: int, chosen: Sequence[int]) -> Prompt:
        return wording.prompt(train[query], [train[i] for i in chosen])

    reward = Reward(mode="accuracy_plus_expected", hard=0.5, soft=10.0)
    scorer = partial(scored_by_lvlm, train=train, model=model, wording=wording, reward=reward)
    one, two = (ExampleId(3), (ExampleId(1),)), (ExampleId(0), (ExampleId(5), ExampleId(2)))
    other_order = (ExampleId(0), (ExampleId(2), ExampleId(5)))
    verdicts = scorer([one, two, one, other_order])
    assert [len(call) for call in model.calls] == [3]
    for prompt_ids, verdict in zip([one, two, one, other_order], verdicts, strict=True):
        n_blocks = len(prompt(*prompt_ids).blocks)
        accuracy = float(n_blocks % 2)  # all ten annotators agree on yes
        assert verdict.accuracy == accuracy
        assert verdict.reward == pytest.approx(0.5 * accuracy + 10.0 * n_blocks / 100)
    assert verdicts[0] != verdicts[1]
    prompts_now = {request.prompt for request in model.calls[0]}
    assert prompts_now == {prompt(*prompt_ids) for prompt_ids in (one, two, other_order)}
    scorer([one, (ExampleId(1), (ExampleId(4),))])
    assert [len(call) for call in model.calls] == [3, 2]
