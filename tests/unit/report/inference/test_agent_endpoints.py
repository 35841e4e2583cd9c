"""Endpoints whose numbers follow by hand from a policy that finds nothing before a step, and everything from it on.

Eight validation tasks have 2, 3, 4, 2, 3, 4, 2 and 3 details, worth 1.7, 2.4 and 2.8: a ceiling of 17.9 / 8 = 2.2375.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import agent_runs
import pandas as pd
import pytest
from agent_runs import ARMS, Study
from scipy import stats

from lever_pipe.base.errors import RecordError
from lever_pipe.experiment.agent_evaluation import PrimaryEndpoint
from lever_pipe.report.inference.task_values import read_episodes

CEILING = 17.9 / 8
Rows = list[Any]


class Found(NamedTuple):
    """The rows of `endpoints.csv` and `comparisons.csv`."""

    endpoints: Rows
    comparisons: Rows

    def mean(self, arm: str, endpoint: str, seed: str = "") -> Any:
        return next(row for row in self.endpoints if (row.arm, row.endpoint, row.seed) == (arm, endpoint, seed))

    def value(self, arm: str, endpoint: str) -> float:
        return float(self.mean(arm, endpoint).value)

    def by_seed(self, arm: str, endpoint: str, seeds: tuple[int, ...]) -> list[float]:
        return [float(self.mean(arm, endpoint, str(seed)).value) for seed in seeds]

    @property
    def primary(self) -> str:
        return next((row.endpoint for row in self.endpoints if row.role == "primary"), "")


def read_found(paths: dict[str, Path]) -> Found:
    plain: dict[str, Any] = {"keep_default_na": False}
    read = [
        pd.read_csv(paths["endpoints"], dtype={"seed": str}, na_values={"value": "", "low": "", "high": ""}, **plain),
        pd.read_csv(paths["comparisons"]),
    ]
    return Found(*(list(frame.itertuples(index=False)) for frame in read))


AT = {"baseline": 25, "bundle": 40}
"""The first step at which an arm finds everything; seed 2 of the bundle never does."""


def skill(arm: str, seed: int, step: int) -> float:
    return float(step >= AT.get(arm, 5) and not (arm == "bundle" and seed == 2))


STEPPED = Study(arms=(ARMS[0], ARMS[4], ARMS[5]), skill=skill)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return agent_runs.compare(tmp_path_factory.mktemp("endpoints"), STEPPED)


@pytest.fixture(scope="module")
def found(paths: dict[str, Path]) -> Found:
    return read_found(paths)


@pytest.mark.parametrize("checkpoint", ["last", "best"])
def test_validation_by_hand(tmp_path: Path, checkpoint: str) -> None:
    primary = PrimaryEndpoint(split="val", metric="reward", checkpoint=checkpoint)
    evaluated = STEPPED.evaluation.model_copy(update={"primary": primary})
    found = read_found(agent_runs.compare(tmp_path, STEPPED, evaluation=evaluated))
    for mode, n_rollouts in (("greedy", 1), ("sampled", 4)):
        # written with nine significant digits
        assert found.value("baseline", f"val_reward_{mode}_{checkpoint}") == pytest.approx(CEILING, rel=1e-8)
        mean = found.mean("bundle", f"val_reward_{mode}_{checkpoint}")
        assert (mean.value, mean.role) == (pytest.approx(2 / 3 * CEILING, rel=1e-8), "primary")
        assert (mean.n_seeds, mean.n_tasks, mean.n_rollouts) == (3, 8, n_rollouts)
        # three seeds, one of which never learns, are inconclusive
        assert (mean.low, mean.high) == (0.0, pytest.approx(CEILING, rel=1e-8))


def test_seeds_that_differ(found: Found) -> None:
    assert found.by_seed("bundle", "test_normalised_reward_sampled_last", (0, 1, 2)) == [1, 1, 0]
    mean = found.mean("bundle", "test_normalised_reward_sampled_last")
    assert (mean.value, mean.low, mean.high) == (pytest.approx(2 / 3, rel=1e-8), 0.0, 1.0)


def test_the_primary_endpoint_is_marked(found: Found) -> None:
    assert found.primary == "test_normalised_reward_sampled_last"
    assert found.value("kl_strong", found.primary) == 1.0


def test_drift_and_entropy_at_the_end(found: Found) -> None:
    # KL 0.001 x step, steps 41 to 45, and 1e-4 a seed; entropy 0.4 - 0.002 x 43
    assert found.value("baseline", "kl_end") == pytest.approx(0.043 + 1e-4, rel=1e-8)
    assert found.value("baseline", "entropy_end") == pytest.approx(0.314, rel=1e-8)


def test_the_reference_arm_meets_the_start_policy_at_every_temperature(tmp_path: Path, found: Found) -> None:
    """The start policy finds nothing, the trained one everything, however both are drawn from."""
    heated = read_found(agent_runs.compare(tmp_path, replace(STEPPED, temperatures=(0.25, 0.5))))
    rows = [row for row in heated.comparisons if row.family == "temperatures"]
    decodings = ("sampled", "greedy", "sampled_at_0.25", "sampled_at_0.5")
    assert [row.endpoint for row in rows] == [f"test_normalised_reward_{mode}_last" for mode in decodings]
    assert {(row.arm, row.reference, row.difference, row.right_value) for row in rows} == {("baseline", "start", 1, 0)}
    assert [row for row in heated.comparisons if row.family != "temperatures"] == found.comparisons
    assert heated.value("bundle", "test_normalised_reward_sampled_at_0.5_last") == pytest.approx(2 / 3, rel=1e-8)


def test_comparisons_by_hand(found: Found) -> None:
    primary, _ = [row for row in found.comparisons if row.arm == "bundle"]  # sampled, greedy
    # seed by seed 0, 0 and -1 on every task: t(2) = -1, and no p that exchanging eight tasks could not give
    assert (primary.difference, primary.n_seeds) == (pytest.approx(-1 / 3, rel=1e-8), 3)
    assert primary.p == primary.p_holm == pytest.approx(2 * stats.t.sf(1, 2), rel=1e-5)
    assert (primary.test, primary.family) == ("Student's t", primary.endpoint)  # the only arm with several seeds
    assert (primary.left_value, primary.right_value) == (pytest.approx(2 / 3, rel=1e-8), 1.0)
    single = next(row for row in found.comparisons if row.arm == "kl_strong")
    # another arm has three seeds, and inference to further seeds is adjusted separately
    assert (single.n_seeds, single.family) == (1, f"{single.endpoint}-one-run")
    assert {row.reference for row in found.comparisons} == {"baseline"}


def test_a_converted_log_has_greedy_curves_only(tmp_path: Path) -> None:
    arms = tuple(arm.model_copy(update={"seeds": (0, 1)}) for arm in (ARMS[0], ARMS[4]))
    study = Study(arms=arms, engine="verl", steps=465, executed=45, has_test=False, modes=("greedy",))
    evaluated = study.evaluation.model_copy(
        update={"primary": PrimaryEndpoint(split="val", metric="reward", modes=("greedy",))}
    )
    found = read_found(agent_runs.compare(tmp_path, study, evaluation=evaluated))
    assert found.primary == "val_reward_greedy_last"
    (row,) = found.comparisons
    assert (row.endpoint, row.n_seeds, row.n_tasks) == ("val_reward_greedy_last", 2, 0)
    assert {row.endpoint.rpartition("_")[2] for row in found.endpoints} <= {"greedy", "last", "end"}


def test_tasks_must_be_the_same_everywhere(paths: dict[str, Path], tmp_path: Path) -> None:
    rows = pd.read_csv(paths["episodes_table"], dtype=str)
    first = (rows["arm"] == "bundle") & (rows["step"] == "5") & (rows["task_id"] == "val-003")
    rows[~(first & (rows["sample"] == "0") & (rows["mode"] == "sampled"))].to_csv(tmp_path / "uneven.csv", index=False)
    with pytest.raises(RecordError, match="equally many rollouts of each task; found 3 to 4"):
        _ = read_episodes(tmp_path / "uneven.csv").means
    rows[~first].to_csv(tmp_path / "fewer.csv", index=False)
    with pytest.raises(RecordError, match=r"bundle.*expected the 8 tasks of .*; found 7 others"):
        _ = read_episodes(tmp_path / "fewer.csv").means


def test_tasks_without_a_sound_episode_are_left_out_everywhere(
    paths: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = pd.read_csv(paths["episodes_table"], dtype=str)
    of_run = (rows["arm"] == "bundle") & (rows["seed"] == "0") & (rows["step"] == "5") & (rows["mode"] == "sampled")
    rows.loc[of_run & (rows["task_id"] == "val-003"), ["end", "reward"]] = ["failed", "9"]
    rows.loc[of_run & (rows["task_id"] == "val-004") & (rows["sample"] != "1"), ["end", "reward"]] = ["timeout", "9"]
    rows.to_csv(tmp_path / "lost.csv", index=False)
    whole, lost = (read_episodes(path) for path in (paths["episodes_table"], tmp_path / "lost.csv"))
    assert set(lost.means) == set(whole.means)
    for location, means in lost.means.items():
        selected = [task != "val-003" for task in whole.means[location].tasks]
        assert len(means.tasks) == {"val": 7, "test": 12}[location[2]]
        assert means.n_rollouts == whole.means[location].n_rollouts
        assert list(means.values["reward"]) == pytest.approx(
            whole.means[location].values["reward"][selected], abs=1e-12
        )
    assert "1 of 8 tasks of split val lack a sound episode somewhere" in caplog.text
    rows.loc[rows["task_id"].str.startswith("test"), "end"] = "failed"
    rows.to_csv(tmp_path / "all.csv", index=False)
    with pytest.raises(RecordError, match=r"split test: expected a task with a sound episode .*; found none of 12"):
        _ = read_episodes(tmp_path / "all.csv").means
