"""Reasons for reruns: each kind of root cause, consequences, and their presentation."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import manifest_tree as tree
import pytest

from lever_pipe.base import contents, provenance, storage
from lever_pipe.base.records import Manifest
from lever_pipe.commands import why_tool
from lever_pipe.experiment.identities import config_of, plugins_of
from lever_pipe.experiment.studies import Experiment
from lever_pipe.runtime.reruns import check, manifest, why
from lever_pipe.runtime.reruns.check import Reason
from lever_pipe.runtime.snakemake_adapter import PlannedJob

RESULTS = Path("results")
RCE = "results/lever/preset~world/rce/seed~1/epoch~5"
GRPO = "results/lever/preset~world/grpo/base~5/beta~0.15/seed~1/epoch~"
CONFIG = {"epoch": 1, "grpo": {"learning_rate": 0.1, "top_k": 3}, "selector": {"heads": 1}}
TENSORS = {"head.weight": [1, 2], "head.bias": [3], "body": [4, 5, 6]}


@pytest.fixture(autouse=True)
def _study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make an RCE epoch and the two GRPO epochs that start from it, with matching manifests."""
    monkeypatch.chdir(tmp_path)
    contents._remembered.cache_clear()
    tree.write("raw.json", "{}")
    selector = (f"{RCE}/selector.safetensors", TENSORS)
    tree.make(
        f"{RCE}/run.json", "train_rce_epoch", {"selector": selector}, inputs={"groups": "raw.json"}, config=CONFIG
    )
    for epoch in (1, 2):
        chosen = (f"{GRPO}{epoch}/selector.safetensors", {"body": [epoch]})
        tree.make(
            f"{GRPO}{epoch}/run.json", "train_grpo_epoch", {"selector": chosen}, inputs=reads(epoch), config=CONFIG
        )


def reads(epoch: int) -> dict[str, tree.Paths]:
    start = RCE if epoch == 1 else f"{GRPO}{epoch - 1}"
    return {"start": f"{start}/selector.safetensors", "reference": f"{RCE}/selector.safetensors"}


def rce(**changed: Any) -> PlannedJob:
    outputs = {"selector": f"{RCE}/selector.safetensors", "manifest": f"{RCE}/run.json"}
    return tree.planned("train_rce_epoch", outputs, **{"inputs": {"groups": "raw.json"}, "config": CONFIG} | changed)


def grpo(epoch: int = 1, **changed: Any) -> PlannedJob:
    outputs = {"selector": f"{GRPO}{epoch}/selector.safetensors", "manifest": f"{GRPO}{epoch}/run.json"}
    return tree.planned("train_grpo_epoch", outputs, **{"inputs": reads(epoch), "config": CONFIG} | changed)


def explained(*jobs: PlannedJob) -> list[why.Explained]:
    return why.explain(jobs, results=RESULTS, digests=contents.Digests())


def causes(job: PlannedJob) -> list[Reason]:
    return list(explained(job)[0].reasons)


def only(job: PlannedJob) -> Reason:
    found = causes(job)
    assert len(found) == 1, found
    return found[0]


def selector(**tensors: list[int]) -> Callable[[], object]:
    """Put another selector of the RCE epoch in the place of what its rule made."""
    return lambda: tree.write(f"{RCE}/selector.safetensors", TENSORS | tensors, now=True)


def made_again() -> None:
    other = (f"{RCE}/selector.safetensors", TENSORS | {"body": [0, 0, 0]})
    tree.make(f"{RCE}/run.json", "train_rce_epoch", {"selector": other}, inputs={"groups": "raw.json"})


def damaged() -> None:
    tree.write(f"{RCE}/selector.safetensors", TENSORS | {"body": [0, 0, 0]})  # at the time of its manifest


def gone(*names: str) -> Callable[[], object]:
    return lambda: [Path(name).unlink() for name in names]


def nothing() -> None: ...


CAUSES: dict[str, tuple[Callable[[], object], Callable[[], PlannedJob], str, str]] = {
    "replaced": (selector(**{"head.weight": [9, 2], "body": [4, 5, 7]}), lambda: grpo(2), "other content",
                 "2 of 3 tensors differ: body, head.weight"),
    "more tensors": (selector(tail=[1]), lambda: grpo(2), "other content", "1 of 3 tensors differ: tail"),
    "made again": (made_again, lambda: grpo(2), "other content", "1 of 3 tensors differ: body"),
    "raw file": (lambda: tree.write("raw.json", '{"a": 1}', now=True), rce, "other content", "raw.json"),
    "no input": (gone("raw.json"), rce, "does not exist", "raw.json"),
    "no output": (gone(f"{RCE}/selector.safetensors"), rce, "these are missing", "selector"),
    "damaged": (damaged, rce, "these are damaged", "selector"),
    "no manifest": (gone(f"{RCE}/run.json"), rce, "no manifest", ""),
    "nothing": (gone(f"{RCE}/run.json", f"{RCE}/selector.safetensors"), rce, "none here yet", ""),
    "no JSON": (lambda: tree.write(f"{RCE}/run.json", "{"), rce, "cannot be read", ""),
    "forced": (nothing, lambda: grpo(requested=("forced",)), "forced", ""),
    "command": (nothing, lambda: grpo(requested=("command",)), "command", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", CAUSES)
def test_each_root_cause_is_told(name: str) -> None:
    change, job, kind, words = CAUSES[name]
    change()
    text = only(job()).text
    assert kind in text
    assert words in text


class TestRootCauses:
    def test_a_job_whose_artefact_is_as_made_has_none(self) -> None:
        found = explained(grpo())[0]
        assert (found.status, found.reasons, found.follows) == (why.UNCHANGED, (), ())

    def test_each_key_of_the_configuration_is_named_with_both_values(self) -> None:
        changed = {"epoch": 1, "grpo": {"learning_rate": 0.2, "clip": 1}, "selector": {"heads": 1}}
        assert sorted(
            cause.text.removeprefix("the configuration differs: ") for cause in causes(grpo(config=changed))
        ) == [
            "grpo.clip is 1, was not set",
            "grpo.learning_rate is 0.2, was 0.1",
            "grpo.top_k is not set, was 3",
        ]

    def test_inputs_that_came_or_went_are_named(self) -> None:
        manifest, table = "results/lever/tables/run.json", "results/lever/tables/scores.csv"
        cells = [tree.write(f"results/lever/cells{i}.jsonl", str(i)).as_posix() for i in range(4)]
        tree.make(manifest, "collect_results", {"scores": (table, "x")}, inputs={"cells": cells[:3]})
        outputs = {"scores": table, "manifest": manifest}
        found = only(tree.planned("collect_results", outputs, inputs={"cells": [cells[3], *cells[1:3]]}))
        assert found.text == f"the set of inputs changed: 1 added ({cells[3]}), 1 removed ({cells[0]})"

    def test_another_file_of_the_same_content_is_no_cause(self) -> None:
        same = tree.write("elsewhere/selector.safetensors", TENSORS).as_posix()
        assert causes(grpo(inputs=reads(1) | {"start": same})) == []
        other = tree.write("elsewhere/selector.safetensors", TENSORS | {"body": [0, 0, 0]}, now=True).as_posix()
        found = only(grpo(inputs=reads(1) | {"start": other}))
        assert found.text.startswith(f"the input {other} has other content")


class TestCode:
    def test_without_a_record_the_code_differs(self) -> None:
        found = only(grpo(code="f" * 16))
        assert found.text == f"the code differs: {tree.CODE} then, {'f' * 16} now; no record says in which modules"

    def test_with_a_record_the_modules_are_named(self) -> None:
        code = provenance.code_of("train_grpo_epoch")
        manifest.record_code(RESULTS, "train_grpo_epoch", (), code)
        record = storage.read_row(RESULTS / f"code/{code}.json", manifest.CodeRecord)
        then = {name: digest for name, digest in record.modules.items() if name != "losses.grpo"}
        record = record.model_copy(update={"modules": then | {"losses.kl": "0" * 8, "gone": "1" * 8}})
        tree.write(f"results/code/{tree.CODE}.json", record.model_dump())
        found = only(grpo(code="f" * 16))
        messages = "losses.kl changed, losses.grpo is imported now, gone is not imported any more"
        assert found.text == f"the code differs: {messages}"

    def test_another_version_of_a_library_is_named(self) -> None:
        manifest = Path(f"{GRPO}1/run.json")
        storage.write_row(
            manifest, storage.read_row(manifest, Manifest).model_copy(update={"versions": {"torch": "0.1"}})
        )
        (found,) = explained(grpo())
        assert found.in_short == "library versions"
        assert "the library versions differ: torch 0.1 then, " in found.reasons[0].text

    def test_plugins_are_those_of_the_plan(self) -> None:
        experiment = Experiment()
        for stage in ("sample_pools", "prepare_examples", "embed_examples", "answer_prompts", "prepare_tasks"):
            config = config_of(experiment, stage, {"batch": "baseline", "split": "eval"})
            found = check.plugins_of(stage, config.model_dump(mode="json"))
            assert found == plugins_of(config) != ()
        assert check.plugins_of("no_such_stage", {}) == ()


class TestConsequences:
    def test_a_job_below_one_that_runs_has_no_cause_of_its_own(self) -> None:
        above, below, last = explained(rce(requested=("forced",)), grpo(1), grpo(2))
        assert above.status == why.RUNS
        assert (below.status, below.follows) == (why.ONLY_IF, (0,))
        assert last.follows == (1, 0)

    def test_a_damaged_input_is_the_cause_of_the_job_that_makes_it_again(self) -> None:
        tree.write(f"{RCE}/selector.safetensors", TENSORS | {"body": [0, 0, 0]})  # at the time of its manifest
        above, below = explained(rce(), grpo(1))
        assert [cause.short for cause in above.reasons] == ["damaged output"]
        assert below.status == why.ONLY_IF

    def test_the_chain_is_told_nearest_first_and_each_cause_once(self) -> None:
        jobs = explained(grpo(2), rce(config=CONFIG | {"epoch": 9}), grpo(1, config=CONFIG | {"epoch": 9}))
        text = why_tool.sentences(jobs, [0])
        assert len(text) == 2
        assert text[0].startswith("GRPO beta 0.15 epoch 2 of seed 1 (world, base 5) runs only if one of ")
        cause = "because the configuration differs: epoch is 9, was 1."
        assert text[1] == (
            "GRPO beta 0.15 epoch 1 of seed 1 (world, base 5) and RCE epoch 5 of seed 1 (world) run " + cause
        )

    def test_a_file_that_is_read_by_two_names_is_one_cause_of_one_job(self) -> None:
        selector(tail=[1])()
        (text,) = why_tool.sentences(explained(grpo(1)), [0])
        assert text.startswith("GRPO beta 0.15 epoch 1 of seed 1 (world, base 5) runs because ")


class TestTool:
    @pytest.fixture
    def plans(self, monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
        """Let Snakemake plan both GRPO epochs; return the words that it was called with."""
        called: list[Sequence[str]] = []

        def planned_jobs(words: Sequence[str]) -> list[PlannedJob]:
            called.append(words)
            return [grpo(2), grpo(1, config=CONFIG | {"epoch": 9})]

        monkeypatch.setattr(why_tool, "planned_jobs", planned_jobs)
        return called

    @pytest.mark.parametrize(
        "target",
        [
            f"{GRPO}2/selector.safetensors",
            f"{GRPO}2",
            f"{GRPO}2/",
            "preset~world/grpo/base~5/beta~0.15/seed~1/epoch~2",
            "lever/preset~world/grpo/base~5/beta~0.15/seed~1/epoch~2/run.json",
        ],
    )
    def test_a_target_has_many_names(self, plans: list[Sequence[str]], target: str) -> None:
        found, indices, unaffected = why_tool.reasons(target, ["--config", "results=results"])
        assert [found[index].job.outputs[0] for index in indices] == [f"{GRPO}2/selector.safetensors"]
        assert unaffected == []
        assert plans == [["--config", "results=results"]]

    @pytest.mark.usefixtures("plans")
    def test_a_rule_means_all_its_jobs(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert why_tool.main(["why", "train_grpo_epoch"]) == 0
        assert re.findall(r"GRPO beta 0.15 epoch (\d) of seed 1 \(world, base 5\) run", capsys.readouterr().out) == [
            "2",
            "1",
        ]

    @pytest.mark.usefixtures("plans")
    def test_what_does_not_run_says_what_it_was_made_from(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert why_tool.main(["why", RCE]) == 0
        text = capsys.readouterr().out
        assert "RCE epoch 5 of seed 1 (world) does not run: everything is as it was made." in text
        assert f"code {tree.CODE}, commit c0ffeec0ffee, cpu" in text
        (Path(RCE) / "selector.safetensors").unlink()
        assert why_tool.main(["why", RCE]) == 0
        assert "nothing that would run needs selector anew" in capsys.readouterr().out

    def test_nothing_is_written(self, plans: list[Sequence[str]], tmp_path: Path) -> None:
        def state() -> dict[str, int]:
            return {str(path): path.stat().st_mtime_ns for path in sorted(tmp_path.rglob("*"))}

        before = state()
        why_tool.reasons(f"{GRPO}2", [])
        assert state() == before
        assert len(plans) == 1
        assert os.listdir() != []  # noqa: PTH208 - the current folder
