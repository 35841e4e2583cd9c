"""What a handful of training seeds can decide, and which way they go where they can decide nothing."""

from __future__ import annotations

from collections.abc import Sequence

from lever_pipe.report.tables.evidence import ALPHA
from lever_pipe.statistics.comparison import SEEDS_AT_MOST, least_seed_p


def can_decide(n_seeds: int, *, n_tests: int = 1) -> bool:
    """Return whether sign flips over this many seeds can give a p below 0.05, adjusted for `n_tests` (Holm)."""
    return n_seeds > SEEDS_AT_MOST or n_tests * least_seed_p(n_seeds) < ALPHA


def direction(differences: Sequence[float]) -> str:
    """Return which way most seeds go: `lower in 3 of 3`."""
    lower, higher = (sum(sign * value < 0 for value in differences) for sign in (1, -1))
    if not lower and not higher:
        return f"equal in {len(differences)} of {len(differences)}"
    word, count = ("higher", higher) if higher > lower else ("lower", lower)
    return f"{word} in {count} of {len(differences)}"


def undecidable(differences: Sequence[float]) -> str:
    """Return `undecidable with 3 seeds (lower in 3 of 3)`."""
    return f"undecidable with {seeds(len(differences))} ({direction(differences)})"


def seeds(n: int) -> str:
    """Return `1 seed` or `3 seeds`."""
    return f"{n} seed{'s' * (n != 1)}"
