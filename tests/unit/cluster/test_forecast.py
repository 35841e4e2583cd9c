"""What a plan is expected to take, from benchmark records and run cards laid down by hand."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from lever_pipe.base.errors import ConfigError
from lever_pipe.base.provenance import canonical_json
from lever_pipe.runtime.rerun import forecast as fc
from lever_pipe.runtime.rerun.forecast import Hours, PlannedJob

GRPO = "results/a/lever/preset~{preset}/grpo/base~{base}/beta~{beta}/seed~{seed}/epoch~{epoch}"
OF_GRPO = {"preset": "world", "base": "1", "beta": "0.15", "seed": "0", "epoch": "1"}
HOUR = 3600.0


def job(folder: str, rule: str = "train", name: str = "", **values: Any) -> PlannedJob:
    """Return a job whose files lie in a folder, its record and card named as in the rules."""
    given: dict[str, Any] = {
        "wildcards": {},
        "reason": f"Missing output files: {folder}/out",
        "threads": 1,
        "resources": {"device": "cpu", "runtime": 30},
        "benchmark": f"{folder}/{name}benchmark.jsonl",
        "outputs": (f"{folder}/{name}out", f"{folder}/{name}run.json"),
    }
    return PlannedJob(rule=rule, **(given | values))


def leave(planned: PlannedJob, *seconds: float, stage: str = "", device: str = "cpu", **card: Any) -> None:
    """Leave the record and the run card of a job that ran."""
    record = Path(planned.benchmark)
    record.parent.mkdir(parents=True, exist_ok=True)
    record.write_text("".join(json.dumps({"s": value, "h:m:s": "x"}) + "\n" for value in seconds))
    row = {"stage": stage or planned.rule, "device": device} | card
    Path(planned.outputs[-1]).write_text(json.dumps(row))


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


PATTERNS = [
    (GRPO, OF_GRPO, "results/a/lever/preset~*/grpo/base~*/beta~*/seed~*/epoch~*/benchmark.jsonl"),
    (GRPO, OF_GRPO | {"beta": "0"}, "results/a/lever/preset~*/grpo/base~*/beta~*/seed~*/epoch~*/benchmark.jsonl"),
    ("results/a/answers/{batch}", {"batch": "preset~p/seed~0"}, "results/a/answers/**/benchmark.jsonl"),
    ("results/a/answers/{batch}", {"batch": "baseline"}, "results/a/answers/*/benchmark.jsonl"),
    ("results/a/{policy}/shots~{shots}", {"policy": "p/rce", "shots": "1"}, "results/a/**/shots~*/benchmark.jsonl"),
    ("results/world/emulation/{arm}", {"arm": "head"}, "results/world/emulation/*/benchmark.jsonl"),
    ("results/[odd]/seed~{seed}", {"seed": "0"}, "results/[[]odd]/seed~*/benchmark.jsonl"),
    ("results/oracle-2/{baseline}", {"baseline": "oracle"}, "results/oracle-2/*/benchmark.jsonl"),
    ("results/{baseline}/oracle-2", {"baseline": "oracle"}, "results/*/oracle-2/benchmark.jsonl"),
    ("results/head/{arm}", {"arm": "head"}, "results/head/*/benchmark.jsonl"),
    ("results/{arm}/{policy}", {"arm": "a", "policy": "b/a"}, "results/*/**/benchmark.jsonl"),
    ("results/a/pools", {}, "results/a/pools/benchmark.jsonl"),
]


@pytest.mark.parametrize(("template", "wildcards", "pattern"), PATTERNS)
def test_a_record_is_found_by_its_path_without_wildcards(
    template: str, wildcards: dict[str, str], pattern: str
) -> None:
    assert fc.record_pattern(job(template.format(**wildcards), wildcards=wildcards)) == pattern


def test_a_value_that_begins_another_is_not_mistaken_for_it() -> None:
    planned = job("r/seed~1/epoch~12", wildcards={"seed": "1", "epoch": "12"})
    assert fc.record_pattern(planned) == "r/seed~*/epoch~*/benchmark.jsonl"
    of_beta = job("r/beta~0.15/base~0", wildcards={"base": "0"})
    assert fc.record_pattern(of_beta) == "r/beta~0.15/base~*/benchmark.jsonl"


def seeds(*numbers: int, **values: Any) -> list[PlannedJob]:
    return [job(f"results/a/seed~{n}", wildcards={"seed": str(n)}, **values) for n in numbers]


def test_an_estimate_is_the_median_of_the_rules_records() -> None:
    """Records of 1, 2 and 9 hours: the median is 2; two planned jobs of 3 GPUs and 8 cores take 12 and 32 hours."""
    for old, hours in zip(seeds(0, 1, 2), (1, 2, 9), strict=True):
        leave(old, hours * HOUR, device="cuda:0")
    planned = seeds(3, 4, threads=8, resources={"device": "cuda", "gpu": 3, "runtime": 60})
    (rule,) = fc.forecast(planned).rules
    assert (rule.jobs, rule.seconds, rule.records) == (2, 2 * HOUR, 3)
    assert rule.hours == Hours(gpu=2 * 2 * 3, cpu=2 * 2 * 8)
    assert rule.at_most is None


@pytest.mark.parametrize(
    ("resources", "gpus"),
    [
        ({"device": "cuda", "gpu": 2}, 2),
        ({"device": "cuda", "gres": "gpu:a100:4"}, 4),
        ({"device": "cuda", "processes": 3}, 3),
        ({"device": "cuda"}, 1),
        ({"device": "cpu", "processes": 3}, 0),
        ({}, 0),
    ],
)
def test_gpus_are_counted_however_they_are_asked_for(resources: dict[str, Any], gpus: int) -> None:
    leave(seeds(0)[0], HOUR, device=str(resources.get("device", "cpu")))
    (rule,) = fc.forecast(seeds(1, resources=resources)).rules
    assert rule.hours == Hours(gpu=gpus, cpu=1)


def test_only_records_of_the_rule_on_this_kind_of_device_and_these_results_count() -> None:
    planned = job("results/a/x/y", "select", "selections.", wildcards={"policy": "x/y"})
    leave(job("results/a/b/c/d", "select", "selections."), 5.0)
    leave(job("results/a/b", "baseline", "selections."), 70.0)
    leave(job("results/a/e", "select", "selections."), 70.0, device="cuda")
    leave(job("results/b/b/c/d", "select", "selections."), 70.0)
    Path("results/a/no_card").mkdir()
    Path("results/a/no_card/selections.benchmark.jsonl").write_text('{"s": 70.0}\n')
    assert fc.recorded_seconds(planned) == [5.0]


def test_a_broken_record_is_passed_over() -> None:
    (old,) = seeds(0)
    leave(old, 4.0)
    path = Path(old.benchmark)
    path.write_text(path.read_text() + '{"s": "-"}\n{"s": NaN}\n[]\n{"s"')
    assert fc.recorded_seconds(old) == [4.0]
    Path(old.outputs[-1]).write_text("{")
    assert fc.recorded_seconds(old) == []


def test_a_rule_without_record_counts_by_its_requested_runtime_and_apart() -> None:
    """Two jobs of 30 minutes on 2 GPUs and 4 cores ask for at most 2 and 4 hours; the other rule's record is of 1 h."""
    without = seeds(0, 1, threads=4, resources={"device": "cuda", "gpu": 2, "runtime": 30})
    known = job("results/a/known", "known")
    leave(known, HOUR)
    found = fc.forecast([*without, known])
    assert [rule.hours for rule in found.rules] == [None, Hours(0, 1)]
    assert [rule.at_most for rule in found.rules] == [Hours(2, 4), None]
    values = fc.as_object(found)
    assert values["hours"] == {"gpu": 0, "cpu": 1}
    assert values["at_most_without_record"] == {"gpu": 2, "cpu": 4}
    said = fc.text(found)
    assert "Estimate for 1 of 3 jobs: 0 GPU-hours, 1.00 CPU-core-hours; on any number" in said
    assert "Upper bound for the 2 jobs of rules without record: 2.00 GPU-hours, 4.00 CPU-core-hours" in said


def test_a_rule_without_record_and_runtime_is_named() -> None:
    found = fc.forecast(seeds(0, resources={}))
    assert found.rules[0].at_most is None
    assert "Neither a record nor a requested runtime: train." in fc.text(found)


def test_the_longest_chain_follows_the_files() -> None:
    """a (1 s) -> b (10 s) -> c (100 s), a -> c and a -> d (50 s): 111 s, whatever else runs beside."""
    wanted = {"a": (1.0, ()), "b": (10.0, ("a/out",)), "c": (100.0, ("a/out", "b/out", "raw")), "d": (50.0, ("a/out",))}
    jobs = [job(name, name, inputs=inputs) for name, (_, inputs) in wanted.items()]
    for planned in jobs:
        leave(planned, wanted[planned.rule][0])
    assert fc.forecast(jobs).chain_seconds == 111.0
    assert fc.forecast(jobs[::-1]).chain_seconds == 111.0
    Path("b/benchmark.jsonl").unlink()
    assert fc.forecast(jobs).chain_seconds == 101.0


PARAMS = (
    "Params have changed since last execution: Union of exclusive params Forced execution, Updated input files: q.txt"
)
REASONS = {
    "Forced execution": "forced",
    "Missing output files: a/b.txt, c.txt; Input files updated by another job: d.txt": "missing output",
    "Input files updated by another job: d.txt": "input rebuilt",
    "Updated input files: a/z.txt, b/b.txt": "input: b.txt, input: z.txt",
    "Incomplete output files: a; Updated input files: x/raw.json; Code has changed since last execution": (
        "incomplete output, the rule's command, input: raw.json"
    ),
    "Set of input files has changed since last execution": "other input files",
    "Software environment definition has changed since last execution": "software environment",
    PARAMS: "configuration or code",
    f"Updated input files: a.txt; {PARAMS}": "input: a.txt, configuration or code",
}


@pytest.mark.parametrize(("reason", "short"), REASONS.items())
def test_snakemakes_reason_becomes_a_few_words(reason: str, short: str) -> None:
    assert fc.why(job("x", reason=reason)) == short


def changed(before: dict[str, Any], now: dict[str, Any], *, old_code: str = "c") -> PlannedJob:
    spec = canonical_json({"code": "c", "config": now}).replace("'", "'\"'\"'")
    planned = job("x", reason=PARAMS, command=f"python -m lever_pipe train --spec '{spec}' out='a b' --threads 1")
    leave(planned, 1.0, config=before, code=old_code)
    return planned


def test_a_changed_configuration_is_told_by_its_keys() -> None:
    before = {"grpo": {"lr": 1e-4, "batch": 8}, "style": "it's", "seed": 0}
    assert fc.why(changed(before, before | {"grpo": {"lr": 2e-4, "batch": 8}})) == "changed: grpo.lr"
    assert fc.why(changed(before, before | {"style": "its"})) == "changed: style"
    assert fc.why(changed(before, before | {"more": 1})) == "changed: more"
    assert fc.why(changed(before, before, old_code="d")) == "changed: code"
    assert fc.changed_keys(changed(before, before)) == []
    many = {"a": 1, "b": 1, "c": 1, "d": 1, "e": 1}
    assert fc.why(changed(many, dict.fromkeys(many, 2))) == "changed: a, b, c and 2 more"


def test_without_a_card_or_a_spec_no_key_is_told() -> None:
    planned = changed({"a": 1}, {"a": 2})
    assert fc.why(planned._replace(command="python -m other")) == "configuration or code"
    Path(planned.outputs[-1]).unlink()
    assert fc.why(planned) == "configuration or code"


def test_causes_are_told_before_consequences() -> None:
    rebuilt = "Input files updated by another job: d.txt"
    jobs = [*seeds(0, 1, 2, reason=rebuilt), *seeds(3, 4), *seeds(5, reason="Forced execution")]
    (rule,) = fc.forecast(jobs).rules
    assert list(rule.why.items()) == [("forced", 1), ("missing output", 2), ("input rebuilt", 3)]
    assert "1 forced; 2 missing output; 3 input rebuilt" in " ".join(fc.text(fc.forecast(jobs)).split())


def test_the_table_fits_a_terminal() -> None:
    many = [f"Updated input files: {'long_' * 9}{n}.txt" for n in range(6)]
    jobs = [job(f"x/{n}", "explain_the_longest_rule_name", reason=reason) for n, reason in enumerate(many)]
    lines = fc.text(fc.forecast(jobs)).splitlines()
    table = lines[: lines.index("")]
    assert max(map(len, table)) <= fc.WIDTH
    assert sum("long_" in line for line in table) >= len(many)


def test_an_empty_plan_says_so() -> None:
    assert fc.text(fc.forecast([])).startswith("Nothing to be done")
    assert fc.as_object(fc.forecast([]))["jobs"] == 0


def test_the_listener_keeps_what_snakemake_tells_of_a_job(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, fc.LOGGER)
    said = {
        "event": "job_info",
        "rule_name": "train",
        "wildcards": {"seed": 0},
        "reason": "Forced execution",
        "threads": 4,
        "resources": {"gpu": 2, "tmpdir": "<TBD>"},
        "benchmark": "b.jsonl",
        "input": ["in.txt"],
        "output": ["out.txt"],
        "shellcmd": None,
    }
    logger = logging.getLogger(fc.LOGGER)
    with fc._listening() as listener:
        logger.info(None, extra={"event": "workflow_started", "rundir": str(tmp_path / "elsewhere")})
        logger.info(None, extra=said)
    logger.info(None, extra=said)
    assert listener.jobs == [
        PlannedJob(
            "train",
            {"seed": "0"},
            "Forced execution",
            4,
            {"gpu": 2},
            "elsewhere/b.jsonl",
            ("elsewhere/in.txt",),
            ("elsewhere/out.txt",),
            "",
        )
    ]


@pytest.mark.parametrize("word", ["--touch", "--unlock", "--delete-all-output", "--lint"])
def test_words_that_do_something_are_refused(word: str) -> None:
    with pytest.raises(ConfigError, match=f"found {word}"):
        fc.planned_jobs(["--cores", "1", word])
