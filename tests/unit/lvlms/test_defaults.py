"""Which tokens end an answer: those of the folder's generation settings, or those that the configuration names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_folders import make_tokenizer

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


def test_the_published_settings_have_two_ends(tmp_path: Path, tokenizer: Any) -> None:
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


@pytest.mark.parametrize("settings", ["{", "[]", '{"eos_token_id": "7"}', '{"eos_token_id": [7, -1]}', '"text"'])
def test_settings_that_say_nothing_are_one_message(tmp_path: Path, tokenizer: Any, settings: str) -> None:
    with pytest.raises(CheckpointError, match=FILE.replace(".", r"\.")):
        ends(tmp_path, tokenizer, settings)
