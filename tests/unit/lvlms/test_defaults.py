"""The tokens that end an answer: from the folder's generation settings or from the configuration."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tiny_folders import make_tokenizer

from lever_pipe.base.errors import CheckpointError
from lever_pipe.base.model_folders import GENERATION
from lever_pipe.lvlms.asking.answering import _ends_of

TURN, TEXT = "<|im_end|>", "<|endoftext|>"


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return make_tokenizer([TURN, TEXT], end=TURN, pad=TEXT, template="")


def ends(folder: Path, tokenizer: Any, settings: Any = None, wanted: tuple[str, ...] = ()) -> tuple[int, ...]:
    if settings is not None:
        (folder / GENERATION).write_text(settings if isinstance(settings, str) else json.dumps(settings))
    family: Any = SimpleNamespace(folder=folder, tokenizer=tokenizer, eos=7)
    return _ends_of(family, wanted)


@pytest.mark.parametrize(
    ("named", "expected"), [(None, (7,)), (3, (3, 7)), (0, (0, 7)), ([9, 8], (7, 8, 9)), ([7], (7,)), ([], (7,))]
)
def test_ends_of_the_folder_join_that_of_a_turn(
    tmp_path: Path, tokenizer: Any, named: Any, expected: tuple[int, ...]
) -> None:
    assert ends(tmp_path, tokenizer) == (7,)  # no file
    assert ends(tmp_path, tokenizer, {"eos_token_id": named}) == expected


def test_named_ends_take_the_place_of_the_folders(tmp_path: Path, tokenizer: Any) -> None:
    (text,) = tokenizer(TEXT).input_ids
    assert ends(tmp_path, tokenizer, {"eos_token_id": [1, 2]}, (TEXT,)) == tuple(sorted((7, text)))
    with pytest.raises(CheckpointError, match=r"lvlm\.decode\.ends: .*'two words'"):
        ends(tmp_path, tokenizer, {}, ("two words",))


@pytest.mark.parametrize("settings", ["{", "[]", '{"eos_token_id": "7"}', '{"eos_token_id": [7, -1]}', '"text"'])
def test_settings_that_say_nothing_are_one_message(tmp_path: Path, tokenizer: Any, settings: str) -> None:
    with pytest.raises(CheckpointError, match=GENERATION.replace(".", r"\.")):
        ends(tmp_path, tokenizer, settings)
