"""Collect samples for inspection: every answer, a gallery, and statistics of the selections."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lever_pipe.base import storage
from lever_pipe.base.records import Example
from lever_pipe.experiment.collected import CollectSamplesConfig
from lever_pipe.experiment.data import WorldData
from lever_pipe.experiment.stage_files import External, Input, Inputs, Output
from lever_pipe.lever.samples import (
    CopyingRow,
    SelectionRow,
    copying_of,
    gallery_of,
    images_of,
    read_answered,
    roles_of,
    samples_of,
    scoring_facts,
    shares_by_rank,
)
from lever_pipe.lever.thumbnails import thumbnails
from lever_pipe.report.inference.families import reference_of
from lever_pipe.report.long_format import write_csv
from lever_pipe.world.items import AnnotatedQuestion, Scene, Split, draw_split


def collect_samples(
    *,
    selections: Inputs,
    answers: Inputs,
    per_question: Inputs,
    train_examples: Input,
    eval_examples: Input,
    train_images: External,
    eval_images: External,
    samples: Output,
    gallery: Output,
    shares: Output,
    copying: Output,
    scoring: Output,
    config: CollectSamplesConfig,
) -> None:
    """Write every answer as a line of `samples`, the `gallery`, and the long-format `shares` and `copying`.

    * `samples`: a `Sample` for each question and each of `config.policies`: the baselines, every run after the last
      evaluated epoch of its kind, and the RCE epochs that runs start from. All epochs would triple the file.
    * `gallery`: JSON; `lever.samples.gallery_of` defines its contents. `pictures` are thumbnails of its images, by the
      first digits of their digests.
    * `shares`: `SelectionRow`. In the embedded world a demonstration may agree with its query in `relation` (the
      question's topic), `object` (the shape), `key` (the attribute of the picture for the query's relation) and `fact`
      (relation and key, so that both have the same answer). Other data sets have `type`, their own question type.
    * `copying`: `CopyingRow`, see `lever.samples.copying_of`.
    * `scoring`: JSON with the rules of VQA accuracy, and the numbers of `lever.samples.scoring_facts`.

    Gallery, `shares` and `copying` count the first `max(config.samples)` questions.
    """
    rule = config.normalise_references
    queries, train = storage.read_examples(eval_examples), storage.read_examples(train_examples)
    answered = list(read_answered(config.policies, selections, answers, per_question, config.shots))
    storage.write_rows(samples, samples_of(answered, queries, train, config.shots))
    policies, counted = {str(policy.name): policy for policy in answered}, queries[: max(config.samples)]
    roles = roles_of([policy.name for policy in answered], config.main_preset, reference_of)
    displayed = gallery_of(roles, policies, counted, train, config.shots)
    files = images_of(displayed, [(train, train_images), (queries, eval_images)])
    storage.write_json(gallery, displayed | {"pictures": thumbnails(files)})
    agreements = _agreements(queries, train, config.world)
    write_csv(shares, SelectionRow._fields, shares_by_rank(policies, counted, config.shots, agreements))
    write_csv(copying, CopyingRow._fields, copying_of(policies, counted, train, config.shots, rule))
    rules = {"answers": config.answers, "normalise_references": rule}
    storage.write_json(scoring, rules | scoring_facts(answers))


def _agreements(
    queries: Sequence[Example], train: Sequence[Example], world: WorldData | None
) -> dict[str, NDArray[np.bool_]]:
    """Return the agreements of each query with each demonstration, `[Q, T]`."""
    types = _equal([e.question_type for e in queries], [e.question_type for e in train])
    if world is None:
        return {"type": types}
    queried, offered = _scenes_of(world, "val", queries), _scenes_of(world, "train", train)
    # An attribute counts only for queries whose relation reads it; other rows stay False.
    keys = [
        _equal([scene.value(attribute) for scene, _ in queried], [scene.value(attribute) for scene, _ in offered])
        & np.array([question.relation.key == attribute for _, question in queried])[:, None]
        for attribute in dict.fromkeys(question.relation.key for _, question in queried)
    ]
    return {
        "relation": _equal([q.relation.name for _, q in queried], [q.relation.name for _, q in offered]),
        "object": _equal([scene.kind for scene, _ in queried], [scene.kind for scene, _ in offered]),
        "key": np.any(keys, axis=0),
        "fact": types,
    }


def _scenes_of(world: WorldData, split: Split, examples: Sequence[Example]) -> list[tuple[Scene, AnnotatedQuestion]]:
    scenes = {qid: (picture.scene, q) for picture in draw_split(world, split) for qid, q in picture.questions.items()}
    return [scenes[example.question_id] for example in examples]


def _equal(queries: Sequence[str], train: Sequence[str]) -> NDArray[np.bool_]:
    equal: NDArray[np.bool_] = np.array(queries)[:, None] == np.array(train)[None, :]
    return equal
