"""Both splits of the configured data, and what must hold between them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lever_pipe.base.errors import DataError
from lever_pipe.base.members import member
from lever_pipe.base.records import Example
from lever_pipe.experiment.data_config import ExampleSettings
from lever_pipe.lever.datasets.protocol import Reader, ReadOptions, ReadResult, VqaFilePaths


def read_train(files: VqaFilePaths, settings: ExampleSettings) -> ReadResult:
    """Return the train split as the configured reader reads it; see `protocol.Reader.read`."""
    options = ReadOptions(settings.train_image_name, settings.n_answers, settings.on_bad_image, settings.answers)
    reader: Reader = member("lever/datasets", settings.reader)
    return reader.read(files, options)


def read_queries(files: VqaFilePaths, settings: ExampleSettings) -> ReadResult:
    """Return the `n_eval` evaluated queries; see `protocol.Reader.read`."""
    options = ReadOptions(
        settings.eval_image_name,
        settings.n_answers,
        settings.on_bad_image,
        settings.answers,
        limit=settings.n_eval,
        seed=settings.eval_seed if settings.eval_subset == "random" else None,
    )
    reader: Reader = member("lever/datasets", settings.reader)
    queries = reader.read(files, options)
    if len(queries.examples) < settings.n_eval:
        raise DataError(
            f"{files.questions}: expected at least {settings.n_eval} questions with readable images",
            found=str(len(queries.examples)),
            do="Lower data.n_eval and evaluation.samples, or complete the data.",
        )
    return queries


def shared_questions(
    train: Sequence[Example], queries: Sequence[Example], settings: ExampleSettings, *, file: Path, train_file: Path
) -> list[int]:
    """Return the question ids of the queries that a train example asks too, of the same image.

    The same image has the same bytes, or the same id where the question has too; case and blanks of a question do not
    count.
    """
    marks = {mark for example in train for mark in _marks(example)}
    shared = [query.question_id for query in queries if not marks.isdisjoint(_marks(query))]
    if shared and settings.on_split_overlap == "stop":
        first = ", ".join(map(str, shared[:5]))
        raise DataError(
            f"{file}: expected questions that are not in {train_file} on the same image",
            found=f"{len(shared)} that are (question ids {first}{', ...' if len(shared) > 5 else ''})",
            do='Take them out of one split, or set data.on_split_overlap to "count".',
        )
    return shared


def _marks(example: Example) -> tuple[tuple[object, ...], ...]:
    text = " ".join(example.question.casefold().split())
    return (text, example.image_digest), (text, example.question_id, example.image_id)
