"""`lever-pipe TOOL ...`, and `python -m lever_pipe STAGE name=path ...` in rules; notebooks add `--spec JSON`."""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, get_type_hints

import lever_pipe
from lever_pipe.base import contents, plugins, process_environment, storage
from lever_pipe.base.artefacts import Call
from lever_pipe.base.errors import ConfigError, LeverPipeError, MachineError, SnapshotError
from lever_pipe.base.parsing import parse_model
from lever_pipe.base.provenance import code_of, stages
from lever_pipe.base.records import Manifest
from lever_pipe.base.sections import did_you_mean
from lever_pipe.experiment import manifests
from lever_pipe.experiment.job_runtime import LvlmExecution, Runtime
from lever_pipe.experiment.stage_files import declared
from lever_pipe.runtime import gpu_slots, ownership, snapshot

TOOLS = {
    "doctor": ("runtime.checks.doctor", "check whether a run can work here, before it starts"),
    "plan": ("commands.plan_tool", "print the jobs of a run, their reasons and their duration"),
    "fetch": ("commands.fetch_tool", "download the models that a configuration names"),
    "why": ("commands.why_tool", "print why a target would run, or what it was made from"),
    "trace": ("commands.trace", "trace a number or figure back to data, code and configuration"),
    "compare": ("commands.compare_tool", "print the differences between two runs in settings and results"),
    "export": ("commands.export_tool", "write the curves of finished work for an experiment tracker"),
    "store": ("commands.store_tool", "count, check or trim the store of finished work"),
    "ledger": ("commands.ledger_tools", "merge the many files of a ledger of LVLM answers"),
    "convert": ("commands.convert_tool", "write safetensors next to the .bin weights of a model folder"),
    "import_checkpoint": ("commands.checkpoint_tool", "convert a selector from the original's training"),
    "release": ("commands.release_tool", "write a trained policy or agent as a folder for the Hugging Face Hub"),
    "export_rl_data": ("commands.tools", "write RL data in the original format"),
    "schema": ("commands.tools", "print the schema of the configuration"),
}
"""Commands that are not stages, the most common first: module and description."""
SIGNALLED, ENDING = 128, (signal.SIGTERM, signal.SIGINT)
MANIFEST = "manifest"
"""Name of the manifest among a call's files."""
RARELY = 20_000
"""Net number of new objects between two scans for reference cycles in a stage."""

log = logging.getLogger("lever_pipe")


class StageCall(NamedTuple):
    """A stage with its arguments."""

    function: Any
    files: dict[str, Path | tuple[Path, ...]]
    manifest: Path
    config: Any
    runtime: Runtime


class TerminatedError(SystemExit):
    """The process receives a request to end: from a time limit, a preemption or a user."""

    def __init__(self, number: signal.Signals) -> None:
        self.number = number
        super().__init__(SIGNALLED + number)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one stage or tool; return 0, 2 after printing a foreseeable problem, or 128 + N after signal N."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s", stream=sys.stderr)
    try:
        plugins.require_current_name()
        if words and words[0] in TOOLS:
            return int(import_module(f"lever_pipe.{TOOLS[words[0]][0]}").main(words))
        if not words:
            _parser().print_help()
            return 2
        if words[0] not in (*stages(), "-h", "--help", "--version"):
            do = did_you_mean(words[0], [*TOOLS, *stages()], "List them all: lever-pipe --help")
            raise ConfigError(f"expected a tool ({', '.join(TOOLS)}) or a stage", found=f"'{words[0]}'", do=do)
        options = _parser().parse_intermixed_args(words)
        # Before the stage's module imports the numeric libraries, which read the number once.
        process_environment.set_threads(options.threads)
        manifest = _manifest(options)  # without one there is nothing to lock
        # The lock comes before the check for completed work: of two equal jobs, the second finds the first one's files.
        # Notebooks pass a spec; jobs of a run take theirs from the plan's snapshot.
        options.spec = options.spec or snapshot.planned_spec(options.stage, manifest)
        with _unwinding(), ownership.owned(Path(manifest)) if manifest else nullcontext(False) as waited:
            _make(options, waited=waited)
    except (TerminatedError, KeyboardInterrupt) as end:
        number = end.number if isinstance(end, TerminatedError) else signal.SIGINT
        sys.stderr.write(f"{number.name}: ended before the artifact was complete\n")
        return SIGNALLED + number
    except (LeverPipeError, OSError) as caught:
        if "--debug" in words:
            raise
        problem = MachineError.of(caught) if isinstance(caught, OSError) else caught
        with suppress(OSError):  # the log may be on the full disk
            sys.stderr.write(f"{type(problem).__name__}: {problem}\n")
        return 2
    return 0


def _manifest(options: argparse.Namespace) -> str:
    """Return the manifest in a call's arguments; an empty text without one, or with several."""
    named = [word.partition("=")[2] for word in options.files if word.startswith(f"{MANIFEST}=")]
    return named[0] if len(named) == 1 else ""


def _make(options: argparse.Namespace, *, waited: bool) -> None:
    """Run the stage, unless another process produced the same artifact while this one waited."""
    if waited and is_complete(options):
        log.info("%s: another job has produced the same artifact; nothing to do", options.stage)
        return
    if options.device == "cuda":  # `cuda:1` selects a GPU itself
        gpu_slots.take(options.lvlm.vllm.gpus)
    run_stage(options)


def run_stage(options: argparse.Namespace) -> object:
    """Call the named stage with its files, config and runtime; refuse a job that differs from its plan."""
    call = call_of(options)
    frozen = snapshot.load()
    if frozen is not None and frozen.package != snapshot.package_digest():
        # The package changed, maybe only a comment or another stage: only the code of this stage counts.
        from lever_pipe.experiment.identities import plugins_of

        code = code_of(options.stage, plugins_of(call.config))
        snapshot.require_code(options.stage, planned=call.runtime.code, found=code)
    if frozen is not None:
        _require_models(options.stage, call)
    result = manifests.carry_out(call.function, call.manifest, config=call.config, runtime=call.runtime, **call.files)
    if frozen is not None:
        _keep(frozen, options.spec, call.manifest)
    return result


def _require_models(stage: str, call: StageCall) -> None:
    """Refuse a model folder that was replaced after the invocation began."""
    start = manifests.start_model(call.files)
    for name, folder in (("lvlm", call.files.get("lvlm")), ("encoder", call.files.get("encoder")), ("policy", start)):
        settings = call.config if name == "encoder" else getattr(call.config, name, None)
        planned = getattr(settings, "model_identity", None)
        if folder is None or planned in (None, str(folder)):  # the identity of a server's model is its name
            continue
        # Unchanged files are not read again, because their digests are remembered.
        if (identity := contents.model_identity(str(folder))) != planned:
            expected = f"{stage}: expected the model {planned} in {folder}, as planned when this invocation began"
            raise SnapshotError(expected, found=f"model {identity}", do=snapshot.PLAN_AGAIN)


def _keep(frozen: snapshot.Snapshot, spec: str, manifest: Path) -> None:
    """Put a job's results into the store, if the configuration has one."""
    settings = frozen.config.get("store")
    if settings:
        from lever_pipe.runtime import store

        row = storage.read_row(manifest, Manifest)
        store.opened(settings).put(store.key_of(row.stage, spec, row.inputs), row)


def is_complete(options: argparse.Namespace) -> bool:
    """Return whether the files of a call exist already, with the same stage, config, code and inputs."""
    from lever_pipe.runtime.reruns import check

    call, stage = call_of(options), options.stage
    config, code = call.config.model_dump(mode="json"), call.runtime.code or code_of(stage)
    made = Call(stage, config, code, *manifests.files_of_manifest(call.function, call.files), call.manifest)
    return check.is_complete(made, by_versions=False)


def call_of(options: argparse.Namespace) -> StageCall:
    """Return the named stage with its files, config and runtime."""
    with _no_garbage_collection():
        function = stage_function(options.stage)
    config_class = get_type_hints(function)["config"]
    values = _json_object(options.spec, source=f"{options.stage} --spec")
    code = str(values.get("code", "")) if "config" in values else ""
    execution = ("device", "threads", "ledger", "agent", "lvlm")
    runtime = Runtime(**{name: getattr(options, name) for name in execution}, code=code)
    config = parse_model(config_class, values.get("config", values), source=f"{options.stage} --spec")
    files = _files(options.stage, function, options.files)
    return StageCall(function, files, Path(str(files.pop(MANIFEST))), config, runtime)


def _of_lvlm(text: str) -> LvlmExecution:
    return parse_model(LvlmExecution, _json_object(text, source="--lvlm"), source="--lvlm")


def stage_function(name: str) -> Any:
    """Return the function of a stage."""
    return getattr(import_module(stages()[name]), name)


def _json_object(text: str, *, source: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        value = str(error)
    if not isinstance(value, dict):
        found = value if isinstance(value, str) else type(value).__name__
        raise ConfigError(f"{source}: expected a JSON object", found=found, do="Quote it for the shell.")
    return value


def _files(stage: str, function: Any, words: Sequence[str]) -> dict[str, Path | tuple[Path, ...]]:
    """Return the files of a call as declared by the stage's signature, and its manifest."""
    given: dict[str, list[Path]] = {}
    for word in words:
        name, separator, path = word.partition("=")
        if not separator:
            raise ConfigError(f"{stage}: expected name=path", found=f"'{word}'", do="Put the file's name before it.")
        given.setdefault(name, []).append(Path(path))
    parameters = {name: file.several for name, file in declared(function).items()} | {MANIFEST: False}
    missing, unknown = parameters.keys() - given.keys(), given.keys() - parameters.keys()
    missing -= {name for name in missing if parameters[name]}  # a list of files may be empty
    repeated = {name for name, paths in given.items() if len(paths) > 1 and not parameters.get(name, True)}
    if missing or unknown or repeated:
        wrong = {"missing": missing, "unknown": unknown, "repeated": repeated}
        found = ", ".join(f"{problem} {sorted(names) or 'none'}" for problem, names in wrong.items())
        expected = f"{stage}: expected the files {', '.join(parameters)}"
        raise ConfigError(expected, found=found, do="Name each file once as name=path.")
    return {name: tuple(given.get(name, ())) if many else given[name][0] for name, many in parameters.items()}


def _parser() -> argparse.ArgumentParser:
    width = max(map(len, TOOLS))
    listed = "\n".join(f"  {name:<{width}}  {does}" for name, (_, does) in TOOLS.items())
    parser = argparse.ArgumentParser(
        prog="lever-pipe",
        usage="%(prog)s TOOL [word ...] | STAGE [name=path ...] [option ...]",
        description=f"Tools, each with its own --help:\n{listed}\n\nA rule calls a stage instead:",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=lever_pipe.__version__)
    parser.add_argument("stage", help=f"one of {', '.join(sorted(stages()))}")
    parser.add_argument("files", nargs="*", metavar="name=path", help="the stage's named inputs and outputs")
    parser.add_argument("--spec", default="", help="the stage's identity as JSON; jobs of a run take it from the plan")
    parser.add_argument("--device", default="cpu", help="device of tensors; execution, not identity")
    parser.add_argument("--threads", type=int, default=1, help="threads of this process")
    parser.add_argument("--ledger", default="", help="folder of LVLM answers, which are never requested again")
    parser.add_argument("--lvlm", default="{}", type=_of_lvlm, help="the execution settings of the LVLM, as JSON")
    parser.add_argument("--agent", default="", help="the execution settings of study intention, as JSON")
    parser.add_argument("--debug", action="store_true", help="show the traceback of a problem")
    return parser


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Import without garbage collection: objects of a heavy package stay anyway, and scanning them is slow.

    Afterwards the collector runs rarely: a stage creates many rows and few cycles, and each scan would visit all rows.
    """
    gc.disable()
    try:
        yield
    finally:
        # Frozen objects are never scanned again.
        gc.freeze()
        gc.set_threshold(RARELY)
        gc.enable()


@contextmanager
def _unwinding() -> Iterator[None]:
    """Turn the first signal into an exception, so that the block releases locks, partial files and queued rows."""

    def end(number: int, _: object) -> NoReturn:
        for signum in ENDING:  # clean-up must not be interrupted: SLURM sends several signals, users repeat Ctrl-C
            signal.signal(signum, signal.SIG_IGN)
        raise TerminatedError(signal.Signals(number))

    if threading.current_thread() is not threading.main_thread():  # Python sets handlers only there
        yield
        return
    former = {number: signal.signal(number, end) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler or signal.SIG_DFL)


def _leave(status: int) -> NoReturn:
    """End the process at once: all files are closed, and unloading torch takes as long as a short stage."""
    for flush in (logging.shutdown, sys.stdout.flush, sys.stderr.flush):
        with suppress(OSError):  # the log may be on a full disk
            flush()
    os._exit(status)


def command() -> NoReturn:
    """Run `main` and end the process; entry point `lever-pipe` of an installed environment."""
    _leave(main())


if __name__ == "__main__":
    command()
