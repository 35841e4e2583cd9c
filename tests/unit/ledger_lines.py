"""Lines of an answer ledger, written without the package's own writer; and a ledger whose rows are on disk."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lever_pipe.lvlms.asking.ledger import Ledger


def line(key: str, row: Mapping[str, Any]) -> str:
    """Return a whole line with its digest."""
    return sealed(json.dumps({"key": key, **row}))


def sealed(text: str) -> str:
    """Return a line with a valid digest, whatever its content."""
    content = text.rstrip("\n").removesuffix("}")
    return f'{content},"sha256":"{hashlib.sha256(content.encode()).hexdigest()[:16]}"}}\n'


@contextmanager
def written(folder: Path) -> Iterator[Ledger]:
    """Yield a ledger, and write the block's additions to disk."""
    ledger = Ledger(folder)
    yield ledger
    ledger.flush()
