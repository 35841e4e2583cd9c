"""The numbers in a text, as printed."""

from __future__ import annotations

import re

NUMBER = r"\d+(?:,\d{3})*(?:\.\d+)?(?:[eE][-+]?\d+)?"
TOKEN = re.compile(rf"(?:(?<![0-9A-Za-z_.)\]])[-+−])?{NUMBER}")
"""A number with its sign; a hyphen between word and number, as in `1-50` or `VL-3B`, is no sign."""


def numbers_in(text: str) -> list[str]:
    """Return the numbers of a text in reading order, each as it is printed, its sign included."""
    return TOKEN.findall(text)
