"""The workflow's rules as Snakemake itself parses them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    {"rl_data": {"import_from": "rl_data_k64_v3.json"}},
    {"intention": {"engine": "verl"}},
)
"""Configurations that together cover every rule."""


@contextmanager
def working_in(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@cache
def rules() -> dict[str, Any]:
    """Return every rule of the workflow by name, the optional ones included."""
    from snakemake.api import SnakemakeApi
    from snakemake.settings.types import ConfigSettings, OutputSettings, ResourceSettings, StorageSettings

    found: dict[str, Any] = {}
    with working_in(ROOT):
        for config in VARIANTS:
            with SnakemakeApi(OutputSettings(quiet=None)) as api:
                workflow = api.workflow(
                    resource_settings=ResourceSettings(cores=1),
                    config_settings=ConfigSettings(config=config),
                    storage_settings=StorageSettings(),
                    snakefile=ROOT / "Snakefile",
                )
                found = {rule.name: rule for rule in workflow._workflow.rules} | found
    return found
