"""First-screen summary of the effect of KL on the agent."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from lever_pipe.experiment.agent_training import AgentArm, Schedule
from lever_pipe.report.agent.runs import AgentView, view_of, weight_cell
from lever_pipe.report.cells import Message, code, message
from lever_pipe.report.context import ReportContext
from lever_pipe.report.evidence import ALPHA, EvidenceRow
from lever_pipe.report.summaries import MarkKind, Summary, SummaryRow

MODES = ("sampled", "greedy")
PUBLISHED_PAIR = (
    AgentArm(name="baseline"),
    AgentArm(name="bundle", kl=0.01, entropy=0.01, schedule=Schedule(kind="cosine", warmup_steps=1)),
)
"""The runs of documents 003 and 004, which differ in three factors at once."""
UNPUBLISHED: dict[str, Any] = dict.fromkeys(("name", "seeds", "learning_rate", "trajectory_score"), True)
"""Settings of an arm that the documents do not state, or that depend on the model."""
KL_ALONE = {"name", "kl", "seeds"}
"""Fields of an arm that an arm with KL alone may set differently."""
LINKS = (("#agent-arms", message("All arms")), ("documents-agent.html", message("Documents 003 and 004")))
KEYS: tuple[tuple[MarkKind, Message], ...] = (("a", message("sampled")), ("b", message("greedy")))


def answers(context: ReportContext) -> Iterator[Summary]:
    """Yield the summary, or none if the configuration has no agent; without results it names the reason."""
    if context.config.agents is not None:
        yield _summary(context)


def _summary(context: ReportContext) -> Summary:
    title, view = message("What does KL do to the agent?"), view_of(context)
    arms = [] if view is None else _with_kl(view)
    if view is None or not arms:
        has_kl = len({arm.kl for arm in context.config.agents.arms}) > 1 if context.config.agents else False
        return Summary("kl", title, {"lack": "run" if has_kl else "kl"}, (), None, (), KEYS)
    rows = tuple(_rows(view, arms))
    axis = message(
        "held-out score minus {reference}, % of the ceiling" if view.scale > 1 else "held-out reward minus {reference}",
        reference=code(view.reference),
    )
    chosen = _chosen(view, arms)
    facts = {
        "lack": "" if rows else "run",
        "reference": view.reference,
        "arms": [entry for arm in chosen if (entry := _differences(view, arm))["gaps"]],
        "findings": _findings(view, chosen),
        "is_single": bool(rows) and all(len(view.common(arm.name, view.reference)) == 1 for arm in arms),
        "is_undone": bool(rows) and any(_is_undone_by_holm(view, arm.name) for arm in chosen),
    }
    return Summary("kl", title, facts, rows, axis, LINKS, KEYS)


def _with_kl(view: AgentView) -> list[AgentArm]:
    """Return the arms with more KL than the reference arm and a common seed, by their coefficient."""
    # Without the reference arm, no arm can be stronger.
    least = next((arm.kl for arm in view.arms if arm.name == view.reference), math.inf)
    stronger = [arm for arm in view.arms if arm.kl > least and view.common(arm.name, view.reference)]
    return sorted(stronger, key=lambda arm: arm.kl)


def _chosen(view: AgentView, arms: Sequence[AgentArm]) -> list[AgentArm]:
    """Return the arms that the answer names: the documents' arm, its KL alone, and the strongest KL alone."""
    reference = view.arm(view.reference)
    pure = [arm for arm in arms if arm.model_dump(exclude=KL_ALONE) == reference.model_dump(exclude=KL_ALONE)]
    published = [arm for arm in arms if arm.name == view.config.document_arm]
    same = [arm for arm in pure if any(arm.kl == other.kl for other in published)]
    # `arms` are in ascending order of KL.
    strongest = (pure or list(arms))[-1:]
    return list({arm.name: arm for arm in (*published, *same, *strongest)}.values())


def is_published_comparison(reference: AgentArm, arm: AgentArm) -> bool:
    """Return whether two arms differ as the published runs do: KL 0.01 (k3), entropy 0.01, warm-up with cosine.

    The length of the warm-up is not published. Unpublished settings must be the same in both arms.
    """
    shared = (arm.learning_rate, arm.trajectory_score) == (reference.learning_rate, reference.trajectory_score)
    pairs = zip((reference, arm), PUBLISHED_PAIR, strict=True)
    return shared and all(_published_settings(ours) == _published_settings(published) for ours, published in pairs)


def _published_settings(arm: AgentArm) -> dict[str, Any]:
    """Return the settings of an arm that the documents state."""
    # Only the presence of a warm-up is published.
    settings = arm.model_dump(exclude=UNPUBLISHED | {"schedule": {"warmup_steps"}})
    return settings | {"has_warmup": arm.schedule.warmup_steps > 0}


def _differences(view: AgentView, arm: AgentArm) -> dict[str, Any]:
    """Return an arm's differences in both decodings; with one seed, as plain numbers without inference."""
    return {
        "name": arm.name,
        "is_published": is_published_comparison(view.arm(view.reference), arm),
        "kl": weight_cell(arm.kl, arm.kl_schedule),
        "n": len(view.common(arm.name, view.reference)),
        "gaps": {mode: gap for mode in MODES if (gap := view.difference_cell(arm.name, mode)) is not None},
    }


def _findings(view: AgentView, arms: Sequence[AgentArm]) -> list[dict[str, Any]]:
    """Return the results of the tests over seeds: arms grouped by the signs of their differences."""
    findings: list[dict[str, Any]] = []
    for arm in (arm for arm in arms if len(view.common(arm.name, view.reference)) > 1):
        rows = {mode: view.compared(arm.name, mode) for mode in MODES}
        signs = {mode: _sign(row) for mode, row in rows.items() if row is not None}
        same = next((finding for finding in findings if finding["signs"] == signs), None)
        if same is None:
            findings.append(same := {"signs": signs, "arms": []})
        same["arms"].append(code(arm.name))
    return findings


def _is_undone_by_holm(view: AgentView, arm: str) -> bool:
    """Return whether an interval over seeds excludes 0 although the adjusted test does not separate."""
    rows = (view.compared(arm, mode) for mode in MODES)
    return any(row is not None and row.runs > 1 and row.low * row.high > 0 and _sign(row) == 0 for row in rows)


def _sign(row: EvidenceRow) -> int | None:
    """Return 1 or -1 if a test separates the arms, 0 if it does not, and None without a test."""
    if math.isnan(row.p_holm):
        return None
    return int(math.copysign(1, row.value)) if row.p_holm < ALPHA else 0


def _rows(view: AgentView, arms: Sequence[AgentArm]) -> Iterator[SummaryRow]:
    """Yield every arm's difference from the reference arm over their common seeds; one seed has no interval."""
    for arm in arms:
        cells = ((kind, view.difference_cell(arm.name, mode)) for (kind, _), mode in zip(KEYS, MODES, strict=True))
        marks = tuple((kind, gap) for kind, gap in cells if gap is not None)
        is_single = len(view.common(arm.name, view.reference)) == 1
        label = message("{arm} (1 seed)", arm=code(arm.name)) if is_single else code(arm.name)
        yield from [SummaryRow(label, marks)] if marks else []
