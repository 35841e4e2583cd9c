"""The configuration part of a job's identity, and the modules that it selects."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import get_type_hints

from lever_pipe.base.plugins import available
from lever_pipe.base.sections import Section
from lever_pipe.experiment.plans import agents, data, evaluation, grid, report, training
from lever_pipe.experiment.studies import Experiment

Plan = Callable[[Experiment, grid.Wildcards], Section]
PLANS = (data, training, evaluation, agents, report, grid)


def plan_of(stage: str) -> Plan:
    """Return the function of `PLANS` with a stage's name.

    Raises:
        KeyError: no such stage.
    """
    for module in PLANS:
        if stage in vars(module):
            plan: Plan = vars(module)[stage]
            return plan
    raise KeyError(stage)


@cache
def model_of(stage: str) -> type[Section]:
    """Return the model of a stage's configuration."""
    model: type[Section] = get_type_hints(plan_of(stage))["return"]
    return model


def config_of(experiment: Experiment, stage: str, wildcards: grid.Wildcards) -> Section:
    """Return a job's configuration: exactly the values that may change its output.

    Raises:
        KeyError: unknown stage, or a wildcard is missing.
    """
    return plan_of(stage)(grid.at(experiment, wildcards), wildcards)


def plugins_of(config: Section) -> tuple[str, ...]:
    """Return the modules that a stage's configuration selects by name, as `lever.samplers.uniform`."""
    modules = [name.format_map(vars(config)) for name in config.PLUGINS]
    on_policy = getattr(config, "on_policy", None)
    rewards = [getattr(config, "reward", None), getattr(on_policy, "reward", None), *getattr(config, "rewards", ())]
    modes = [reward.mode for reward in rewards if reward]
    reward_plugins = available("lever/rewards") if modes else ()  # the other modes are built in
    module = getattr(config, "module", "")
    modules += [f"lever.policies.{module}"] if module else []
    return (*modules, *(f"lever.rewards.{mode}" for mode in modes if mode in reward_plugins))
