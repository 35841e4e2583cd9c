"""Recommendations of documents 003 and 004 for and against KL, each with the answer of our runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from lever_pipe.experiment.agent_training import AgentArm
from lever_pipe.report.agent.runs import MODES, AgentView, as_printed, tested
from lever_pipe.report.cells import Cell, holm, message
from lever_pipe.report.evidence import EvidenceRow
from lever_pipe.report.table import Row, Table, framed

KL_SCHEDULE: Final = "kl_schedule"
NOT_FACTORS = {"name", "seeds", "learning_rate", "trajectory_score"}
"""Keys of an arm that are ignored when arms differ in one factor alone."""


@dataclass(frozen=True, slots=True)
class Recommendation:
    """A sentence of a document and its answer from our runs.

    Attributes:
        text: the sentence.
        claim: the evaluated claim that answers it; empty if none does.
        arms: arms that answer it instead, by their difference from the reference arm: those that differ in one factor
          alone, or the documents' arm.
        stated: published numbers of the document's reason: run, metric and, for a curve, the step.
        published: the document's reason, with these numbers as `a`, `b` and `c`.
        ours: answer if neither a claim nor an arm answers it.
    """

    text: str
    claim: str = ""
    arms: Literal["", "kl", "entropy", "schedule", "kl_schedule", "document"] = ""
    stated: tuple[tuple[str, str] | tuple[str, str, int], ...] = ()
    published: str = ""
    ours: str = ""


BEST, CHANGE = "best_val_reward", "max_abs_change_pct"
RECOMMENDATIONS = {
    "003": (
        Recommendation(
            "For: the KL loss keeps the policy from drifting",
            "003-kl-prevents-drift",
            stated=(("kl", "kl_loss", 1), ("kl", "kl_loss", 45)),
            published="KL loss {a} at step 1, {b} at step 45; without KL none is logged",
        ),
        Recommendation(
            "For: entropy stays steadier, the policy less certain",
            "003-entropy-stable",
            stated=(("kl", "entropy", 1), ("kl", "entropy", 45)),
            published="{a} at step 1, {b} at step 45; of the other run only steps 1 to 5",
        ),
        Recommendation(
            "For: step 10 is better",
            "003-step-10",
            published="held against an estimate; the measured value is higher without KL",
        ),
        Recommendation(
            "Against: training is slower",
            stated=(("kl-nokl", "time_per_step_diff_s_min"), ("kl-nokl", "time_per_step_diff_s_max")),
            published="{a} to {b} s more a step",
            ours="Depends on the machine's load",
        ),
        Recommendation(
            "Against: it may limit learning",
            "004-lower-best",
            stated=(("kl", BEST, 40), ("nokl", BEST, 45), ("kl", f"{BEST}_stale", 10)),
            published="best {a} against {b}; elsewhere it prints {c}",
        ),
        Recommendation("No severe collapse, gentler falls", "003-collapse", published="no drawdown is printed"),
        Recommendation("Try a KL coefficient of 0.005 to 0.015", arms="kl", published="not run"),
    ),
    "004": (
        Recommendation(
            "Use KL for a stable training",
            "004-more-stable",
            stated=(("kl", CHANGE), ("nokl", CHANGE)),
            published="largest changes of {a} % against {b} %, called smoother",
        ),
        Recommendation(
            "Use KL to converge fast",
            "004-five-steps",
            stated=(("kl", "steps_to_best"), ("nokl", "steps_to_best")),
            published="best at step {a} instead of {b}: one evaluation",
        ),
        Recommendation(
            "Use KL with few resources and early stopping", "004-faster", published="follows from the step of the best"
        ),
        Recommendation(
            "Use KL in production",
            arms="document",
            stated=(("kl-nokl", f"{BEST}_diff_pct"),),
            published="{a} % of the best for stability",
        ),
        Recommendation(
            "Leave it out for the highest performance",
            "004-lower-best",
            stated=(("nokl", BEST, 45), ("kl", BEST, 40)),
            published="best {a} against {b}",
        ),
        Recommendation(
            "Leave it out where many runs can be afforded", published="one run each", ours="No measurement answers this"
        ),
        Recommendation(
            "Leave it out where swings are acceptable",
            "004-drawdown",
            stated=(("nokl", "val_reward", 25),),
            published="{a} at step 25 of the run without KL",
        ),
        Recommendation("Lower the entropy coefficient to 0.005", arms="entropy", published="not run"),
        Recommendation("Change warm-up and decay", arms="schedule", published="not run"),
        Recommendation(
            "A small KL coefficient early, a larger one late",
            arms=KL_SCHEDULE,
            published="not run",
            ours="No arm of ours does this",
        ),
    ),
}


def tables(view: AgentView) -> Iterator[Table]:
    """Yield the sentences of both documents with their answers."""
    rows = [
        {
            "In document": document,
            "The document": recommendation.text,
            "Its reason": _reason(view, recommendation),
            **_answered(view, recommendation),
        }
        for document, recommendations in RECOMMENDATIONS.items()
        for recommendation in recommendations
    ]
    yield Table(
        "advice", "004", "What documents 003 and 004 say of KL, for and against, and when to use it", framed(rows)
    )


def _reason(view: AgentView, recommendation: Recommendation) -> Cell:
    """Return the document's reason, or None if the reference lacks one of its numbers."""
    rows = [_stated(view, *location) for location in recommendation.stated]
    cells = [as_printed(row) for row in rows]
    numbers = dict(zip("abc"[: len(cells)], cells, strict=True))
    return message(recommendation.published, **numbers) if all(cells) else None


def _stated(view: AgentView, run: str, metric: str, step: int | None = None) -> EvidenceRow | None:
    return view.stated(run, metric) if step is None else view.published(run, metric).get(step)


def _answered(view: AgentView, recommendation: Recommendation) -> Row:
    """Return the answer with its verdict, from the claim or from the tests in the table of arms."""
    if recommendation.arms == "document":
        return _of_document(view)
    answer = _of_arms(view, recommendation.arms) if recommendation.arms else None
    if answer is not None or recommendation.arms not in ("", KL_SCHEDULE):
        return {"Ours": answer or "No arm of ours differs in this alone."}
    evaluated = view.evaluated_claims.get(recommendation.claim)
    if evaluated is not None:
        return {"Ours": evaluated.numbers, "Verdict": evaluated.verdict}
    return {"Ours": recommendation.ours or "Not measured, or not reached in every seed", "Verdict": "not evaluated"}


def _of_document(view: AgentView) -> Row:
    """Return the documents' arm against the reference arm at the primary endpoint; one seed gives no verdict."""
    rows = {mode: row for mode in MODES if (row := view.compared(view.config.document_arm, mode)) is not None}
    gaps = [
        message("{where} {gap}", where=mode, gap=view.difference_cell(view.config.document_arm, mode)) for mode in rows
    ]
    parts = (
        message("{mode}: {verdict}", mode=mode, verdict=tested(holm(row))) for mode, row in rows.items() if row.runs > 1
    )
    return {"Ours": tuple(gaps), "Verdict": tuple(parts)}


def _of_arms(view: AgentView, factor: str) -> Cell:
    """Return the differences of the arms that differ from the reference arm in one factor alone, by decoding, or None.

    A KL schedule may also change the KL weight, and must not fall: the advice is a small coefficient early and a larger
    one late.
    """
    base, keys = view.arm(view.reference), AgentArm.model_fields.keys() - NOT_FACTORS
    texts = []
    for arm in view.arms:
        changed = {name for name in keys if getattr(arm, name) != getattr(base, name)}
        is_fit = changed == {factor}
        if factor == KL_SCHEDULE:
            is_fit = changed - {"kl"} == {factor} and arm.kl_schedule.kind in ("constant", "rising")
        gaps = [(mode, view.difference_cell(arm.name, mode)) for mode in MODES] if is_fit else []
        parts = [message("{where} {gap}", where=mode, gap=gap) for mode, gap in gaps if gap]
        texts += [message("{arm}: {gaps}", arm=arm.name, gaps=parts)] if parts else []
    return tuple(texts) or None
