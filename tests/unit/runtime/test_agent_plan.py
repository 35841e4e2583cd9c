from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from builders import shipped

from lever_pipe.base.errors import ConfigError
from lever_pipe.experiment.agent_training import TrainAgentConfig
from lever_pipe.experiment.identities import config_of
from lever_pipe.experiment.plans import agents, models
from lever_pipe.experiment.studies import Experiment, parse_experiment
from lever_pipe.runtime import plan

DEFAULT = shipped()
ONCE = ("prepare_tasks", "warm_start_agent", "evaluate_start", "collect_agents", "compare_arms")
SHOWING = ("build_report",)


def experiment(**changes: Any) -> Experiment:
    """Return the default experiment with changed sections of study `intention`."""
    intention = DEFAULT["intention"]
    for key, value in changes.items():
        old = intention.get(key)
        intention = {**intention, key: {**old, **value} if isinstance(value, dict) and old else value}
    return parse_experiment({**DEFAULT, "intention": intention})


def specs(found: Experiment) -> dict[str, str]:
    """Return the spec of every job by stage and run."""
    jobs = {stage: plan.spec_of(found, stage, {}) for stage in (*ONCE, *SHOWING)}
    for run in agents.runs(found.intention):
        wildcards = {"arm": run.arm, "seed": str(run.seed)}
        for stage in ("train_agent", "evaluate_agent"):
            jobs[f"{stage} {run.arm} {run.seed}"] = plan.spec_of(found, stage, wildcards)
    return jobs


def changed(**changes: Any) -> set[str]:
    before, after = specs(experiment()), specs(experiment(**changes))
    return {job for job in before.keys() | after.keys() if before.get(job) != after.get(job)}


def arms(**of: dict[str, Any]) -> list[dict[str, Any]]:
    return [{**arm, **of.get(arm["name"], {})} for arm in DEFAULT["intention"]["arms"]]


def test_one_arm_changes_its_own_jobs_alone() -> None:
    assert changed(arms=arms(kl_only={"kl": 0.02})) == {
        *(f"train_agent kl_only {seed}" for seed in range(3)),
        *("compare_arms", *SHOWING),
    }


@pytest.mark.parametrize(
    ("evaluation", "retrained", "replayed"),
    [
        ({"primary": {"checkpoint": "best"}}, False, False),
        ({"test_samples": 7}, False, True),
        ({"samples": 7}, True, False),
        ({"seed": 7}, True, True),
    ],
)
def test_how_runs_are_evaluated_does_not_train_them_again(
    evaluation: dict[str, Any], retrained: bool, replayed: bool
) -> None:
    found = changed(evaluation=evaluation)
    assert any(job.startswith("train_agent") for job in found) is retrained
    assert any(job.startswith("evaluate_agent") for job in found) is replayed
    assert ("evaluate_start" in found) is replayed
    assert {"compare_arms", *SHOWING} <= found


SERVED = {"name": "gpt", "model": "m"}
ARM = {"arm": "gpt"}


def test_a_served_agent_is_collected_and_makes_nothing_else_again() -> None:
    assert changed(served=[SERVED]) == {"collect_agents"}
    found = experiment(served=[SERVED], execution={"served": {"gpt": {"retries": 9}}})
    spec = plan.spec_of(found, "evaluate_served", ARM)
    assert spec == plan.spec_of(experiment(served=[SERVED]), "evaluate_served", ARM)


def test_a_served_agent_is_asked_again_for_what_it_reads_alone() -> None:
    def spec(agent: dict[str, Any], **changes: Any) -> str:
        return plan.spec_of(experiment(served=[SERVED | agent], **changes), "evaluate_served", ARM)

    greedy, both = {"modes": ["greedy"]}, {"modes": ["greedy", "sampled"]}
    unread = {"batch": 7, "every": 9, "samples": 7, "primary": {"checkpoint": "best"}}
    of_samples: list[dict[str, Any]] = [{"evaluation": {"test_samples": 7}}, {"evaluation": {"seed": 7}}]
    of_samples.append({"grpo": {"temperature": 0.3}})
    for agent in (greedy, both):
        assert spec(agent, evaluation=unread) == spec(agent)
        assert spec(agent, environment={"max_turns": 3}) != spec(agent)
        assert {spec(agent, **of) == spec(agent) for of in of_samples} == {agent is greedy}


def test_a_model_folder_enters_by_content(tmp_path: Path) -> None:
    def identity() -> str:
        found = experiment(model={"folder": str(tmp_path), "codec": "hf"})
        config = config_of(found, "train_agent", {"arm": "baseline", "seed": "0"})
        assert isinstance(config, TrainAgentConfig)
        assert config.policy.model.folder == ""
        return config.policy.model_identity

    (tmp_path / "model.safetensors").write_bytes(b"one")
    first = identity()
    models.identity_of_model.cache_clear()  # a workflow reads a folder once; the next call reads it again
    (tmp_path / "model.safetensors").write_bytes(b"two")
    assert first not in (identity(), models.EMBEDDED)


INVALID_SCHEDULES: list[tuple[dict[str, Any], str]] = [
    ({"schedule": {"kind": "adaptive", "target": 1, "horizon": 64}}, "schedule.kind: must "),
    ({"kl_schedule": {"kind": "adaptive", "target": 0.05}}, "kl_schedule.horizon: must "),
    ({"seeds": [1, 1]}, "seeds: must "),
]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"arms": [*arms(), {"name": "x", "klm": 0.1}]}, "intention.arms[4].klm: unknown key. Did you mean 'kl'?"),
        ({"arms": [*arms(), {"name": "bundle"}]}, "intention.arms[4].name: must "),
        ({"arms": [*arms(), {"name": "start"}]}, "intention.arms[4].name: must "),
        ({"reference_arm": "none"}, "intention.reference_arm: must "),
        ({"grpo": {"prompts": 9}}, "intention.grpo.minibatches: must "),
        ({"grpo": {"prompts": 400}}, "intention.grpo.prompts: must "),
        ({"simulator": {"kind": "opnai"}}, "intention.simulator.kind: must "),
        ({"served": [SERVED | {"name": "kl_only"}]}, "intention.served[0].name: must "),
        ({"execution": {"served": {"gpt": {}}}}, "intention.execution.served.gpt: must "),
        ({"served": [SERVED], "engine": "verl"}, "intention.served: must "),
        ({"evaluation": {"temperatures": [0.5]}, "engine": "verl"}, "intention.evaluation.temperatures: must "),
        *(({"arms": arms(bundle=values)}, f"intention.arms[2].{problem}") for values, problem in INVALID_SCHEDULES),
        ({"model": {"tiny": {"kv_heads": 3}}}, "intention.model.tiny.kv_heads: must "),
    ],
)
def test_an_invalid_section_is_one_line_with_its_place(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as raised:
        experiment(**changes)
    assert problem in str(raised.value)


def test_a_rule_user_of_tasks_that_people_wrote_is_refused_at_the_start() -> None:
    source = "intentiongym"
    with pytest.raises(ConfigError, match=r"intention\.simulator\.kind: must "):
        experiment(tasks={"source": source}, simulator={"kind": "rule"})
    experiment(tasks={"source": source}, simulator={"kind": "openai"})
    experiment(tasks={"source": "synthetic"}, simulator={"kind": "rule"})


@pytest.mark.parametrize(
    ("arms", "chosen"),
    [
        ([{"name": "baseline"}, {"name": "bundle"}, {"name": "a", "kl": 1}], "bundle"),
        ([{"name": "baseline"}, {"name": "b"}, {"name": "a", "kl": 0.1}], "a"),
        ([{"name": "baseline"}, {"name": "b"}, {"name": "a"}], "b"),
        ([{"name": "baseline"}], "baseline"),
    ],
)
def test_the_documents_arm_is_one_of_the_arms_where_none_is_named(arms: list[dict[str, Any]], chosen: str) -> None:
    values = shipped()
    values["intention"] = values["intention"] | {"arms": arms}
    assert parse_experiment(values).intention.document_arm == chosen
    values["intention"]["document_arm"] = "absent"
    with pytest.raises(ConfigError, match="document_arm: must "):
        parse_experiment(values)
