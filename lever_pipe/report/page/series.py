"""Series in a text: items with a joint between them, as `a; b (c; d)`."""

from __future__ import annotations

OPEN, CLOSE = "(（", ")）"


def split_outside_brackets(joint: str, text: str) -> list[str]:
    """Return the parts of a text between those joints that stand in no brackets."""
    parts: list[str] = []
    for part in text.split(joint):
        if parts and _depth(parts[-1]) > 0:
            parts[-1] += joint + part
        else:
            parts.append(part)
    return parts


def _depth(text: str) -> int:
    return sum(text.count(sign) for sign in OPEN) - sum(text.count(sign) for sign in CLOSE)
