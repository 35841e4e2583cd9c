"""A tiny random Qwen3-VL whose outputs react to images, their deeper features and positions."""

from __future__ import annotations

from pathlib import Path

from tiny_parts import loud, make_tokenizer
from tiny_qwen2_5_vl import SPECIALS
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

CHAT_TEMPLATE = r"""{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0].content is string %}
        {{- messages[0].content }}
    {%- else %}
        {%- for content in messages[0].content %}
            {%- if 'text' in content %}
                {{- content.text }}
            {%- endif %}
        {%- endfor %}
    {%- endif %}
    {{- '<|im_end|>\n' }}
{%- endif %}
{%- set image_count = namespace(value=0) %}
{%- for message in messages %}
    {%- if message.role == "user" %}
        {{- '<|im_start|>' + message.role + '\n' }}
        {%- if message.content is string %}
            {{- message.content }}
        {%- else %}
            {%- for content in message.content %}
                {%- if content.type == 'image' or 'image' in content or 'image_url' in content %}
                    {%- set image_count.value = image_count.value + 1 %}
                    {%- if add_vision_id %}Picture {{ image_count.value }}: {% endif -%}
                    <|vision_start|><|image_pad|><|vision_end|>
                {%- elif 'text' in content %}
                    {{- content.text }}
                {%- endif %}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role + '\n' }}
        {%- if message.content is string %}
            {{- message.content }}
        {%- else %}
            {%- for content_item in message.content %}
                {%- if 'text' in content_item %}
                    {{- content_item.text }}
                {%- endif %}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"""
"""The published model's own, without its branches for tools and videos."""


def save(folder: Path) -> None:
    """Write the model, its tokenizer and its image processor."""
    tokenizer = make_tokenizer(SPECIALS, end="<|im_end|>", pad="<|endoftext|>", template=CHAT_TEMPLATE)
    pad, _, end, start, stop, image = tokenizer.convert_tokens_to_ids(list(SPECIALS))
    config = Qwen3VLConfig(
        text_config={
            "hidden_size": 64,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 24,
            "intermediate_size": 96,
            "vocab_size": len(tokenizer),
            "max_position_embeddings": 4096,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e4,
                "mrope_section": [4, 4, 4],
                "mrope_interleaved": True,
            },
            "bos_token_id": pad,
            "eos_token_id": end,
            "pad_token_id": pad,
        },
        vision_config={
            "depth": 3,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_heads": 2,
            "out_hidden_size": 64,
            "patch_size": 14,
            "num_position_embeddings": 36,
            "deepstack_visual_indexes": [0, 1],
        },
        image_token_id=image,
        video_token_id=pad,
        vision_start_token_id=start,
        vision_end_token_id=stop,
        tie_word_embeddings=True,
    )
    loud(Qwen3VLForConditionalGeneration(config)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    Qwen2VLImageProcessorPil(min_pixels=56 * 56, max_pixels=112 * 112).save_pretrained(folder)
