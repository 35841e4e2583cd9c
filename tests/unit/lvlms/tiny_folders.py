"""Tiny random models of several families as folders; their outputs react to images and positions."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from torch import nn
from transformers import PreTrainedTokenizerFast
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

WORDS = (
    *("what", "color", "is", "the", "cat", "dog", "bus", "train", "man", "table", "red", "blue", "green"),
    *("two", "one", "kind", "of", "food", "sport", "where"),
)
Model = TypeVar("Model", bound=nn.Module)
QWEN = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>")
QWEN_TEMPLATE = (
    "{% for m in messages %}{% if loop.first and m['role'] != 'system' %}<|im_start|>system\n"
    "You are a helpful assistant.<|im_end|>\n{% endif %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['content'] is string %}{{ m['content'] }}<|im_end|>\n{% else %}{% for c in m['content'] %}"
    "{% if c['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ c['text'] }}{% endif %}{% endfor %}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""The published model's own, without its branches for videos and image numbering."""
INTERNVL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<img>", "</img>", "<IMG_CONTEXT>")
INTERNVL_NAMES = {
    "start_image_token": "<img>",
    "end_image_token": "</img>",
    "context_image_token": "<IMG_CONTEXT>",
    "video_token": "<video>",
}
INTERNVL_TEMPLATE = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n'}}"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for content in message['content'] %}"
    "{% if content['type'] == 'image' %}{{ '<IMG_CONTEXT>\n' }}"
    "{% elif content['type'] == 'text' %}{{ content['text'] }}"
    "{% endif %}{% endfor %}{% endif %}{{'<|im_end|>\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{'<|im_start|>assistant\n' }}{% endif %}"
)
TILES = ("<global-img>", *(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)))
SMOLVLM = ("<|endoftext|>", "<|im_start|>", "<image>", "<end_of_utterance>", "<fake_token_around_image>", *TILES)
TILES_TEMPLATE = (
    "START{% for message in messages %}{{message['role'].capitalize()}}"
    "{% if message['content'][0]['type'] == 'image' %}{{':'}}{% else %}{{': '}}{% endif %}"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{line['text']}}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n"
    "{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
LLAVA = ("<pad>", "<s>", "</s>", "<image>")
LLAVA_TEMPLATE = (
    "{% for message in messages %}{% if message['role'] != 'system' %}{{ message['role'].upper() + ': '}}{% endif %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'image') %}{{ '<image>\n' }}{% endfor %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}{{ content['text'] + ' '}}"
    "{% endfor %}{% endfor %}{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)
"""LLaVA-1.5's own: only a blank follows an answer."""
GEMMA = ("<pad>", "<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>", "<start_of_image>", "<end_of_image>", "<image>")
GEMMA_NAMES = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image>"}
GEMMA_TEMPLATE = (
    "{{ bos_token }}{% set ns = namespace(system='') %}{% if messages[0]['role'] == 'system' %}"
    "{% set ns.system = messages[0]['content'][0]['text'] + '\n\n' %}{% set messages = messages[1:] %}{% endif %}"
    "{% for message in messages %}{{ '<start_of_turn>' + ('model' if message['role'] == 'assistant' else 'user') }}\n"
    "{{ ns.system if loop.first }}{% for item in message['content'] %}"
    "{{ '<start_of_image>' if item['type'] == 'image' else item['text'] | trim }}{% endfor %}<end_of_turn>\n"
    "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)


def make_tokenizer(
    specials: Sequence[str], *, end: str, pad: str, template: str, **named: str
) -> PreTrainedTokenizerFast:
    """Return a byte-level tokenizer of few words with a family's special tokens, some by name, and chat template."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        [" ".join(WORDS), "\n".join(WORDS)],
        trainers.BpeTrainer(vocab_size=320, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False),
    )
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=end,
        pad_token=pad,
        padding_side="left",
        chat_template=template,
        extra_special_tokens=named or list(specials),
    )
    wrapped.add_tokens(list(specials), special_tokens=True)
    return wrapped


def make_sentencepiece(
    specials: Sequence[str], *, begins: bool, template: str, **named: str
) -> PreTrainedTokenizerFast:
    """Return a tokenizer as SentencePiece makes them, of few words; `begins`: it writes a blank before a text.

    The first special tokens are for padding, the beginning and the end of a text.
    """
    pad, start, end = specials[:3]
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence(
        [*([normalizers.Prepend("\u2581")] if begins else []), normalizers.Replace(" ", "\u2581")]
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
        + ([decoders.Strip(" ", 1, 0)] if begins else [])
    )
    bytes_ = [f"<0x{value:02X}>" for value in range(256)]
    tokenizer.train_from_iterator(
        [word for word in WORDS for _ in range(3)] + ["USER:", "ASSISTANT:", "user", "model"],
        trainers.BpeTrainer(
            vocab_size=480,
            special_tokens=["<unk>", *specials, *bytes_],
            initial_alphabet=["\u2581"],
            show_progress=False,
        ),
    )
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{start} $A", special_tokens=[(start, 2)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=start,
        eos_token=end,
        pad_token=pad,
        unk_token="<unk>",
        padding_side="left",
        chat_template=template,
        extra_special_tokens=named or list(specials[3:]),
    )


def loud(model: Model) -> Model:
    """Return a model with weights far above the usual 0.02, else no output would react to an image or a position."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or not parameter.any():  # Gemma's norms multiply by one more than their weights
                parameter.normal_(0, 0.05, generator=generator)
            elif parameter.ndim >= 2:
                parameter.normal_(0, 0.15 if "embed_tokens" in name else 0.25, generator=generator)
    return model


def text_part(tokenizer: Any, *, start: str, end: str, pad: str, **more: Any) -> dict[str, Any]:
    """Return the configuration of a small decoder."""
    first, last, padding = tokenizer.convert_tokens_to_ids([start, end, pad])
    common = {
        "hidden_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 96,
        "vocab_size": len(tokenizer),
        "max_position_embeddings": 4096,
        "bos_token_id": first,
        "eos_token_id": last,
        "pad_token_id": padding,
    }
    return common | more


def save_qwen(folder: Path, kind: str, *, text: dict[str, Any], vision: dict[str, Any]) -> None:
    """Write a Qwen2.5-VL or Qwen3-VL, its tokenizer and its image processor."""
    tokenizer = make_tokenizer(QWEN, end="<|im_end|>", pad="<|endoftext|>", template=QWEN_TEMPLATE)
    pad, _, _, start, stop, image = tokenizer.convert_tokens_to_ids(list(QWEN))
    config = getattr(transformers, f"{kind}Config")(
        text_config=text_part(tokenizer, start="<|endoftext|>", end="<|im_end|>", pad="<|endoftext|>", **text),
        vision_config={"hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 64, **vision},
        image_token_id=image,
        video_token_id=pad,
        vision_start_token_id=start,
        vision_end_token_id=stop,
        tie_word_embeddings=True,
    )
    loud(getattr(transformers, f"{kind}ForConditionalGeneration")(config)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    Qwen2VLImageProcessorPil(min_pixels=56 * 56, max_pixels=112 * 112).save_pretrained(folder)


def save_internvl(folder: Path) -> None:
    """Write an InternVL whose text part is a Qwen2."""
    tokenizer = make_tokenizer(
        INTERNVL, end="<|im_end|>", pad="<|endoftext|>", template=INTERNVL_TEMPLATE, **INTERNVL_NAMES
    )
    own = {"model_type": "qwen2", "head_dim": 16, "tie_word_embeddings": True}
    config = transformers.InternVLConfig(
        text_config=text_part(tokenizer, start="<|endoftext|>", end="<|im_end|>", pad="<|endoftext|>", **own),
        vision_config={
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 48,
            "image_size": [56, 56],
            "patch_size": [14, 14],
        },
        image_token_id=tokenizer.convert_tokens_to_ids("<IMG_CONTEXT>"),
        tie_word_embeddings=True,
    )
    loud(transformers.InternVLForConditionalGeneration(config)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    size = {"height": 56, "width": 56}
    GotOcr2ImageProcessorPil(size=size, min_patches=1, max_patches=6).save_pretrained(folder)
    processor = {"processor_class": "InternVLProcessor", "image_seq_length": 4}  # 4 x 4 patches, merged by 4
    (folder / "processor_config.json").write_text(json.dumps(processor))


def save_smolvlm(folder: Path) -> None:
    """Write a SmolVLM with tiles of 6 x 6 patches, of which 3 x 3 become one token."""
    pad, start, image, end, *_ = SMOLVLM
    tokenizer = make_tokenizer(SMOLVLM, end=end, pad=pad, template=TILES_TEMPLATE.replace("START", start))
    config = transformers.SmolVLMConfig(
        text_config=text_part(tokenizer, start=start, end=end, pad=pad, model_type="llama"),
        vision_config={
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 48,
            "image_size": 42,
            "patch_size": 7,
        },
        image_token_id=tokenizer.convert_tokens_to_ids(image),
        scale_factor=3,
        pad_token_id=tokenizer.pad_token_id,
    )
    loud(transformers.SmolVLMForConditionalGeneration(config)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    sizes = {"size": {"longest_edge": 126}, "max_image_size": {"longest_edge": 42}}
    SmolVLMImageProcessorPil(**sizes).save_pretrained(folder)
    (folder / "processor_config.json").write_text(json.dumps({"image_seq_len": 4}))


def save_llava(folder: Path) -> None:
    """Write a LLaVA with LLaVA-1.5's template, its processor as `save_pretrained` writes one."""
    tokenizer = make_sentencepiece(LLAVA, begins=True, template=LLAVA_TEMPLATE)
    pad, start, end, image = LLAVA
    vision = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
    config = transformers.LlavaConfig(
        text_config=text_part(tokenizer, start=start, end=end, pad=pad, model_type="llama"),
        vision_config={"model_type": "clip_vision_model", "image_size": 56, "patch_size": 14, **vision},
        image_token_index=tokenizer.convert_tokens_to_ids(image),
        vision_feature_layer=-1,
    )
    loud(transformers.LlavaForConditionalGeneration(config)).save_pretrained(folder)
    square = {"height": 56, "width": 56}
    transformers.LlavaProcessor(
        CLIPImageProcessorPil(size={"shortest_edge": 56}, crop_size=square),
        tokenizer,
        patch_size=14,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=LLAVA_TEMPLATE,
    ).save_pretrained(folder)


def save_gemma3(folder: Path) -> None:
    """Write a Gemma 3, its processor as `save_pretrained` writes one; a window is shorter than a prompt."""
    tokenizer = make_sentencepiece(GEMMA, begins=False, template=GEMMA_TEMPLATE, **GEMMA_NAMES)
    pad, start, end, *_ = GEMMA
    text = text_part(tokenizer, start=start, end=end, pad=pad, head_dim=16, sliding_window=32)
    vision = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
    boi, eoi, image = tokenizer.convert_tokens_to_ids(list(GEMMA_NAMES.values()))
    config = transformers.Gemma3Config(
        text_config=text,
        vision_config={"image_size": 56, "patch_size": 14, **vision},
        mm_tokens_per_image=4,
        boi_token_index=boi,
        eoi_token_index=eoi,
        image_token_index=image,
    )
    loud(transformers.Gemma3ForConditionalGeneration(config)).save_pretrained(folder)
    transformers.Gemma3Processor(
        Gemma3ImageProcessorPil(size={"height": 56, "width": 56}),
        tokenizer,
        chat_template=GEMMA_TEMPLATE,
        image_seq_length=4,
    ).save_pretrained(folder)


def rotary(*sections: int, **more: Any) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": 1e4, "mrope_section": list(sections), **more}


QWEN2_5 = {
    "text": {"rope_parameters": rotary(2, 3, 3), "tie_word_embeddings": True},
    "vision": {"depth": 2, "fullatt_block_indexes": [1], "window_size": 56},
}
QWEN3 = {
    "text": {
        "num_hidden_layers": 4,
        "head_dim": 24,
        "rope_parameters": rotary(4, 4, 4, mrope_interleaved=True),
    },
    "vision": {"depth": 3, "patch_size": 14, "num_position_embeddings": 36, "deepstack_visual_indexes": [0, 1]},
}
FOLDERS: dict[str, Callable[[Path], None]] = {
    "qwen2_5_vl": partial(save_qwen, kind="Qwen2_5_VL", **QWEN2_5),
    "qwen3_vl": partial(save_qwen, kind="Qwen3VL", **QWEN3),
    "internvl": save_internvl,
    "smolvlm": save_smolvlm,
    "llava": save_llava,
    "gemma3": save_gemma3,
}
"""Family -> what writes its folder."""
FAST = ("qwen2_5_vl",)
"""Families with a plugin of their own; `hf` answers with all of them."""
