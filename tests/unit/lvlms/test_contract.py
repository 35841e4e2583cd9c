"""Every member of `lever_pipe.lvlms`, found by its file, keeps the protocol."""

from __future__ import annotations

import inspect
import math
from importlib import import_module
from pathlib import Path

import pytest

from lever_pipe.base.parsing import available
from lever_pipe.lvlms.asking.prompts import TextPrompt, TextSegment
from lever_pipe.lvlms.protocol import COUNTERS, ImageSource, Lvlm, LvlmOptions, LvlmReply, LvlmRequest

MEMBERS = available("lvlms")


def test_the_published_model_is_a_member() -> None:
    assert "qwen2_5_vl" in MEMBERS


@pytest.fixture(params=MEMBERS)
def member(request: pytest.FixtureRequest, folder: Path, paths: dict[str, Path]) -> Lvlm:
    module = import_module(f"lever_pipe.lvlms.{request.param}")
    images = ImageSource(paths)
    return module.load(folder, options=LvlmOptions(), images=images, device="cpu", threads=1, ledger=None)


@pytest.fixture
def prompts(paths: dict[str, Path]) -> list[TextPrompt]:
    image, ask = "<|vision_start|><|image_pad|><|vision_end|>", "<|im_start|>user\n"
    return [
        TextPrompt((TextSegment(f"{ask}{image}what is it<|im_end|>\n<|im_start|>assistant\n", (digest,)),))
        for digest in list(paths)[:3]
    ]


@pytest.mark.parametrize("name", MEMBERS)
def test_load_has_the_agreed_signature(name: str) -> None:
    parameters = inspect.signature(import_module(f"lever_pipe.lvlms.{name}").load).parameters
    assert list(parameters) == ["folder", "options", "images", "device", "threads", "ledger", "ask_again"]
    keyword_only = [p.name for p in parameters.values() if p.kind is inspect.Parameter.KEYWORD_ONLY]
    assert keyword_only == list(parameters)[1:]


def test_a_member_is_an_lvlm(member: Lvlm) -> None:
    assert isinstance(member, Lvlm)
    assert list(member.counters) == list(COUNTERS)
    assert set(member.counters.values()) == {0}


def test_replies_come_in_order_and_duplicates_fan_out(member: Lvlm, prompts: list[TextPrompt]) -> None:
    requests = [LvlmRequest(p, ("red", "two dog")) for p in prompts]
    replies = member.run([*requests, requests[0]])
    assert all(isinstance(r, LvlmReply) for r in replies)
    assert replies[3] == replies[0]
    assert [member.run([r])[0] for r in requests] == replies[:3]


def test_given_answers_get_a_log_probability_each_in_the_asked_order(member: Lvlm, prompts: list[TextPrompt]) -> None:
    one = member.run([LvlmRequest(prompts[0], ("red", "two dog", "blue"))])[0].answer_log_probs
    other = member.run([LvlmRequest(prompts[0], ("blue", "two dog", "red"), generate=False)])[0].answer_log_probs
    assert one == other[::-1]
    assert len(set(one)) == 3
    assert all(math.isfinite(value) and value < 0 for value in one)


def test_a_request_may_ask_for_scores_only(member: Lvlm, prompts: list[TextPrompt]) -> None:
    reply = member.run([LvlmRequest(prompts[0], ("red",), generate=False)])[0]
    assert (reply.text, reply.n_tokens, len(reply.answer_log_probs)) == ("", 0, 1)
    assert member.run([]) == []


def test_the_stock_path_agrees(member: Lvlm, prompts: list[TextPrompt]) -> None:
    requests = [LvlmRequest(p) for p in prompts]
    assert member.stock_answers(requests) == [reply.text for reply in member.run(requests)]
