"""Rule `prepare_examples`: raw questions, annotations and images as two files of examples."""

from __future__ import annotations

from lever_pipe.base import storage
from lever_pipe.experiment.stage_configs import PrepareExamplesConfig
from lever_pipe.experiment.stage_files import External, Input, Inputs, Output
from lever_pipe.lever.datasets._splits import read_queries, read_train, shared_questions
from lever_pipe.lever.datasets.protocol import ReadResult, VqaFilePaths


def prepare_examples(
    *,
    train_questions: Input,
    train_annotations: Input,
    train_images: External,
    eval_questions: Input,
    eval_annotations: Input,
    eval_images: External,
    train_examples: Output,
    eval_examples: Output,
    image_listing: Inputs,  # noqa: ARG001 - other images, another run
    summary: Output,
    config: PrepareExamplesConfig,
) -> tuple[int, int]:
    """Write both splits in question-id order and return their sizes.

    `image_listing` names digests of images where the source has such a file: other images, another run. `summary`
    counts what was kept and skipped, and the evaluation questions that are train questions too where they may be.

    Raises:
        DataError: incomplete or contradictory files; all faults at once with counts. Splits that overlap, unless that
            is allowed.
        ImageError: an unreadable image, unless such images are skipped.
    """
    raw_train = VqaFilePaths(questions=train_questions, annotations=train_annotations, images=train_images)
    raw_eval = VqaFilePaths(questions=eval_questions, annotations=eval_annotations, images=eval_images)
    train, queries = read_train(raw_train, config), read_queries(raw_eval, config)
    counts = _counts("train", train) | _counts("eval", queries)
    of_both = {"asked": eval_questions, "shown": train_questions}
    shared = shared_questions(train.examples, queries.examples, config, **of_both)
    if config.on_split_overlap == "count":
        counts["eval_questions_in_train"] = len(shared)
    storage.write_rows(train_examples, train.examples)
    storage.write_rows(eval_examples, queries.examples)
    storage.write_json(summary, counts)
    return len(train.examples), len(queries.examples)


def _counts(split: str, result: ReadResult) -> dict[str, int]:
    return {
        f"{split}_questions": len(result.examples),
        f"{split}_skipped_questions": result.n_skipped_questions,
        f"{split}_skipped_images": len(result.skipped_images),
    }
