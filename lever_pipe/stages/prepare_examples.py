"""Rule `prepare_examples`: raw questions, annotations and images as two files of examples."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lever_pipe.base import storage
from lever_pipe.base.errors import DataError
from lever_pipe.base.members import member
from lever_pipe.base.records import Example
from lever_pipe.experiment.stage_configs import PrepareExamplesConfig
from lever_pipe.experiment.stage_files import External, Input, Inputs, Output
from lever_pipe.lever.datasets.protocol import Reader, ReadOptions, ReadResult, VqaFilePaths


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
    reader: Reader = member("lever/datasets", config.reader)
    raw_train = VqaFilePaths(questions=train_questions, annotations=train_annotations, images=train_images)
    raw_eval = VqaFilePaths(questions=eval_questions, annotations=eval_annotations, images=eval_images)
    n_answers, on_bad_image, n_eval = config.n_answers, config.on_bad_image, config.n_eval
    train = reader.read(raw_train, ReadOptions(config.train_image_name, n_answers, on_bad_image))
    queries = reader.read(raw_eval, ReadOptions(config.eval_image_name, n_answers, on_bad_image, limit=n_eval))
    if len(queries.examples) < n_eval:
        raise DataError(
            f"{eval_questions}: expected at least {n_eval} questions with readable images",
            found=str(len(queries.examples)),
            do="Lower data.n_eval and evaluation.samples, or complete the data.",
        )
    counts = _counts("train", train) | _counts("eval", queries)
    shared = shared_questions(train.examples, queries.examples)
    if shared and config.on_split_overlap == "stop":
        raise _overlap(eval_questions, train_questions, shared)
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


def shared_questions(train: Sequence[Example], queries: Sequence[Example]) -> list[int]:
    """Return the question ids of the queries that a train example asks too, of the same image.

    The same image has the same bytes, or the same id where the question has too; case and blanks of a question do not
    count.
    """
    seen = {mark for example in train for mark in _marks(example)}
    return [query.question_id for query in queries if not seen.isdisjoint(_marks(query))]


def _marks(example: Example) -> tuple[tuple[object, ...], ...]:
    text = " ".join(example.question.casefold().split())
    return (text, example.image_digest), (text, example.question_id, example.image_id)


def _overlap(eval_questions: Path, train_questions: Path, shared: Sequence[int]) -> DataError:
    first = ", ".join(map(str, shared[:5]))
    return DataError(
        f"{eval_questions}: expected questions that are not in {train_questions} on the same image",
        found=f"{len(shared)} that are (question ids {first}{', ...' if len(shared) > 5 else ''})",
        do='Take them out of one split, or set data.on_split_overlap to "count".',
    )
