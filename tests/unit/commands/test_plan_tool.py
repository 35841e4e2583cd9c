"""A plan's expected duration and reasons, from handwritten records and manifests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import manifest_tree as tree
import pytest

from lever_pipe.base.contents import Digests
from lever_pipe.commands import plan_tool
from lever_pipe.commands.plan_tool import Hours, RuleForecast
from lever_pipe.runtime.reruns.why import explain
from lever_pipe.runtime.snakemake_adapter import PlannedJob

HOUR = 3600.0


def job(folder: str, rule: str = "train_rce_epoch", **values: Any) -> PlannedJob:
    """Return a job whose files lie in a folder."""
    given: dict[str, Any] = {
        "wildcards": {},
        "reason": f"Missing output files: {folder}/out",
        "threads": 1,
        "resources": {"device": "cpu", "runtime": 30},
        "outputs": (f"{folder}/out", f"{folder}/run.json"),
    }
    return PlannedJob(rule=rule, **(given | values))


def leave(planned: PlannedJob, seconds: float, *, device: str = "cpu") -> None:
    """Leave the manifest of a job that ran."""
    tree.make(planned.outputs[-1], planned.rule, {}, device=device, seconds=seconds)


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def forecast(jobs: Sequence[PlannedJob]) -> list[RuleForecast]:
    results = Path("results")
    return plan_tool.forecast(explain(jobs, results=results, digests=Digests()), plan_tool.recorded(results))


def seeds(*numbers: int, **values: Any) -> list[PlannedJob]:
    return [job(f"results/a/seed~{n}", wildcards={"seed": str(n)}, **values) for n in numbers]


def test_an_estimate_is_the_median_of_the_rules_records() -> None:
    """Records of 1, 2 and 9 hours: the median is 2; two planned jobs of 3 GPUs and 8 cores take 12 and 32 hours."""
    for old, hours in zip(seeds(0, 1, 2), (1, 2, 9), strict=True):
        leave(old, hours * HOUR, device="cuda:0")
    planned = seeds(3, 4, threads=8, resources={"device": "cuda", "gpu": 3, "runtime": 60})
    (rule,) = forecast(planned)
    assert (rule.jobs, rule.seconds, rule.records) == (2, 2 * HOUR, 3)
    assert rule.hours == Hours(gpu=2 * 2 * 3, cpu=2 * 2 * 8)
    assert rule.at_most is None


def test_only_records_of_the_rule_on_this_kind_of_device_and_these_results_count() -> None:
    leave(job("results/a/b/c/d", "select"), 5.0)
    leave(job("results/a/b", "baseline"), 70.0)
    leave(job("results/a/e", "select"), 70.0, device="cuda:1")
    leave(job("elsewhere/b/c/d", "select"), 70.0)
    tree.write("results/a/unreadable/run.json", "{")
    (rule,) = forecast([job("results/a/x/y", "select")])
    assert (rule.seconds, rule.records) == (5.0, 1)


def test_a_rule_without_record_counts_by_its_requested_runtime_and_apart() -> None:
    """Two jobs of 30 minutes on 2 GPUs and 4 cores ask for at most 2 and 4 hours; the other rule's record is of 1 h."""
    without = seeds(0, 1, threads=4, resources={"device": "cuda", "gpu": 2, "runtime": 30})
    known = job("results/a/known", "known")
    leave(known, HOUR)
    found = forecast([*without, known])
    assert [rule.hours for rule in found] == [None, Hours(0, 1)]
    assert [rule.at_most for rule in found] == [Hours(2, 4), None]
    values = plan_tool.as_object(found)
    assert values["hours"] == {"gpu": 0, "cpu": 1}
    assert values["at_most_without_record"] == {"gpu": 2, "cpu": 4}
    assert plan_tool.text(found).splitlines()[3].split() == ["total", "3", "1", "0.00", "1.00", "2.00", "4.00"]


def test_a_rule_without_record_and_runtime_has_no_bound() -> None:
    assert forecast(seeds(0, resources={}))[0].at_most is None
