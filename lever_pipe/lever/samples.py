"""Prompts and results of each policy: all samples, agreement of demonstrations and queries, copying, and a gallery."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lever_pipe.base import storage
from lever_pipe.base.errors import RecordError
from lever_pipe.base.policy_names import PolicyName, group_of
from lever_pipe.base.records import AnswerRow, Example, ExampleId, Normalisation, PolicyScores, Row
from lever_pipe.metrics.copying import copied_at, vote
from lever_pipe.metrics.vqa_accuracy import vqa_accuracy

ENDED = -1
"""Placeholder after the last demonstration of a selection."""
MOST_SHOTS = 2
"""Maximum number of demonstrations in a row of the gallery."""
N_QUESTIONS = 12
IMAGE_DIGITS = 16
"""Digits of an image's digest that identify it in the gallery."""
SIMILARITY, ORACLE = "baseline/similar_both", "baseline/oracle"
EQUAL = 1e-9  # difference of accuracies up to which they are the same

Agreements = Mapping[str, NDArray[np.bool_]]
"""Property that a demonstration and a query may share -> [Q, T] by query and train example."""


class ScoredAnswer(NamedTuple):
    """The LVLM's answer to one query with one policy's first demonstrations."""

    demonstrations: tuple[ExampleId, ...]
    answer: str
    accuracy: float
    """VQA accuracy in [0, 1]."""


@dataclass(frozen=True, slots=True)
class PolicyAnswers:
    """All scored answers of one policy."""

    name: PolicyName
    outcomes: Mapping[tuple[int, int], ScoredAnswer]
    """By query and shot count."""


class ShownDemonstration(Row):
    """A demonstration as displayed to a reader."""

    id: int
    question: str
    answer: str


class Sample(Row):
    """A line of `samples.jsonl`: one question and its answer under one policy."""

    query_id: int
    question_id: int
    image: str  # file name under the split's image folder
    question: str
    question_type: str
    references: tuple[str, ...]  # raw, one an annotator
    policy: str
    group: str  # the policy without its seed or draw
    seed: int | None
    shots: int  # the largest evaluated shot count, to which the next three fields refer
    demonstrations: tuple[ShownDemonstration, ...]  # one shot uses the first one alone
    answer: str
    accuracy: float
    one_shot_answer: str | None  # None if one shot is not evaluated
    one_shot_accuracy: float | None


def read_answered(
    policies: Sequence[str],
    selections: Sequence[Path],
    answers: Sequence[Path],
    per_question: Sequence[Path],
    shots: Sequence[int],
) -> Iterator[PolicyAnswers]:
    """Yield the scored answers of each policy at these shot counts.

    Files that consecutive policies share are read once. If a policy gives a query fewer demonstrations, or none, its
    longest prompt's answer counts for all larger shot counts.
    """
    files = zip(policies, selections, answers, per_question, strict=True)
    for (answer_file, score_file), batch in groupby(files, key=lambda row: row[2:]):
        replies = storage.read_answers(answer_file)
        scores = {row.policy: row.questions for row in storage.read_rows(score_file, PolicyScores)}
        for policy, selection_file, *_ in batch:
            demonstrations = storage.read_selections(selection_file)
            outcomes = {}
            for score in scores.get(policy, ()):
                # Shot counts are nested: k shots use the first k demonstrations.
                prompt = (score.query_id, demonstrations.get(score.query_id, ())[: score.shots])
                if score.shots not in shots:
                    continue
                if prompt not in replies:
                    raise RecordError(
                        f"{answer_file}: expected an answer of query {prompt[0]} with {list(prompt[1])}",
                        found="none",
                        do="Rerun answer_prompts and score_answers for this batch.",
                    )
                outcomes[int(score.query_id), score.shots] = ScoredAnswer(prompt[1], replies[prompt], score.accuracy)
            yield PolicyAnswers(PolicyName.parse(policy), outcomes)


def scoring_facts(answers: Sequence[Path]) -> dict[str, int]:
    """Return the number of distinct prompts in the files, and the number of answers that the cut leaves empty."""
    # Policies of one batch share a file of answers.
    rows = (row for path in dict.fromkeys(answers) for row in storage.read_rows(path, AnswerRow))
    by_prompt = {(row.query_id, row.demonstrations): row for row in rows}
    emptied = sum(bool(row.raw.strip()) and not row.answer for row in by_prompt.values())
    return {"prompts": len(by_prompt), "emptied": emptied}


def samples_of(
    policies: Sequence[PolicyAnswers], queries: Sequence[Example], train: Sequence[Example], shots: Sequence[int]
) -> Iterator[Sample]:
    """Yield a row for each policy and query, in this order, with the largest shot count and with one shot."""
    examples = [ShownDemonstration(id=e.example_id, question=e.question, answer=e.answer) for e in train]
    for policy in policies:
        for query in queries:
            most = policy.outcomes[query.example_id, max(shots)]
            single = policy.outcomes.get((query.example_id, 1))
            yield Sample(
                query_id=query.example_id,
                question_id=query.question_id,
                image=query.image,
                question=query.question,
                question_type=query.question_type,
                references=query.answers,
                policy=str(policy.name),
                group=group_of(str(policy.name)),
                seed=policy.name.seed,
                shots=max(shots),
                demonstrations=tuple(examples[i] for i in most.demonstrations),
                answer=most.answer,
                accuracy=most.accuracy,
                one_shot_answer=single and single.answer,
                one_shot_accuracy=single and single.accuracy,
            )


class SelectionRow(NamedTuple):
    """A line of `selections.csv`: a share of the demonstrations at one rank, over all seeds or draws of a group."""

    group: str
    rank: int  # from 1
    agrees_in: str  # property that demonstration and query share
    share: float  # in [0, 1]
    n: int  # demonstrations


def padded_selections(chosen: Sequence[Sequence[int]], shots: int) -> NDArray[np.int64]:
    """Return the first `shots` demonstrations of N selections as one array [N, S], short ones padded with `ENDED`."""
    rows = [[*row[:shots], *[ENDED] * (shots - len(row))] for row in chosen]
    return np.array(rows, dtype=np.int64).reshape(len(rows), shots)


def shares_by_rank(
    policies: Mapping[str, PolicyAnswers], queries: Sequence[Example], shots: Sequence[int], agreements: Agreements
) -> Iterator[SelectionRow]:
    """Yield the shares of each group up to the largest shot count.

    Policies without demonstrations have none. A rank counts the questions that have a demonstration at that rank.
    """
    ids = np.array([query.example_id for query in queries])
    groups: dict[str, list[NDArray[np.int64]]] = {}
    for name, policy in policies.items():
        demonstrations = [policy.outcomes[query.example_id, max(shots)].demonstrations for query in queries]
        if any(demonstrations):
            groups.setdefault(group_of(name), []).append(padded_selections(demonstrations, max(shots)))
    for group, runs in groups.items():
        for rank, picked_RN in enumerate(np.moveaxis(np.stack(runs), 2, 0), start=1):
            taken = picked_RN != ENDED
            # ENDED is -1 and would index the last column: `taken` removes those hits.
            for agreement, agrees_QT in agreements.items() if taken.any() else ():
                hits = agrees_QT[ids, picked_RN][taken]
                yield SelectionRow(group, rank, agreement, float(hits.mean()), hits.size)


class CopyingRow(NamedTuple):
    """A line of `copying.csv`: a measure of how a group's answers depend on the displayed answers, over all runs."""

    group: str
    shots: int
    measure: str
    value: float  # in [0, 1]
    n: int  # number of questions x runs


def copying_of(
    policies: Mapping[str, PolicyAnswers],
    queries: Sequence[Example],
    train: Sequence[Example],
    shots: Sequence[int],
    rule: Normalisation = "when_they_disagree",
) -> Iterator[CopyingRow]:
    """Yield measures of each group's use of its demonstrations, by shot count.

    * `copied`: share of answers equal to a displayed one; `copied.R` to that of rank R. Several may be equal.
    * `shown`: share of questions for which a displayed answer has a positive accuracy.
    * `llm`, `llm.shown`, `llm.unshown`: accuracy of the LVLM, over all questions and over those with and without such
      an answer.
    * `vote`: accuracy of the most frequent displayed answer.
    """
    # Many policies give the same answer to a question.
    earns = cache(partial(vqa_accuracy, normalise_references=rule))
    groups: dict[str, list[PolicyAnswers]] = {}
    for name, policy in policies.items():
        groups.setdefault(group_of(name), []).append(policy)
    for group, runs in groups.items():
        for k in shots:
            rates: dict[str, list[float]] = {}
            for query, outcome in ((query, run.outcomes[query.example_id, k]) for run in runs for query in queries):
                answers = [train[i].answer for i in outcome.demonstrations]
                ranks, is_displayed = copied_at(outcome.answer, answers), any(earns(a, query.answers) for a in answers)
                values = {"copied": bool(ranks), "shown": is_displayed, "llm": outcome.accuracy}
                values |= {f"copied.{rank}": rank in ranks for rank in range(1, len(answers) + 1)}
                values |= {"llm.shown" if is_displayed else "llm.unshown": outcome.accuracy}
                values |= {"vote": earns(vote(answers), query.answers)} if answers else {}
                for measure, value in values.items():
                    rates.setdefault(measure, []).append(float(value))
            if "vote" in rates:
                yield from (CopyingRow(group, k, m, float(np.mean(rates[m])), len(rates[m])) for m in sorted(rates))


def roles_of(
    policies: Sequence[PolicyName], preset: str, reference_of: Callable[[Sequence[float]], float | None]
) -> dict[str, str]:
    """Return the policies of a gallery row by role: `rce`, `grpo`, `similarity`, `oracle`; none without a trained one.

    GRPO is an on-policy run, or an offline run if there is none: from the latest base at the reference beta, with the
    smallest seed, after its last epoch. RCE is its base, or the last RCE epoch without any GRPO run.
    """
    names = [name for name in policies if name.preset == preset]
    for kind in ("on_policy", "grpo"):
        runs = [name for name in names if name.kind == kind]
        latest = max((name.base or 0 for name in runs), default=0)
        beta = reference_of(sorted({name.beta or 0.0 for name in runs if name.base == latest}))
        if group := [name for name in runs if (name.base, name.beta) == (latest, beta)]:
            grpo = min(group, key=_first)
            return {"rce": str(grpo.start), "grpo": str(grpo), "similarity": SIMILARITY, "oracle": ORACLE}
    rce = [name for name in names if name.kind == "rce"]
    return {"rce": str(min(rce, key=_first)), "similarity": SIMILARITY, "oracle": ORACLE} if rce else {}


def _first(name: PolicyName) -> tuple[int, int]:
    return name.seed or 0, -(name.epoch or 0)  # the minimum is the last epoch of the smallest seed


def gallery_of(
    roles: Mapping[str, str],
    policies: Mapping[str, PolicyAnswers],
    queries: Sequence[Example],
    train: Sequence[Example],
    shots: Sequence[int],
) -> dict[str, Any]:
    """Return the first twelve questions on which the policies' accuracies differ, with each policy's answer.

    A role (`roles_of`) without answers is omitted. The shot count is the largest that fits a row, else the smallest.
    """
    k = max((k for k in shots if k <= MOST_SHOTS), default=min(shots))
    by_role = {role: policies[name] for role, name in roles.items() if name in policies}
    entries = []
    for query in queries:
        outcomes = {role: policy.outcomes[query.example_id, k] for role, policy in by_role.items()}
        accuracies = [outcome.accuracy for outcome in outcomes.values()]
        if accuracies and max(accuracies) - min(accuracies) > EQUAL:
            entries.append(
                {
                    "question_id": query.question_id,
                    "question": query.question,
                    "image": query.image_digest[:IMAGE_DIGITS],
                    "references": list(dict.fromkeys(query.answers)),
                    "rows": {role: _row(outcome, train) for role, outcome in outcomes.items()},
                }
            )
    names = {role: str(policy.name) for role, policy in by_role.items()}
    # All differing questions are counted, but only the first ones are displayed.
    return {"shots": k, "policies": names, "n_different": len(entries), "questions": entries[:N_QUESTIONS]}


def _row(outcome: ScoredAnswer, train: Sequence[Example]) -> dict[str, Any]:
    demonstrations = [
        {
            "id": i,
            "question": train[i].question,
            "answer": train[i].answer,
            "image": train[i].image_digest[:IMAGE_DIGITS],
        }
        for i in outcome.demonstrations
    ]
    return {"answer": outcome.answer, "accuracy": round(outcome.accuracy, 6), "demonstrations": demonstrations}


def images_of(gallery: Mapping[str, Any], splits: Sequence[tuple[Sequence[Example], Path]]) -> dict[str, Path]:
    """Return the file of each image in a gallery, by the image's name there.

    Args:
        gallery: result of `gallery_of`.
        splits: examples and the folder of their images.
    """
    names = {
        one["image"]
        for entry in gallery["questions"]
        for one in (entry, *(displayed for row in entry["rows"].values() for displayed in row["demonstrations"]))
    }
    files = {e.image_digest[:IMAGE_DIGITS]: folder / e.image for examples, folder in splits for e in examples}
    return {name: files[name] for name in sorted(names)}
