"""Tiny random models that see tiles, whose outputs react to images and positions: Idefics3 and SmolVLM."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tiny_parts import loud, make_tokenizer

CHAT_TEMPLATE = (
    "START{% for message in messages %}{{message['role'].capitalize()}}"
    "{% if message['content'][0]['type'] == 'image' %}{{':'}}{% else %}{{': '}}{% endif %}"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{line['text']}}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n"
    "{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
"""The published models' own; SmolVLM's has a filter for the method."""


def save(
    folder: Path, *, kinds: tuple[Any, Any, Any], specials: tuple[str, ...], side: int, scale: int, longest: int
) -> None:
    """Write a model, its tokenizer and its image processor.

    Args:
        folder: to be written.
        kinds: classes of configuration, model and image processor.
        specials: padding, the token before everything, `<image>`, the end of a turn, and others.
        side: of a tile in pixels; a patch has 7.
        scale: side of the square of patches that becomes one token.
        longest: to what an image's longer side is resized.
    """
    pad, start, image, end, *_ = specials
    template = CHAT_TEMPLATE.replace("START", start)
    tokenizer = make_tokenizer(specials, end=end, pad=pad, template=template)
    number = dict(zip(specials, tokenizer.convert_tokens_to_ids(list(specials)), strict=True))
    make_config, make_model, make_processor = kinds
    config = make_config(
        text_config={
            "model_type": "llama",
            "hidden_size": 64,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "intermediate_size": 96,
            "vocab_size": len(tokenizer),
            "max_position_embeddings": 4096,
            "bos_token_id": number[start],
            "eos_token_id": number[end],
            "pad_token_id": number[pad],
        },
        vision_config={
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 48,
            "image_size": side,
            "patch_size": 7,
        },
        image_token_id=number[image],
        scale_factor=scale,
        pad_token_id=number[pad],
    )
    loud(make_model(config)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    sizes = {"size": {"longest_edge": longest}, "max_image_size": {"longest_edge": side}}
    make_processor(**sizes).save_pretrained(folder)
    tokens = (side // 7 // scale) ** 2
    (folder / "processor_config.json").write_text(json.dumps({"image_seq_len": tokens}))
