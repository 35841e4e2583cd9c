"""What the adapter touches in Snakemake is as it was when it was written, and does what it is touched for."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from snakemake_interface_executor_plugins.executors.base import AbstractExecutor

from lever_pipe.runtime import snakemake_adapter
from lever_pipe.runtime.snakemake_adapter import (
    PlannedCall,
    PlannedJob,
    amend_methods,
    ask_once,
    planned_job,
)

TOUCHED = {
    "snakemake.jobs:Reason.__bool__": "70c3bf5c97cc",
    "snakemake.jobs:Job.output_mintime": "d5272974684f",
    "snakemake.jobs:Job.format_wildcards": "c97687c5ba46",
    "snakemake.io.fmt:fmt_iofile": "741c50b26ac9",
    "snakemake.output_index:OutputIndex.match_producers": "811f88118bc0",
    "snakemake.dag:DAG.check_directory_outputs": "f415dd0e7029",
    "snakemake.dag:DAG.update_needrun": "ecd0be170ee0",
    "snakemake.dag:DAG.bfs": "d6ecb4421fc3",
    "snakemake.dag:DAG.needrun_jobs": "20b8482efa2a",
    "snakemake.dag:DAG.reason": "4621502a9ce1",
    "snakemake.common:get_function_params": "8d5befd48551",
    "snakemake.cli:main": "a7e781bfa073",
    "snakemake.cli:parse_args": "239364cdb437",
    "snakemake.settings.types:ConfigSettings": "ccb857f3c037",
    "snakemake.settings.types:DAGSettings": "a23c2166a7fc",
    "snakemake.persistence:PersistenceBase._code_changed": "75c16b1f48c6",
    "snakemake.jobs:Reason.__str__": "cb80beebbae7",
    "snakemake.target_jobs:parse_target_jobs_cli_args": "2711166c1370",
    "snakemake.scheduling.job_scheduler:JobScheduler.job_selector": "0f75c1cecafe",
}
"""What is touched -> digest of its code, without comments."""


class MakingJob(NamedTuple):
    """What is asked of a job that makes files."""

    number: int
    output: list[str]

    def __hash__(self) -> int:
        """Return what tells jobs apart."""
        return self.number


DIGEST = """
import hashlib, inspect, json, sys
from importlib import import_module
import snakemake.cli  # first, or its modules import each other in a circle

def digest(name):
    module, _, path = name.partition(":")
    found = import_module(module)
    for part in path.split("."):
        found = inspect.getattr_static(found, part)
    found = getattr(found, "fget", getattr(found, "__func__", found))  # of a property, or of a static method
    lines = [line.strip() for line in inspect.getsource(found).splitlines()]
    code = "\\n".join(line for line in lines if line and not line.startswith("#"))
    return hashlib.sha256(code.encode()).hexdigest()[:12]

print(json.dumps({name: digest(name) for name in sys.argv[1:]}))
"""
"""Of a fresh process, in which nothing is amended."""


def test_what_is_touched_is_as_it_was() -> None:
    """Where this fails: look whether the adapter still does what it is for, then state the digest and the version."""
    done = subprocess.run([sys.executable, "-c", DIGEST, *TOUCHED], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == TOUCHED


def test_the_versions_here_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    assert snakemake_adapter.unknown_versions() == {}
    monkeypatch.setattr(snakemake_adapter, "version", lambda _: "99.1")
    assert snakemake_adapter.unknown_versions() == dict.fromkeys(snakemake_adapter.WRITTEN_FOR, "99.1")


class _Named(dict[str, Any]):
    """Snakemake's lists of files: their items have names, they themselves hold paths."""

    def __iter__(self) -> Iterator[str]:  # type: ignore[override]
        return iter([path for value in self.values() for path in ([value] if isinstance(value, str) else value)])


@pytest.mark.parametrize(
    ("told", "asked"),
    [
        ({}, ()),
        ({"params_changed": "before 'Forced execution'"}, ()),
        ({"code_changed": True, "software_stack_changed": True}, ("command", "environment")),
        ({"forced": True, "code_changed": True}, ("forced",)),
    ],
)
def test_a_planned_job_is_as_snakemake_has_it(told: dict[str, Any], asked: tuple[str, ...]) -> None:
    from snakemake.jobs import Reason

    reason = Reason()
    for name, value in told.items():
        setattr(reason, name, value)
    job = SimpleNamespace(
        rule=SimpleNamespace(name="train"),
        wildcards_dict={"seed": 0},
        dag=SimpleNamespace(reason=lambda _: reason),
        threads=4,
        resources={"gpu": 2, "tmpdir": "<TBD>"},
        input=_Named(one="in.txt", several=["a", "b"]),
        output=_Named(card="out.txt"),
        params=SimpleNamespace(spec='{"code": "c", "config": {"a": 1}}'),
    )
    found = planned_job(job, Path("elsewhere"))
    inputs = {"one": ["elsewhere/in.txt"], "several": ["elsewhere/a", "elsewhere/b"]}
    assert found == PlannedJob(
        "train",
        {"seed": "0"},
        str(reason),
        4,
        {"gpu": 2},
        ("elsewhere/in.txt", "elsewhere/a", "elsewhere/b"),
        ("elsewhere/out.txt",),
        asked,
        PlannedCall({"a": 1}, "c", inputs),
    )
    job.params = SimpleNamespace()
    assert planned_job(job, Path()).call is None


@pytest.fixture
def amended(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Amend what `ask_once` amends, for one test; return that part of Snakemake, by name."""
    for name in ("cli", "common", "rules"):  # the first before all others, or its modules import each other in a circle
        import_module(f"snakemake.{name}")
    found = {}
    for path in ("dag.DAG", "jobs.Job", "jobs.format_files", "output_index.OutputIndex", "io.IOFile", "io.flag"):
        module, _, name = path.partition(".")
        found[name] = getattr(import_module(f"snakemake.{module}"), name)

    def amend(owner: Any, **wrappers: Any) -> None:
        for name in wrappers:  # restored after the test
            monkeypatch.setattr(owner, name, getattr(owner, name))
        amend_methods(owner, **wrappers)

    monkeypatch.setattr(snakemake_adapter, "amend_methods", amend)
    ask_once()
    own = vars(snakemake_adapter)["_unamended"]
    return SimpleNamespace(**found, own_check=own[found["DAG"], "check_directory_outputs"])


@pytest.mark.usefixtures("amended")
def test_what_a_function_takes_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each function, and of a method of whatever object; what the function takes is what Snakemake finds."""
    common, rules = import_module("snakemake.common"), import_module("snakemake.rules")
    looks: list[object] = []
    signature = inspect.signature
    monkeypatch.setattr(common.inspect, "signature", lambda of: looks.append(of) or signature(of))

    class Resource:
        def evaluate(self, wildcards: object, attempt: int) -> None: ...

    def mem_mb(wildcards: object, input: object) -> None: ...  # noqa: A002 - as rules call it

    for module in (rules, common, rules):
        for _ in range(3):
            assert list(module.get_function_params(Resource().evaluate)) == ["wildcards", "attempt"]
            assert list(module.get_function_params(mem_mb)) == ["wildcards", "input"]
    assert len(looks) == 4  # each of the two modules looks once at each of the two


def test_who_makes_a_file_is_sought_once(amended: Any) -> None:
    """In each index of a workflow's rules."""
    asked: list[str] = []

    class Rule:
        """One that makes some of the files that its pattern fits."""

        def products(self) -> list[Any]:
            return [SimpleNamespace(constant_prefix=lambda: "results/", constant_suffix=lambda: ".json")]

        def is_producer(self, path: str) -> bool:
            asked.append(path)
            return "x" in path

    rule, paths = Rule(), ("results/x.json", "results/y.json", amended.IOFile("results/x.json"), "elsewhere")
    index = amended.OutputIndex([rule])
    assert [index.match_producers(path) for path in paths] == [{rule}, set(), {rule}, set()]
    assert asked == ["results/x.json", "results/y.json"]
    assert amended.OutputIndex([]).match_producers(paths[0]) == set()


def test_a_job_is_told_with_each_text_formatted_once(amended: Any) -> None:
    """The message, and the command, which is told three times; when it is told again all is formatted anew."""
    texts: list[str] = []

    class Told(amended.Job):  # type: ignore[misc] # of a library without types
        """A job of which nothing is known but its texts."""

        priority, threads, benchmark, log, resources = 0, 1, None, (), dict[str, int]()

        def __init__(self) -> None:
            texts_of_rule = {"name": "train", "message": "m", "shellcmd": "c"}
            self.rule = SimpleNamespace(**texts_of_rule, is_checkpoint=False, is_handover=False)
            workflow = SimpleNamespace(dryrun=True, is_local=lambda _: True)
            self.dag = SimpleNamespace(jobid=lambda _: 1, reason=lambda _: "", workflow=workflow)
            self.input, self.output, self.wildcards_dict = (), (), {}

        def format_wildcards(self, string: str, **_: object) -> str:
            texts.append(string)
            return string

    job = Told()
    for told in (1, 2):
        AbstractExecutor.printjob(SimpleNamespace(), job)  # type: ignore[arg-type]
        assert texts == ["m", "c"] * told
    assert (job.shellcmd, job.shellcmd) == ("c", "c")
    assert texts == [*["m", "c"] * 2, "c", "c"]


@given(outputs=st.lists(st.lists(st.sampled_from(["a", "b", "a/b", "a/b/c", "./b/c", "ab"]), max_size=3), max_size=4))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # which is the same for all examples
def test_an_output_in_the_output_of_another_job_is_found(amended: Any, outputs: list[list[str]]) -> None:
    jobs = [MakingJob(number, files) for number, files in enumerate(outputs)]

    def found(check: Any) -> str:
        try:
            check(SimpleNamespace(jobs=jobs))
        except Exception as fault:  # noqa: BLE001 - whatever Snakemake says
            return repr(fault)
        return ""

    assert found(amended.DAG.check_directory_outputs) == found(amended.own_check)
