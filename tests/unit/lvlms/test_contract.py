"""Every member of `lever_pipe.lvlms`, found by its file, keeps the protocol; `hf` with a folder of every family."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from engine_bench import prompts_of, settings
from tiny_folders import FAST, FOLDERS

from lever_pipe.base.members import available
from lever_pipe.lvlms.asking.answering import LedgerLvlm, open_lvlm
from lever_pipe.lvlms.asking.prompts import Prompt
from lever_pipe.lvlms.protocol import COUNTERS, ImageSource, LvlmRequest

CASES = [*((member, member) for member in FAST), *(("hf", family) for family in FOLDERS)]


def test_every_member_has_a_folder_and_the_published_model_is_one() -> None:
    assert sorted({member for member, _ in CASES}) == available("lvlms")


@pytest.fixture(params=CASES, ids=" of ".join)
def member(request: pytest.FixtureRequest, paths: dict[str, Path], tmp_path: Path) -> LedgerLvlm:
    folder = tmp_path / "model"
    name, family = request.param
    FOLDERS[family](folder)
    return open_lvlm(settings(name), folder, ImageSource(paths))


@pytest.fixture
def prompts(paths: dict[str, Path]) -> list[Prompt]:
    return prompts_of(paths)[:3]


def test_the_template_fits_the_tokenizer(member: LedgerLvlm, prompts: list[Prompt]) -> None:
    """Segments may be tokenized apart, an image is one placeholder, and a turn ends in the token that ends answers."""
    family = member.family

    def ids(text: str) -> list[int]:
        return list(family.tokenizer(text, add_special_tokens=False).input_ids)

    for segments in map(family.render, prompts):
        whole = ids("".join(segment.text for segment in segments))
        assert whole.count(family.image_token) == sum(len(segment.images) for segment in segments)
        assert [token for segment in segments for token in ids(segment.text)] == whole


def test_replies_come_in_order_and_duplicates_fan_out(member: LedgerLvlm, prompts: list[Prompt]) -> None:
    requests = [LvlmRequest(p, ("red", "two dog")) for p in prompts]
    replies = member.run([*requests, requests[0]])
    assert list(member.counters) == list(COUNTERS)
    assert replies[3] == replies[0]
    assert [member.run([r])[0] for r in requests] == replies[:3]


def test_given_answers_get_a_log_probability_each_in_asked_order(member: LedgerLvlm, prompts: list[Prompt]) -> None:
    one = member.run([LvlmRequest(prompts[0], ("red", "two dog", "blue"))])[0].answer_log_probs
    other = member.run([LvlmRequest(prompts[0], ("blue", "two dog", "red"))])[0].answer_log_probs
    assert one == other[::-1]
    assert len(set(one)) == 3
    assert all(math.isfinite(value) and value < 0 for value in one)
    assert member.run([]) == []
