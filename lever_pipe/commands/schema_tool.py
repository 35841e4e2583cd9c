"""`lever-pipe schema`: print the JSON schema of the configuration."""

from __future__ import annotations

import json
import sys

import click

from lever_pipe.experiment.studies import Experiment


@click.command(help=__doc__)
def command() -> None:
    """Print the schema."""
    sys.stdout.write(schema_text())


def schema_text() -> str:
    """Return the JSON schema of the configuration."""
    schema = Experiment.model_json_schema()
    schema["title"] = "config.yaml of lever-pipe"
    return json.dumps(schema, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
