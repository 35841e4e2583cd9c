"""The answer of the first screen to: what does KL do to the agent?"""

from __future__ import annotations

import math
from typing import Literal

from lever_pipe.experiment.agent_config import AgentArm
from lever_pipe.report.agent.runs import ALPHA, START, AgentView, view_of
from lever_pipe.report.cards import Card, CardRow
from lever_pipe.report.cells import Cell, Code, Message, Number, Series, say
from lever_pipe.report.material import Material

MODES = ("sampled", "greedy")
LINKS = (("#agent-arms", say("kl.link_arms")), ("report/documents-agent.html", say("kl.link_documents")))


def answer(material: Material) -> Card | None:
    """Return the card, which says why it says no more; None where the configuration holds no agent."""
    if material.config.agents is None:
        return None
    title, view = say("kl.title"), view_of(material)
    axis = say("kl.axis_share" if view is None or view.scale > 1 else "kl.axis_reward")
    if view is None:
        return Card(title, say("kl.unfinished"), None, (), axis, None, ())
    rows, arm = _rows(view), _strongest(view)
    gaps = {mode: gap for mode in MODES if arm is not None and (gap := view.difference(arm.name, mode)) is not None}
    if arm is None or not gaps:
        return Card(title, say("kl.no_arm" if arm is None else "kl.unfinished"), None, rows, axis, None, LINKS)
    n = len(view.common(arm.name, view.reference))
    parts = [say("kl.gap", mode=say(f"agent.{mode}"), gap=gap) for mode, gap in gaps.items()]
    detail = say("kl.detail", arm=Code(arm.name), kl=arm.kl, reference=Code(view.reference), gaps=parts, n=n)
    signs = {mode: _sign(view, arm.name, mode, gap) for mode, gap in gaps.items()}
    return Card(title, _headline(signs), detail, rows, axis, say("kl.these_runs") if n == 1 else None, LINKS)


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


def _rows(view: AgentView) -> tuple[CardRow, ...]:
    """Return the start policy, the reference arm and every arm with KL, by its coefficient."""
    arms = sorted((arm for arm in view.arms if arm.kl or arm.name == view.reference), key=lambda arm: arm.kl)
    labelled: list[tuple[str, Message | Code]] = [(f"arm~{arm.name}", Code(arm.name)) for arm in arms]
    rows = [CardRow(label, _marks(view, subject)) for subject, label in [(START, say("agent.start")), *labelled]]
    return tuple(row for row in rows if row.marks)


def _marks(view: AgentView, subject: str) -> tuple[tuple[Literal["a", "b", "muted"], Number], ...]:
    sampled, greedy = (view.score(view.held_out(subject, mode)) for mode in MODES)
    return (*((("a", sampled),) if sampled else ()), *((("b", greedy),) if greedy else ()))
