from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lever_pipe.base.errors import CheckpointError
from lever_pipe.experiment.agent_model import TinyQwen3
from lever_pipe.intention.agent.policy import (
    build_tiny,
    load_policy,
    save_policy,
)
from lever_pipe.intention.codecs import word
from lever_pipe.intention.codecs.word import WordCodec

CODEC = WordCodec.of_world()
TINY = TinyQwen3(hidden=16, heads=2, kv_heads=1, head_dim=8, mlp=24, positions=64)
IDS = torch.tensor([[1, 5, 9, 2, 30, 62]])


def tiny(seed: int = 0) -> Any:
    return build_tiny(TINY, CODEC.vocabulary_size, seed)


def logits_of(model: Any) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(input_ids=IDS).logits
    return logits


def test_the_default_policy_has_the_published_size() -> None:
    # Embedding, also the output: 63 * 96. A layer: queries and outputs 96 * 96 each, keys and values 96 * 48 each, two
    # norms of 24 for queries and keys, three matrices of 96 * 288, two norms of 96. A last norm of 96.
    layer = 2 * 96 * 96 + 2 * 96 * 48 + 2 * 24 + 3 * 96 * 288 + 2 * 96
    model = build_tiny(TinyQwen3(), CODEC.vocabulary_size, 0)
    assert sum(p.numel() for p in model.parameters()) == 63 * 96 + 2 * layer + 96 == 227_808
    assert model.config.model_type == "qwen3"
    assert model.config.num_hidden_layers == 2
    assert not model.training
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_a_saved_policy_is_the_same_in_every_bit(tmp_path: Path) -> None:
    model = tiny()
    save_policy(tmp_path / "policy", model, CODEC)
    loaded = load_policy(tmp_path / "policy", "float32")
    assert torch.equal(logits_of(loaded), logits_of(model))
    assert not loaded.training
    assert word.load(tmp_path / "policy").words == CODEC.words
    assert {"config.json", "model.safetensors", "words.json"} <= {p.name for p in (tmp_path / "policy").iterdir()}


# --- refusals


def edit_config(**values: Any) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return edit


SLIDING = {"layer_types": ["full_attention", "sliding_attention"], "use_sliding_window": True, "sliding_window": 8}
DAMAGE: list[tuple[str, Callable[[Path], object]]] = [
    ("found no config.json", lambda folder: (folder / "config.json").unlink()),
    ("found no model.safetensors", lambda folder: (folder / "model.safetensors").unlink()),
    ("expected a readable causal language model", edit_config(model_type="no such model")),
    ("families llama, qwen2, qwen3; found 'gpt2'", edit_config(model_type="gpt2")),
    ("full attention in every layer; found other layers", edit_config(**SLIDING)),
]


@pytest.mark.parametrize(("message", "damage"), DAMAGE)
def test_a_damaged_folder_is_one_clear_line(tmp_path: Path, message: str, damage: Callable[[Path], object]) -> None:
    save_policy(tmp_path / "policy", tiny(), CODEC)
    damage(tmp_path / "policy")
    with pytest.raises(CheckpointError, match=message) as caught:
        load_policy(tmp_path / "policy", "float32")
    assert str(tmp_path / "policy") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_remote_code_is_not_run(tmp_path: Path) -> None:
    save_policy(tmp_path / "policy", tiny(), CODEC)
    (tmp_path / "policy" / "evil.py").write_text("raise SystemExit('ran')")
    edit_config(model_type="evil", auto_map={"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"})(
        tmp_path / "policy"
    )
    with pytest.raises(CheckpointError):
        load_policy(tmp_path / "policy", "float32")


# --- the location of a policy
