"""The folders and files of the rehearsal: real tokenizers and templates, photographs in COCO's sizes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from engine_bench import prompts_of, settings

from benchmarks import rehearsal
from lever_pipe.base.model_folders import model_type
from lever_pipe.lvlms.asking.answering import open_lvlm
from lever_pipe.lvlms.protocol import ImageSource, LvlmRequest

PARTS = ("tokenizer-qwen2_5", "chat-templates")
RealParts = Callable[[str], Path]


@pytest.mark.parametrize("family", sorted(rehearsal.MODELS))
def test_a_family_with_its_real_tokenizer_and_template_answers_as_the_library_does(
    real_parts: RealParts, family: str, paths: dict[str, Path], tmp_path: Path
) -> None:
    for part in PARTS:
        real_parts(part)
    rehearsal.write_model(family, tmp_path)
    assert model_type(tmp_path) == family
    search = {"num_beams": 2, "max_new_tokens": 3, "repetition_penalty": 1.05}
    fast, stock = (open_lvlm(settings(name, **search), tmp_path, ImageSource(paths)) for name in (family, "hf"))
    asked = [LvlmRequest(prompt, ("red",)) for prompt in prompts_of(paths, "single_turn", "Answer in a word.")[1:2]]
    ours, theirs = fast.run(asked), stock.run(asked)
    assert [reply.text for reply in ours] == [reply.text for reply in theirs]
    for one, other in zip(ours, theirs, strict=True):
        # 1e-3: a sum over some tokens of a vocabulary of 151,936 in fp32; another token moves 0.1 or more.
        assert one.answer_log_probs == pytest.approx(other.answer_log_probs, abs=1e-3)
