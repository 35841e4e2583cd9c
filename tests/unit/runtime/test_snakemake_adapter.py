"""The Snakemake code that the adapter patches is unchanged, and each patch has its effect."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from snakemake.logging import ColorizingTextHandler, DefaultFormatter
from snakemake_interface_logger_plugins.common import LogEvent

from lever_pipe.base.artefacts import Call
from lever_pipe.runtime import snakemake_adapter
from lever_pipe.runtime.snakemake_adapter import (
    PlannedJob,
    planned_job,
)

TOUCHED = {
    "snakemake.jobs:Reason.__bool__": "70c3bf5c97cc",
    "snakemake.jobs:Job.output_mintime": "d5272974684f",
    "snakemake.dag:DAG.init": "abe645a02f6b",
    "snakemake.dag:DAG.update_needrun": "ecd0be170ee0",
    "snakemake.dag:DAG.bfs": "d6ecb4421fc3",
    "snakemake.dag:DAG.needrun_jobs": "20b8482efa2a",
    "snakemake.dag:DAG.reason": "4621502a9ce1",
    "snakemake.cli:main": "a7e781bfa073",
    "snakemake.cli:parse_args": "239364cdb437",
    "snakemake.cli:args_to_api": "118ea5af61d5",
    "snakemake.cli:parse_config": "e8630536f4b0",
    "snakemake.common.configfile:load_configfile": "49b78b932de2",
    "snakemake.workflow:Workflow.configfile": "8f6412d1e7f3",
    "snakemake_interface_common.plugin_registry:PluginRegistryBase.register_cli_args": "fb79bc27a792",
    "snakemake.settings.types:ConfigSettings": "ccb857f3c037",
    "snakemake.settings.types:DAGSettings": "a23c2166a7fc",
    "snakemake.persistence:PersistenceBase._code_changed": "75c16b1f48c6",
    "snakemake.jobs:Reason.__str__": "cb80beebbae7",
    "snakemake.target_jobs:parse_target_jobs_cli_args": "2711166c1370",
    "snakemake.scheduling.job_scheduler:JobScheduler.job_selector": "0f75c1cecafe",
    "snakemake.logging:LoggerManager._default_streamhandler": "824f72707cec",
    "snakemake.workflow:Workflow.log_provenance_info": "448dcaa8dae8",
    "snakemake.workflow:Workflow.log_metadata_info": "651af0bc1846",
    "snakemake.logging:ColorizingTextHandler.emit": "bcb061c132c3",
    "snakemake_executor_plugin_slurm:Executor.run_job": "9dd262839e0d",
    "snakemake_executor_plugin_slurm:Executor._report_job_error_threadsafe": "e7bb9f9db474",
    "snakemake_executor_plugin_slurm:Executor._report_job_submission_threadsafe": "284610843dba",
    "snakemake_executor_plugin_slurm.utils:get_job_wildcards": "f46386ee4554",
}
"""Patched object -> digest of its code, without comments."""


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
"""Computed in a fresh process without patches."""


def test_what_is_touched_is_as_it_was() -> None:
    """If this fails, check that the adapter still works, then update the digest and the version."""
    done = subprocess.run([sys.executable, "-c", DIGEST, *TOUCHED], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == TOUCHED


def test_the_versions_here_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    assert snakemake_adapter.unknown_versions() == {}
    monkeypatch.setattr(snakemake_adapter, "version", lambda _: "99.1")
    assert snakemake_adapter.unknown_versions() == dict.fromkeys(snakemake_adapter.WRITTEN_FOR, "99.1")


def test_the_terminal_has_a_line_a_job_and_after_ctrl_c_no_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    output, logger = io.StringIO(), logging.getLogger(snakemake_adapter.LOGGER)
    terminal = ColorizingTextHandler(stream=output, formatter=DefaultFormatter())
    terminal.name = snakemake_adapter.TERMINAL
    monkeypatch.setattr(logger, "handlers", [terminal])
    monkeypatch.setattr(logger, "level", logging.INFO)

    def emit(text: str, event: LogEvent | None = None, level: int = logging.INFO, **more: Any) -> None:
        logger.log(level, text, extra={"event": event, **more} if event else None)

    snakemake_adapter.log_one_line_per_job(2)
    for done, name in enumerate(("Sample pools", "Train"), start=1):
        emit("Select jobs to execute...")
        emit("Execute 1 jobs...", LogEvent.JOB_STARTED, jobs=[done])
        emit("", LogEvent.JOB_INFO, jobid=done, rule_msg=name, rule_name="one")
        emit(f"Finished jobid: {done}", LogEvent.JOB_FINISHED, job_id=done)
        emit("", LogEvent.PROGRESS, done=done, total=2)
    emit("disk full", level=logging.WARNING)
    emit("RuleException", LogEvent.ERROR, logging.ERROR)
    snakemake_adapter.silence_errors()
    emit("RuleException", LogEvent.ERROR, logging.ERROR)
    lines = [line.partition("  ")[2] or line for line in output.getvalue().split("\n")]
    first, second = "0 of 2 done, started: Sample pools", "1 of 2 done, started: Train"
    assert lines == ["", first, second, "2 of 2 steps (100%) done", "disk full", "RuleException", ""]


def test_a_plan_gives_no_advice_about_times(monkeypatch: pytest.MonkeyPatch) -> None:
    import snakemake.cli  # noqa: F401 - first, or its modules import each other in a circle
    from snakemake.workflow import Workflow

    text, logger = io.StringIO(), logging.getLogger(snakemake_adapter.LOGGER)
    terminal = ColorizingTextHandler(stream=text, formatter=DefaultFormatter())
    terminal.name = snakemake_adapter.TERMINAL
    monkeypatch.setattr(logger, "handlers", [terminal])
    monkeypatch.setattr(logger, "level", logging.INFO)
    reason = SimpleNamespace(is_provenance_triggered=lambda: True, no_metadata=True, outdated_metadata=True)
    job = SimpleNamespace(rule=SimpleNamespace(name="train"))
    dag = SimpleNamespace(jobs=[job], needrun=lambda _: False, needrun_jobs=lambda **_: [job], reason=lambda _: reason)
    snakemake_adapter.silence_trigger_advice()
    workflow = SimpleNamespace(dag=dag)
    for name in ("log_metadata_info", "log_missing_metadata_info", "log_outdated_metadata_info"):
        setattr(workflow, name, getattr(Workflow, name).__get__(workflow))
    Workflow.log_provenance_info(workflow)
    logger.info("another line")
    assert text.getvalue() == "another line\n"


class _Named(dict[str, Any]):
    """Snakemake's lists of files: items have names, the lists themselves contain paths."""

    def __iter__(self) -> Iterator[str]:  # type: ignore[override]
        return iter([path for value in self.values() for path in ([value] if isinstance(value, str) else value)])


@pytest.mark.parametrize(
    ("fields", "triggers"),
    [
        ({}, ()),
        ({"params_changed": "before 'Forced execution'"}, ()),
        ({"code_changed": True, "software_stack_changed": True}, ("command", "environment")),
        ({"forced": True, "code_changed": True}, ("forced",)),
    ],
)
def test_a_planned_job_is_as_snakemake_has_it(fields: dict[str, Any], triggers: tuple[str, ...]) -> None:
    from snakemake.jobs import Reason

    reason = Reason()
    for name, value in fields.items():
        setattr(reason, name, value)
    job = SimpleNamespace(
        rule=SimpleNamespace(name="train"),
        wildcards_dict={"seed": 0},
        dag=SimpleNamespace(reason=lambda _: reason),
        threads=4,
        resources={"gpu": 2, "tmpdir": "<TBD>"},
        input=_Named(one="in.txt", several=["a", "b"]),
        output=_Named(manifest="out.txt"),
        params=SimpleNamespace(spec='{"code": "c", "config": {"a": 1}}'),
    )
    found = planned_job(job, Path("elsewhere"))
    inputs = {"one": Path("elsewhere/in.txt"), "several": (Path("elsewhere/a"), Path("elsewhere/b"))}
    assert found == PlannedJob(
        "train",
        {"seed": "0"},
        str(reason),
        4,
        {"gpu": 2},
        ("elsewhere/in.txt", "elsewhere/a", "elsewhere/b"),
        ("elsewhere/out.txt",),
        triggers,
        Call("train", {"a": 1}, "c", inputs, {}, Path("elsewhere/out.txt")),
    )
    job.params = SimpleNamespace()
    assert planned_job(job, Path()).call is None
