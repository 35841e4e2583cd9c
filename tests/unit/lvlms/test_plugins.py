"""Every plugin of `lever_pipe.lvlms` keeps the protocol; `hf`, for any family, answers as the fast one does."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from engine_bench import ANSWERS, ATOL, prompts_of, settings
from tiny_folders import FAST, FOLDERS

from lever_pipe.base.errors import CheckpointError
from lever_pipe.base.plugins import available
from lever_pipe.lvlms.asking.answering import LedgerLvlm, open_lvlm
from lever_pipe.lvlms.protocol import COUNTERS, ImageSource, LvlmRequest

SEARCHES = (("single_turn", {}), ("turns", {"num_beams": 3, "repetition_penalty": 1.3}))


@pytest.fixture(params=sorted(FOLDERS), scope="module")
def saved_model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A family and its folder."""
    folder = tmp_path_factory.mktemp("stock") / "model"
    FOLDERS[request.param](folder)
    return request.param, folder


def plugins_of(family: str) -> list[str]:
    return [family, "hf"] if family in FAST else ["hf"]


def opened(engine: str, folder: Path, paths: dict[str, Path], **options: object) -> LedgerLvlm:
    return open_lvlm(settings(engine, **options), folder, ImageSource(paths))


def test_every_plugin_is_tested() -> None:
    assert sorted([*FAST, "hf", "served", "vllm"]) == available("lvlms")


def test_a_plugin_keeps_the_protocol(saved_model: tuple[str, Path], paths: dict[str, Path]) -> None:
    prompts = prompts_of(paths)[:3]
    requests = [LvlmRequest(prompt, ("red", "two dog", "blue")) for prompt in prompts]
    for name in plugins_of(saved_model[0]):
        engine = opened(name, saved_model[1], paths)
        family = engine.family

        def ids(text: str, tokenizer=family.tokenizer) -> list[int]:
            return list(tokenizer(text, add_special_tokens=False).input_ids)

        for segments in map(family.render, prompts):  # may be tokenized separately; an image is one placeholder
            whole = ids("".join(segment.text for segment in segments))
            assert whole.count(family.image_token) == sum(len(segment.images) for segment in segments)
            assert [token for segment in segments for token in ids(segment.text)] == whole
        replies = engine.run([*requests, requests[0]])
        assert list(engine.counters) == list(COUNTERS)
        assert replies[3] == replies[0]
        assert [engine.run([request])[0] for request in requests] == replies[:3]
        one = replies[0].answer_log_probs
        assert engine.run([LvlmRequest(prompts[0], ("blue", "two dog", "red"))])[0].answer_log_probs == one[::-1]
        assert len(set(one)) == 3
        assert all(math.isfinite(value) and value < 0 for value in one)
        assert engine.run([]) == []


@pytest.mark.parametrize("saved_model", sorted(FAST), indirect=True)
@pytest.mark.parametrize(("layout", "options"), SEARCHES)
def test_it_answers_as_the_fast_plugin_and_asks_more_of_the_model(
    saved_model: tuple[str, Path], paths: dict[str, Path], layout: str, options: dict[str, object]
) -> None:
    engine, folder = saved_model
    requests = [LvlmRequest(prompt, ANSWERS) for prompt in prompts_of(paths, layout, "answer with one word")]
    fast, stock = opened(engine, folder, paths, **options), opened("hf", folder, paths, **options)
    for system in ("answer with one word", None):  # whose text is the template's own
        for prompt in prompts_of(paths, layout, system):
            written = "".join(segment.text for segment in fast.family.render(prompt))
            assert written == stock.family.render(prompt)[0].text
    ours, theirs = fast.run(requests), stock.run(requests)
    assert [reply.text for reply in ours] == [reply.text for reply in theirs]
    assert [reply.n_tokens for reply in ours] == [reply.n_tokens for reply in theirs]
    for one, other in zip(ours, theirs, strict=True):
        # Some tokens an answer, each within the tolerance.
        assert one.answer_log_probs == pytest.approx(other.answer_log_probs, abs=5 * ATOL)
    assert fast.counters["forwards"] < stock.counters["forwards"]
    assert fast.counters["images_encoded"] < stock.counters["images_encoded"]


def test_a_model_never_says_an_image(saved_model: tuple[str, Path], paths: dict[str, Path]) -> None:
    """A model that prefers the placeholder emits its next best token, under each plugin and either search."""
    prompts = prompts_of(paths, "turns", "answer with one word")[:3]  # one is as all, and shows none, one or two
    requests = [LvlmRequest(prompt, ANSWERS[:1]) for prompt in prompts]

    def answers_of(engine: str, **options: object) -> tuple[list[str], list[str]]:
        plain, forced = (opened(engine, saved_model[1], paths, **options) for _ in range(2))
        likes = torch.zeros(forced.family.model.lm_head.out_features)
        likes[forced.family.image_token] = 50
        forced.family.model.lm_head.register_forward_hook(lambda _, __, logits: logits + likes)
        return tuple([reply.text for reply in each.run(requests)] for each in (plain, forced))  # type: ignore[return-value]

    for engine in plugins_of(saved_model[0]):
        plain, forced = answers_of(engine)
        assert forced == plain
    if saved_model[0] in FAST:
        assert len({tuple(answers_of(engine, num_beams=3)[1]) for engine in plugins_of(saved_model[0])}) == 1


def test_a_template_with_a_system_text_of_its_own_cannot_write_a_prompt_without(
    tmp_path: Path, paths: dict[str, Path]
) -> None:
    FOLDERS["qwen2_5_vl"](tmp_path)
    engine = opened("hf", tmp_path, paths)
    with pytest.raises(CheckpointError, match=r"lvlm\.prompt\.system"):
        engine.run([LvlmRequest(prompts_of(paths, "turns", "")[0])])
    (written,) = engine.family.render(prompts_of(paths, "turns", None)[0])
    assert "You are a helpful assistant." in written.text
