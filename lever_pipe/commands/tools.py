"""Small commands that are not stages: the config schema, original RL data."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from lever_pipe.base import storage
from lever_pipe.experiment.studies import Experiment


def main(words: Sequence[str]) -> int:
    """Run one tool and return its exit status."""
    parser = argparse.ArgumentParser(prog="lever-pipe", description=__doc__)
    tools = parser.add_subparsers(dest="tool", required=True)
    tools.add_parser("schema", help="print the JSON schema of the configuration")
    export = tools.add_parser("export_rl_data", help="write RL data in the original rl_data_k64_v3.json format")
    export.add_argument("rl_data", type=Path, help="rows of a run: results/lever/rl_data/rl_data_k64_v3.jsonl")
    export.add_argument("original", type=Path, help="the JSON file to write")
    options = parser.parse_args(words)
    if options.tool == "schema":
        sys.stdout.write(schema_text())
    else:
        from lever_pipe.base.records import RlGroup
        from lever_pipe.lever.rl_data_files import write_original

        write_original(options.original, storage.read_rows(options.rl_data, RlGroup))
    return 0


def schema_text() -> str:
    """Return the JSON schema of the configuration."""
    schema = Experiment.model_json_schema()
    schema["title"] = "config.yaml of lever-pipe"
    return json.dumps(schema, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
