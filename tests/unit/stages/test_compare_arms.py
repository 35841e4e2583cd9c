from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import agent_runs
import pandas as pd
import pytest
from agent_runs import ARMS, Study

from lever_pipe.experiment.agent_evaluation import PrimaryEndpoint

SMALL = Study(arms=(ARMS[0], ARMS[1], ARMS[4]), steps=25)
PRIMARIES = [f"test_normalised_reward_{mode}_last" for mode in ("sampled", "greedy")]


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return agent_runs.compare(tmp_path_factory.mktemp("compared"), SMALL)


def test_every_endpoint_stands_by_seed_and_as_a_mean(paths: dict[str, Path]) -> None:
    frame = pd.read_csv(paths["endpoints"], dtype={"seed": str}, keep_default_na=False)
    assert not frame.duplicated(["arm", "endpoint", "seed"]).any()
    for (arm, name), rows in frame.groupby(["arm", "endpoint"]):
        seeds = ["0"] if arm in ("kl_only", "start") else ["0", "1", "2"]
        assert list(rows["seed"]) == [*seeds, ""], name
        assert set(rows["role"]) == {"primary" if name in PRIMARIES else "secondary"}


def test_the_start_policy_has_rows_of_its_own(paths: dict[str, Path]) -> None:
    frame = pd.read_csv(paths["endpoints"], dtype={"seed": str}, keep_default_na=False)
    start = frame[(frame["arm"] == "start") & (frame["seed"] == "")].set_index("endpoint")
    assert set(start.index) == {
        f"test_{metric}_{mode}_{checkpoint}"
        for mode in ("greedy", "sampled")
        for metric in ("reward", "normalised_reward")
        for checkpoint in ("last", "best")
    }
    episodes = pd.read_csv(paths["episodes_table"])
    own = episodes[(episodes["arm"] == "start") & (episodes["mode"] == "greedy")]
    row = start.loc["test_reward_greedy_last"]
    assert row["value"] == pytest.approx(own["reward"].mean(), rel=1e-8)
    assert float(row["low"]) < row["value"] < float(row["high"])
    assert row["n_tasks"] == len(own) == 12


def test_intervals_of_rewards_end_at_the_ceiling(paths: dict[str, Path]) -> None:
    frame = pd.read_csv(paths["endpoints"])
    rewards = frame[frame["endpoint"].str.fullmatch("test_reward_.*") & frame["high"].notna()]
    ceiling = pd.read_csv(paths["episodes_table"]).query("split == 'test'").groupby("task_id")["ceiling"].first().mean()
    assert rewards["high"].max() == pytest.approx(ceiling, rel=1e-8)  # reached, so that it is a bound
    assert (rewards["low"] >= 0).all()


def test_holm_is_taken_over_the_arms_of_as_many_seeds_at_one_endpoint(tmp_path: Path) -> None:
    study = Study(arms=(ARMS[0], *ARMS[1:5]), steps=25)
    frame = pd.read_csv(agent_runs.compare(tmp_path, study)["comparisons"])
    for endpoint, rows in frame.groupby("endpoint"):
        several, single = rows[rows["arm"] == "bundle"], rows[rows["arm"] != "bundle"].sort_values("p")
        assert (*several["family"], *set(single["family"])) == (endpoint, f"{endpoint}-one-run")
        assert (*several["test"], *set(single["test"])) == ("Student's t", "sign flip")
        assert list(several["p_holm"]) == list(several["p"])
        stepped = (single["p"] * [3, 2, 1]).cummax().clip(upper=1)
        assert list(single["p_holm"]) == pytest.approx(list(stepped), rel=1e-8)


def test_a_difference_is_that_of_the_common_seeds(paths: dict[str, Path]) -> None:
    endpoints = pd.read_csv(paths["endpoints"], dtype={"seed": str}).set_index(["arm", "endpoint", "seed"])["value"]
    for row in pd.read_csv(paths["comparisons"]).itertuples():
        seeds = ["0"] if row.arm == "kl_only" else ["0", "1", "2"]
        gaps = [endpoints[row.arm, row.endpoint, s] - endpoints["baseline", row.endpoint, s] for s in seeds]
        assert row.difference == pytest.approx(sum(gaps) / len(gaps), abs=1e-8)
        assert row.n_seeds == len(seeds)
        assert row.left_value - row.right_value == pytest.approx(row.difference, abs=1e-8)


@pytest.mark.parametrize("engine", ["native", "verl"])  # means over tasks, and numbers of whole runs
def test_runs_pair_by_seed_in_whatever_order_arms_list_them(tmp_path: Path, engine: str) -> None:
    of_engine = {"native": PrimaryEndpoint(), "verl": PrimaryEndpoint(split="val", metric="reward", modes=("greedy",))}
    rows = []
    for name, seeds in (("listed", ((3, 2, 0), (0, 1, 2))), ("sorted", ((0, 2), (0, 2)))):
        arms = tuple(arm.model_copy(update={"seeds": of}) for arm, of in zip((ARMS[0], ARMS[4]), seeds, strict=True))
        study = Study(arms=arms, steps=25, engine=engine, has_test=engine == "native")
        judged = study.evaluation.model_copy(update={"primary": of_engine[engine]})
        rows.append(
            agent_runs.compare(tmp_path / name, study, evaluation=judged)["comparisons"].read_text().splitlines()
        )
    assert len(rows[0]) > 1
    assert rows[0] == rows[1]


def test_served_agents_are_compared_on_the_tasks_that_they_kept_and_move_no_other_line(
    paths: dict[str, Path], tmp_path: Path
) -> None:
    """Both agents lack their first greedy task: all other numbers of the arms stay equal to the byte."""
    found = agent_runs.compare(tmp_path, replace(SMALL, served=("gpt", "qwen")))
    tables = {name: pd.read_csv(found[name], dtype={"seed": str}) for name in ("endpoints", "comparisons")}
    for name in ("endpoints", "comparisons", "curves", "episodes_table"):
        lines = [line for line in found[name].read_text().splitlines() if "gpt," not in line and "qwen," not in line]
        assert lines == paths[name].read_text().splitlines(), name
    episodes = pd.read_csv(found["episodes_table"])
    held_out = episodes[(episodes["split"] == "test") & (episodes["checkpoint"] == "last")]
    share = held_out.assign(share=held_out["reward"] / held_out["ceiling"])
    lost = share.loc[share["end"] == "failed", "task_id"].unique()
    assert list(lost) == ["test-000"]
    selected = share[~share["task_id"].isin(lost)].groupby(["arm", "mode"])["share"].mean()
    ends = tables["endpoints"].set_index(["arm", "endpoint", "seed"])["value"]
    served = tables["comparisons"][tables["comparisons"]["arm"].isin(["gpt", "qwen"])]
    assert set(served["endpoint"]) == set(PRIMARIES)
    for row in served.itertuples():
        mode = row.endpoint.split("_")[3]
        assert ends[row.arm, row.endpoint, "0"] == pytest.approx(selected[row.arm, mode], rel=1e-8)
        assert row.difference == pytest.approx(selected[row.arm, mode] - selected["baseline", mode], abs=1e-8)
        assert (row.n_tasks, row.family, row.test) == (11, f"{row.endpoint}-served", "Student's t")
    for _, rows in served.sort_values("p").groupby("endpoint"):
        assert list(rows["p_holm"]) == pytest.approx(list((rows["p"] * [2, 1]).cummax().clip(upper=1)), rel=1e-8)
