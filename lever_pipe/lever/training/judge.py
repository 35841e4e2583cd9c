"""The LVLM as the judge of what a policy draws."""

from __future__ import annotations

from collections.abc import Sequence

from lever_pipe.base.records import Example, PoolPosition, Proposal
from lever_pipe.experiment.config import Reward
from lever_pipe.lever.rewards import reward_function
from lever_pipe.lever.training.on_policy import Asked, Judged
from lever_pipe.lever.trajectories import trajectories_of
from lever_pipe.lvlms.asking.prompts import Prompter
from lever_pipe.lvlms.protocol import Lvlm


class LvlmJudge:
    """Rewards selections by what the LVLM answers with them."""

    def __init__(self, train: Sequence[Example], model: Lvlm, prompter: Prompter, reward: Reward) -> None:
        self._train = train
        self._model = model
        self._prompter = prompter
        self._reward = reward_function(reward)
        self._met: set[Asked] = set()

    @property
    def prompts(self) -> int:
        """Return how many different prompts were asked so far."""
        return len(self._met)

    def __call__(self, asked: Sequence[Asked]) -> list[Judged]:
        """Return reward and VQA accuracy of each selection; equal ones are answered once."""
        self._met.update(asked)
        distinct = sorted(set(asked))
        found = trajectories_of([_proposal(one) for one in distinct], self._train, self._model, self._prompter)
        verdicts = {one: Judged(self._reward(t), t.vqa_acc_score) for one, t in zip(distinct, found, strict=True)}
        return [verdicts[one] for one in asked]


def _proposal(asked: Asked) -> Proposal:
    query, chosen = asked
    anywhere = tuple(PoolPosition(0) for _ in chosen)  # the reward does not depend on pool positions
    return Proposal(query_id=query, pointer=anywhere, pointer_global=chosen, gen_method="on_policy")
