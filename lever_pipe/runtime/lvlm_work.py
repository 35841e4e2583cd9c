"""What an LVLM has to compute, told before one of its jobs has left a record: prompts, tokens, operations at most.

Nothing is taken for shared: images, beginnings and whole prompts that recur cost a run less than this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from lever_pipe.experiment.studies import Experiment
from lever_pipe.runtime import grid_plan, plan

TOKENS_OF_IMAGE = 391
"""Of an image of 640 x 480 pixels in Qwen2.5-VL: 23 x 17 squares of 28 pixels. Families of tiles take up to 3,300."""
TOKENS_OF_TEXT = 30
"""Of a question with its answer and the words around them."""
TOKENS_OF_OPENING = 80
"""Of the published system text."""
FLOP_PER_SECOND = 4.0e14
"""What a GPU of 80 GB reaches in matrix products of bfloat16, of the 10**15 that its maker names."""


class LvlmWork(NamedTuple):
    """Prompts and what they come to."""

    prompts: int
    tokens: int

    def flop(self, parameters: int) -> float:
        """Return multiply-adds times two of a model of so many parameters; attention is small beside them."""
        return 2.0 * parameters * self.tokens

    def and_also(self, other: LvlmWork) -> LvlmWork:
        """Return both works together."""
        return LvlmWork(self.prompts + other.prompts, self.tokens + other.tokens)


def lvlm_work(experiment: Experiment, jobs: Mapping[str, int]) -> LvlmWork:
    """Return what the LVLM answers at most in planned jobs.

    Args:
        experiment: what runs.
        jobs: rule -> how many of its jobs are planned.
    """
    found = LvlmWork(0, 0)
    for rule, (wholes, work) in _works(experiment).items():
        share = min(1.0, jobs.get(rule, 0) / wholes) if wholes else 0.0
        found = found.and_also(LvlmWork(round(share * work.prompts), round(share * work.tokens)))
    return found


def _works(experiment: Experiment) -> dict[str, tuple[int, LvlmWork]]:
    """Return for each rule that asks the LVLM its jobs in the whole experiment and their work, over all corners."""
    found: dict[str, tuple[int, LvlmWork]] = {}
    places = [(experiment, plan.evaluated(experiment))] if "lever" in experiment.studies else []
    if "grid" in experiment.studies:
        corners = [(grid_plan.at(experiment, grid_plan.folders_of(of)), of) for of in experiment.grid.corners]
        places += [(here, plan.policies_at(experiment, corner)) for here, corner in corners]
    for here, policies in places:
        for rule, (jobs, work) in _works_at(here, policies).items():
            jobs_before, before = found.get(rule, (0, LvlmWork(0, 0)))
            found[rule] = (jobs_before + jobs, before.and_also(work))
    return found


def _works_at(experiment: Experiment, policies: Sequence[str]) -> dict[str, tuple[int, LvlmWork]]:
    rl, shots = experiment.rl_data, experiment.evaluation.shots
    batches = {plan.batch_of(policy) for policy in policies}
    found = {"answer_prompts": (len(batches), _all(len(policies) * experiment.data.n_eval, shots))}
    if rl.is_answered:
        found["generate_rl_data"] = (rl.n_shards, _all(rl.n_queries * rl.per_query, (rl.shots,)))
    if any(arm.sft_epochs for arm in experiment.arms):
        found["search_beams"] = (1, _of_beams(experiment))
    epochs, draws = 0, LvlmWork(0, 0)
    for arm in experiment.arms:
        if arm.on_policy is None:
            continue
        settings, preset = arm.on_policy, experiment.presets[arm.preset]
        group, lengths = preset.on_policy.group, preset.on_policy.shots
        marks = settings.mark_seeds or settings.seeds if "reinforce" in settings.marks else ()
        n = (len(settings.seeds) * len(settings.kl_betas) + len(marks)) * settings.epochs * len(arm.base_rce_epochs)
        queries = int(preset.train_share * rl.n_queries)
        one = _all(n * queries * group, lengths, each=1 / len(lengths))
        epochs, draws = epochs + n, draws.and_also(one)
    return found | {"train_on_policy_epoch": (epochs, draws)}


def _of_beams(experiment: Experiment) -> LvlmWork:
    """Return the work of beam search: at each step every beam with each candidate that it lacks, and it alone."""
    found = LvlmWork(0, 0)
    for shots, prompts in experiment.beams.prompts(experiment.pools.size):
        found = found.and_also(_all(prompts, (shots,)))
    return found


def _all(prompts: int, shots: tuple[int, ...], each: float = 1.0) -> LvlmWork:
    """Return the work of `each` times so many prompts at every number of shots."""
    tokens = sum(TOKENS_OF_OPENING + (count + 1) * (TOKENS_OF_IMAGE + TOKENS_OF_TEXT) for count in shots)
    return LvlmWork(round(each * prompts * len(shots)), round(each * prompts * tokens))
