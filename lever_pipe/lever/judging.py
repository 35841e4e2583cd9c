"""What the LVLM makes of proposed selections: trajectories with its answers, scored."""

from __future__ import annotations

from collections.abc import Sequence

from lever_pipe.base.records import Example, Proposal, Trajectory
from lever_pipe.lever.trajectories import references_of, score_trajectory
from lever_pipe.lvlms.asking.prompts import Prompter
from lever_pipe.lvlms.protocol import Lvlm, LvlmRequest


def trajectories_of(
    proposals: Sequence[Proposal], train: Sequence[Example], model: Lvlm, prompter: Prompter
) -> list[Trajectory]:
    """Return each proposal of a train query with the LVLM's answer and its scores."""
    requests = [
        LvlmRequest(prompter(train[p.query_id], p.pointer_global), references_of(train[p.query_id])) for p in proposals
    ]
    return [
        score_trajectory(proposal, train[proposal.query_id], reply.text, reply.answer_log_probs)
        for proposal, reply in zip(proposals, model.run(requests), strict=True)
    ]
