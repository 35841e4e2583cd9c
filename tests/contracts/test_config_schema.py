"""The config models are the truth; the schema mirrors them, and every shipped config parses."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from lever_pipe.commands.schema_tool import schema_text
from lever_pipe.experiment.studies import parse_experiment

ROOT = Path(__file__).parents[2]


BELOW = {"grid_okvqa": "okvqa_qwen2_5_vl_3b"}
"""Configurations on top of another one than config.yaml, as their headers state."""


def merged(path: Path) -> dict[str, object]:
    """Return config.yaml with another file over it, as Snakemake merges them."""

    def merge(base: dict, over: dict) -> dict:
        out = dict(base)
        for key, value in over.items():
            out[key] = merge(out[key], value) if isinstance(value, dict) and isinstance(out.get(key), dict) else value
        return out

    below = BELOW.get(path.stem)
    base = merged(ROOT / f"config/{below}.yaml") if below else yaml.safe_load((ROOT / "config.yaml").read_text())
    return merge(base, yaml.safe_load(path.read_text()))


def test_the_committed_schema_is_current() -> None:
    committed = (ROOT / "workflow/schemas/config.schema.json").read_text(encoding="utf-8")
    assert committed == schema_text()


@pytest.mark.parametrize("path", sorted((ROOT / "config").glob("*.yaml")), ids=lambda p: p.stem)
def test_every_shipped_config_parses(path: Path) -> None:
    parse_experiment(merged(path), source=path.name)


def test_production_differs_from_the_world_by_configuration_alone() -> None:
    world = parse_experiment(yaml.safe_load((ROOT / "config.yaml").read_text()))
    production = parse_experiment(merged(ROOT / "config/okvqa_qwen2_5_vl_3b.yaml"))
    assert world.lvlm.engine == production.lvlm.engine == "auto"
    assert world.encoder.plugin == production.encoder.plugin
    assert world.data.reader == production.data.reader
    assert production.arms[0].preset == "published"
    assert production.lvlm.decode.num_beams == 3
    assert production.data.source == "files"
