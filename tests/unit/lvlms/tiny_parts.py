"""What the tiny models of all families are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn
from transformers import PreTrainedTokenizerFast

WORDS = (
    *("what", "color", "is", "the", "cat", "dog", "bus", "train", "man", "table", "red", "blue", "green"),
    *("two", "one", "kind", "of", "food", "sport", "where"),
)
Model = TypeVar("Model", bound=nn.Module)


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
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=end,
        pad_token=pad,
        padding_side="left",
        chat_template=template,
        extra_special_tokens=named or list(specials),
    )
    made.add_tokens(list(specials), special_tokens=True)
    return made


def loud(model: Model) -> Model:
    """Return a model with weights far above the usual 0.02, else no output would react to an image or a position."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0, 0.05, generator=generator)
            elif parameter.ndim >= 2:
                parameter.normal_(0, 0.15 if "embed_tokens" in name else 0.25, generator=generator)
    return model
