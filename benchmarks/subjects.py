"""The timed models, each with examples for its prompts."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from lever_pipe.base.records import Example, ExampleId
from lever_pipe.base.seeding import generator
from lever_pipe.base.storage import read_examples
from lever_pipe.base.torch_streams import ambient_stream
from lever_pipe.experiment.identities import config_of
from lever_pipe.experiment.lvlm import AnswerPromptsConfig, AnswerSettings, Decode, PromptSettings
from lever_pipe.experiment.studies import Experiment, parse_experiment
from lever_pipe.lvlms.asking.prompts import Wording
from lever_pipe.lvlms.protocol import ImageSource
from lever_pipe.lvlms.qwen2_5_vl import Qwen, load
from lever_pipe.stages.examples import prepare_examples
from lever_pipe.stages.world import generate_world
from tools.make_world.architectures import CHAT_TEMPLATE

if TYPE_CHECKING:
    from PIL.Image import Image

ROOT = Path(__file__).parents[1]
N_POOL = 64  # examples that may be demonstrations
N_QUERIES = 6
SPECIALS = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>"),
    "<|video_pad|>",
)
N_VOCABULARY = 1024
N_WORDS = 600
SIZES = ((168, 112), (112, 168), (168, 168), (224, 112), (140, 196))
"""Width and height, multiples of 28: images are not resized, because libraries resize slightly differently."""
SYSTEM = (
    "A few solved examples come first, each with an image, a question and its answer. A new image and a new question "
    "follow. Answer the new question in one or two words."
)


class DecodedImages(ImageSource):
    """Images in memory, so that no timing includes reading files."""

    def __init__(self, images: Mapping[str, Image]) -> None:
        super().__init__({})
        self._images = images

    def open(self, digest: str) -> Image:
        """Return the decoded image."""
        self.opened += 1
        return self._images[digest]

    def size(self, digest: str) -> tuple[int, int]:
        """Return width and height."""
        return self._images[digest].size


@dataclass(frozen=True)
class Subject:
    """A loaded model and the sources of its workloads.

    Attributes:
        name: one word.
        title: its name on the page.
        parts: model, tokenizer and image processor.
        settings: of the engine and of its search.
        wording: of the prompts.
        pool: possible demonstrations.
        queries: questions to answer.
        answers: source of the given answers.
        images: of pool and queries.
    """

    name: str
    title: str
    parts: Qwen
    settings: AnswerSettings
    wording: Wording
    pool: Sequence[Example]
    queries: Sequence[Example]
    answers: Sequence[str]
    images: ImageSource = field(repr=False)

    @property
    def n_parameters(self) -> int:
        """Number of parameters, tied ones counted once."""
        return sum(parameter.numel() for parameter in self.parts.model.parameters())


def random_subject(folder: Path, scale: int = 1) -> Subject:
    """Return a model with random weights, saved to `folder` and loaded from there.

    Its weights are larger than usual; otherwise no output would depend on an image or a position. It has `scale` times
    the width and the layers of the smallest model.
    """
    words = _words()
    save_random_model(folder, words, scale)
    images = {hashlib.sha256(image.tobytes()).hexdigest(): image for image in map(_image, range(N_POOL + N_QUERIES))}
    examples = [_example(number, digest, words) for number, digest in enumerate(images)]
    return Subject(
        name="random" if scale == 1 else "larger",
        title="Random weights" if scale == 1 else "Random weights, larger",
        parts=load(folder, dtype="float32", device="cpu"),
        settings=AnswerSettings(
            engine="qwen2_5_vl",
            dtype="float32",
            wave_tokens=2048,
            kv_tokens=65_536,
            decode=Decode(num_beams=1, repetition_penalty=1.0),
        ),
        wording=Wording(
            PromptSettings(layout="turns", system=SYSTEM, demonstration="{question}\n{answer}", query="{question}")
        ),
        pool=examples[:N_POOL],
        queries=examples[N_POOL:],
        answers=sorted({example.answer for example in examples}),
        images=DecodedImages(images),
    )


def world_subject(folder: Path) -> Subject:
    """Return the embedded world's model with examples of the default experiment, written to `folder`."""
    experiment = parse_experiment(yaml.safe_load((ROOT / "config.yaml").read_text(encoding="utf-8")))
    config = config_of(experiment, "answer_prompts", {})
    assert isinstance(config, AnswerPromptsConfig)
    train, queries, paths = _world_examples(experiment, folder)
    rng = generator(0, "benchmark", "world", "examples")
    pool = [train[i] for i in rng.choice(len(train), N_POOL, replace=False)]
    chosen = [queries[i] for i in rng.choice(len(queries), N_QUERIES, replace=False)]
    files = ImageSource(paths)
    lvlm = config.lvlm
    return Subject(
        name="world",
        title="The embedded world's model",
        parts=load(ROOT / experiment.lvlm.model, dtype=lvlm.dtype, device="cpu"),
        settings=lvlm,
        wording=Wording(lvlm.prompt),
        pool=pool,
        queries=chosen,
        answers=sorted({example.answer for example in train}),
        images=DecodedImages({e.image_digest: files.open(e.image_digest) for e in [*pool, *chosen]}),
    )


def _world_examples(experiment: Experiment, folder: Path) -> tuple[list[Example], list[Example], dict[str, Path]]:
    """Return both splits of the default world, and its image files by digest."""
    rows, paths = list[list[Example]](), dict[str, Path]()
    for split, name in (("train", "train"), ("eval", "val")):
        raw = {kind: folder / f"{split}_{kind}" for kind in ("questions", "annotations", "images")}
        listing, examples = folder / f"{split}.sha256", folder / f"{split}.jsonl"
        world = config_of(experiment, "generate_world", {"split": name})
        generate_world(**raw, image_listing=listing, config=world)  # type: ignore[arg-type]
        prepare_examples(
            **raw, image_listing=listing, train_examples=(), examples=examples, summary=folder / f"{split}.summary",
            config=config_of(experiment, "prepare_examples", {"split": split}),  # type: ignore[arg-type]
        )  # fmt: skip
        rows.append(read_examples(examples))
        paths |= {e.image_digest: raw["images"] / e.image for e in rows[-1]}
    train, queries = rows
    return train, queries, paths


def save_random_model(folder: Path, words: Sequence[str], scale: int = 1) -> None:
    """Write a model folder as `save_pretrained` does: random weights, a million at scale 1, and a tokenizer."""
    import torch
    from transformers import Qwen2_5_VLForConditionalGeneration
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    tokenizer = _tokenizer(words)
    with ambient_stream(0, "benchmark", "weights"), torch.no_grad():
        model = Qwen2_5_VLForConditionalGeneration(_model_config(tokenizer, scale))
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0, 0.05)
            elif parameter.ndim >= 2:
                parameter.normal_(0, 0.2 if "embed_tokens" in name else 0.08 / scale**0.5)
    model.save_pretrained(folder)
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(folder)
    Qwen2VLImageProcessorPil(min_pixels=4 * 28 * 28, max_pixels=64 * 28 * 28).save_pretrained(folder)


def _model_config(tokenizer: Any, scale: int) -> Any:
    from transformers import Qwen2_5_VLConfig

    pad, _, end, start, stop, image, video = tokenizer.convert_tokens_to_ids(list(SPECIALS))
    text = {
        "hidden_size": 128 * scale,
        "num_hidden_layers": 4 * scale,
        "num_attention_heads": 4 * scale,
        "num_key_value_heads": 2 * scale,
        "intermediate_size": 256 * scale,
        "vocab_size": len(tokenizer),
        "max_position_embeddings": 4096,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [4, 6, 6]},
        "bos_token_id": pad,
        "eos_token_id": end,
        "pad_token_id": pad,
        "tie_word_embeddings": True,
    }
    vision = {
        "depth": 4,
        "hidden_size": 64 * scale,
        "intermediate_size": 128 * scale,
        "num_heads": 4 * scale,
        "out_hidden_size": 128 * scale,
        "fullatt_block_indexes": [1, 3],
        "window_size": 112,
    }
    tokens = {"image_token_id": image, "vision_start_token_id": start, "vision_end_token_id": stop}
    return Qwen2_5_VLConfig(
        text_config=text, vision_config=vision, video_token_id=video, tie_word_embeddings=True, **tokens
    )


def _tokenizer(words: Sequence[str]) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=N_VOCABULARY - len(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([SYSTEM, " ".join(words), "\n".join(words)], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=list(SPECIALS),
        padding_side="left",
    )


def _words() -> list[str]:
    rng = generator(0, "benchmark", "words")
    syllables = [first + second for first in "bdfgklmnprstvz" for second in "aeiou"]
    return ["".join(rng.choice(syllables, rng.integers(1, 4))) for _ in range(N_WORDS)]


def _example(number: int, digest: str, words: Sequence[str]) -> Example:
    rng = generator(0, "benchmark", "example", number)
    question = " ".join(rng.choice(words, rng.integers(4, 10))) + "?"
    answer = " ".join(rng.choice(words, rng.choice([1, 1, 1, 2])))
    return Example(
        example_id=ExampleId(number),
        question_id=number,
        image_id=number,
        image=f"{number}.png",
        image_digest=digest,
        question=question,
        question_type="any",
        answers=(answer,),
        answer=answer,
    )


def _image(number: int) -> Image:
    from PIL import Image

    coarse = generator(0, "benchmark", "image", number).integers(0, 256, (6, 6, 3), dtype="uint8")
    return Image.fromarray(coarse).resize(SIZES[number % len(SIZES)], Image.Resampling.BICUBIC)
