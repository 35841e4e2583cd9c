"""`lever-pipe export_rl_data RL_DATA ORIGINAL`: write RL data in the original rl_data_k64_v3.json format.

RL_DATA are rows of a run: `results/lever/rl_data/rl_data_k64_v3.jsonl`. ORIGINAL is the JSON file to write.
"""

from __future__ import annotations

from pathlib import Path

import click

from lever_pipe.base import storage
from lever_pipe.base.records import RlGroup
from lever_pipe.lever.rl_data_files import write_original


@click.command(help=__doc__)
@click.argument("rl_data", type=click.Path(path_type=Path))
@click.argument("original", type=click.Path(path_type=Path))
def command(rl_data: Path, original: Path) -> None:
    """Write the JSON file."""
    write_original(original, storage.read_rows(rl_data, RlGroup))
