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
from lever_pipe.lever.datasets.protocol import Reader, ReadOptions, VqaFilePaths


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
    counts: dict[str, int] = {}
    splits: list[list[Example]] = []
    for split, raw, name, limit in (
        ("train", raw_train, config.train_image_name, None),
        ("eval", raw_eval, config.eval_image_name, config.n_eval),
    ):
        options = ReadOptions(
            image_name=name, n_answers=config.n_answers, on_bad_image=config.on_bad_image, limit=limit
        )
        result = reader.read(raw, options)
        _require_count(len(result.examples), limit, raw.questions)
        splits.append(result.examples)
        counts[f"{split}_questions"] = len(result.examples)
        counts[f"{split}_skipped_questions"] = result.n_skipped_questions
        counts[f"{split}_skipped_images"] = len(result.skipped_images)
    shared = shared_questions(*splits)
    if shared and config.on_split_overlap == "stop":
        raise _overlap(eval_questions, train_questions, shared)
    if config.on_split_overlap == "count":
        counts["eval_questions_in_train"] = len(shared)
    for target, examples in zip((train_examples, eval_examples), splits, strict=True):
        storage.write_rows(target, examples)
    storage.write_json(summary, counts)
    return counts["train_questions"], counts["eval_questions"]


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


def _require_count(found: int, wanted: int | None, questions: Path) -> None:
    if wanted is not None and found < wanted:
        raise DataError(
            f"{questions}: expected at least {wanted} questions with readable images",
            found=str(found),
            do="Lower data.n_eval and evaluation.samples, or complete the data.",
        )
