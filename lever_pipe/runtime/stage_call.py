"""The call of one stage: `lever-pipe stage NAME name=path ...` in rules; notebooks add `--spec JSON`."""

from __future__ import annotations

import gc
import json
import logging
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, get_type_hints

import click

from lever_pipe.base import contents, plugins, process_environment, storage
from lever_pipe.base.artefacts import MANIFEST, Call
from lever_pipe.base.errors import ConfigError, LeverPipeError, MachineError, SnapshotError
from lever_pipe.base.parsing import parse_model
from lever_pipe.base.provenance import code_of, stages
from lever_pipe.base.records import Manifest
from lever_pipe.base.sections import did_you_mean
from lever_pipe.experiment import manifests
from lever_pipe.experiment.job_runtime import LvlmExecution, Runtime
from lever_pipe.experiment.stage_files import declared
from lever_pipe.runtime import gpu_slots, ownership, snapshot

SIGNALLED, ENDING = 128, (signal.SIGTERM, signal.SIGINT)
RARELY = 20_000
"""Net number of new objects between two scans for reference cycles in a stage."""

log = logging.getLogger("lever_pipe")


class StageOptions(NamedTuple):
    """The words of a call."""

    name: str
    files: tuple[str, ...]
    spec: str
    device: str
    threads: int
    ledger: str
    lvlm: LvlmExecution
    agent: str


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


@click.command()
@click.argument("name")
@click.argument("files", nargs=-1, metavar="[NAME=PATH]...")
@click.option("--spec", default="", help="the stage's identity as JSON; jobs of a run take it from the plan")
@click.option("--device", default="cpu", help="device of tensors; execution, not identity")
@click.option("--threads", type=int, default=1, help="threads of this process")
@click.option("--ledger", default="", help="folder of LVLM answers, which are never requested again")
@click.option("--lvlm", default="{}", help="the execution settings of the LVLM, as JSON")
@click.option("--agent", default="", help="the execution settings of study intention, as JSON")
@click.option("--debug", is_flag=True, help="show the traceback of a problem")
def stage(lvlm: str, debug: bool, **words: Any) -> int:
    """Run one stage with its named inputs and outputs, as a rule does."""
    del debug  # `exit_status` gets it
    execution = parse_model(LvlmExecution, _json_object(lvlm, source="--lvlm"), source="--lvlm")
    options = StageOptions(**words, lvlm=execution)
    if options.name not in stages():
        do = did_you_mean(options.name, stages(), "A stage has the name of its rule: snakemake --list")
        raise ConfigError("expected a stage", found=f"'{options.name}'", do=do)
    # Before the stage's module imports the numeric libraries, which read the number once.
    process_environment.set_threads(options.threads)
    named = [word.partition("=")[2] for word in options.files if word.startswith(f"{MANIFEST}=")]
    manifest = named[0] if len(named) == 1 else ""  # without one there is nothing to lock
    # The lock comes before the check for completed work: of two equal jobs, the second finds the first one's files.
    # Notebooks pass a spec; jobs of a run take theirs from the plan's snapshot.
    options = options._replace(spec=options.spec or snapshot.planned_spec(options.name, manifest))
    with _unwinding(), ownership.owned(Path(manifest)) if manifest else nullcontext(False) as waited:
        _make(options, waited=waited)
    return 0


def main(words: Sequence[str]) -> int:
    """Run `lever-pipe stage WORDS` and return the exit status."""
    return exit_status(stage, words, name="lever-pipe stage")


def exit_status(command: click.Command, words: Sequence[str], *, name: str) -> int:
    """Run a command; return its status, 2 after printing a foreseeable problem, or 128 + N after signal N."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s", stream=sys.stderr)
    try:
        plugins.require_current_name()
        return int(command.main(list(words), prog_name=name, standalone_mode=False) or 0)
    except click.ClickException as mistake:
        mistake.show()
        return mistake.exit_code
    except (TerminatedError, KeyboardInterrupt, click.Abort) as end:
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


def _make(options: StageOptions, *, waited: bool) -> None:
    """Run the stage, unless another process produced the same artifact while this one waited."""
    if waited and is_complete(options):
        log.info("%s: another job has produced the same artifact; nothing to do", options.name)
        return
    if options.device == "cuda":  # `cuda:1` selects a GPU itself
        gpu_slots.take(options.lvlm.vllm.gpus)
    run_stage(options)


def run_stage(options: StageOptions) -> object:
    """Call the named stage with its files, config and runtime; refuse a job that differs from its plan."""
    call = call_of(options)
    frozen = snapshot.load()
    if frozen is not None and frozen.package != snapshot.package_digest():
        # The package changed, maybe only a comment or another stage: only the code of this stage counts.
        from lever_pipe.experiment.identities import plugins_of

        code = code_of(options.name, plugins_of(call.config))
        snapshot.require_code(options.name, planned=call.runtime.code, found=code)
    if frozen is not None:
        _require_models(options.name, call)
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


def is_complete(options: StageOptions) -> bool:
    """Return whether the files of a call exist already, with the same stage, config, code and inputs."""
    from lever_pipe.runtime.reruns import check

    call, stage = call_of(options), options.name
    config, code = call.config.model_dump(mode="json"), call.runtime.code or code_of(stage)
    made = Call(stage, config, code, *manifests.files_of_manifest(call.function, call.files), call.manifest)
    return check.is_complete(made, by_versions=False)


def call_of(options: StageOptions) -> StageCall:
    """Return the named stage with its files, config and runtime."""
    with _no_garbage_collection():
        function = stage_function(options.name)
    config_class = get_type_hints(function)["config"]
    values = _json_object(options.spec, source=f"{options.name} --spec")
    code = str(values.get("code", "")) if "config" in values else ""
    execution = ("device", "threads", "ledger", "agent", "lvlm")
    runtime = Runtime(**{name: getattr(options, name) for name in execution}, code=code)
    config = parse_model(config_class, values.get("config", values), source=f"{options.name} --spec")
    files = _files(options.name, function, options.files)
    return StageCall(function, files, Path(str(files.pop(MANIFEST))), config, runtime)


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
