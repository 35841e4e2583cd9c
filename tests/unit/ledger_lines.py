"""Lines of an answer ledger, written without the package's own writer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def line(key: str, row: Mapping[str, Any]) -> str:
    """Return a whole line with its digest."""
    return sealed(json.dumps({"key": key, **row}))


def sealed(text: str) -> str:
    """Return a line whose digest fits whatever it holds."""
    content = text.rstrip("\n").removesuffix("}")
    return f'{content},"sha256":"{hashlib.sha256(content.encode()).hexdigest()[:16]}"}}\n'
