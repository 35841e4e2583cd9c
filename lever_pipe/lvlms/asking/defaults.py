"""The tokens that end an answer: those that the configuration names, or else those of the model folder."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lever_pipe.base.errors import CheckpointError, shortened
from lever_pipe.base.model_folders import readable
from lever_pipe.base.storage import strict_json

FILE = "generation_config.json"
"""Of its settings the ends alone are read: `lvlm.decode` says how an answer is searched."""


def ends_of(folder: Path, tokenizer: Any, end_of_turn: int, tokens: Iterable[str] = ()) -> tuple[int, ...]:
    """Return the tokens that end an answer, rising: the end of a turn, and those wanted or else those of the folder.

    Raises:
        CheckpointError: the folder's settings are unreadable, or a wanted token is none.
    """
    if texts := list(tokens):
        return tuple(sorted({end_of_turn, *(_token(folder, tokenizer, text) for text in texts)}))
    path, eos = folder / FILE, None
    if path.is_file():
        with readable(folder, FILE):
            eos = strict_json(path.read_bytes()).get("eos_token_id")
    ends = eos if isinstance(eos, list) else [] if eos is None else [eos]
    if not all(type(end) is int and end >= 0 for end in ends):
        raise CheckpointError(
            f"{path}: expected an eos_token_id that is a token or a list of them",
            found=shortened(repr(eos)),
            do="Download the file again, or name the tokens in lvlm.decode.ends.",
        )
    return tuple(sorted({end_of_turn, *ends}))


def _token(folder: Path, tokenizer: Any, text: str) -> int:
    ids = tokenizer(text, add_special_tokens=False).input_ids
    if len(ids) != 1:
        raise CheckpointError(
            f"lvlm.decode.ends: expected single tokens of {folder}",
            found=f"{text!r}, which is {len(ids)} tokens",
            do="Name a special token of the tokenizer, as <|endoftext|>.",
        )
    return int(ids[0])
