"""The answer of the first screen to: what does KL do to the agent?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from lever_pipe.experiment.agent_config import AgentArm
from lever_pipe.report.agent.runs import START, AgentView, view_of, weight_cell
from lever_pipe.report.cards import Card, CardRow, MarkKind
from lever_pipe.report.cells import Cell, Code, Message, Number, Series, say
from lever_pipe.report.evidence import ALPHA
from lever_pipe.report.material import Material

MODES = ("sampled", "greedy")
LINKS = (("#agent-arms", say("kl.link_arms")), ("documents-agent.html", say("kl.link_documents")))
KEYS: tuple[tuple[MarkKind, Message], ...] = (("a", say("agent.sampled")), ("b", say("agent.greedy")))


def answers(material: Material) -> Iterator[Card]:
    """Yield the card, which says why it says no more; none where the configuration holds no agent."""
    if material.config.agents is not None:
        yield _card(material)


def _card(material: Material) -> Card:
    title, view = say("kl.title"), view_of(material)
    axis = say("kl.axis_share" if view is None or view.scale > 1 else "kl.axis_reward")
    arm = None if view is None else _strongest(view)
    if view is None or arm is None:
        has_kl = len({arm.kl for arm in material.config.agents.arms}) > 1 if material.config.agents else False
        rows = () if view is None else _rows(view, ())
        return Card(title, say("kl.unfinished" if has_kl else "kl.no_arm"), None, rows, axis, None, (), KEYS)
    seeds = view.common(arm.name, view.reference)
    rows = _rows(view, seeds)
    gaps = {mode: gap for mode in MODES if (gap := view.difference(arm.name, mode)) is not None}
    if not gaps:
        return Card(title, say("kl.unfinished"), None, rows, axis, None, LINKS, KEYS)
    parts = [say("kl.gap", mode=say(f"agent.{mode}"), gap=gap) for mode, gap in gaps.items()]
    detail = say(
        "kl.detail",
        arm=Code(arm.name),
        kl=weight_cell(arm.kl, arm.kl_schedule),
        reference=Code(view.reference),
        gaps=parts,
        n=len(seeds),
    )
    signs = {mode: _sign(view, arm.name, mode, gap) for mode, gap in gaps.items()}
    notes = say("kl.these_runs") if len(seeds) == 1 else None
    return Card(title, _headline(signs), detail, rows, axis, notes, LINKS, KEYS)


def _strongest(view: AgentView) -> AgentArm | None:
    """Return the arm with the strongest KL: one that differs in nothing else, and in several seeds, goes first."""
    base = view.config.reference_arm
    reference = next((arm for arm in view.arms if arm.name == base), None)
    if reference is None:
        return None

    def rank(arm: AgentArm) -> tuple[bool, bool, float]:
        others = {"name", "kl", "seeds"}
        is_pure = arm.model_dump(exclude=others) == reference.model_dump(exclude=others)
        return is_pure, len(view.common(arm.name, base)) > 1, arm.kl

    return max((arm for arm in view.arms if arm.kl > reference.kl), key=rank, default=None)


def _sign(view: AgentView, arm: str, mode: str, gap: Number) -> int | None:
    """Return 1 or -1 where a test separates the arms, 0 where it does not, and None without one."""
    row = view.compared(arm, mode)
    if row is None or math.isnan(row.p_holm):
        return None
    return int(math.copysign(1, gap.value)) if row.p_holm < ALPHA else 0


def _headline(signs: dict[str, int | None]) -> Cell:
    found = set(signs.values())
    if found == {-1, 1}:
        return say("kl.depends")
    if len(signs) > 1 and len(found) == 1:
        return say({1: "kl.both_higher", -1: "kl.both_lower", 0: "kl.neither", None: "kl.untested"}[found.pop()])
    words = {1: "kl.higher", -1: "kl.lower", 0: "kl.open", None: "kl.untested_mode"}
    parts = tuple(say(words[sign], mode=say(f"agent.{mode}")) for mode, sign in signs.items())
    return say("kl.by_mode", modes=Series(parts, "parts"))


def _rows(view: AgentView, seeds: Sequence[int]) -> tuple[CardRow, ...]:
    """Return the start policy, then the reference arm, over `seeds`, and every arm with KL, by its coefficient."""
    arms = sorted((arm for arm in view.arms if arm.kl and arm.name != view.reference), key=lambda arm: arm.kl)
    scored: list[tuple[Cell, list[Number | None]]] = [
        (say("agent.start"), [view.score(view.held_out(START, mode)) for mode in MODES]),
        (Code(view.reference), [view.at_seeds(seeds or view.seeds.get(view.reference, ()), mode) for mode in MODES]),
        *((Code(arm.name), [view.score(view.held_out(f"arm~{arm.name}", mode)) for mode in MODES]) for arm in arms),
    ]
    kinds = [kind for kind, _ in KEYS]
    rows = []
    for label, scores in scored:
        marks = tuple((kind, score) for kind, score in zip(kinds, scores, strict=True) if score is not None)
        rows += [CardRow(label, marks)] if marks else []
    return tuple(rows)
