"""`python -m lever_pipe store TOOL`: `stats` counts what a store of finished work holds; `verify` reads all of it and
ends with status 1 and one line for each fault; `gc` makes room.

`gc` reads everything and removes what is damaged; then finished work that was not used for the longest time, until the
rest takes no more than the store may, and what killed jobs have left. Running jobs may go on. The ledger of LVLM
answers stays.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from tabulate import tabulate

from lever_pipe.base.errors import ConfigError, StoreError
from lever_pipe.experiment.studies import StoreSettings, parse_experiment
from lever_pipe.runtime.snakemake_adapter import configured
from lever_pipe.runtime.store import GB, Store


def main(words: Sequence[str]) -> int:
    """Run one tool; return 0, or 1 where faults remain."""
    parser = argparse.ArgumentParser(
        prog="python -m lever_pipe store", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tool", choices=("stats", "verify", "gc"))
    parser.add_argument("folder", nargs="?", metavar="FOLDER", help="a store; by default the configured one")
    parser.add_argument("--max-gb", type=_gigabytes, metavar="N", help="what may stay, instead of `store.max_gb`")
    options = parser.parse_args(words[1:])
    store = _opened(options)
    faults = [] if options.tool == "stats" else list(store.verify(remove=options.tool == "gc"))
    sys.stdout.writelines(f"{'removed: ' * (options.tool == 'gc')}{fault}\n" for fault in faults)
    removed = store.trim()._asdict() if options.tool == "gc" else {}
    counts = (
        {f"removed.{name}": n for name, n in removed.items()} | store.stats()._asdict() | {"max_bytes": store.max_bytes}
    )
    rows = [("folder", str(store.folder)), *((name, f"{n:,}") for name, n in counts.items())]
    table = tabulate(rows, tablefmt="plain", colalign=("left", "right"), disable_numparse=True)
    sys.stdout.write(f"{table}\n")
    return 1 if faults and options.tool == "verify" else 0


def _opened(options: argparse.Namespace) -> Store:
    """Return the store that the words name, or else the configuration."""
    values, source = configured({})
    settings = parse_experiment(values, source=source).store if values else StoreSettings()
    if settings is None and options.folder is None:
        do = "Name its folder: python -m lever_pipe store TOOL FOLDER"
        raise ConfigError(f"{source}: expected a store of finished work", found="store: null", do=do)
    settings = settings or StoreSettings()
    folder = Path(settings.folder if options.folder is None else options.folder).expanduser()
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if not folder.is_dir() or (names and not names & {"VERSION", "work", "staging", "ledger"}):
        raise StoreError(
            f"{folder}: expected a store of finished work",
            found="another folder" if folder.is_dir() else "another file" if folder.exists() else "no folder",
            do="Name the folder of a store; a run makes the one that `store.folder` in the configuration names.",
        )
    limit = settings.max_gb if options.max_gb is None else options.max_gb
    return Store(folder, max_bytes=int(limit * GB))


def _gigabytes(text: str) -> float:
    value = float(text)
    if not 0 <= value < math.inf:
        raise ValueError(text)  # argparse tells it
    return value
