"""A way back from a number as plain values: what `python -m lever_pipe trace --json` prints, format 1."""

from __future__ import annotations

from typing import Any

from lever_pipe.commands.trace import Step, Traced

FORMAT = 1


def as_object(traced: Traced) -> dict[str, Any]:
    """Return a way back as plain values for JSON.

    `steps` refer to each other by their place in the list: `inputs.NAME.made_by`. A file's `state` says whether it has
    the content of its digest still.
    """
    asked = traced.asked
    return {
        "format": FORMAT,
        "what": asked.what,
        "file": str(asked.file),
        "table": asked.table,
        "row": asked.row,
        "column": asked.column,
        "value": asked.value,
        "cells": dict(asked.cells),
        "policies": list(traced.groups),
        "sources": [source._asdict() | {"names": sorted(source.names)} for source in traced.sources],
        "notes": list(traced.notes),
        "steps": [_step_object(step) for step in traced.steps],
    }


def _step_object(step: Step) -> dict[str, Any]:
    made, paths = step.made, step.verdict.artefact.paths
    kept = ("stage", "config", "code", "commit", "dirty", "versions", "device", "threads", "seconds")
    return {
        "name": step.name,
        "card": str(step.verdict.artefact.card),
        **{key: getattr(made, key) for key in kept},
        "models": step.models,
        "outputs": {
            name: {"path": str(paths[name]), "digest": made.outputs[name], "state": step.states[name]}
            for name in step.outputs
        },
        "inputs": {
            name: {
                "path": str(path),
                "digest": made.inputs[name],
                "state": step.states[name],
                "made_by": step.makers.get(name),
            }
            for name, path in step.inputs.items()
        },
    }
