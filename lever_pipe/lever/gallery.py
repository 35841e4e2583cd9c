"""Which questions a reader is shown, and what the policies beside each other made of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lever_pipe.base.policy_names import PolicyName
from lever_pipe.base.records import Example
from lever_pipe.lever.samples import PolicyAnswers, Said

MOST_SHOTS = 2
"""Demonstrations that a row of the gallery has room for."""
N_FLIPS, N_OTHERS, N_QUESTIONS = 4, 2, 12
"""Questions that flip each way, of each other reason, and in all."""
SIMILARITY, ORACLE = "baseline/similar_both", "baseline/oracle"
EQUAL = 1e-9  # difference of accuracies up to which they are the same
DIGEST = 12  # characters that name a picture

Rule = Callable[[Mapping[str, float]], float]
"""Accuracy by role -> how much a question is worth showing for one reason; 0 for not at all."""


@dataclass(frozen=True)
class Comparison:
    """Two runs of one seed: after training and before it, or RCE and similarity where there is no GRPO."""

    left: PolicyName
    right: PolicyName

    @property
    def roles(self) -> dict[str, str]:
        """Return who stands in a row, by role: at most `rce`, `grpo`, `similarity` and `oracle`."""
        trained = {"rce": self.left} if self.left.kind == "rce" else {"rce": self.right, "grpo": self.left}
        return {**{role: str(name) for role, name in trained.items()}, "similarity": SIMILARITY, "oracle": ORACLE}


def shown_comparison(
    policies: Sequence[PolicyName], preset: str, reference_of: Callable[[Sequence[float]], float | None]
) -> Comparison | None:
    """Return the comparison of the gallery, or None without a trained policy of the preset.

    On-policy GRPO against its RCE base; without an on-policy run offline GRPO; without either the last RCE epoch
    against similarity. GRPO is that of the latest base at the reference beta, after its last epoch, and the seed the
    smallest.

    Args:
        policies: those that were evaluated.
        preset: the main one.
        reference_of: chooses among rising betas.
    """
    mine = [name for name in policies if name.preset == preset]
    for kind in ("on_policy", "grpo"):
        runs = [name for name in mine if name.kind == kind]
        latest = max((name.base or 0 for name in runs), default=0)
        beta = reference_of(sorted({name.beta or 0.0 for name in runs if name.base == latest}))
        found = [name for name in runs if (name.base, name.beta) == (latest, beta)]
        if found:
            left = min(found, key=lambda name: (name.seed or 0, -(name.epoch or 0)))
            return Comparison(left, left.start)
    rce = [name for name in mine if name.kind == "rce"]
    if not rce:
        return None
    return Comparison(min(rce, key=lambda name: (name.seed or 0, -(name.epoch or 0))), PolicyName.parse(SIMILARITY))


def shots_of(shots: Sequence[int]) -> int:
    """Return the shot count that the gallery shows: the largest that fits a row, else the smallest there is."""
    return max((k for k in shots if k <= MOST_SHOTS), default=min(shots))


def gallery(
    comparison: Comparison | None,
    policies: Mapping[str, PolicyAnswers],
    queries: Sequence[Example],
    train: Sequence[Example],
    shots: Sequence[int],
) -> dict[str, Any]:
    """Return the chosen questions with what each policy showed and led to, without the pictures themselves.

    `questions` are in this order of reasons; `counts` says how many questions each reason holds for:

    * `gained`, `lost`: the comparison's left side earns more, less than the right one; up to four of each, as many of
      one as of the other where both exist;
    * `similarity`: RCE earns more than similarity; up to two;
    * `oracle`: the oracle earns something and nobody else; up to two.

    What is left of twelve is filled up from these reasons in turn. Within a reason a kind of question (the first part
    of its type) that is shown least comes first, then the larger difference of accuracy, then the smaller question id.

    Args:
        comparison: of the gallery; None gives an empty one.
        policies: by name; a role whose policy is absent is left out.
        queries: the evaluated questions that count.
        train: the train split.
        shots: the evaluated shot counts.
    """
    if comparison is None:
        return {"shots": None, "policies": {}, "comparison": None, "counts": {}, "questions": []}
    k = shots_of(shots)
    roles = {role: policies[name] for role, name in comparison.roles.items() if name in policies}
    said = {int(q.example_id): {role: of.said[q.example_id, k] for role, of in roles.items()} for q in queries}
    worth = _worth(comparison, said)
    chosen = _chosen(worth, queries)
    return {
        "shots": k,
        "seed": comparison.left.seed,
        "policies": {role: str(of.name) for role, of in roles.items()},
        "comparison": {"left": str(comparison.left), "right": str(comparison.right)},
        "counts": {reason: len(of) for reason, of in worth.items()} | {"questions": len(queries)},
        "questions": [_entry(reason, query, said[query.example_id], train) for reason, query in chosen],
    }


def pictures_of(shown: Mapping[str, Any], queries: Sequence[Example], train: Sequence[Example]) -> dict[str, list[str]]:
    """Return the digests of the pictures that a gallery needs, `eval` and `train`, each once."""
    asked = [queries[entry["query_id"]].image_digest for entry in shown["questions"]]
    ids = [one["id"] for entry in shown["questions"] for row in entry["rows"].values() for one in row["demonstrations"]]
    return {"eval": list(dict.fromkeys(asked)), "train": list(dict.fromkeys(train[i].image_digest for i in ids))}


def _worth(comparison: Comparison, said: Mapping[int, Mapping[str, Said]]) -> dict[str, dict[int, float]]:
    """Return, for each reason, the questions that it holds for and how strongly."""
    has_grpo = comparison.left.kind != "rce"
    left, right = ("grpo", "rce") if has_grpo else ("rce", "similarity")

    def alone(accuracies: Mapping[str, float]) -> float:
        others = [value for role, value in accuracies.items() if role != "oracle"]
        return 0.0 if any(others) else accuracies.get("oracle", 0.0)

    rules: dict[str, Rule] = {
        "gained": lambda of: of.get(left, 0.0) - of.get(right, 0.0),
        "lost": lambda of: of.get(right, 0.0) - of.get(left, 0.0),
        "similarity": lambda of: of.get("rce", 0.0) - of.get("similarity", 0.0) if has_grpo else 0.0,
        "oracle": alone,
    }
    accuracies = {query: {role: one.accuracy for role, one in of.items()} for query, of in said.items()}
    return {
        reason: {query: value for query, of in accuracies.items() if (value := rule(of)) > EQUAL}
        for reason, rule in rules.items()
    }


def _chosen(worth: Mapping[str, Mapping[int, float]], queries: Sequence[Example]) -> list[tuple[str, Example]]:
    """Return the reasons and questions of the gallery, in the order of `gallery`."""
    by_id = {int(query.example_id): query for query in queries}
    kinds: Counter[str] = Counter()
    taken: dict[int, str] = {}

    def take(reason: str) -> bool:
        free = [query for query in worth[reason] if query not in taken]
        if not free or len(taken) == N_QUESTIONS:
            return False
        best = min(free, key=lambda q: (kinds[kind_of(by_id[q])], -worth[reason][q], by_id[q].question_id))
        taken[best] = reason
        kinds[kind_of(by_id[best])] += 1
        return True

    n_each = min(N_FLIPS, min(len(worth["gained"]), len(worth["lost"])) or N_FLIPS)
    # Flips first: a question may stand under several reasons, and neither side shall lose one to another reason.
    for reason in ["gained", "lost"] * n_each + ["similarity", "oracle"] * N_OTHERS:
        take(reason)
    while sum(map(take, ("similarity", "oracle"))):  # each in its turn
        pass
    order = {reason: place for place, reason in enumerate(worth)}
    return sorted(((reason, by_id[query]) for query, reason in taken.items()), key=lambda found: order[found[0]])


def kind_of(query: Example) -> str:
    """Return the kind of a question: the relation in the embedded world, else the data set's own type."""
    return query.question_type.partition(":")[0]


def _entry(reason: str, query: Example, said: Mapping[str, Said], train: Sequence[Example]) -> dict[str, Any]:
    return {
        "reason": reason,
        "query_id": query.example_id,
        "question_id": query.question_id,
        "image": query.image_digest[:DIGEST],
        "question": query.question,
        "kind": kind_of(query),
        "question_type": query.question_type,
        "references": [[answer, n] for answer, n in Counter(query.answers).most_common()],
        "rows": {role: _row(of, train) for role, of in said.items()},
    }


def _row(said: Said, train: Sequence[Example]) -> dict[str, Any]:
    return {
        "answer": said.answer,
        "accuracy": round(said.accuracy, 6),
        "demonstrations": [_demonstration(train[place]) for place in said.demonstrations],
    }


def _demonstration(example: Example) -> dict[str, Any]:
    return {
        "id": example.example_id,
        "image": example.image_digest[:DIGEST],
        "question": example.question,
        "answer": example.answer,
        "question_type": example.question_type,
    }
