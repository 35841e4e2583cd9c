"""Token ids of the embedded models: the words of the embedded world, of captions and of chats."""

from __future__ import annotations

import re

from lever_pipe.world.lexicon import COLORS, COUNTS, KINDS, RELATIONS

CAPTIONS = (
    "a photo of {count} {color} {kind}",
    "a picture of {count} {color} {kind} on a background",
    "there is {count} {color} {kind}.",
    "{count} {color} {kind}",
    "image of {count} {color} {kind}",
)

# Names and meaning as in Qwen2.5-VL; its code refers to some of them by id.
SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<|unk|>",
)
PAD_ID, IM_START_ID, IM_END_ID, VISION_START_ID, VISION_END_ID, IMAGE_ID, VIDEO_ID, UNKNOWN_ID = range(
    len(SPECIAL_TOKENS)
)


def split_words(text: str) -> list[str]:
    """Return the words and punctuation marks of `text`, without white space and newlines."""
    return re.findall(r"\w+|[^\w\s]+", text)


def _all_words() -> tuple[str, ...]:
    texts = [
        "system user assistant",
        *(caption.format(count="", color="", kind="") for caption in CAPTIONS),
    ]
    texts += [*KINDS, *COLORS, *COUNTS]
    texts += [text for relation in RELATIONS for text in (*relation.questions, *relation.answers)]
    # Distinct words in order of appearance: token ids of the released models depend on this order.
    return tuple(dict.fromkeys(word for text in texts for word in split_words(text)))


WORDS = _all_words()
VOCABULARY: dict[str, int] = {word: i for i, word in enumerate((*SPECIAL_TOKENS, *WORDS))}
