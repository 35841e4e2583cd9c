"""A tiny random InternVL whose outputs react to images and positions; its text part is a Qwen2 or a Qwen3."""

from __future__ import annotations

import json
from pathlib import Path

from tiny_parts import loud, make_tokenizer
from transformers import InternVLConfig, InternVLForConditionalGeneration
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<img>", "</img>", "<IMG_CONTEXT>")
NAMED = {
    "start_image_token": "<img>",
    "end_image_token": "</img>",
    "context_image_token": "<IMG_CONTEXT>",
    "video_token": "<video>",
}
CHAT_TEMPLATE = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n'}}"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for content in message['content'] %}"
    "{% if content['type'] == 'image' %}{{ '<IMG_CONTEXT>\n' }}"
    "{% elif content['type'] == 'text' %}{{ content['text'] }}"
    "{% endif %}{% endfor %}{% endif %}{{'<|im_end|>\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{'<|im_start|>assistant\n' }}{% endif %}"
)
"""The published models' own, without its branch for videos."""


def save(folder: Path, text: str = "qwen2") -> None:
    """Write the model, its tokenizer and its image processor."""
    tokenizer = make_tokenizer(SPECIALS, end="<|im_end|>", pad="<|endoftext|>", template=CHAT_TEMPLATE, **NAMED)
    pad, _, end, _, _, context = tokenizer.convert_tokens_to_ids(list(SPECIALS))
    config = InternVLConfig(
        text_config={
            "model_type": text,
            "hidden_size": 64,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16 if text == "qwen2" else 24,
            "intermediate_size": 96,
            "vocab_size": len(tokenizer),
            "max_position_embeddings": 4096,
            "bos_token_id": pad,
            "eos_token_id": end,
            "pad_token_id": pad,
            "tie_word_embeddings": text == "qwen2",
        },
        vision_config={
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 48,
            "image_size": [56, 56],
            "patch_size": [14, 14],
        },
        image_token_id=context,
        tie_word_embeddings=text == "qwen2",
    )
    loud(InternVLForConditionalGeneration(config)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    size = {"height": 56, "width": 56}
    GotOcr2ImageProcessorPil(size=size, min_patches=1, max_patches=6).save_pretrained(folder)
    processor = {"processor_class": "InternVLProcessor", "image_seq_length": 4}  # 4 x 4 patches, of which 4 are merged
    (folder / "processor_config.json").write_text(json.dumps(processor))
