"""A way back from a number as a Process Run Crate 0.5, written by the library `rocrate`.

Each job is a `CreateAction`: `instrument` is the stage's code, `object` its inputs, `result` its outputs. Files below
the crate's folder are named by relative paths, others by `file:` addresses; nothing is copied. A file that still has
the content of its run card gets the sha256 of its bytes; one that has not says so.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import mimetypes
from pathlib import Path
from typing import Any

from lever_pipe.base import storage
from lever_pipe.base.errors import ConfigError
from lever_pipe.commands.trace import AS_MADE, AS_READ, Traced, TracedJob
from lever_pipe.runtime.rerun.artefacts import absolute

PROFILE = "https://w3id.org/ro/wfrun/process/0.5"
TERMS = "https://w3id.org/ro/terms/workflow-run/context"
"""Where `sha256` and other terms of the profile are defined."""
LICENSE = {
    "name": "no license stated",
    "description": "Results belong to whoever ran the workflow; data and models keep the licenses that they came with.",
}
FORMATS = {".jsonl": "application/jsonl", ".safetensors": "application/octet-stream", ".md": "text/markdown"}
"""What the standard library does not know, by ending."""
UNKNOWN_FORMAT = "application/octet-stream"
VERSION = "1.1"
"""Version of RO-Crate that the profile builds on."""
METADATA = "ro-crate-metadata.json"

Crate = Any  # rocrate.rocrate.ROCrate
Entity = Any  # rocrate.model.entity.Entity


def write(traced: Traced, folder: Path) -> Path:
    """Write the crate's metadata into a folder, which is made if need be, and return the file.

    Raises:
        ConfigError: the library `rocrate` is not installed.
    """
    try:
        from rocrate.rocrate import ROCrate  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        raise ConfigError(
            "--ro-crate: expected the library rocrate",
            found="none",
            do="Install it: pip install 'lever-pipe[ro-crate]'.",
        ) from None
    folder.mkdir(parents=True, exist_ok=True)
    made = _Crate(ROCrate(gen_preview=False, version=VERSION), folder)
    for step in traced.steps:
        made.add(step)
    made.describe(traced)
    storage.write_json(folder / METADATA, made.crate.metadata.generate())
    return folder / METADATA


class _Crate:
    """A crate whose entities are added once each."""

    def __init__(self, crate: Crate, folder: Path) -> None:
        self.crate = crate
        self._root = Path(absolute(folder))
        self._actions: list[Entity] = []

    def add(self, step: TracedJob) -> None:
        """Add a step as an action, with its code and files."""
        made, card = step.made, step.artefact.card
        ended = datetime.datetime.fromtimestamp(card.stat().st_mtime, datetime.UTC)
        began = ended - datetime.timedelta(seconds=made.seconds)
        results = [self._file(step.artefact.paths[n], made.outputs[n], step.states[n]) for n in step.outputs]
        inputs = [self._file(path, made.inputs[name], step.states[name]) for name, path in step.inputs.items()]
        models = [self._model(key, digest) for key, digest in step.models.items()]
        action = self._contextual(
            f"#action-{hashlib.sha256(str(card).encode()).hexdigest()[:16]}",
            {
                "@type": "CreateAction",
                "name": step.name,
                "description": f"{made.stage} on {made.device}, {made.seconds} s",
                "startTime": began.isoformat(timespec="seconds"),
                "endTime": ended.isoformat(timespec="seconds"),
                "actionStatus": "http://schema.org/CompletedActionStatus",
            },
        )
        action["instrument"] = self._code(step)
        action["object"] = _one_or_all([*inputs, *models, self._settings(step)])
        action["result"] = _one_or_all(results)
        self._actions.append(action)

    def describe(self, traced: Traced) -> None:
        """Say what the crate is about, and which profile it follows."""
        asked, root = traced.asked, self.crate.root_dataset
        what = f"{asked.value} in row {asked.row}, column {asked.column}" if asked.column else "all"
        root["name"] = f"How {asked.what} was made"
        root["description"] = f"{what} of {asked.table or asked.file}, with all that it was made from."
        profile = {"@type": "CreativeWork", "name": "Process Run Crate", "version": "0.5"}
        root["conformsTo"] = self._contextual(PROFILE, profile)
        root["mentions"] = _one_or_all(self._actions)
        root["license"] = self._contextual("#license", {"@type": "CreativeWork", **LICENSE})
        self.crate.metadata.extra_contexts.append(TERMS)

    def _code(self, step: TracedJob) -> Entity:
        made = step.made
        dirty = " with uncommitted changes" if made.dirty else ""
        versions = ", ".join(f"{name} {version}" for name, version in made.versions.items())
        return self._contextual(
            f"urn:lever-pipe:{made.stage}:{made.code}",
            {
                "@type": "SoftwareApplication",
                "name": f"lever_pipe {made.stage}",
                "softwareVersion": f"code {made.code}, commit {made.commit}{dirty}",
                "softwareRequirements": versions,
            },
        )

    def _settings(self, step: TracedJob) -> Entity:
        text = json.dumps(step.made.config, sort_keys=True)
        name = f"#config-{hashlib.sha256(f'{step.made.stage} {text}'.encode()).hexdigest()[:16]}"
        return self._contextual(name, {"@type": "PropertyValue", "name": f"{step.made.stage} --spec", "value": text})

    def _model(self, key: str, digest: str) -> Entity:
        values = {"@type": "PropertyValue", "name": key, "value": digest, "description": "digest of a model folder"}
        return self._contextual(f"#model-{digest}", values)

    def _file(self, path: Path, digest: str, state: str) -> Entity:
        is_folder = path.is_dir()
        name = self._name(path, is_folder)
        known = self.crate.dereference(name)
        if known is not None:
            return known
        values: dict[str, Any] = {"name": path.name, "identifier": f"content:{digest}"}
        if not is_folder:
            values["encodingFormat"] = FORMATS.get(path.suffix) or mimetypes.guess_type(path.name)[0] or UNKNOWN_FORMAT
        if state not in (AS_MADE, AS_READ):
            values["description"] = f"not what was made or read then: {state}"
        elif not is_folder:
            values |= {"sha256": storage.digest(path), "contentSize": str(path.stat().st_size)}
        add = self.crate.add_dataset if is_folder else self.crate.add_file
        return add(name, properties=values) if name.startswith("file:") else add(None, name, properties=values)

    def _name(self, path: Path, is_folder: bool) -> str:
        own = Path(absolute(path))
        name = own.relative_to(self._root).as_posix() if own.is_relative_to(self._root) else own.as_uri()
        return f"{name}/" if is_folder else name

    def _contextual(self, name: str, values: dict[str, Any]) -> Entity:
        from rocrate.model.contextentity import ContextEntity  # type: ignore[import-not-found,import-untyped,unused-ignore]

        return self.crate.dereference(name) or self.crate.add(ContextEntity(self.crate, name, properties=values))


def _one_or_all(entities: list[Entity]) -> Any:
    """Return the only one, or the list: the profile wants no list of one."""
    return entities[0] if len(entities) == 1 else entities
