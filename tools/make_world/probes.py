"""Probes of the mechanism: does the reader find the answer through the demonstrations' images?

Accuracy alone is not evidence of it. A reader could ignore these images and copy the answer of any demonstration with
the same relation. It would score equally well if all demonstrations agree. Some probes therefore contain two
conflicting answers, and others replace the demonstrations' images.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lever_pipe.base.errors import DataError
from lever_pipe.base.records import Example
from lever_pipe.base.seeding import generator
from lever_pipe.metrics.vqa_accuracy import vqa_accuracy
from lever_pipe.world.lexicon import KNOWLEDGE, PERCEPTUAL

log = logging.getLogger(__name__)

MAX_EXACT = 4
N_DISTRACTORS = 3
KNOWLEDGE_NAMES = frozenset(relation.name for relation in KNOWLEDGE)

# Percent. Exact demonstrations reach 96 to 97 because annotators disagree with the world's facts.
MIN_EXACT = 94.0
MIN_CONFLICT = 95.0
MIN_SHUFFLE_DROP = 40.0
MIN_DISTRACTED = 93.0


@dataclass(frozen=True)
class Probe:
    """One query with its ordered demonstrations, and the answer according to the world's facts."""

    query: Example
    demonstrations: tuple[Example, ...]
    truth: str


@dataclass(frozen=True)
class ProbeScore:
    """Percentages over the queries of one probe."""

    accuracy: float  # VQA accuracy against ten annotators
    truth: float  # share of answers that equal the world's fact
    n_queries: int


def relation_of(example: Example) -> str:
    """Return the relation part of the question type, for example "material"."""
    return example.question_type.split(":")[0]


def true_answers(examples: Sequence[Example]) -> dict[str, str]:
    """Return the most common demonstration answer of every question type."""
    votes: dict[str, Counter[str]] = defaultdict(Counter)
    for example in examples:
        votes[example.question_type][example.answer] += 1
    return {name: counter.most_common(1)[0][0] for name, counter in votes.items()}


def _demonstrations(
    query: Example, pool: Sequence[Example], by_type: Sequence[Example], truth: str, rng: np.random.Generator
) -> dict[str, tuple[Example, ...]]:
    """Return the demonstrations of each probe, or none if the pool is too small; `by_type` is the pool by type."""
    relation = relation_of(query)

    def draw(n: int, accept: Callable[[Example], bool]) -> tuple[Example, ...]:
        rows = [row for row in by_type if row.image_id != query.image_id and accept(row)]
        return tuple(rows[i] for i in rng.choice(len(rows), size=n, replace=False)) if len(rows) >= n else ()

    def has_other_key(row: Example) -> bool:
        is_other = relation_of(row) == relation and row.question_type != query.question_type
        return is_other and row.answer != truth

    exact = draw(MAX_EXACT, lambda row: row.question_type == query.question_type and row.answer == truth)
    others = draw(N_DISTRACTORS, has_other_key)
    unrelated = draw(N_DISTRACTORS, lambda row: relation_of(row) != relation)
    if not (exact and others and unrelated):
        return {}
    shuffled = [_with_other_image(row, pool, rng) for row in (exact[0], others[0])]
    return {
        "zero_shot": (),
        **{f"exact_{n}": exact[:n] for n in range(1, MAX_EXACT + 1)},
        "conflict_right_first": (exact[0], others[0]),
        "conflict_right_last": (others[0], exact[0]),
        "conflict_right_first_shuffled": tuple(shuffled),
        "conflict_right_last_shuffled": tuple(reversed(shuffled)),
        "exact_after_3_other_key": (*others, exact[0]),
        "exact_after_3_unrelated": (*unrelated, exact[0]),
    }


def _with_other_image(example: Example, pool: Sequence[Example], rng: np.random.Generator) -> Example:
    """Return the example with the image of a random other example."""
    other = example
    while other.image_id == example.image_id:
        other = pool[int(rng.integers(len(pool)))]
    update = {"image": other.image, "image_digest": other.image_digest, "image_id": other.image_id}
    return example.model_copy(update=update)


def build_probes(queries: Sequence[Example], pool: Sequence[Example], *, seed: int) -> dict[str, list[Probe]]:
    """Return the prompts of every probe, for the knowledge questions among `queries`.

    The draws of a query depend only on `seed` and its question id. The fact of a question type is the most common
    answer of that type over `pool` and `queries`. Demonstrations never have the query's own image. All probes have the
    same queries: a query with too few demonstrations in the pool is omitted from all of them, with a warning.

    Raises:
        DataError: the pool has enough demonstrations for none of the queries.
    """
    truths = true_answers([*pool, *queries])
    by_type = sorted(pool, key=lambda row: row.question_type)
    probes: dict[str, list[Probe]] = defaultdict(list)
    questions = [query for query in queries if relation_of(query) in KNOWLEDGE_NAMES]
    n_skipped = 0
    for query in questions:
        rng = generator(seed, "probes", query.question_id)
        by_probe = _demonstrations(query, pool, by_type, truths[query.question_type], rng)
        n_skipped += not by_probe
        for name, rows in by_probe.items():
            probes[name].append(Probe(query, rows, truths[query.question_type]))
    if not probes:
        raise DataError(
            f"the pool must contain {MAX_EXACT} exact and {N_DISTRACTORS} other demonstrations of a query",
            found=f"{len(pool)} examples that suffice for none of {len(questions)} knowledge questions",
            do="Probe with a larger pool.",
        )
    if n_skipped:
        log.warning("probes omit %d of %d questions: pool too small", n_skipped, len(questions))
    return dict(probes)


def perceptual_probe(rows: Sequence[Example]) -> list[Probe]:
    """Return zero-shot prompts of the questions about visible attributes."""
    truths = true_answers(rows)
    names = {relation.name for relation in PERCEPTUAL}
    return [Probe(row, (), truths[row.question_type]) for row in rows if relation_of(row) in names]


def summarise(probes: Mapping[str, Sequence[Probe]], answers: Mapping[str, Sequence[str]]) -> dict[str, ProbeScore]:
    """Return the scores of every probe; `answers` contains one predicted answer per prompt."""
    summary = {}
    for name, rows in probes.items():
        predictions = answers[name]
        accuracies = [vqa_accuracy(a, row.query.answers) for row, a in zip(rows, predictions, strict=True)]
        hits = [answer == row.truth for row, answer in zip(rows, predictions, strict=True)]
        summary[name] = ProbeScore(100 * float(np.mean(accuracies)), 100 * float(np.mean(hits)), len(rows))
    return summary


def check_bounds(summary: Mapping[str, ProbeScore]) -> list[str]:
    """Return one line for every bound that the scores miss; without any line, the mechanism works."""
    floors = [
        *((f"exact_{n}", "accuracy", MIN_EXACT) for n in range(1, MAX_EXACT + 1)),
        ("conflict_right_first", "truth", MIN_CONFLICT),
        ("conflict_right_last", "truth", MIN_CONFLICT),
        ("exact_after_3_other_key", "accuracy", MIN_DISTRACTED),
        ("exact_after_3_unrelated", "accuracy", MIN_DISTRACTED),
    ]
    problems = [
        f"{name}: {measure} {getattr(summary[name], measure):.1f} is below {floor:.1f}"
        for name, measure, floor in floors
        if not getattr(summary[name], measure) >= floor  # also a problem for NaN
    ]
    for name in ("conflict_right_first", "conflict_right_last"):
        drop = summary[name].truth - summary[f"{name}_shuffled"].truth
        if not drop >= MIN_SHUFFLE_DROP:
            problems.append(f"{name}: wrong images lower it by {drop:.1f}, less than {MIN_SHUFFLE_DROP:.1f}")
    return problems
