"""A sweep equals its arms written by hand: the same jobs, one job set per added value, an error for each mistake."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from lever_pipe.base.errors import ConfigError
from lever_pipe.base.policy_names import PolicyName
from lever_pipe.experiment.plans import agents, policies, report
from lever_pipe.experiment.studies import Experiment, parse_experiment
from lever_pipe.experiment.sweeps import swept
from lever_pipe.runtime import plan

CONFIG: dict[str, Any] = yaml.safe_load((Path(__file__).parents[3] / "config.yaml").read_text())
ARM = {"preset": "world", "seeds": [0], "rce_epochs": 1, "base_rce_epochs": [1], "grpo_epochs": 2, "kl_betas": [0, 0.5]}
AGENTS = [{"name": "baseline", "seeds": [0, 1], "entropy": 0.3}, {"name": "other", "kl": 0.2}]
SHARED = ("collect_agents", "compare_arms", "collect_results", "compare_policies", "build_report", "plot_figures")
"""Stages that read all arms."""


def experiment(sweeps: Any = (), agents: Any = (), **of_arm: Any) -> Experiment:
    """Return a small experiment with sweeps of both studies; `of_arm` is of study `lever`."""
    intention = {**CONFIG["intention"], "arms": AGENTS, "document_arm": "other", "sweeps": agents}
    return parse_experiment({**CONFIG, "arms": [{**ARM, **of_arm}], "sweeps": sweeps, "intention": intention})


def specs(found: Experiment) -> dict[str, str]:
    """Return the identity of every job that trains or evaluates an arm, and of those that read all arms."""
    jobs = {stage: plan.spec_of(found, stage, {}) for stage in SHARED}
    for run in agents.runs(found.intention):
        for stage in ("train_agent", "evaluate_agent"):
            jobs[f"{stage} {run.arm} {run.seed}"] = plan.spec_of(found, stage, {"arm": run.arm, "seed": str(run.seed)})
    for policy in policies.trained(found):
        name = PolicyName.parse(policy)
        wildcards = {"preset": name.preset, "seed": str(name.seed), "epoch": str(name.epoch), "policy": policy}
        wildcards |= {"base": str(name.base), "beta": str(name.beta), "selected": policy, "objective": name.kind}
        kind = "on_policy" if name.kind == "reinforce" else name.kind
        for stage in (f"train_{kind}_epoch", "select_demonstrations"):
            jobs[f"{stage} {policy}"] = plan.spec_of(found, stage, wildcards)
    return jobs


def test_a_sweep_is_its_arms_written_by_hand() -> None:
    """A key of the preset, one of the arm and one that both have a section for; a section of an agent's arm."""
    over = {"rce.learning_rate": [3.0e-4], "on_policy.group": [4], "on_policy.epochs": [2], "kl_betas": [[0.25]]}
    of_agents = {"kl": [0.1], "schedule.warmup_steps": [0, 3]}
    found = experiment(
        [{"name": "s", "arm": "world", "over": over}],
        [{"name": "t", "arm": "baseline", "over": of_agents}],
        on_policy={},
    )
    name, world = found.sweeps[0].cells[1].arm, CONFIG["presets"]["world"]
    own = {"rce": {**world["rce"], "learning_rate": 3.0e-4}, "on_policy": {**world["on_policy"], "group": 4}}
    cells = [
        {**AGENTS[0], "name": f"t__kl_0_1__warmup_steps_{n}", "kl": 0.1, "schedule": {"warmup_steps": n}}
        for n in (0, 3)
    ]
    values = {**CONFIG, "presets": {**CONFIG["presets"], name: {**world, **own}}}
    values["arms"] = [{**ARM, "on_policy": {}}, {**ARM, "preset": name, "kl_betas": [0.25], "on_policy": {"epochs": 2}}]
    values["intention"] = {**CONFIG["intention"], "arms": [*AGENTS, *cells], "document_arm": "other"}
    by_sweep, by_hand = specs(found), specs(parse_experiment(values))
    assert by_sweep.keys() == by_hand.keys()
    assert sum(job.startswith(f"train_grpo_epoch preset~{name}/") for job in by_sweep) == 2
    assert (
        sum(job.startswith(f"train_on_policy_epoch preset~{name}/") for job in by_sweep) == 2 * 7
    )  # six betas and REINFORCE
    assert {job for job in by_sweep if by_sweep[job] != by_hand[job]} <= set(SHARED)
    # Displays of the written arms ignore cells, and without sweeps no identity contains the word.
    assert report.shown_agents(found).arms == report.shown_agents(experiment()).arms  # type: ignore[union-attr]
    assert [arm.preset for arm in found.written_arms] == ["world"]
    assert not any('"swe' in spec for spec in by_hand.values())


VALUES: dict[str, list[Any]] = {
    "kl": [0, 0.01, 1.0e-5, 7, "0.2"],
    "learning_rate": [1.0e-4, None, "0.5", 1],
    "entropy_schedule.kind": ["linear", "constant", "rising"],
    "schedule.kind": ["cosine", "constant"],
    "schedule": [{"kind": "cosine", "warmup_steps": 2}, {"warmup_steps": 1}, {}],
    "trajectory_score": ["mean", "r2g", "sum"],
}


BASE = {"kl": 0, "learning_rate": None, "schedule.kind": "constant", "schedule": {}, "trajectory_score": "sum"}
BASE |= {"entropy_schedule.kind": "constant"}
"""The arm's own values of these keys; null takes the value of `grpo`."""


@settings(max_examples=25)
@given(st.data())
def test_one_value_more_is_exactly_its_jobs(data: st.DataObject) -> None:
    """In a grid and in a list, whatever the values: all other arms keep names and identities; a dump parses back."""
    whole = data.draw(st.booleans())  # a section replaces its own keys
    keys = ["schedule"] if whole else data.draw(subset(sorted(VALUES.keys() - {"schedule"}), 1))
    columns: dict[str, list[Any]] = {key: data.draw(subset(VALUES[key], 2)) for key in keys}
    how, n = data.draw(st.sampled_from(["grid", "list"])), min(map(len, columns.values()))
    columns = {key: of[:n] for key, of in columns.items()} if how == "list" else columns
    smaller = {key: of[:-1] if how == "list" or key == keys[0] else of for key, of in columns.items()}
    before, after = (
        experiment(agents=[{"name": "s", "arm": "baseline", "over": over, "how": how}]) for over in (smaller, columns)
    )
    (found,) = after.intention.sweeps
    combinations = list(product(*columns.values())) if how == "grid" else list(zip(*columns.values(), strict=True))
    is_inside = tuple(BASE[key] for key in columns) in combinations  # then no job is made twice
    assert len(swept([found])) == len(combinations) - is_inside == len(found.cells) - 1
    assert all(re.fullmatch("[a-z][a-z0-9_]{0,63}", name) for name in swept([found]))
    assert all(value is not None for cell in found.cells for value in cell.values.values())  # includes defaults
    old, new, jobs = specs(before), swept([found]) - swept(before.intention.sweeps), specs(after)
    assert {job for job in old if jobs.get(job) != old[job]} <= set(SHARED)
    stages = ("train_agent", "evaluate_agent")
    assert jobs.keys() - old.keys() == {f"{stage} {arm} {seed}" for stage in stages for arm in new for seed in (0, 1)}
    assert parse_experiment(after.model_dump(mode="json")) == after


def subset(values: list[Any], least: int) -> st.SearchStrategy[list[Any]]:
    return st.permutations(values).flatmap(lambda of: st.integers(least, len(of)).map(lambda n: list(of[:n])))


S, A = "sweeps[0].", "intention.sweeps[0]."
MISTAKES: list[tuple[str, dict[str, Any]]] = [
    (f"{A}over: must name keys of an arm, got 'learning_rat'. Did you mean 'learning_rate'?", {"learning_rat": [1]}),
    (f"{A}over: must name keys of an arm, got 'seeds'. Keys: kl, ", {"seeds": [[0]]}),
    (f"{A}arm: must be one of ['baseline', 'other'], got 'basline'. Did you mean 'baseline'?", {"arm": "basline"}),
    (f"{A}over: must make 1 to 256 combinations, got 400. ", {"kl": [*range(20)], "entropy": [*range(20)]}),
    (f"{A}over: must make 1 to 256 combinations, got 0. ", {"kl": []}),
    (f"{A}over: must have as many values of each key with how: list, got [1, 2]. ", {"kl": [1], "entropy": [1, 2]}),
    (f"{A}over: (kl -1) kl: must be greater than or equal to 0, got -1.", {"kl": [0.1, -1]}),
    (f"{A}over: (schedule.kind 'cosin') schedule.kind: must be 'constant'",
     {"schedule.kind": ["cosin"]}),
    (f"{A}over: (kl '0.10') must differ from earlier combinations, got the same values. Drop", {"kl": [0.1, "0.10"]}),
    ("presets.s__steps_3.selector.steps: must be 0 or at least 4, the most shots ", {"selector.steps": [3]}),
    (f"{A}cells: must be left out, as they are filled, got others. ", {"cells": [{"arm": "baseline", "values": {}}]}),
    (f"{S}over: must name keys of an arm, got 'grpo.learning_rates'. Did you mean 'grpo.learning_rate'?",
     {"grpo.learning_rates": [1]}),
    (f"{S}over: (base_rce_epochs [9]) base_rce_epochs: must be at most rce_epochs=1, got 9. ",
     {"base_rce_epochs": [[9]]}),
]  # fmt: skip


@pytest.mark.parametrize(("text", "values"), MISTAKES)
def test_a_mistake_is_told_with_its_place(text: str, values: dict[str, Any]) -> None:
    of_agents = "intention" in text
    sweep: dict[str, Any] = {"name": "s", "arm": "baseline" if of_agents else "world", "over": {}}
    sweep |= {key: value for key, value in values.items() if key in ("arm", "cells")}
    sweep["over"] = {key: value for key, value in values.items() if key not in sweep} or {"kl": [0.1]}
    sweep["how"] = "list" if "how: list" in text else "grid"
    with pytest.raises(ConfigError, match=re.escape(text)):
        experiment(**{"agents" if of_agents else "sweeps": [sweep]})


def test_other_values_of_one_name_are_other_arms() -> None:
    """The second is named by a digest; without a value, the key's name gives its default."""
    paths = ["old-1/x.safetensors", "old_1/x.safetensors", ""]
    (found,) = experiment([{"name": "s", "arm": "world", "over": {"start_from": paths}}]).sweeps
    by_path = {cell.values["start_from"]: cell.arm for cell in found.cells}
    assert (list(by_path), by_path[""], by_path[paths[0]]) == (paths, "world", "s__start_from_old_1_x_safetensors")
    assert re.fullmatch("s__[0-9a-f]{12}", by_path[paths[1]])


def test_sweeps_of_one_name_are_refused() -> None:
    sweep = {"name": "s", "arm": "baseline", "over": {"kl": [0.1]}}
    with pytest.raises(ConfigError, match=r"sweeps\[1\].name: must differ from that of earlier sweeps, got 's'"):
        experiment(agents=[sweep, sweep])
