"""The two architectures of the embedded world and their Hugging Face folders."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    CLIPConfig,
    CLIPModel,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
)
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from lever_pipe.base.torch_streams import ambient_stream
from lever_pipe.world.scenes import SIZE
from tools.make_world import vocabulary

Reader: TypeAlias = Qwen2_5_VLForConditionalGeneration

VOCABULARY_ROWS = 120  # rows of the embedding tables; the words fill most of them
PATCH = 14
WIDTH = 128
PROJECTION = 64
MEAN_AND_STD = [0.5, 0.5, 0.5]
READERS = {"lvlm": 3, "lvlm_four_layers": 4}
"""Folder of each tiny LVLM -> its number of language layers; the second one is for comparisons between LVLMs."""

# CLIP has its own special tokens. Its end token must not have id 2: transformers would then pool at the word with the
# highest id, a fallback for old checkpoints, and CLIP would learn only that word.
CLIP_SPECIAL_TOKENS = ("<|pad|>", "<|startoftext|>", "<|unk|>", "<|endoftext|>")
CLIP_PAD_ID, CLIP_START_ID, CLIP_UNKNOWN_ID, CLIP_END_ID = range(len(CLIP_SPECIAL_TOKENS))
CLIP_MAX_WORDS = 32
# Many words of questions do not occur in captions and keep their initial embedding. An initial size equal to the size
# of trained embeddings keeps the vectors of different questions different.
CLIP_WORD_SCALE = 4.0

# Qwen2.5-VL's template for these messages, without its default system turn.
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def reader_config(layers: int = READERS["lvlm"]) -> Qwen2_5_VLConfig:
    """Return the configuration of a tiny LVLM (716,736 parameters with three layers, 864,704 with four)."""
    # With the default standard deviation 0.02 at width 128, copying stays at chance level; with 0.08 it is learned.
    text = {
        "vocab_size": VOCABULARY_ROWS,
        "hidden_size": WIDTH,
        "intermediate_size": 2 * WIDTH,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "initializer_range": 0.08,
        "max_position_embeddings": 512,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "mrope_section": [4, 6, 6],
        },
        "bos_token_id": vocabulary.PAD_ID,
        "eos_token_id": vocabulary.IM_END_ID,
        "pad_token_id": vocabulary.PAD_ID,
        "tie_word_embeddings": True,
    }
    vision = {
        "depth": 2,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_heads": 4,
        "out_hidden_size": WIDTH,
        "patch_size": PATCH,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "window_size": SIZE,
        "fullatt_block_indexes": [0, 1],
        "in_channels": 3,
    }
    return Qwen2_5_VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=vocabulary.IMAGE_ID,
        video_token_id=vocabulary.VIDEO_ID,
        vision_start_token_id=vocabulary.VISION_START_ID,
        vision_end_token_id=vocabulary.VISION_END_ID,
        tie_word_embeddings=True,
    )


def clip_config() -> CLIPConfig:
    """Return the configuration of the tiny CLIP (about 370,000 parameters)."""
    text = {
        "vocab_size": VOCABULARY_ROWS,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": CLIP_MAX_WORDS,
        "bos_token_id": CLIP_START_ID,
        "eos_token_id": CLIP_END_ID,
        "pad_token_id": CLIP_PAD_ID,
        "projection_dim": PROJECTION,
    }
    vision = {
        "hidden_size": 96,
        "intermediate_size": 192,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "image_size": SIZE,
        "patch_size": PATCH,
        "projection_dim": PROJECTION,
    }
    return CLIPConfig(text_config=text, vision_config=vision, projection_dim=PROJECTION)


def build_reader(seed: int, layers: int = READERS["lvlm"]) -> Reader:
    """Return an untrained tiny LVLM."""
    with ambient_stream(seed, "reader weights"):
        return Reader(reader_config(layers))


def build_clip(seed: int) -> CLIPModel:
    """Return an untrained tiny CLIP."""
    with ambient_stream(seed, "clip weights"):
        model = CLIPModel(clip_config())
    with torch.no_grad():
        model.text_model.embeddings.token_embedding.weight.mul_(CLIP_WORD_SCALE)
    return model


def _word_level(special: tuple[str, ...]) -> Tokenizer:
    ids = {word: i for i, word in enumerate((*special, *vocabulary.WORDS))}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<|unk|>"))
    # Splits punctuation from words and drops white space, including the newlines of the chat format.
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


def reader_tokenizer() -> PreTrainedTokenizerFast:
    """Return the LVLM's tokenizer; it pads on the left, as batched generation requires."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=_word_level(vocabulary.SPECIAL_TOKENS),
        unk_token="<|unk|>",
        pad_token="<|endoftext|>",
        eos_token="<|im_end|>",
        extra_special_tokens=list(vocabulary.SPECIAL_TOKENS[1:7]),
        padding_side="left",
        model_max_length=512,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def clip_tokenizer() -> PreTrainedTokenizerFast:
    """Return CLIP's tokenizer; it adds the start and end tokens and pads on the right."""
    words = _word_level(CLIP_SPECIAL_TOKENS)
    words.post_processor = processors.TemplateProcessing(
        single="<|startoftext|> $A <|endoftext|>",
        special_tokens=[("<|startoftext|>", CLIP_START_ID), ("<|endoftext|>", CLIP_END_ID)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        unk_token="<|unk|>",
        pad_token="<|pad|>",
        bos_token="<|startoftext|>",
        eos_token="<|endoftext|>",
        padding_side="right",
        model_max_length=CLIP_MAX_WORDS,
    )


def reader_image_processor() -> Qwen2VLImageProcessorPil:
    """Return the LVLM's image processor; it does not need torchvision."""
    return Qwen2VLImageProcessorPil(
        patch_size=PATCH,
        merge_size=2,
        temporal_patch_size=2,
        min_pixels=SIZE * SIZE,
        max_pixels=SIZE * SIZE,
        image_mean=MEAN_AND_STD,
        image_std=MEAN_AND_STD,
    )


def clip_image_processor() -> CLIPImageProcessorPil:
    """Return CLIP's image processor; it does not need torchvision."""
    return CLIPImageProcessorPil(
        size={"shortest_edge": SIZE},
        crop_size={"height": SIZE, "width": SIZE},
        image_mean=MEAN_AND_STD,
        image_std=MEAN_AND_STD,
    )


def _save_weights(model: PreTrainedModel, folder: Path) -> None:
    model.save_pretrained(folder)
    # safetensors creates a file that only the owner can read, but all users need the released weights.
    (folder / "model.safetensors").chmod(0o644)


def save_reader(model: Reader, folder: Path) -> None:
    """Write the LVLM as a Hugging Face folder that `from_pretrained` loads."""
    model.generation_config = GenerationConfig(
        bos_token_id=vocabulary.PAD_ID,
        eos_token_id=vocabulary.IM_END_ID,
        pad_token_id=vocabulary.PAD_ID,
        do_sample=False,
    )
    _save_weights(model, folder)
    reader_tokenizer().save_pretrained(folder)
    reader_image_processor().save_pretrained(folder)


def save_clip(model: CLIPModel, folder: Path) -> None:
    """Write CLIP as a Hugging Face folder that `from_pretrained` loads."""
    _save_weights(model, folder)
    clip_tokenizer().save_pretrained(folder)
    clip_image_processor().save_pretrained(folder)
