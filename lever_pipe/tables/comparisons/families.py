"""Which groups are compared with which: the families of comparisons whose p values are adjusted together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

REFERENCE_BETA = 0.15
DOCUMENT_002 = ((0.18, 0.15), (0.12, 0.15), (0.18, 0.12))
DOCUMENT_SAMPLES = 200
BEST, OTHERS = "best-beta", "other-betas"
AGAINST_RCE, LEARNING = "grpo-against-rce", "learning"

Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Family:
    """Comparisons of groups, left minus right, over the first `samples` questions, at every shot count and their mean.

    Families of one `adjusted_with` are adjusted as one.
    """

    name: str
    samples: int
    pairs: Pairs
    adjusted_with: str


@dataclass(frozen=True, slots=True)
class Arm:
    """The groups of one preset."""

    preset: str
    rce: Mapping[int, str]
    """By epoch."""
    grpo: Mapping[tuple[int, float, int], str]
    """By base epoch, beta and epoch."""

    @property
    def base(self) -> int | None:
        """Return the RCE epoch whose GRPO runs fill the documents' tables, the latest."""
        return max((base for base, _, _ in self.grpo), default=None)

    def betas(self, epoch: int | None = None) -> list[float]:
        """Return the betas from `base`, those of one epoch where it is named."""
        return sorted({b for base, b, e in self.grpo if base == self.base and epoch in (None, e)})

    @property
    def epochs(self) -> list[int]:
        """Return the GRPO epochs from `base`."""
        return sorted({e for base, _, e in self.grpo if base == self.base})

    @property
    def last(self) -> int | None:
        """Return the last GRPO epoch that every base and beta has."""
        latest: dict[tuple[int, float], int] = {}
        for base, beta, epoch in self.grpo:
            latest[base, beta] = max(epoch, latest.get((base, beta), 0))
        return min(latest.values(), default=None)

    @property
    def last_grpo(self) -> dict[float, str]:
        """Return the groups of the last common epoch from `base`, by beta."""
        return {b: name for (base, b, e), name in sorted(self.grpo.items()) if (base, e) == (self.base, self.last)}

    @property
    def last_rce(self) -> str | None:
        """Return the group of the last RCE epoch."""
        return self.rce[max(self.rce)] if self.rce else None

    @property
    def reference_beta(self) -> float | None:
        """Return the documents' 0.15, or where it is absent the middle beta."""
        return reference_of(self.betas())


def reference_of(betas: Sequence[float]) -> float | None:
    """Return 0.15 where it is among rising betas, else the middle one, None of none."""
    if not betas:
        return None
    return REFERENCE_BETA if REFERENCE_BETA in betas else betas[len(betas) // 2]


def arms_of(groups: Iterable[str], main_preset: str) -> list[Arm]:
    """Return the presets among the groups, the main one first; a main preset without a group is an empty arm."""
    arms: dict[str, tuple[dict[int, str], dict[tuple[int, float, int], str]]] = {main_preset: ({}, {})}
    for name in groups:
        values = dict(part.split("~", 1) for part in name.split("/") if "~" in part)
        if not name.startswith("preset~") or "epoch" not in values:
            continue
        rce, grpo = arms.setdefault(values["preset"], ({}, {}))
        if "beta" in values:
            grpo[int(values["base"]), float(values["beta"]), int(values["epoch"])] = name
        elif name.split("/")[1] == "rce":
            rce[int(values["epoch"])] = name
    return [Arm(preset, *found) for preset, found in arms.items()]


def families_of(
    arm: Arm, *, is_main: bool, baselines: Sequence[str], samples: Sequence[int], accuracy: Callable[[str], float]
) -> list[Family]:
    """Return the families of one preset that have a comparison.

    The best KL_BETA is chosen from the data that then compare it, so that its comparisons are adjusted for all pairs
    of betas; `other-betas` are the pairs without it.

    Args:
        arm: the preset's groups.
        is_main: other presets write their name before the family's.
        baselines: groups that the last RCE epoch is held against.
        samples: evaluated sample counts.
        accuracy: mean over shots of a group at the largest sample count, which chooses the best beta.
    """
    prefix = "" if is_main else f"preset~{arm.preset}/"
    largest = max(samples)
    found = [
        Family(f"{prefix}{name}", near(samples, DOCUMENT_SAMPLES), pairs, f"{prefix}{name}")
        for epoch in arm.epochs
        for name, pairs in _documents(arm, epoch).items()
    ]
    rce = arm.last_rce
    last = {
        BEST: _against_best(arm, accuracy),
        OTHERS: _other_pairs(arm, accuracy),
        AGAINST_RCE: _against_base(arm),
        LEARNING: tuple((rce, name) for name in baselines) if rce else (),
    }
    together = {OTHERS: BEST}
    found += [
        Family(f"{prefix}{name}", largest, pairs, f"{prefix}{together.get(name, name)}") for name, pairs in last.items()
    ]
    return [family for family in found if family.pairs]


def best_beta(arm: Arm, accuracy: Callable[[str], float]) -> float | None:
    """Return the beta of the highest accuracy after the last common epoch, of equal ones the smallest."""
    return max(arm.last_grpo, key=lambda beta: (accuracy(arm.last_grpo[beta]), -beta), default=None)


def near(samples: Sequence[int], wanted: int) -> int:
    """Return the sample count nearest to the wanted one, of two the smaller."""
    return min(samples, key=lambda n: (abs(n - wanted), n))


def _documents(arm: Arm, epoch: int) -> dict[str, Pairs]:
    at = {beta: arm.grpo[arm.base, beta, epoch] for beta in arm.betas(epoch) if arm.base is not None}
    reference = reference_of(sorted(at))
    against = [(name, at[reference]) for beta, name in at.items() if reference is not None and beta != reference]
    pairs = [(at[left], at[right]) for left, right in DOCUMENT_002 if left in at and right in at]
    return {f"document-001/epoch~{epoch}": tuple(against), f"document-002/epoch~{epoch}": tuple(pairs)}


def _against_best(arm: Arm, accuracy: Callable[[str], float]) -> Pairs:
    best = best_beta(arm, accuracy)
    return tuple(
        (name, arm.last_grpo[best]) for beta, name in arm.last_grpo.items() if best is not None and beta != best
    )


def _other_pairs(arm: Arm, accuracy: Callable[[str], float]) -> Pairs:
    best = best_beta(arm, accuracy)
    return tuple(combinations((name for beta, name in arm.last_grpo.items() if beta != best), 2))


def _against_base(arm: Arm) -> Pairs:
    at_last = [(name, arm.rce.get(base)) for (base, _, epoch), name in sorted(arm.grpo.items()) if epoch == arm.last]
    return tuple((name, start) for name, start in at_last if start is not None)
