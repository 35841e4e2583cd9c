"""Every member of `lever_pipe.lvlms`, found by its file, keeps the protocol; `hf` with a folder of every family."""

from __future__ import annotations

import inspect
import math
from importlib import import_module
from pathlib import Path

import pytest
from families import FAST, FOLDERS

from lever_pipe.base.members import available
from lever_pipe.base.records import Example, ExampleId
from lever_pipe.experiment.lvlm_config import PromptSettings
from lever_pipe.lvlms.asking.answering import LedgerLvlm, open_lvlm
from lever_pipe.lvlms.asking.prompts import Prompt, Wording
from lever_pipe.lvlms.protocol import COUNTERS, ImageSource, Lvlm, LvlmFamily, LvlmOptions, LvlmReply, LvlmRequest

MEMBERS = available("lvlms")
CASES = [*((member, member) for member in FAST), *(("hf", family) for family in FOLDERS)]
QUERY = Example(
    example_id=ExampleId(0),
    question_id=0,
    image_id=0,
    image="0.png",
    image_digest="",
    question="what is it",
    question_type="any",
    answers=("red",),
    answer="red",
)


def test_every_member_has_a_folder_and_the_published_model_is_one() -> None:
    assert sorted({member for member, _ in CASES}) == MEMBERS


@pytest.fixture(params=CASES, ids=" of ".join)
def member(request: pytest.FixtureRequest, paths: dict[str, Path], tmp_path: Path) -> LedgerLvlm:
    folder = tmp_path / "model"
    name, family = request.param
    FOLDERS[family](folder)
    return open_lvlm(name, folder, options=LvlmOptions(), images=ImageSource(paths))


@pytest.fixture
def prompts(paths: dict[str, Path]) -> list[Prompt]:
    wording = Wording(PromptSettings(system="answer with one word"))  # every template can write that
    return [wording.prompt(QUERY.model_copy(update={"image_digest": digest}), []) for digest in list(paths)[:3]]


@pytest.mark.parametrize("name", MEMBERS)
def test_a_member_has_a_loader_of_the_agreed_signature(name: str) -> None:
    parameters = inspect.signature(import_module(f"lever_pipe.lvlms.{name}").load).parameters
    assert list(parameters) == ["folder", "dtype", "device"]
    assert [p.name for p in parameters.values() if p.kind is inspect.Parameter.KEYWORD_ONLY] == ["dtype", "device"]


def test_the_template_fits_the_tokenizer(member: LedgerLvlm, prompts: list[Prompt]) -> None:
    """Segments may be tokenized apart, an image is one placeholder, and a turn ends in the token that ends answers."""
    family = member.family
    template = family.template

    def ids(text: str) -> list[int]:
        return list(family.tokenizer(text, add_special_tokens=False).input_ids)

    assert ids(template.image).count(family.image_token) == 1
    assert ids(template.end)[0] == family.eos
    for written in map(family.render, prompts):
        assert [token for segment in written.segments for token in ids(segment.text)] == ids(written.text)


def test_a_member_is_a_family(member: LedgerLvlm) -> None:
    assert isinstance(member.family, LvlmFamily)
    assert member.family.context > 0
    assert member.family.identity().keys() >= {"weights"}


def test_a_member_is_an_lvlm(member: LedgerLvlm) -> None:
    assert isinstance(member, Lvlm)
    assert list(member.counters) == list(COUNTERS)
    assert set(member.counters.values()) == {0}


def test_replies_come_in_order_and_duplicates_fan_out(member: LedgerLvlm, prompts: list[Prompt]) -> None:
    requests = [LvlmRequest(p, ("red", "two dog")) for p in prompts]
    replies = member.run([*requests, requests[0]])
    assert all(isinstance(r, LvlmReply) for r in replies)
    assert replies[3] == replies[0]
    assert [member.run([r])[0] for r in requests] == replies[:3]


def test_given_answers_get_a_log_probability_each_in_asked_order(member: LedgerLvlm, prompts: list[Prompt]) -> None:
    one = member.run([LvlmRequest(prompts[0], ("red", "two dog", "blue"))])[0].answer_log_probs
    other = member.run([LvlmRequest(prompts[0], ("blue", "two dog", "red"))])[0].answer_log_probs
    assert one == other[::-1]
    assert len(set(one)) == 3
    assert all(math.isfinite(value) and value < 0 for value in one)
    assert member.run([]) == []


def test_the_stock_path_agrees(member: LedgerLvlm, prompts: list[Prompt]) -> None:
    requests = [LvlmRequest(p) for p in prompts]
    assert member.stock_answers(requests) == [reply.text for reply in member.run(requests)]
