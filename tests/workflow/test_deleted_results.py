"""A deleted result of a run is made again, whether or not another job reads it."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sampling import ROOT

from .conftest import Project
from .test_contents_decide import ran

pytestmark = pytest.mark.workflow

RESULTS = Path("results/smoke")
NOTES = {"log.txt"}
"""Records of jobs, not results."""
PLACEHOLDERS = {"preset~P": "preset~*", "arm~A/seed~S": "arm~*/seed~*", "NAME": "*", "...": "**"}
DELETED = {
    "lever/tables": "collect_results",
    "lever/tables/ties.csv": "collect_results",
    "evidence.csv": "collect_evidence",
    "figures/en/frontier.svg": "plot_figures",
    "report/tables": "build_report",
    "lever/preset~world/rce/seed~0/epoch~1/optimiser.safetensors": "train_rce_epoch",
    "lever/answers/baseline/per_question.jsonl": "score_answers",
    "lever/answers/baseline/answers.jsonl": "answer_prompts",
    "lever/emulation/scores.csv": "score_emulation",
    "intention/arm~baseline/seed~0/best": "train_agent",
}
"""One result of each kind and its rule: folders, files without readers, files in a folder, intermediate steps."""


def listed(page: Path, below: str) -> Iterator[str]:
    """Yield each path below `below` that the first columns of a page's tables name, as a pattern."""
    for cell in re.findall(r"^\|([^|]*)\|", page.read_text(), re.MULTILINE):
        spans = re.findall(r"`([^`]+)`", cell)
        for path in spans:
            whole = path if "/" in path.rstrip("/") or path is spans[0] else f"{Path(spans[0]).parent}/{path}"
            for name, pattern in PLACEHOLDERS.items():
                whole = whole.replace(name, pattern)
            if whole.startswith(("**", "*/", below)):
                yield whole.removeprefix(below).rstrip("/")


def test_every_listed_result_is_made_by_the_plain_call(smoke: Project) -> None:
    """Each path that the two pages name is an output of a job, in one, a folder of such, or none of the results."""
    text = smoke.snakemake("--summary")
    outputs = {Path(line.split("\t")[0]) for line in text.splitlines() if line.startswith(f"{RESULTS}/")}
    known = outputs | {folder for output in outputs for folder in output.parents}
    patterns = {*listed(ROOT / "README.md", "results/"), *listed(ROOT / "results/README.md", "")}
    assert len(patterns) > 30
    for pattern in patterns:
        if Path(pattern).name not in NOTES:
            found = [path.relative_to(smoke.folder) for path in (smoke.folder / RESULTS).glob(pattern)]
            assert any(path in known or not outputs.isdisjoint(path.parents) for path in found), pattern


def test_what_is_deleted_is_planned_and_comes_back(smoke: Project, tmp_path: Path) -> None:
    """First a folder, then a file in it, together with all others."""
    for names in (["lever/tables"], [name for name in DELETED if name != "lever/tables"]):
        for name in names:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (smoke.folder / RESULTS / name).rename(tmp_path / name)
        planned = json.loads(smoke.tool("plan", "--json", "--configfile", "config/smoke.yaml"))["rules"]
        lacks = {rule["rule"]: sum(n for why, n in rule["why"].items() if " output" in why) for rule in planned}
        assert lacks.items() >= Counter(DELETED[name] for name in names).items()
        assert ran(smoke.snakemake("--cores", "2")) == {}, "all is in the store"
        for name in names:
            path, aside = smoke.folder / RESULTS / name, tmp_path / name
            files = [file for file in aside.rglob("*") if not file.name.startswith(".")] if aside.is_dir() else [aside]
            assert files
            for file in files:
                if file.is_file() and not file.name.endswith(("run.json", *NOTES)):
                    assert (path / file.relative_to(aside)).read_bytes() == file.read_bytes(), file
        shutil.rmtree(tmp_path)
    assert smoke.planned() == {}


def test_a_target_brings_back_what_it_needs_only(smoke: Project, tmp_path: Path) -> None:
    """So after removing large files on purpose, a user requests results by name."""
    checkpoint = smoke.folder / RESULTS / "lever/preset~world/rce/seed~0/epoch~1/selector.safetensors"
    checkpoint.rename(tmp_path / "aside")
    assert smoke.planned("--", str(RESULTS / "report.html")) == {}
    (tmp_path / "aside").rename(checkpoint)
