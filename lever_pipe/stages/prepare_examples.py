"""Rule `prepare_examples`: raw questions, annotations and images of a split as a file of examples."""

from __future__ import annotations

from lever_pipe.base import storage
from lever_pipe.experiment.stage_configs import PrepareExamplesConfig
from lever_pipe.experiment.stage_files import External, Input, Inputs, Output
from lever_pipe.lever.datasets._splits import read_queries, read_train, shared_questions
from lever_pipe.lever.datasets.protocol import VqaFilePaths


def prepare_examples(
    *,
    questions: Input,
    annotations: Input,
    images: External,
    image_listing: Inputs,  # noqa: ARG001 - other images, another run
    train_examples: Inputs,
    examples: Output,
    summary: Output,
    config: PrepareExamplesConfig,
) -> int:
    """Write a split in question-id order and return its size.

    `image_listing` names digests of images where the source has such a file: other images, another run.
    `train_examples` are what evaluation questions are held against, none for the train split, which depends on no
    evaluation. `summary` counts what was kept and skipped, and the evaluation questions that are train questions too
    where they may be.

    Raises:
        DataError: incomplete or contradictory files; all faults at once with counts. Splits that overlap, unless that
            is allowed.
        ImageError: an unreadable image, unless such images are skipped.
    """
    raw = VqaFilePaths(questions=questions, annotations=annotations, images=images)
    found = read_train(raw, config) if config.split == "train" else read_queries(raw, config)
    counts = {
        f"{config.split}_questions": len(found.examples),
        f"{config.split}_skipped_questions": found.n_skipped_questions,
        f"{config.split}_skipped_images": len(found.skipped_images),
    }
    for path in train_examples:
        shared = shared_questions(storage.read_examples(path), found.examples, config, asked=questions, shown=path)
        if config.on_split_overlap == "count":
            counts["eval_questions_in_train"] = len(shared)
    storage.write_rows(examples, found.examples)
    storage.write_json(summary, counts)
    return len(found.examples)
