"""`lever-pipe ledger merge FOLDER`: combine the many files that jobs write to an answer ledger into one.

Replaces all files of FOLDER by one with one row for each key, sorted by key. Of two different values for a key the
first is kept (files by name, lines in order), as jobs do; values are never averaged. Merging again changes nothing.

Jobs may write at the same time. The merged file is complete on disk before any file is removed. Files that grow or
appear during the merge stay, and a job whose file was removed continues in a new one. A killed merge loses nothing.

A line that was changed after it was written, or that has no digest, stops the merge.
"""

from __future__ import annotations

import hashlib
import secrets
import sys
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import click

from lever_pipe.base import atomic, storage
from lever_pipe.base.errors import DataError, RecordError
from lever_pipe.base.provenance import canonical_json
from lever_pipe.lvlms.asking.ledger import Row, parse_row, read_files, sealed_line, union


class Merged(NamedTuple):
    """The outcome of a merge."""

    target: Path
    rows: int
    damaged: list[RecordError]
    """Omitted lines."""
    removed: list[Path]
    stayed: list[Path]
    """Files that grew during the merge."""


@click.command(help=__doc__)
@click.argument("tool", type=click.Choice(["merge"]))
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--drop", is_flag=True, help="omit damaged lines; their prompts are answered again")
def command(tool: str, folder: Path, drop: bool) -> None:
    """Merge a ledger's files and print the outcome."""
    del tool  # there is one
    merged = merge(folder, drop=drop)
    sys.stdout.writelines(f"left out: {problem}\n" for problem in merged.damaged)
    sys.stdout.write(
        f"{merged.target}: {merged.rows:,} rows\n"
        f"files removed: {len(merged.removed):,}; grown meanwhile, so kept: {len(merged.stayed):,}\n"
    )


def merge(folder: Path, *, drop: bool = False) -> Merged:
    """Write the rows of a ledger into one file, one row for each key, and remove the files that it replaces.

    Equal rows give equal bytes, for any distribution of the rows over files.
    """
    rows: dict[str, Row] = {}
    sizes: dict[Path, int] = {}
    damaged: list[RecordError] = []
    for path, content in read_files(folder):
        sizes[path] = len(content)
        for number, line in enumerate(BytesIO(content), start=1):
            if not line.endswith(b"\n"):  # the writer was killed, or is still writing it
                continue
            try:
                key, row = parse_row(line, path, number)
                if (known := rows.setdefault(key, row)) is not row:
                    union(known, row)
            except RecordError as error:
                damaged.append(error)
    if not sizes:
        found = "no such file" if folder.is_dir() else "no folder"
        do = "Name the `ledger` folder of the store, as .lever_pipe/store/ledger, or without a store of the results."
        raise RecordError(f"{folder}: expected a folder with ledger files (*.jsonl)", found=found, do=do)
    if damaged and not drop:
        found = f"problems: {len(damaged):,}, the first: {damaged[0].expected}; found {damaged[0].found}"
        do = "Delete these lines, or leave them out: ledger merge --drop. Their prompts are answered again."
        raise DataError(f"{folder}: expected rows that can be merged", found=found, do=do)
    try:
        merged = [sealed_line(key, canonical_json(rows[key])) for key in sorted(rows)]
    except ValueError as error:
        do = "Delete the rows that hold others; their prompts are answered again."
        raise DataError(f"{folder}: expected finite numbers", found=str(error), do=do) from None
    digest = hashlib.sha256(b"".join(merged)).hexdigest()
    # The name sorts before every host's, so that rows keep their precedence over the file of a running job. It contains
    # the digest, so that different contents have different names.
    target = folder / f"0-merged-{digest[:16]}.jsonl"
    if not target.exists() or storage.digest(target) != digest:
        atomic.write_file(target, lambda handle: handle.writelines(merged))
    # The content and its new name are on disk before an old file is removed.
    others = [path for path in sizes if path != target]
    removed = [path for path in others if _remove_unless_grown(path, sizes[path])]
    stayed = [path for path in others if path not in removed]
    return Merged(target, len(rows), damaged, removed, stayed)


def _remove_unless_grown(path: Path, size: int) -> bool:
    """Remove a file unless it has grown, and return whether it is gone.

    Its writer may append between the check of the size and the removal. So the file is first renamed, to a name that
    readers also find. A writer that comes later finds no file under the old name and writes its chunk again; an earlier
    append shows in the size.
    """
    try:
        if path.stat().st_size != size:
            return False
        aside = path.rename(path.with_name(f"{path.stem}-{secrets.token_hex(4)}.jsonl"))
        if aside.stat().st_size != size:
            return False
        aside.unlink()
    except FileNotFoundError:
        return True  # another merge was faster
    return True
