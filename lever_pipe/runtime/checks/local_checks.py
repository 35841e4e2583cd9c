"""Check this machine and its file systems: disk space, model folders, raw data, GPUs."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from lever_pipe.base import model_folders, numerics
from lever_pipe.base.chat_templates import ChatTemplate
from lever_pipe.base.errors import LeverPipeError
from lever_pipe.base.process_environment import nearest_existing
from lever_pipe.base.sections import dotted
from lever_pipe.experiment.data import Data
from lever_pipe.experiment.plans import agents, models
from lever_pipe.experiment.studies import Experiment
from lever_pipe.intention.codecs import hf as codec
from lever_pipe.lever.datasets._splits import read_queries, read_train, shared_questions
from lever_pipe.lever.datasets.protocol import ReadResult, VqaFilePaths
from lever_pipe.lvlms.asking.prompts import of_system
from lever_pipe.runtime import gpu_slots, plan, sizing, snakemake_adapter
from lever_pipe.runtime.checks.findings import Level, Outcome, ok, problem, refused, warning
from lever_pipe.runtime.reruns import own_images
from lever_pipe.runtime.sizing import LoadedModel

AGENT = "intention.model.folder"
DISK_FULL = 100_000_000  # bytes
TRANSFORMERS = find_spec("transformers")
"""None in an environment for main processes only, without the rules' packages."""
DATA_RULES = {
    *("generate_world", "prepare_examples", "embed_examples"),
    *("generate_rl_data", "search_beams", "answer_prompts"),
}
DEVICE_FILES = ("nvidia[0-9]*", "kfd", "dxg")
"""GPUs below /dev that CUDA may use although no tool lists them, as in a container without nvidia-smi."""
TEMPLATED = ("hf", "vllm")
"""Plugins of `lever_pipe/lvlms` that use the folder's chat template for prompts."""
TOKENIZERS = {"hf": ("tokenizer.json", "vocab.json", "tokenizer.model"), "word": ("words.json",)}
"""Plugin of `lever_pipe/intention/codecs` -> files of which it needs one."""
PUBLISHED: Mapping[str, str] = {
    "Qwen2.5-VL-3B-Instruct": "Qwen/Qwen2.5-VL-3B-Instruct",
    "Qwen3-VL-2B-Instruct": "Qwen/Qwen3-VL-2B-Instruct",
    "InternVL3-2B-hf": "OpenGVLab/InternVL3-2B-hf",
    "SmolVLM2-2.2B-Instruct": "HuggingFaceTB/SmolVLM2-2.2B-Instruct",
    "Idefics3-8B-Llama3": "HuggingFaceM4/Idefics3-8B-Llama3",
    "clip-vit-base-patch32": "openai/clip-vit-base-patch32",
    "Qwen3-8B": "Qwen/Qwen3-8B",
}
"""Usual name of a model folder -> repository on the hub."""
DOWNLOADED = ("okvqa", "vqav2")
"""Readers of published data sets; a user's own files of the same format use them, too."""
DOWNLOADS = "downloads: docs/production.md; own files: docs/your-data.md"
MODELS = "models"
"""Usual folder of models, so in a path `models/NAME` it is not a repository's owner."""
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")

Job = Mapping[str, Any]
"""Resources of a job, including `rule`."""


def check(experiment: Experiment, *, rules: Collection[str] | None, folder: Path) -> Iterator[Outcome]:
    """Yield the outcomes of all checks of this machine.

    Args:
        experiment: the experiment to run.
        rules: rules of the planned jobs; only their inputs are checked. None for everything.
        folder: the working directory.
    """
    ledger = folder / plan.ledger_folder(experiment)
    yield numeric_path(experiment)
    yield from disks(folder / experiment.results, folder / ".snakemake", ledger=ledger)
    for model in loaded_here(experiment):
        if not _any(rules, set(model.rules)):
            continue
        whole = model_folder(experiment, model, folder)
        yield whole
        if whole.level is not Level.OK:
            continue
        problems = list(chat_templates(experiment, model, folder))
        yield from problems
        is_own = not models.is_embedded(model.folder)  # tests cover the embedded ones
        if model.rules == sizing.ASKING and rules is None and is_own and not problems and TRANSFORMERS:
            from lever_pipe.runtime.checks import answers  # loads torch: seconds

            lvlms = (experiment.lvlm, *experiment.grid.lvlms.values())
            yield answers.prompt(next(lvlm for lvlm in lvlms if lvlm.model == model.folder), folder)
    yield from raw_data(experiment, rules=rules, folder=folder)
    for package, version in snakemake_adapter.unknown_versions().items():
        written_for = snakemake_adapter.WRITTEN_FOR[package]
        do = "Run tests/unit/runtime/test_snakemake_adapter.py and tests/workflow with it."
        yield warning(package, f"version {written_for}, for which the workflow is written", found=version, do=do)


def numeric_path(experiment: Experiment) -> Outcome:
    """Check that this CPU computes the bits of other CPUs, if the configuration wants that."""
    path = numerics.path()
    if experiment.numerics != "portable" or path == "portable":
        return ok("numerics", path)
    do = "Results are reproducible on this machine; on other CPUs the last bits differ (docs/rerun.md)."
    return warning("numerics", "an x86-64 CPU with AVX2 and FMA, and no own settings of MKL", found=path, do=do)


def loaded_here(experiment: Experiment) -> list[LoadedModel]:
    """Return the models that jobs load, each folder once, under the first of its keys.

    An external trainer loads the agent by its own configuration.
    """
    is_native = experiment.intention.engine == "native"
    models: dict[str, LoadedModel] = {}
    for model in sizing.loaded(experiment):
        if is_native or model.key != AGENT:
            models.setdefault(model.folder, model)
    return list(models.values())


def repository_of(name: str) -> str:
    """Return a model folder's repository on the hub, for a known name or the form OWNER/NAME; otherwise empty."""
    path = PurePath(name)
    is_own = path.is_relative_to(MODELS) or models.is_embedded(name)
    return PUBLISHED.get(path.name, name if HUB_NAME.fullmatch(name) and not is_own else "")


def files_read(experiment: Experiment, model: LoadedModel) -> tuple[tuple[str, ...], tuple[model_folders.AnyOf, ...]]:
    """Return the required files of a model folder, and groups of files of which one is enough."""
    if model.key == AGENT:
        return ("config.json",), TOKENIZERS.get(experiment.intention.model.codec, ())
    if model.rules == sizing.ASKING:
        return ("config.json", "tokenizer.json"), model_folders.IMAGES
    return ("config.json", "preprocessor_config.json", "tokenizer_config.json"), model_folders.VOCABULARY


def model_folder(experiment: Experiment, model: LoadedModel, folder: Path) -> Outcome:
    """Check that a model folder is complete; otherwise return the way to get it."""
    key, name, _ = model
    files, any_of = files_read(experiment, model)
    problems = model_folders.problems_of(folder / name, files=files, any_of=any_of)
    if not problems:
        return ok(f"{key} {name}", "whole")
    if model_folders.has_bin_only(folder / name):
        expected, do = "weights as safetensors", f"Make them: {model_folders.CONVERT} {name}"
    elif models.is_embedded(name):
        expected, do = "a whole model folder", f"Bring it again: git checkout -- {name}"
    else:
        expected, repository = "a whole model folder", repository_of(name)
        source = "" if repository else f" --from {key}=OWNER/NAME"
        do = f"Download {repository or 'it'}: lever-pipe fetch --configfile FILE{source}\n"
        do += f"    Or save a model of your own there (docs/your-model.md), or name another folder in {key}"
        do += ", relative to the working directory." if repository == name else "."
    return problem(f"{key} {name}", expected, found="; ".join(problems), do=do)


def chat_templates(experiment: Experiment, model: LoadedModel, folder: Path) -> Iterator[Outcome]:
    """Yield a problem if the chat template of a model folder fails on the system text of its prompts."""
    check = f"chat template of {model.folder}"
    if model.key == AGENT and experiment.intention.model.codec == "hf":
        template = ChatTemplate.of(folder / model.folder, "tool_use")
        if template and (found := template.problem_of_text(codec.opening(codec.EXAMPLE), tools=[codec.TOOL])):
            yield problem(check, "a chat template that writes the agent's system message", found=found, do=codec.USE)
    elif model.rules == sizing.ASKING:
        lvlms = (experiment.lvlm, *experiment.grid.lvlms.values())
        templated = [lvlm for lvlm in lvlms if lvlm.model == model.folder and models.lvlm_engine(lvlm) in TEMPLATED]
        template = ChatTemplate.of(folder / model.folder)
        for system in dict.fromkeys(lvlm.prompt.system for lvlm in templated):
            if template and (found := template.problem_of_system(system)):
                expected, do = of_system(system)
                yield problem(check, expected, found=found, do=do)


def gpus(jobs: Sequence[Job], *, devices: Path = Path("/dev")) -> Iterator[Outcome]:
    """Yield a problem if jobs need a CUDA device and this machine has none.

    Args:
        jobs: resources of each job, including `rule`.
        devices: the folder of device files.
    """
    computing = [job for job in jobs if str(job.get("device") or "").startswith("cuda")]
    if not computing:
        return
    visible = gpu_slots.visible_gpus()
    if visible is None and any(path for name in DEVICE_FILES for path in devices.glob(name)):
        return
    if visible:
        yield ok("CUDA", f"{len(visible)} visible")
    else:
        found = f"none ({', '.join(sorted({str(job['rule']) for job in computing}))})"
        do = "Run on such a machine or with profiles/slurm, or on the CPU: --set-resources RULE:device=cpu"
        yield problem("CUDA", "a CUDA device", found=found, do=do)


def of_known_size(experiment: Experiment, jobs: Sequence[Job], folder: Path) -> list[Job]:
    """Return the jobs that load no model, or whose model folder exists: its size decides between CPU and GPU."""
    return [job for job in jobs if (folder / sizing.model_of(experiment, str(job["rule"]))).is_dir()]


def disks(*folders: Path, ledger: Path | None = None) -> Iterator[Outcome]:
    """Check that each file system is writable and has space; for the ledger's, lack of space is only a warning."""
    seen = set()
    for folder in (*folders, *([ledger] if ledger else [])):
        location = nearest_existing(folder)
        if (device := (location.stat().st_dev, os.access(location, os.W_OK))) in seen:
            continue
        seen.add(device)  # one outcome per disk
        free, check = shutil.disk_usage(location).free, f"disk of {folder}"
        do = "Set results or store.folder to another disk."
        try:
            with tempfile.TemporaryFile(dir=location):
                pass
        except OSError as refusal:
            yield problem(check, "a folder to write to", found=str(refusal.strerror or refusal).lower(), do=do)
            continue
        found = f"{free / 10**9:.1f} GB free"
        if free >= DISK_FULL:
            yield ok(check, found)
        else:
            complaint = warning if folder == ledger else problem
            yield complaint(check, "0.1 GB free", found=found, do=f"Free some space. {do}")


def raw_data(experiment: Experiment, *, rules: Collection[str] | None, folder: Path) -> Iterator[Outcome]:
    """Check that the raw files and image folders of the configured studies exist."""
    for raw in raw_files(experiment):
        if _any(rules, raw.rules):
            yield _present(raw.key, raw.names, folder, raw.page)
    for key, data in experiment.data_sets.items() if _any(rules, DATA_RULES) else ():
        if data.source == "files":
            yield from _missing_images(key, data, folder)


class RawInputs(NamedTuple):
    """Raw files and image folders of a configuration key, the rules that read them, and their documentation."""

    key: str
    names: list[str]
    rules: set[str]
    page: str


def raw_files(experiment: Experiment) -> Iterator[RawInputs]:
    """Yield the raw files of each data set of the configured studies."""
    for key, data in experiment.data_sets.items():
        if data.source == "files":
            page = DOWNLOADS if data.reader in DOWNLOADED else "docs/your-data.md"
            yield RawInputs(f"{key}.files", list(data.files.model_dump().values()), DATA_RULES, page)
    if "intention" in experiment.studies:
        files = [name for names in agents.raw_files(experiment.intention).values() for name in names]
        if files:
            yield RawInputs("intention.tasks.files", list(dict.fromkeys(files)), {"prepare_tasks"}, "docs/intention.md")


def data(experiment: Experiment, folder: Path) -> Iterator[Outcome]:
    """Read all files and images of each split like the first job, and yield counts or problems.

    Args:
        experiment: the experiment to run.
        folder: the working directory.
    """
    of_files = {key: data for key, data in experiment.data_sets.items() if data.source == "files"}
    if not of_files:
        yield ok("data", "none is read: the embedded worlds are generated")
    for key, settings in of_files.items():
        yield from _data_set(experiment, key, settings, folder)


def _data_set(experiment: Experiment, key: str, settings: Data, folder: Path) -> Iterator[Outcome]:
    locations = {kind: folder / name for kind, name in settings.files.model_dump().items()}
    results: dict[str, ReadResult] = {}
    for split, read in (("train", read_train), ("eval", read_queries)):
        files = VqaFilePaths(*(locations[f"{split}_{kind}"] for kind in ("questions", "annotations", "images")))
        try:
            results[split] = read(files, settings)
        except LeverPipeError as refusal:
            yield refused(f"{key}, {split}: {files.questions}", refusal)
        else:
            result = results[split]
            images = len({example.image for example in result.examples})
            skipped = f", {result.n_skipped_questions:,} skipped" if result.n_skipped_questions else ""
            counts = f"{len(result.examples):,} questions about {images:,} images{skipped}"
            yield ok(f"{key}, {split}: {files.questions}", counts)
    if "train" in results:
        n_train = len(results["train"].examples)
        for location, text in experiment.too_large_for(key, "questions", n_train):
            check, do = f"{key}, train: {locations['train_questions']}", f"{dotted(location)} {text}"
            yield problem(check, "enough questions", found=str(n_train), do=do)
    if len(results) == 2:
        train, queries = (result.examples for result in results.values())
        query_file, train_file = locations["eval_questions"], locations["train_questions"]
        check = f"{key}, both splits: {query_file}"
        try:
            shared = shared_questions(train, queries, settings, file=query_file, train_file=train_file)
        except LeverPipeError as refusal:
            yield refused(check, refusal)
        else:
            yield ok(check, f"{len(shared)} of {len(queries)} questions are train questions too")


def _missing_images(key: str, data: Data, folder: Path) -> Iterator[Outcome]:
    for split in ("train", "eval"):
        if absent := own_images.missing(data, split, folder):
            do = f"Restore them, or correct the questions or {key}.{split}_image_name."
            yield problem(f"{key}.files.{split}_images", "an image for each question", found=f"no {absent}", do=do)


def _present(key: str, names: list[str], folder: Path, page: str) -> Outcome:
    absent = [name for name in names if not _holds_something(folder / name)]
    if absent:
        return problem(
            key,
            "raw files and folders with images",
            found=f"absent or empty: {', '.join(absent)}",
            do=f"Put them there ({page}), or set their paths in {key}.",
        )
    return ok(key, f"{len(names)} files and folders exist")


def _holds_something(path: Path) -> bool:
    if path.is_dir():
        with os.scandir(path) as entries:
            return next(entries, None) is not None
    return path.is_file() and path.stat().st_size > 0


def _any(rules: Collection[str] | None, readers: set[str]) -> bool:
    return rules is None or bool(readers & set(rules))
