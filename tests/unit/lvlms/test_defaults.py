"""What a folder's generation settings may say: ends of answers, what the configuration pins, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_folders import make_tokenizer
from transformers import GenerationConfig

from lever_pipe.base.errors import CheckpointError
from lever_pipe.lvlms.asking.defaults import FILE, ends_of

TURN, TEXT = "<|im_end|>", "<|endoftext|>"
PUBLISHED = {
    "bos_token_id": 151643, "pad_token_id": 151643, "do_sample": True, "eos_token_id": [151645, 151643],
    "repetition_penalty": 1.05, "temperature": 0.000001, "transformers_version": "4.49.0",
}  # fmt: skip
"""Those of Qwen2.5-VL-3B-Instruct."""


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return make_tokenizer([TURN, TEXT], end=TURN, pad=TEXT, template="")


def ends(folder: Path, tokenizer: Any, settings: Any = None, wanted: tuple[str, ...] = ()) -> tuple[int, ...]:
    if settings is not None:
        (folder / FILE).write_text(settings if isinstance(settings, str) else json.dumps(settings))
    return ends_of(folder, tokenizer, 7, wanted)


def test_the_published_settings_have_two_ends_and_nothing_that_is_not_pinned(tmp_path: Path, tokenizer: Any) -> None:
    assert ends(tmp_path, tokenizer, PUBLISHED) == (7, 151643, 151645)


@pytest.mark.parametrize(("named", "expected"), [(None, (7,)), (3, (3, 7)), (0, (0, 7)), ([7], (7,)), ([], (7,))])
def test_ends_of_the_folder_join_that_of_a_turn(
    tmp_path: Path, tokenizer: Any, named: Any, expected: tuple[int, ...]
) -> None:
    assert ends(tmp_path, tokenizer) == (7,)  # no file
    assert ends(tmp_path, tokenizer, {"eos_token_id": named}) == expected


def test_named_ends_take_the_place_of_the_folders(tmp_path: Path, tokenizer: Any) -> None:
    (text,) = tokenizer(TEXT).input_ids
    assert ends(tmp_path, tokenizer, {"eos_token_id": [1, 2]}, (TEXT,)) == tuple(sorted((7, text)))
    with pytest.raises(CheckpointError, match=r"lvlm\.decode\.ends: expected single tokens.*'two words'"):
        ends(tmp_path, tokenizer, {}, ("two words",))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("no_repeat_ngram_size", 2), ("early_stopping", True), ("bad_words_ids", [[5]]), ("forced_bos_token_id", 0),
        ("forced_eos_token_id", 0), ("suppress_tokens", [0]), ("min_new_tokens", 1), ("num_beam_groups", 2),
        ("renormalize_logits", True), ("guidance_scale", 1.5), ("exponential_decay_length_penalty", [1, 1.1]),
    ],
)  # fmt: skip
def test_a_setting_that_would_choose_answers_is_refused_by_name(
    tmp_path: Path, tokenizer: Any, name: str, value: Any
) -> None:
    assert name in GenerationConfig().to_dict()
    with pytest.raises(CheckpointError, match=f"only settings that lvlm.decode pins; found {name} "):
        ends(tmp_path, tokenizer, {**PUBLISHED, name: value})
    # `wanted` ends do not let it through.
    with pytest.raises(CheckpointError, match=name):
        ends(tmp_path, tokenizer, wanted=(TEXT,))


@pytest.mark.parametrize(
    "settings",
    [
        {"no_repeat_ngram_size": 0, "num_beam_groups": 1, "guidance_scale": 1.0, "num_return_sequences": 1},
        {"early_stopping": False, "bad_words_ids": None, "suppress_tokens": [], "forced_eos_token_id": None},
        GenerationConfig().to_dict(),
    ],
)
def test_settings_that_do_nothing_pass(tmp_path: Path, tokenizer: Any, settings: dict[str, Any]) -> None:
    assert ends(tmp_path, tokenizer, settings) == (7,)


@pytest.mark.parametrize("settings", ["{", "[]", '{"eos_token_id": "7"}', '{"eos_token_id": [7, -1]}', '"text"'])
def test_settings_that_say_nothing_are_one_message(tmp_path: Path, tokenizer: Any, settings: str) -> None:
    with pytest.raises(CheckpointError, match=FILE.replace(".", r"\.")):
        ends(tmp_path, tokenizer, settings)
