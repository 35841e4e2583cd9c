"""`lever-pipe fetch --configfile FILE`: download the models of a configuration into the folders that it names.

Downloads safetensors, configuration, tokenizer and processor files from the Hugging Face Hub, and no pickle. Complete
model folders are not changed. After an interruption the same command continues, and complete files stay. The
repository follows from the name of the folder, or is the folder's path if that has the form OWNER/NAME; `--from` names
another one and a revision. The environment variables of `huggingface_hub` apply: HF_TOKEN for repositories with
restricted access, HF_ENDPOINT for a mirror.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError
from huggingface_hub.utils import filter_repo_objects  # type: ignore[attr-defined]  # public, without __all__

from lever_pipe.base import model_folders
from lever_pipe.base.errors import CheckpointError, ConfigError, LeverPipeError, MachineError, ServerError
from lever_pipe.base.process_environment import nearest_existing
from lever_pipe.experiment.studies import Experiment, parse_experiment
from lever_pipe.runtime.checks import local_checks
from lever_pipe.runtime.command_words import ConfiguredCommand
from lever_pipe.runtime.sizing import LoadedModel
from lever_pipe.runtime.snakemake_adapter import configured

FILES = ("model*.safetensors", "*.json", "*.txt", "*.jinja", "*.model", "LICENSE*")
"""Weights with their index; settings; parts of tokenizers; chat templates; the license."""
SUBFOLDERS = "*/*"
"""Other formats of the same weights."""
STARTED = Path(".cache/huggingface")
"""Folder that `huggingface_hub` creates in each folder of downloads."""
WEIGHTS = ".safetensors"


@click.command(cls=ConfiguredCommand, help=__doc__)
@click.option(
    "--from",
    "named",
    multiple=True,
    metavar="KEY=OWNER/NAME[@REVISION]...",
    help="repository of a model by its key, as lvlm.model=Qwen/Qwen2-VL-2B-Instruct@main",
)
def command(named: Sequence[str], **words: Any) -> int:
    """Download each absent model; return 0, or 2 if one is missing at the end."""
    found = configured(words)
    experiment = parse_experiment(found.values, source=found.source)
    models = local_checks.loaded_here(experiment)
    sources = _sources(named, [model.key for model in models])
    missing = []
    for model in models:
        try:
            fetch(experiment, model, sources.get(model.key, ""))
        except (LeverPipeError, OSError) as caught:
            problem = MachineError.of(caught) if isinstance(caught, OSError) else caught
            missing.append(f"{model.key}: {problem}\n")
    sys.stderr.writelines(missing)
    if missing:
        return 2
    given = [word for name, values in words.items() if values for word in (f"--{name}", *map(str, values))]
    sys.stdout.write(f"All models are here. Next: {shlex.join(['lever-pipe', 'doctor', *given])}\n")
    return 0


def fetch(experiment: Experiment, model: LoadedModel, source: str, *, here: Path = Path()) -> None:
    """Download one model, unless its folder is complete.

    Args:
        experiment: determines the files that the readers of the model open.
        model: folder and key.
        source: OWNER/NAME or OWNER/NAME@REVISION; empty for the repository of the folder's name.
        here: the working directory.

    Raises:
        ConfigError: no known repository, or a folder with files of another origin.
        ServerError: the hub refuses or does not answer.
        CheckpointError: the repository has no safetensors, or lacks another file.
        MachineError: not enough disk space.
    """
    files, any_of = local_checks.files_read(experiment, model)
    folder = here / model.folder
    if not model_folders.problems_of(folder, files=files, any_of=any_of):
        sys.stdout.write(f"{model.key}: {model.folder} is whole\n")
        return
    repository, _, revision = (source or local_checks.repository_of(model.folder)).partition("@")
    _require_place(model, folder, repository)
    with _explained(repository, model.key):
        info = HfApi().model_info(repository, revision=revision or None, files_metadata=True)
        sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
        # The filter of `snapshot_download`, so that the size is that of the download.
        wanted = list(filter_repo_objects(sizes, allow_patterns=list(FILES), ignore_patterns=SUBFOLDERS))
        size = sum(sizes[name] for name in wanted)
        what = f"{len(wanted)} files, {size / 10**9:.2f} GB, of {repository} at {info.sha}"
        sys.stdout.write(f"{model.key}: {what} into {model.folder}\n")
        sys.stdout.flush()
        _require_room(folder, size)
        # By commit: a branch could move between the listing and the download.
        snapshot_download(
            repository, revision=info.sha, local_dir=folder, allow_patterns=list(FILES), ignore_patterns=SUBFOLDERS
        )
    if not any(name.endswith(WEIGHTS) for name in wanted):
        found = ", ".join(sorted(name for name in sizes if name.endswith(".bin"))) or "no weights"
        raise CheckpointError(
            f"{repository}: expected model*.safetensors",
            found=found,
            do="Download .bin weights by hand and convert them: hf download "
            f"{repository} pytorch_model.bin --local-dir {model.folder} && {model_folders.CONVERT} {model.folder}",
        )
    model_folders.require_whole(
        folder, f"a whole model folder after the download of {repository}", files=files, any_of=any_of
    )


def _require_place(model: LoadedModel, folder: Path, repository: str) -> None:
    """Refuse a model without a repository, and a folder with files of another origin."""
    if not repository:
        raise ConfigError(
            f"{model.folder}: expected a folder whose repository on the hub is known",
            found="none",
            do=f"Name it: --from {model.key}=OWNER/NAME",
        )
    if folder.exists() and not (folder / STARTED).is_dir() and any(folder.iterdir()):
        do = "Complete it, or remove it and repeat the command."
        raise ConfigError(
            f"{model.folder}: expected no folder, or an interrupted download", found="files of another origin", do=do
        )


def _require_room(folder: Path, size: int) -> None:
    # Files of an interrupted download need no more space.
    present = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    free = shutil.disk_usage(nearest_existing(folder)).free
    if size - present > free:
        found = f"{free / 10**9:.1f} GB"
        raise MachineError(f"{folder}: expected {size / 10**9:.1f} GB free", found=found, do="Free disk space.")


@contextmanager
def _explained(repository: str, key: str) -> Iterator[None]:
    """Turn errors of the hub's client into one line.

    Raises:
        ServerError: names repository, error and remedy.
    """
    expected, again = f"expected {repository} on the hub", "Check network, HF_ENDPOINT and HF_TOKEN, then repeat."
    try:
        yield
    # Subclasses first: GatedRepoError is a RepositoryNotFoundError, and that an HfHubHTTPError.
    except GatedRepoError:
        do = "Accept its license on its page, and set HF_TOKEN to a token of your account."
        raise ServerError(expected, found="restricted access", do=do) from None
    except RevisionNotFoundError:
        raise ServerError(expected, found="no such revision", do=f"Correct --from {key}.") from None
    except RepositoryNotFoundError:
        do = f"Correct {key} or --from; set HF_TOKEN if the repository is private."
        raise ServerError(expected, found="no such repository, or a private one", do=do) from None
    except HfHubHTTPError as error:
        raise ServerError(expected, found=f"HTTP status {error.response.status_code}", do=again) from None
    except LeverPipeError:
        raise
    except Exception as error:  # the client raises classes of its HTTP library, which differs by version
        if isinstance(error, OSError) and error.errno:  # a full disk is not an error of the hub
            raise
        raise ServerError(expected, found=f"{type(error).__name__}: {error}".rstrip("."), do=again) from None


def _sources(words: Sequence[str], keys: Sequence[str]) -> Mapping[str, str]:
    """Return the repository of each key in `--from`."""
    sources = {}
    for word in words:
        key, _, source = word.partition("=")
        if key not in keys or not local_checks.HUB_NAME.fullmatch(source.partition("@")[0]):
            expected = f"--from: expected KEY=OWNER/NAME[@REVISION] with a key of {', '.join(keys)}"
            raise ConfigError(expected, found=repr(word), do="Correct it.")
        sources[key] = source
    return sources
