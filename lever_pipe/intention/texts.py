"""Text files beside a module that bear on what a stage writes.

A run's identity holds code and settings only: so the digest of such texts stands in the code, and no others are used.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from lever_pipe.base.errors import RecordError


def read_texts(folder: Path, pattern: str, digest: str) -> dict[str, str]:
    """Return the texts of a folder by file name; refuse others than those of this digest."""
    texts = {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.glob(pattern))}
    actual = hashlib.sha256("\0".join(part for item in texts.items() for part in item).encode()).hexdigest()[:16]
    if actual != digest:
        raise RecordError(
            f"{folder}: expected the texts with digest {digest}",
            found=actual,
            do="Write it where the code names the other one, so that what other texts make has another identity.",
        )
    return texts
