"""Rule `collect_samples`: what can be looked at: every answer, a gallery, what flipped and what was chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lever_pipe.base import storage
from lever_pipe.base.records import Example
from lever_pipe.experiment.data_config import WorldData
from lever_pipe.experiment.stage_configs import CollectSamplesConfig
from lever_pipe.experiment.stage_files import External, Input, Inputs, Output
from lever_pipe.lever import flips as flipping
from lever_pipe.lever import gallery as showing
from lever_pipe.lever.samples import read_answers, samples_of
from lever_pipe.lever.thumbnails import thumbnails
from lever_pipe.report.inference.families import reference_of
from lever_pipe.report.long_format import write_csv
from lever_pipe.world.items import AnnotatedQuestion, Scene, Split, draw_split


def collect_samples(
    *,
    answers: Inputs,
    per_question: Inputs,
    train_examples: Input,
    eval_examples: Input,
    train_images: External,
    eval_images: External,
    samples: Output,
    gallery: Output,
    flips: Output,
    selections: Output,
    config: CollectSamplesConfig,
) -> None:
    """Write every answer as a line of `samples`, the `gallery`, and two long-format files.

    * `samples`: a `Sample` for each question and each of `config.policies`, which are the baselines, every run after
      the last evaluated epoch of its kind, and the RCE epochs that runs start from; all epochs would treble the file.
    * `gallery`: JSON; what it holds and by which rule says `lever.gallery.gallery`. `images` are PNG data URIs by the
      beginning of the picture's sha256.
    * `flips`: `FlipRow`, `selections`: `SelectionRow`. In the embedded world a demonstration may agree with its query
      in `relation` (what is asked), `object` (the shape that is shown), `key` (that attribute of the picture which the
      query's relation reads) and `fact` (relation and key, so that its answer is the query's); elsewhere in `type`,
      the data set's own type of question.

    Gallery and long-format files count the first `max(config.samples)` questions.

    Raises:
        RecordError: a malformed file, or a score without its answer.
        ImageError: a picture of the gallery is not the one that the examples name.
    """
    queries, train = storage.read_examples(eval_examples), storage.read_examples(train_examples)
    files = zip(config.policies, answers, per_question, strict=True)
    found = [read_answers(name, said, scores, config.shots) for name, said, scores in files]
    storage.write_rows(samples, samples_of(found, queries, train, config.shots))
    policies, counted = {str(of.name): of for of in found}, queries[: max(config.samples)]
    compared = showing.shown_comparison([of.name for of in found], config.main_preset, reference_of)
    shown = showing.gallery(compared, policies, counted, train, config.shots)
    images = _images(shown, {"eval": (queries, eval_images), "train": (train, train_images)})
    storage.write_json(gallery, {**shown, "images": images})
    flipped = flipping.flips(policies, counted, config.shots, compared)
    write_csv(flips, flipping.FlipRow._fields, flipped)
    agreements = _agreements(queries, train, config.world)
    chosen = flipping.selections(policies, counted, config.shots, agreements)
    write_csv(selections, flipping.SelectionRow._fields, chosen)


def _images(shown: Mapping[str, Any], splits: Mapping[str, tuple[Sequence[Example], Path]]) -> dict[str, str]:
    """Return the data URIs of a gallery's pictures by the names that it gives them."""
    queries, train = splits["eval"][0], splits["train"][0]
    paths: dict[str, Path] = {}
    for split, digests in showing.pictures_of(shown, queries, train).items():
        examples, folder = splits[split]
        named = {example.image_digest: folder / example.image for example in examples}
        paths |= {digest: named[digest] for digest in digests}
    return {digest[: showing.DIGEST]: uri for digest, uri in thumbnails(paths).items()}


def _agreements(
    queries: Sequence[Example], train: Sequence[Example], world: WorldData | None
) -> dict[str, NDArray[np.bool_]]:
    """Return what each demonstration has in common with each query, `[Q, T]`."""
    types = _equal([one.question_type for one in queries], [one.question_type for one in train])
    if world is None:
        return {"type": types}
    asked, shown = _drawn(world, "val", queries), _drawn(world, "train", train)
    keys = [
        _equal([scene.value(attribute) for scene, _ in asked], [scene.value(attribute) for scene, _ in shown])
        & np.array([question.relation.key == attribute for _, question in asked])[:, None]
        for attribute in dict.fromkeys(question.relation.key for _, question in asked)
    ]
    return {
        "relation": _equal([of.relation.name for _, of in asked], [of.relation.name for _, of in shown]),
        "object": _equal([scene.kind for scene, _ in asked], [scene.kind for scene, _ in shown]),
        "key": np.any(keys, axis=0),
        "fact": types,
    }


def _drawn(world: WorldData, split: Split, examples: Sequence[Example]) -> list[tuple[Scene, AnnotatedQuestion]]:
    of = {qid: (picture.scene, one) for picture in draw_split(world, split) for qid, one in picture.questions.items()}
    return [of[example.question_id] for example in examples]


def _equal(queries: Sequence[str], train: Sequence[str]) -> NDArray[np.bool_]:
    equal: NDArray[np.bool_] = np.array(queries)[:, None] == np.array(train)[None, :]
    return equal
