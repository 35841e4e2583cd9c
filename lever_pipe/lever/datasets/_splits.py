"""Train split and evaluated queries of the configured data, and the check for questions that both contain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lever_pipe.base.errors import DataError
from lever_pipe.base.plugins import plugin
from lever_pipe.base.records import Example
from lever_pipe.experiment.examples import ExampleSettings
from lever_pipe.lever.datasets.protocol import AskedImage, Reader, ReadOptions, ReadResult, VqaFilePaths


def read_train(files: VqaFilePaths, settings: ExampleSettings) -> ReadResult:
    """Return the train split from the configured reader; see `protocol.Reader.read`."""
    reader: Reader = plugin("lever/datasets", settings.reader)
    return reader.read(files, _options(settings, "train"))


def read_queries(files: VqaFilePaths, settings: ExampleSettings) -> ReadResult:
    """Return the `n_eval` evaluated queries; see `protocol.Reader.read`."""
    reader: Reader = plugin("lever/datasets", settings.reader)
    queries = reader.read(files, _options(settings, "eval"))
    if len(queries.examples) < settings.n_eval:
        raise DataError(
            f"{files.questions}: expected at least {settings.n_eval} questions with readable images",
            found=str(len(queries.examples)),
            do="Lower data.n_eval and evaluation.samples, or complete the data.",
        )
    return queries


def asked_images(
    questions: Path, settings: ExampleSettings, split: str, *, with_spares: bool = False
) -> dict[str, AskedImage] | None:
    """Return the names of the images that a split opens, each with its first question.

    None: the configured reader does not name its images.

    Args:
        questions: the question file of the split.
        settings: settings of the reader.
        split: `train` or `eval`.
        with_spares: whether to add the images that may replace unreadable ones.
    """
    options = _options(settings, split)
    if with_spares and settings.on_bad_image == "skip":
        # Any later image may replace an unreadable one.
        options = replace(options, limit=None)
    read_names = getattr(plugin("lever/datasets", settings.reader), "asked_images", None)
    return None if read_names is None else dict(read_names(questions, options))


def _options(settings: ExampleSettings, split: str) -> ReadOptions:
    if split == "train":
        return ReadOptions(settings.train_image_name, settings.n_answers, settings.on_bad_image, settings.answers)
    return ReadOptions(
        settings.eval_image_name,
        settings.n_answers,
        settings.on_bad_image,
        settings.answers,
        limit=settings.n_eval,
        seed=settings.eval_seed if settings.eval_subset == "random" else None,
    )


def shared_questions(
    train: Sequence[Example], queries: Sequence[Example], settings: ExampleSettings, *, file: Path, train_file: Path
) -> list[int]:
    """Return the question ids of the queries that are also in the train split, about the same image.

    The same image means equal bytes, or equal image and question ids. Case and blanks of a question are ignored.
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
    # Either mark suffices: equal bytes, or equal ids of an image that was stored again with other bytes.
    return (text, example.image_digest), (text, example.question_id, example.image_id)
