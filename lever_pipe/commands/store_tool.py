"""`lever-pipe store TOOL`: manage a store of finished work; without FOLDER, the configured one.

`stats` counts its contents. `verify` reads all of it and ends with status 1 and one line for each problem. `gc` reads
all of it and removes damaged entries. Then it removes the least recently used entries until the rest fits the limit of
the store, and the leftovers of killed jobs. Jobs may run at the same time. The ledger of LVLM answers stays.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click
from tabulate import tabulate

from lever_pipe.base.errors import StoreError
from lever_pipe.experiment.studies import StoreSettings, parse_experiment
from lever_pipe.runtime.snakemake_adapter import configured
from lever_pipe.runtime.store import GB, Store, bytes_of


@click.command(help=__doc__)
@click.argument("tool", type=click.Choice(["stats", "verify", "gc"]))
@click.argument("folder", required=False)
def command(tool: str, folder: str | None) -> int:
    """Run one tool; return 0, or 1 if problems remain."""
    found = configured({})
    settings = (parse_experiment(found.values, source=found.source).store if found.values else None) or StoreSettings()
    root = Path(folder or settings.folder).expanduser()
    if not any((root / name).exists() for name in ("work", "ledger")):
        do = "Name the folder of a store; a run creates the one in `store.folder` of the configuration."
        raise StoreError(f"{root}: expected a store of finished work", found="none", do=do)
    store = Store(root, max_bytes=int(settings.max_gb * GB))

    problems = [] if tool == "stats" else list(store.verify(remove=tool == "gc"))
    sys.stdout.writelines(f"{'removed: ' * (tool == 'gc')}{problem}\n" for problem in problems)
    # Trimmed first: the counts below describe the store afterwards.
    counts = {"removed": len(problems) + store.trim()} if tool == "gc" else {}
    works = list(store.works())
    counts |= {"entries": len(works), "bytes": sum(bytes_of(work.entry) for work in works)}
    counts |= {"ledger_bytes": bytes_of(root / "ledger") if (root / "ledger").exists() else 0}
    counts |= {"max_bytes": store.max_bytes}
    rows = [("folder", str(root)), *((name, f"{n:,}") for name, n in counts.items())]
    sys.stdout.write(tabulate(rows, tablefmt="plain", colalign=("left", "right"), disable_numparse=True) + "\n")
    return 1 if problems and tool == "verify" else 0
