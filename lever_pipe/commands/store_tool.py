"""`python -m lever_pipe store`: count what a store of finished work holds, read and check all of it, make room."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from tabulate import tabulate

from lever_pipe.base.errors import ConfigError, StoreError
from lever_pipe.commands.telling import as_json, counted
from lever_pipe.experiment.studies import StoreSettings as Settings
from lever_pipe.experiment.studies import parse_experiment
from lever_pipe.runtime.snakemake_adapter import CONFIG, configured
from lever_pipe.runtime.store import GB, Store

GC = """
Read everything and remove what is damaged; then finished work that was not used for the longest time, until the rest
takes no more than the store may, and what killed jobs have left. Running jobs may go on. The ledger of LVLM answers
stays.
"""


def main(words: Sequence[str]) -> int:
    """Run one tool; return 0, or 1 where faults remain."""
    options = _parser().parse_args(words)
    values, source = configured(vars(options))
    settings = parse_experiment(values, source=source).store if values else Settings()
    if settings is None and options.folder is None:
        do = "Name its folder: python -m lever_pipe store TOOL FOLDER"
        raise ConfigError(f"{source}: expected a store of finished work", found="store: null", do=do)
    settings = settings or Settings()
    folder = Path(settings.folder if options.folder is None else options.folder).expanduser()
    if not folder.is_dir() or _is_another(folder):
        raise StoreError(
            f"{folder}: expected a store of finished work",
            found="another folder" if folder.is_dir() else "another file" if folder.exists() else "no folder",
            do="Name the folder of a store; a run makes the one that `store.folder` in the configuration names.",
        )
    limit = settings.max_gb if options.max_gb is None else options.max_gb
    status: int = options.run(Store(folder, max_bytes=int(limit * GB)), options)
    return status


def _is_another(folder: Path) -> bool:
    """Tell a folder that no run has begun to fill as a store from one that is empty."""
    names = {path.name for path in folder.iterdir()}
    return bool(names) and not names & {"VERSION", "work", "staging", "ledger"}


def _run_stats(store: Store, options: argparse.Namespace) -> int:
    counts = store.stats()._asdict() | {"max_bytes": store.max_bytes}
    if options.json:
        sys.stdout.write(as_json({"folder": store.folder, **counts}))
        return 0
    lines = []
    for name, value in counts.items():
        of_stages = name == "stages"
        lines += [(f"  {stage}", n) for stage, n in value.items()] if of_stages else [(name.replace("_", " "), value)]
    cells = [(name, f"{value:,}") for name, value in lines]
    table = tabulate(cells, tablefmt="plain", colalign=("left", "right"), disable_numparse=True)
    sys.stdout.write(f"{store.folder}\n{table}\n")
    return 0


def _run_verify(store: Store, options: argparse.Namespace) -> int:
    faults = store.verify(mend=options.mend)
    stats = store.stats()
    left = sum(not fault.mended for fault in faults)
    if options.json:
        rows = [{**vars(of.fault), "removed": of.mended} for of in faults]
        found = {"folder": store.folder, "faults": rows, "entries": stats.entries, "files": stats.files}
        sys.stdout.write(as_json(found))
        return 1 if left else 0
    sys.stdout.writelines(f"{fault}\n" for fault in faults)
    verdict = counted(left, "fault") if left else "sound"
    held = f"{counted(stats.entries, 'finished job')}, {counted(stats.files, 'file')} of {stats.bytes:,} bytes"
    sys.stdout.write(f"{store.folder}: {verdict}; {held}\n")
    return 1 if left else 0


def _run_gc(store: Store, options: argparse.Namespace) -> int:
    mended = [str(fault) for fault in store.verify(mend=True)]
    trimmed = store.trim()
    if options.json:
        damage = {"faults": mended, "max_bytes": store.max_bytes}
        sys.stdout.write(as_json({"folder": store.folder, **trimmed._asdict(), **damage}))
        return 0
    sys.stdout.writelines(f"{fault}\n" for fault in mended)
    sys.stdout.write(
        f"removed {counted(trimmed.entries, 'finished job')} of {trimmed.bytes:,} bytes and "
        f"{counted(trimmed.temporary, 'leftover')}\n"
        f"{store.folder}: {counted(trimmed.entries_left, 'finished job')} of {trimmed.bytes_left:,} bytes; "
        f"{store.max_bytes:,} are allowed\n"
    )
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lever_pipe")
    store = parser.add_subparsers(required=True).add_parser("store", description=__doc__)
    tools = store.add_subparsers(required=True, metavar="TOOL")
    stats = tools.add_parser("stats", help="count finished jobs, files and bytes")
    verify = tools.add_parser("verify", help="read everything; status 1 and one line for each fault")
    verify.add_argument("--mend", action="store_true", help="remove what is damaged; it is computed again")
    collect = tools.add_parser("gc", help="remove what was not used for the longest time", description=GC)
    collect.add_argument("--max-gb", type=_gigabytes, metavar="N", help="what may stay, instead of `store.max_gb`")
    for tool, run in ((stats, _run_stats), (verify, _run_verify), (collect, _run_gc)):
        tool.set_defaults(run=run, max_gb=None)
        tool.add_argument("folder", nargs="?", metavar="FOLDER", help="a store; by default the configured one")
        tool.add_argument(
            "--configfile", type=Path, nargs="+", default=[], metavar="FILE", help=f"laid over {CONFIG}, as for a run"
        )
        tool.add_argument("--json", action="store_true", help="print a JSON object")
        tool.add_argument("--debug", action="store_true", help="show the traceback of a fault")
    return parser


def _gigabytes(text: str) -> float:
    value = float(text)
    if not 0 <= value < math.inf:
        raise ValueError(text)  # argparse tells it
    return value
