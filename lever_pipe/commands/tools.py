"""Small commands beside the stages: the config schema, a stage's import closure, the RL data in its original format."""

from __future__ import annotations

import argparse
import difflib
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from lever_pipe.base import storage
from lever_pipe.base.errors import ConfigError
from lever_pipe.base.parsing import require_member
from lever_pipe.base.provenance import closure_of, code_of
from lever_pipe.experiment.studies import Experiment

SCHEMA = Path("workflow/schemas/config.schema.json")


def main(words: Sequence[str]) -> int:
    """Run one tool and return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m lever_pipe", description=__doc__)
    tools = parser.add_subparsers(dest="tool", required=True)
    schema = tools.add_parser("schema", help=f"write {SCHEMA} from the config models")
    schema.add_argument("--check", action="store_true", help="compare instead, and show the difference")
    closure = tools.add_parser("closure", help="list the modules whose code a stage's identity holds")
    closure.add_argument("stage")
    export = tools.add_parser("export_rl_data", help="write RL data in the original rl_data_k64_v3.json format")
    export.add_argument("rl_data", type=Path)
    export.add_argument("original", type=Path)
    options = parser.parse_args(words)
    if options.tool == "schema":
        check_schema() if options.check else storage.write_text(SCHEMA, schema_text())
    elif options.tool == "closure":
        require_member("stages", options.stage)
        names = closure_of(f"lever_pipe.stages.{options.stage}")
        sys.stdout.write("\n".join([*names, f"fingerprint {code_of(options.stage)}"]) + "\n")
    else:
        from lever_pipe.lever.rl_data_io import export_original

        export_original(options.rl_data, options.original)
    return 0


def schema_text() -> str:
    """Return the JSON schema of the configuration."""
    schema = Experiment.model_json_schema()
    schema["title"] = "config.yaml of lever-pipe"
    return json.dumps(schema, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def check_schema(path: Path = SCHEMA) -> None:
    """Compare the committed schema with the models.

    Raises:
        ConfigError: they differ; the message holds the difference.
    """
    committed = path.read_text(encoding="utf-8") if path.exists() else ""
    difference = list(
        difflib.unified_diff(committed.splitlines(), schema_text().splitlines(), str(path), "models", lineterm="", n=1)
    )
    if difference:
        raise ConfigError(
            f"{path}: expected the schema of the config models",
            found="this difference:\n" + "\n".join(difference[:40]) + "\n",
            do="Run: make schema",
        )
