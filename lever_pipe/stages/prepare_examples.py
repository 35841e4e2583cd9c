"""Rule `prepare_examples`: raw questions, annotations and images as two files of examples."""

from __future__ import annotations

import time
from importlib import import_module
from pathlib import Path

from lever_pipe import storage
from lever_pipe.datasets.protocol import Reader, ReadOptions, VqaFilePaths
from lever_pipe.errors import DataError
from lever_pipe.run_card import Inputs, write_card
from lever_pipe.stage_configs import PrepareExamplesConfig, Runtime


def prepare_examples(
    *,
    train_questions: Path,
    train_annotations: Path,
    train_images: Path,
    eval_questions: Path,
    eval_annotations: Path,
    eval_images: Path,
    train_examples: Path,
    eval_examples: Path,
    image_listing: tuple[Path, ...],
    summary: Path,
    card: Path,
    config: PrepareExamplesConfig,
    runtime: Runtime = Runtime(),
) -> tuple[int, int]:
    """Write both splits in question-id order and return their sizes.

    `image_listing` names digests of images where the source has such a file: other images, another run. `summary`
    counts what was kept and skipped.

    Raises:
        DataError: incomplete or contradictory files; all faults at once with counts.
        ImageError: an unreadable image, unless such images are skipped.
    """
    started = time.perf_counter()
    reader: Reader = import_module(f"lever_pipe.datasets.{config.reader}")
    raw_train = VqaFilePaths(questions=train_questions, annotations=train_annotations, images=train_images)
    raw_eval = VqaFilePaths(questions=eval_questions, annotations=eval_annotations, images=eval_images)
    counts: dict[str, int] = {}
    for split, raw, name, limit, target in (
        ("train", raw_train, config.train_image_name, None, train_examples),
        ("eval", raw_eval, config.eval_image_name, config.n_eval, eval_examples),
    ):
        options = ReadOptions(
            image_name=name, n_answers=config.n_answers, on_bad_image=config.on_bad_image, limit=limit
        )
        result = reader.read(raw, options)
        _require_count(len(result.examples), limit, raw.questions)
        storage.write_rows(target, result.examples)
        counts[f"{split}_questions"] = len(result.examples)
        counts[f"{split}_skipped_questions"] = result.n_skipped_questions
        counts[f"{split}_skipped_images"] = len(result.skipped_images)
    storage.write_json(summary, counts)
    inputs: Inputs = {
        "train_questions": train_questions,
        "train_annotations": train_annotations,
        "eval_questions": eval_questions,
        "eval_annotations": eval_annotations,
        "image_listing": image_listing,
    }
    write_card(card, stage="prepare_examples", config=config, inputs=inputs, started=started, runtime=runtime)
    return counts["train_questions"], counts["eval_questions"]


def _require_count(found: int, wanted: int | None, questions: Path) -> None:
    if wanted is not None and found < wanted:
        raise DataError(
            f"{questions}: expected at least {wanted} questions with readable images",
            found=str(found),
            do="Lower data.n_eval and evaluation.samples, or complete the data.",
        )
