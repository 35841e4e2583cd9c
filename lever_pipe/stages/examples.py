"""Convert the questions, annotations and images of a split to examples, and embed them as unit vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from lever_pipe.base import contents, storage
from lever_pipe.base.errors import CheckpointError, ImageError
from lever_pipe.base.plugins import plugin
from lever_pipe.base.records import Example
from lever_pipe.experiment import execution
from lever_pipe.experiment.examples import EmbedExamplesConfig, PrepareExamplesConfig
from lever_pipe.experiment.job_runtime import Runtime
from lever_pipe.experiment.stage_files import External, Input, Inputs, Output
from lever_pipe.lever.datasets._splits import read_queries, read_train, shared_questions
from lever_pipe.lever.datasets.protocol import VqaFilePaths
from lever_pipe.lever.encoders.protocol import EncoderPlugin


def prepare_examples(
    *,
    questions: Input,
    annotations: Input,
    images: External,
    image_listing: Input,
    train_examples: Inputs,
    examples: Output,
    summary: Output,
    config: PrepareExamplesConfig,
) -> int:
    """Write a split in question-id order and return its size.

    `image_listing` has the digest of each image when the run was planned; images that changed since then are an error.
    Evaluation questions are checked for overlap with `train_examples`, which are empty for the train split. `summary`
    counts the questions and the skipped ones, and, with `on_split_overlap: count`, evaluation questions that are also
    train questions.
    """
    raw = VqaFilePaths(questions=questions, annotations=annotations, images=images)
    split = read_train(raw, config) if config.split == "train" else read_queries(raw, config)
    _require_listed(split.examples, images, storage.read_listing(image_listing))
    counts = {
        f"{config.split}_questions": len(split.examples),
        f"{config.split}_skipped_questions": split.n_skipped_questions,
        f"{config.split}_skipped_images": len(split.skipped_images),
    }
    for path in train_examples:
        shared = shared_questions(storage.read_examples(path), split.examples, config, file=questions, train_file=path)
        if config.on_split_overlap == "count":
            counts["eval_questions_in_train"] = len(shared)
    storage.write_rows(examples, split.examples)
    storage.write_json(summary, counts)
    return len(split.examples)


def embed_examples(
    *,
    examples: Input,
    images: External,
    encoder: External,
    embeddings: Output,
    config: EmbedExamplesConfig,
    runtime: Runtime = Runtime(),
) -> dict[str, tuple[int, int]]:
    """Write `image` and `question`, each `[N, D]` float32 with unit rows; return their shapes."""
    execution.prepare(runtime)
    encoders: EncoderPlugin = plugin("lever/encoders", config.plugin)
    model = encoders.load(encoder, device=runtime.device, batch_size=config.batch_size)
    rows = storage.read_examples(examples)
    _require_same_images(rows, images)
    arrays = {
        "image": model.images([images / example.image for example in rows]),
        "question": model.texts([example.question for example in rows]),
    }
    if not all(np.isfinite(array).all() for array in arrays.values()):
        expected = f"{encoder}: expected an encoder that gives finite vectors"
        raise CheckpointError(expected, found="others", do="Fix its weights or config.json.")
    storage.write_arrays(embeddings, arrays)
    return {name: array.shape for name, array in arrays.items()}


def _require_listed(examples: Sequence[Example], root: Path, listed: Mapping[str, str]) -> None:
    """Refuse images that changed since the plan, because the store's key contains their digests."""
    images = {example.image: example.image_digest for example in examples}
    changed = [str(root / name) for name, digest in images.items() if listed.get(name, digest) != digest]
    if changed:
        raise ImageError(
            f"{root}: expected the images that were there when this run was planned",
            found=f"{len(changed)} with other bytes, first {changed[0]}",
            do="Run again: the plan follows the images.",
        )


def _require_same_images(examples: Sequence[Example], root: Path) -> None:
    files, digests = {root / e.image: e.image_digest for e in examples}, contents.remembered()
    changed = [str(path) for path, digest in files.items() if path.is_file() and digests.of(path) != digest]
    if changed:
        raise ImageError(
            f"{root}: expected the images that the examples were prepared with",
            found=f"{len(changed)} with other bytes, first {changed[0]}",
            do="Restore the images, or run again: the plan follows the images.",
        )
