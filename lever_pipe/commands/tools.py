"""Small commands beside the stages: the config schema, original RL data."""

from __future__ import annotations

import argparse
import difflib
import json
from collections.abc import Sequence
from pathlib import Path

from lever_pipe.base import storage
from lever_pipe.base.errors import ConfigError
from lever_pipe.experiment.studies import Experiment

SCHEMA = Path("workflow/schemas/config.schema.json")


def main(words: Sequence[str]) -> int:
    """Run one tool and return its exit status."""
    parser = argparse.ArgumentParser(prog="lever-pipe", description=__doc__)
    tools = parser.add_subparsers(dest="tool", required=True)
    schema = tools.add_parser("schema", help=f"write {SCHEMA} from the config models")
    schema.add_argument("--check", action="store_true", help="compare instead, and show the difference")
    export = tools.add_parser("export_rl_data", help="write RL data in the original rl_data_k64_v3.json format")
    export.add_argument("rl_data", type=Path, help="rows of a run: results/lever/rl_data/rl_data_k64_v3.jsonl")
    export.add_argument("original", type=Path, help="the JSON file to write")
    options = parser.parse_args(words)
    if options.tool == "schema":
        _write_schema(check=options.check)
    else:
        from lever_pipe.base.records import RlGroup
        from lever_pipe.lever.rl_data_files import write_original

        write_original(options.original, storage.read_rows(options.rl_data, RlGroup))
    return 0


def _write_schema(*, check: bool) -> None:
    """Write the schema, or refuse one that differs from what would be written."""
    if not check:
        storage.write_text(SCHEMA, schema_text())
        return
    written = SCHEMA.read_text(encoding="utf-8") if SCHEMA.exists() else ""
    sides = (written.splitlines(), schema_text().splitlines())
    if difference := list(difflib.unified_diff(*sides, str(SCHEMA), "expected", lineterm="", n=1))[:40]:
        found = "\n".join(["this difference:", *difference, ""])
        raise ConfigError(f"{SCHEMA}: expected what make schema writes", found=found, do="Run: make schema")


def schema_text() -> str:
    """Return the JSON schema of the configuration."""
    schema = Experiment.model_json_schema()
    schema["title"] = "config.yaml of lever-pipe"
    return json.dumps(schema, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
