"""What a model folder's own generation settings say: the tokens that end an answer, and nothing that is not known of.

`generate` takes every setting of `generation_config.json` that its caller leaves out. The configuration pins those
that choose an answer (`lvlm.decode`); a folder that sets another one is refused, because its answers would follow a
rule that no table tells.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lever_pipe.base.errors import CheckpointError
from lever_pipe.base.model_folders import readable
from lever_pipe.base.storage import read_bytes, shortened, strict_json

FILE = "generation_config.json"
PINNED = {
    "num_beams", "max_new_tokens", "max_length", "length_penalty", "repetition_penalty", "do_sample", "temperature",
    "top_p", "top_k", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff", "eos_token_id", "bos_token_id",
    "pad_token_id", "decoder_start_token_id", "use_cache", "cache_implementation", "output_attentions",
    "output_hidden_states", "output_scores", "output_logits", "return_dict_in_generate", "transformers_version",
    "_from_model_config",
}  # fmt: skip
"""Settings that `lvlm.decode` decides, that only sampling reads, or that change no answer."""
NEUTRAL = {"num_beam_groups": 1, "num_return_sequences": 1, "encoder_repetition_penalty": 1, "guidance_scale": 1}
"""Values by which other settings do nothing; else a false or empty one does nothing, unless it is a token."""


def ends_of(folder: Path, tokenizer: Any, end_of_turn: int, wanted: Iterable[str] = ()) -> tuple[int, ...]:
    """Return the tokens that end an answer, rising: the end of a turn, and those wanted or else those of the folder.

    Raises:
        CheckpointError: the folder's settings are unreadable, name what is not pinned, or a wanted token is none.
    """
    settings = _settings(folder)
    _require_pinned(folder, settings)
    texts = list(wanted)
    if texts:
        return tuple(sorted({end_of_turn, *(_token(folder, tokenizer, text) for text in texts)}))
    named = settings.get("eos_token_id")
    ends = named if isinstance(named, list) else [] if named is None else [named]
    if not all(type(end) is int and end >= 0 for end in ends):
        raise CheckpointError(
            f"{folder}/{FILE}: expected an eos_token_id that is a token or a list of them",
            found=shortened(repr(named)),
            do="Download the file again, or name the tokens in lvlm.decode.ends.",
        )
    return tuple(sorted({end_of_turn, *ends}))


def _settings(folder: Path) -> Mapping[str, Any]:
    path = folder / FILE
    if not path.is_file():
        return {}
    with readable(folder, FILE):
        settings = strict_json(read_bytes(path))
        if not isinstance(settings, dict):
            raise TypeError(f"a {type(settings).__name__}, no object")
    return settings


def _require_pinned(folder: Path, settings: Mapping[str, Any]) -> None:
    other = [f"{name} {value!r}" for name, value in sorted(settings.items()) if _chooses(name, value)]
    if other:
        raise CheckpointError(
            f"{folder}/{FILE}: expected only settings that lvlm.decode pins",
            found=", ".join(other),
            do="Remove them from the file: they would choose answers by a rule that no table tells.",
        )


def _chooses(name: str, value: Any) -> bool:
    """Return whether a setting that is not pinned does something."""
    if name in PINNED or value is None or value == NEUTRAL.get(name):
        return False
    return bool(value) or (type(value) is int and name.endswith("_token_id"))


def _token(folder: Path, tokenizer: Any, text: str) -> int:
    ids = tokenizer(text, add_special_tokens=False).input_ids
    if len(ids) != 1:
        raise CheckpointError(
            f"lvlm.decode.ends: expected single tokens of {folder}",
            found=f"{text!r}, which is {len(ids)} tokens",
            do="Name a special token of the tokenizer, as <|endoftext|>.",
        )
    return int(ids[0])
