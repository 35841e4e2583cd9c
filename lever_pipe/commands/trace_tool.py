"""`python -m lever_pipe trace WHAT`: from a number of the report back to the checkpoint, data, config and code.

WHAT is a figure's path, a table's file, `TABLE:ROW:COLUMN` with a table's id in the report, or `FILE.csv:ROW:COLUMN`.
A row is its number, counted from 1, a cell of it, or several cells as `KL_BETA=0.15|Source=ours`. Of a cell, only the
runs that it depends on are followed, where that can be told; otherwise it is said and all are listed. Each artefact is
shown once: its settings, code fingerprint, commit, versions, device, seconds, and whether its files still are what was
made. The way ends at raw data and model folders, with their digests. A published number leads to its row in
`resources/reference`.

`--json` prints the same: `steps`, each with `inputs.NAME.made_by` as a place in that list. `--ro-crate FOLDER` writes
`ro-crate-metadata.json` there (Process Run Crate 0.5); below the results folder, files are named by relative paths.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from lever_pipe.base import contents
from lever_pipe.commands import trace, trace_data, trace_text
from lever_pipe.commands.trace_what import asked_for
from lever_pipe.runtime.rerun.artefacts import cards_below, judge, read_artefact


def main(words: Sequence[str]) -> int:
    """Print the way back, or write it as a crate, and return 0.

    Raises:
        UnknownMemberError: no such file, table, row or column, or nobody knows who made it.
        ConfigError: a row that is not one, or a crate without the library that writes it.
    """
    options = _parser().parse_args(words[1:])
    traced = traced_back(options.what, Path(options.results))
    if options.ro_crate:
        from lever_pipe.commands import trace_crate

        written = trace_crate.write(traced, Path(options.ro_crate))
        sys.stderr.write(f"{written}: {len(traced.steps)} actions\n")
    as_text = trace_text.text(traced)
    told = json.dumps(trace_data.as_object(traced), indent=2, ensure_ascii=False) + "\n" if options.json else as_text
    sys.stdout.write(told)
    return 0


def traced_back(what: str, results: Path) -> trace.Traced:
    """Return the way back from a word of the command line.

    Raises:
        UnknownMemberError, ConfigError: as `main`.
    """
    asked, digests = asked_for(what, results), contents.remembered()
    verdicts = [judge(read_artefact(card), digests) for card in cards_below(asked.results)]
    return trace.trace(asked, verdicts, digests)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lever_pipe trace", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", help="figure, table file, TABLE:ROW:COLUMN or FILE.csv:ROW:COLUMN")
    parser.add_argument("--results", default="results", help="the results folder, for a table's id")
    parser.add_argument("--json", action="store_true", help="print the same as data")
    parser.add_argument("--ro-crate", metavar="FOLDER", default="", help="write it as a Process Run Crate, too")
    return parser
