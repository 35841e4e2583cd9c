"""The twelve questions that a reader is shown, and what the policies beside each other made of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lever_pipe.base.policy_names import PolicyName
from lever_pipe.base.records import Example
from lever_pipe.lever.samples import PolicyAnswers, Said

MOST_SHOTS = 2
"""Demonstrations that a row of the gallery has room for."""
N_QUESTIONS = 12
SIMILARITY, ORACLE = "baseline/similar_both", "baseline/oracle"
EQUAL = 1e-9  # difference of accuracies up to which they are the same


def roles_of(
    policies: Sequence[PolicyName], preset: str, reference_of: Callable[[Sequence[float]], float | None]
) -> dict[str, str]:
    """Return who stands in a row, by role: `rce`, `grpo`, `similarity` and `oracle`; none without a trained policy.

    GRPO is an on-policy run, without one an offline run: that of the latest base at the reference beta, after its last
    epoch, and the seed the smallest. RCE is its base, without either the last RCE epoch.
    """
    mine = [name for name in policies if name.preset == preset]
    for kind in ("on_policy", "grpo"):
        runs = [name for name in mine if name.kind == kind]
        latest = max((name.base or 0 for name in runs), default=0)
        beta = reference_of(sorted({name.beta or 0.0 for name in runs if name.base == latest}))
        if own := [name for name in runs if (name.base, name.beta) == (latest, beta)]:
            grpo = min(own, key=_first)
            return {"rce": str(grpo.start), "grpo": str(grpo), "similarity": SIMILARITY, "oracle": ORACLE}
    rce = [name for name in mine if name.kind == "rce"]
    return {"rce": str(min(rce, key=_first)), "similarity": SIMILARITY, "oracle": ORACLE} if rce else {}


def _first(name: PolicyName) -> tuple[int, int]:
    return name.seed or 0, -(name.epoch or 0)


def gallery(
    roles: Mapping[str, str],
    policies: Mapping[str, PolicyAnswers],
    queries: Sequence[Example],
    train: Sequence[Example],
    shots: Sequence[int],
) -> dict[str, Any]:
    """Return the first twelve questions that the policies do not all answer equally well, and what each said.

    A role (`roles_of`) without answers is left out. The largest shot count that fits a row is shown, else the smallest.
    """
    k = max((k for k in shots if k <= MOST_SHOTS), default=min(shots))
    shown = {role: policies[name] for role, name in roles.items() if name in policies}
    entries = []
    for query in queries:
        said = {role: of.said[query.example_id, k] for role, of in shown.items()}
        accuracies = [one.accuracy for one in said.values()]
        if accuracies and max(accuracies) - min(accuracies) > EQUAL:
            entries.append(
                {
                    "question_id": query.question_id,
                    "question": query.question,
                    "references": list(dict.fromkeys(query.answers)),
                    "rows": {role: _row(one, train) for role, one in said.items()},
                }
            )
    named = {role: str(of.name) for role, of in shown.items()}
    return {"shots": k, "policies": named, "n_different": len(entries), "questions": entries[:N_QUESTIONS]}


def _row(said: Said, train: Sequence[Example]) -> dict[str, Any]:
    demonstrations = [
        {"id": place, "question": train[place].question, "answer": train[place].answer} for place in said.demonstrations
    ]
    return {"answer": said.answer, "accuracy": round(said.accuracy, 6), "demonstrations": demonstrations}
