"""A collector of data faults, so that one message shows all of them with counts."""

from __future__ import annotations

from collections.abc import Iterable

from lever_pipe.base.errors import DataError
from lever_pipe.base.storage import shortened

SHOWN = 5


class Faults:
    """Faults by kind, in the order in which the kinds are first met."""

    def __init__(self) -> None:
        self._items: dict[str, list[str]] = {}

    def add(self, kind: str, item: str | int) -> None:
        """Record one fault of a kind, for example `add("missing image", "a.jpg")`."""
        self._items.setdefault(shortened(kind), []).append(shortened(str(item)))

    def extend(self, kind: str, items: Iterable[str | int]) -> None:
        """Record several faults of one kind."""
        for item in items:
            self.add(kind, item)

    def __str__(self) -> str:
        """Return one line a kind: its name, its count and the first few items."""
        lines = []
        for kind, items in self._items.items():
            rest = f", and {len(items) - SHOWN} more" if len(items) > SHOWN else ""
            lines.append(f"  {kind}: {len(items)} ({', '.join(items[:SHOWN])}{rest})")
        return "\n".join(lines)

    def raise_any(self, expected: str, *, do: str) -> None:
        """Raise one DataError when there is any fault."""
        if self._items:
            raise DataError(expected, found=f"\n{self}\n", do=do)
