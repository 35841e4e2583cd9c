"""`lever-pipe store TOOL`: manage a store of finished work.

`stats` counts its contents. `verify` reads all of it and ends with status 1 and one line for each problem. `gc` reads
all of it and removes damaged entries. Then it removes the least recently used entries until the rest fits the limit of
the store, and the leftovers of killed jobs. Jobs may run at the same time. The ledger of LVLM answers stays.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tabulate import tabulate

from lever_pipe.base.errors import StoreError
from lever_pipe.experiment.studies import StoreSettings, parse_experiment
from lever_pipe.runtime.snakemake_adapter import configured
from lever_pipe.runtime.store import GB, Store, bytes_of


def main(words: Sequence[str]) -> int:
    """Run one tool; return 0, or 1 if problems remain."""
    parser = argparse.ArgumentParser(
        prog="lever-pipe store", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tool", choices=("stats", "verify", "gc"))
    parser.add_argument("folder", nargs="?", metavar="FOLDER", help="a store; by default the configured one")
    options = parser.parse_args(words[1:])
    found = configured({})
    settings = (parse_experiment(found.values, source=found.source).store if found.values else None) or StoreSettings()
    folder = Path(options.folder or settings.folder).expanduser()
    if not any((folder / name).exists() for name in ("work", "ledger")):
        do = "Name the folder of a store; a run creates the one in `store.folder` of the configuration."
        raise StoreError(f"{folder}: expected a store of finished work", found="none", do=do)
    store = Store(folder, max_bytes=int(settings.max_gb * GB))

    problems = [] if options.tool == "stats" else list(store.verify(remove=options.tool == "gc"))
    sys.stdout.writelines(f"{'removed: ' * (options.tool == 'gc')}{problem}\n" for problem in problems)
    # Trimmed first: the counts below describe the store afterwards.
    counts = {"removed": len(problems) + store.trim()} if options.tool == "gc" else {}
    works = list(store.works())
    counts |= {"entries": len(works), "bytes": sum(bytes_of(work.entry) for work in works)}
    counts |= {"ledger_bytes": bytes_of(folder / "ledger") if (folder / "ledger").exists() else 0}
    counts |= {"max_bytes": store.max_bytes}
    rows = [("folder", str(folder)), *((name, f"{n:,}") for name, n in counts.items())]
    sys.stdout.write(tabulate(rows, tablefmt="plain", colalign=("left", "right"), disable_numparse=True) + "\n")
    return 1 if problems and options.tool == "verify" else 0
