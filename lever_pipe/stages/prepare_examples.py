"""Rule `prepare_examples`: raw questions, annotations and images as two files of examples."""

from __future__ import annotations

import logging
import time
from importlib import import_module
from pathlib import Path

from lever_pipe import storage
from lever_pipe.datasets.protocol import Reader, ReadOptions, VqaFilePaths
from lever_pipe.run_card import write_card
from lever_pipe.stage_configs import PrepareExamplesConfig, Runtime

LOGGER = logging.getLogger(__name__)


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
    card: Path,
    config: PrepareExamplesConfig,
    runtime: Runtime = Runtime(),
) -> tuple[int, int]:
    """Write both splits in question-id order and return their sizes.

    Raises:
        DataError: incomplete or contradictory files; all faults at once with counts.
        ImageError: an unreadable image, unless such images are skipped.
    """
    started = time.perf_counter()
    reader: Reader = import_module(f"lever_pipe.datasets.{config.reader}")
    raw_train = VqaFilePaths(questions=train_questions, annotations=train_annotations, images=train_images)
    raw_eval = VqaFilePaths(questions=eval_questions, annotations=eval_annotations, images=eval_images)
    sizes = []
    for raw, name, limit, target in (
        (raw_train, config.train_image_name, None, train_examples),
        (raw_eval, config.eval_image_name, config.n_eval, eval_examples),
    ):
        options = ReadOptions(
            image_name=name, n_answers=config.n_answers, on_bad_image=config.on_bad_image, limit=limit
        )
        result = reader.read(raw, options)
        if result.skipped_images:
            images, questions = len(result.skipped_images), result.n_skipped_questions
            LOGGER.warning("%s: skipped %d unreadable images with %d questions", target, images, questions)
        storage.write_rows(target, result.examples)
        sizes.append(len(result.examples))
    inputs = {
        "train_questions": train_questions,
        "train_annotations": train_annotations,
        "eval_questions": eval_questions,
        "eval_annotations": eval_annotations,
    }
    write_card(card, stage="prepare_examples", config=config, inputs=inputs, started=started, runtime=runtime)
    return sizes[0], sizes[1]
