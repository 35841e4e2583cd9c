"""What a run needs of this machine and its file systems: room, model folders, raw data, GPUs."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from lever_pipe.base import model_folders
from lever_pipe.base.errors import LeverPipeError
from lever_pipe.experiment.data_config import Data
from lever_pipe.experiment.studies import Experiment
from lever_pipe.lever.datasets._splits import read_queries, read_train, shared_questions
from lever_pipe.lever.datasets.protocol import ReadResult, VqaFilePaths
from lever_pipe.runtime import agent_plan, gpu_slots, plan, sizing, snakemake_adapter
from lever_pipe.runtime.checks import obtain
from lever_pipe.runtime.checks.findings import Level, Outcome, fault, ok, warning
from lever_pipe.runtime.sizing import LoadedModel

SNAKEMAKE = Path(".snakemake")
LVLM, AGENT = "lvlm.model", "intention.model.folder"
NO_GPU = "none: nvidia-smi lists no GPU, and CUDA_VISIBLE_DEVICES is empty or unset"
NO_ROOM = 100_000_000  # bytes
DATA_RULES = {
    *("generate_world", "prepare_examples", "embed_examples"),
    *("generate_rl_data", "search_beams", "answer_prompts"),
}
DEVICE_FILES = ("nvidia[0-9]*", "kfd", "dxg")
"""Below /dev: a GPU that CUDA may know where no tool lists it, as in a container without nvidia-smi."""
ANY_FAMILY = "hf"
"""The member that takes any model by its library: of `lever_pipe/lvlms`, and of the agent's codecs."""
TOKENIZERS = {"hf": ("tokenizer.json", "vocab.json", "tokenizer.model"), "word": ("words.json",)}
"""Of each member of `lever_pipe/intention/codecs`, the files of which it reads one."""


Job = Mapping[str, Any]
"""Resources of a job, `rule` among them."""


class Model(NamedTuple):
    """A model folder and what its readers look for in it.

    Attributes:
        any_of: files of which one is enough.
    """

    loaded: LoadedModel
    files: tuple[str, ...]
    any_of: tuple[model_folders.AnyOf, ...] = ()


def models(experiment: Experiment) -> list[Model]:
    """Return the model folders of the configured studies that are loaded here; a trainer elsewhere has its own."""
    intention = experiment.intention
    of_encoder = ("config.json", "preprocessor_config.json", "tokenizer_config.json")
    files: dict[str, tuple[tuple[str, ...], tuple[model_folders.AnyOf, ...]]] = {
        "encoder.model": (of_encoder, model_folders.VOCABULARY),
        LVLM: (("config.json", "tokenizer.json"), model_folders.IMAGES),
    }
    if intention.engine == "native":
        files[AGENT] = (("config.json",), TOKENIZERS.get(intention.model.codec, ()))
    found: dict[str, Model] = {}
    for model in sizing.loaded(experiment):
        kind = LVLM if model.rules == sizing.ASKING else model.key  # those of the grid have keys of their own
        if kind in files:
            found.setdefault(model.folder, Model(model, *files[kind]))
    return list(found.values())


def check(experiment: Experiment, *, rules: Collection[str] | None, folder: Path) -> Iterator[Outcome]:
    """Yield what is found here.

    Args:
        experiment: what runs.
        rules: rules of the planned jobs: what none of them reads is not looked at. None for everything.
        folder: the working directory.
    """
    needed = [model for model in models(experiment) if _any(rules, set(model.loaded.rules))]
    ledger = folder / plan.ledger_folder(experiment)
    yield from disks(folder / experiment.results, folder / SNAKEMAKE, ledger=ledger)
    for model in needed:
        whole = model_folder(model, folder)
        yield whole
        if model.loaded.key == AGENT and rules is None:
            yield from chat_template(experiment, folder)
        if model.loaded.rules == sizing.ASKING and rules is None and whole.level is Level.OK:
            yield from _prompt(experiment, model.loaded.folder, folder)
    yield from raw_data(experiment, rules=rules, folder=folder)
    for package, version in snakemake_adapter.unknown_versions().items():
        known = snakemake_adapter.WRITTEN_FOR[package]
        yield warning(
            package,
            f"version {known}, for which lever_pipe/runtime/snakemake_adapter.py is written",
            found=version,
            do="Run tests/unit/runtime/test_snakemake_adapter.py and tests/workflow with it.",
        )


def gpus(jobs: Sequence[Job], *, devices: Path = Path("/dev")) -> Iterator[Outcome]:
    """Yield a fault where this machine has not the CUDA devices that jobs which run on it compute on.

    Args:
        jobs: resources of each job, `rule` among them.
        devices: the folder of device files.
    """
    computing = [job for job in jobs if str(job.get("device") or "").startswith("cuda")]
    if not computing:
        return
    visible = gpu_slots.visible_gpus()
    if visible is None and any(path for name in DEVICE_FILES for path in devices.glob(name)):
        return
    number = len(visible or [])
    if number:
        yield ok("CUDA", f"{number} visible")
    else:
        yield fault(
            "CUDA",
            "a CUDA device",
            found=f"{NO_GPU} ({', '.join(sorted({str(job['rule']) for job in computing}))})",
            do="Run on such a machine or with profiles/slurm, or on the CPU: --set-resources RULE:device=cpu",
        )


def of_known_size(experiment: Experiment, jobs: Sequence[Job], folder: Path) -> list[Job]:
    """Return the jobs whose model folder is there, if they load one: nobody knows on what another would compute."""
    return [job for job in jobs if (folder / sizing.model_of(experiment, str(job["rule"]))).is_dir()]


def disks(*folders: Path, ledger: Path | None = None) -> Iterator[Outcome]:
    """Yield whether each file system takes files and has room; without that of the ledger, a run keeps no answers."""
    seen = set()
    for folder in (*folders, *([ledger] if ledger else [])):
        there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        if (device := (there.stat().st_dev, os.access(there, os.W_OK))) in seen:
            continue
        seen.add(device)
        free, check = shutil.disk_usage(there).free, f"disk of {folder}"
        where = "lay `results` or `store.folder` elsewhere."
        try:
            with tempfile.TemporaryFile(dir=there):
                pass
        except OSError as refusal:
            said = (refusal.strerror or str(refusal)).lower()
            yield fault(check, "a folder to write to", found=said, do=f"Mend its permission, or {where}")
            continue
        if free < NO_ROOM:
            complaint = warning if folder == ledger else fault
            yield complaint(check, f"{_bytes(NO_ROOM)} free", found=_bytes(free), do=f"Make room, or {where}")
        else:
            yield ok(check, f"{_bytes(free)} free")


def model_folder(model: Model, folder: Path) -> Outcome:
    """Return whether a model folder is whole."""
    key, name, _ = model.loaded
    faults = model_folders.faults_of(folder / name, files=model.files, any_of=model.any_of)
    if faults:
        expected, do = (
            "a whole model folder",
            f"Bring it again: {obtain.command(name)}\n    Or name the right folder in {key}.",
        )
        if model_folders.has_bin_only(folder / name):
            expected, do = "weights as safetensors", f"Make them: python -m lever_pipe convert {name}"
        elif not (folder / name).is_dir():
            expected = "a model folder"
            do = f"Bring it (docs/production.md): {obtain.command(name)}\n    Or name another in {key}."
        elif obtain.UNKNOWN in do:
            do += (
                "\n    Of a model of your own save model and processor there with save_pretrained (docs/your-model.md)."
            )
        return fault(f"{key} {name}", expected, found="; ".join(faults), do=do)
    return ok(f"{key} {name}", "whole")


def chat_template(experiment: Experiment, folder: Path) -> Iterator[Outcome]:
    """Yield whether the agent's codec can use the chat template of its folder, before a policy is loaded."""
    model = experiment.intention.model
    if model.codec != ANY_FAMILY or not (folder / model.folder).is_dir() or find_spec("transformers") is None:
        return  # the folder is missed elsewhere; on a login node there may be no tokenizers
    from lever_pipe.intention.codecs import hf

    check = f"chat template of {model.folder}"
    try:
        hf.load(folder / model.folder)
    except LeverPipeError as refusal:
        yield fault(check, "a chat template that the agent's codec can use", found=refusal.found, do=refusal.do)
    else:
        yield ok(check, "shows and calls the tool")


def _prompt(experiment: Experiment, name: str, folder: Path) -> Iterator[Outcome]:
    """Yield what the folder of an LVLM of the user's own makes of a prompt; tests know that of the embedded one."""
    if obtain.is_embedded(name) or find_spec("transformers") is None:
        return
    from lever_pipe.runtime.checks import answers  # loads torch: seconds

    lvlms = (experiment.lvlm, *experiment.grid.lvlms.values())
    yield answers.prompt(next(lvlm for lvlm in lvlms if lvlm.model == name), folder)


def raw_data(experiment: Experiment, *, rules: Collection[str] | None, folder: Path) -> Iterator[Outcome]:
    """Yield whether the raw files and image folders of the configured studies are there."""
    for key, data in experiment.data_sets.items() if _any(rules, DATA_RULES) else ():
        if data.source == "files":
            yield _present(f"{key}.files", list(data.files.model_dump().values()), folder)
    if "intention" in experiment.studies and _any(rules, {"prepare_tasks"}):
        files = [name for names in agent_plan.raw_files(experiment.intention).values() for name in names]
        if files:
            yield _present("intention.tasks.files", list(dict.fromkeys(files)), folder)


def data(experiment: Experiment, folder: Path) -> Iterator[Outcome]:
    """Yield what each split's files and images are, read whole as the first job reads them, and what both ask.

    Args:
        experiment: what runs.
        folder: the working directory.
    """
    of_files = {key: data for key, data in experiment.data_sets.items() if data.source == "files"}
    if not of_files:
        yield ok("data", "none is read: the embedded worlds are generated")
    for key, settings in of_files.items():
        yield from _data_set(key, settings, folder)


def _data_set(key: str, settings: Data, folder: Path) -> Iterator[Outcome]:
    places = {kind: folder / name for kind, name in settings.files.model_dump().items()}
    found: dict[str, ReadResult] = {}
    for split, read in (("train", read_train), ("eval", read_queries)):
        files = VqaFilePaths(*(places[f"{split}_{kind}"] for kind in ("questions", "annotations", "images")))
        try:
            found[split] = read(files, settings)
        except LeverPipeError as refusal:
            yield refused(f"{key}, {split}: {files.questions}", refusal)
        else:
            result = found[split]
            images = len({example.image for example in result.examples})
            skipped = f", {result.n_skipped_questions:,} skipped" if result.n_skipped_questions else ""
            said = f"{len(result.examples):,} questions about {images:,} images{skipped}"
            yield ok(f"{key}, {split}: {files.questions}", said)
    if len(found) == 2:
        train, queries = (result.examples for result in found.values())
        asked, shown = places["eval_questions"], places["train_questions"]
        check = f"{key}, both splits: {asked}"
        try:
            shared = shared_questions(train, queries, settings, asked=asked, shown=shown)
        except LeverPipeError as refusal:
            yield refused(check, refusal)
        else:
            yield ok(check, f"{len(shared)} of {len(queries)} questions are train questions too")


def refused(check: str, refusal: LeverPipeError) -> Outcome:
    """Return the fault that an error tells."""
    return fault(check, refusal.expected.rpartition("expected ")[2], found=refusal.found, do=refusal.do)


def _present(key: str, names: list[str], folder: Path) -> Outcome:
    absent = [name for name in names if not _holds_something(folder / name)]
    if absent:
        return fault(
            key,
            "raw files and folders with images",
            found=f"absent or empty: {', '.join(absent)}",
            do=f"Put them there (docs/production.md, docs/intention.md), or name their places in {key}.",
        )
    return ok(key, f"{len(names)} files and folders there")


def _holds_something(path: Path) -> bool:
    if path.is_dir():
        with os.scandir(path) as entries:
            return next(entries, None) is not None
    return path.is_file() and path.stat().st_size > 0


def _any(rules: Collection[str] | None, wanted: set[str]) -> bool:
    return rules is None or bool(wanted & set(rules))


def _bytes(number: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number} bytes"
