"""Families of comparisons between groups; the p values of a family are adjusted together."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from lever_pipe.base.policy_names import PolicyName
from lever_pipe.experiment.evaluation import PrimaryCells
from lever_pipe.experiment.sweeps import Sweep
from lever_pipe.report.evidence import BY_SHOTS, PRIMARY, SECONDARY, TOGETHER, adjusted_in

REFERENCE_BETA = 0.15
DOCUMENT_002 = ((0.18, 0.15), (0.12, 0.15), (0.18, 0.12))
DOCUMENT_SAMPLES = 200
ORACLE = "baseline/oracle"
SWEEP = "sweep~"
"""Prefix of the names of sweeps' families."""

Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class ComparisonFamily:
    """Comparisons of groups, left minus right, over the first `samples` questions.

    Families with the same `adjusted_with` are adjusted as one.
    """

    name: str
    samples: int
    pairs: Pairs
    adjusted_with: str
    shots: tuple[str, ...] = ()
    """Shot counts and `mean`; empty for all of them."""
    role: str = SECONDARY


@dataclass(frozen=True, slots=True)
class Arm:
    """The groups of one preset."""

    preset: str
    sft: dict[int, str] = field(default_factory=dict)
    """Supervised learning of beam data, by epoch."""
    rce: dict[int, str] = field(default_factory=dict)
    """RCE by epoch."""
    grpo: dict[tuple[int, float, int], str] = field(default_factory=dict)
    """The published, offline GRPO, by base epoch, beta and epoch."""
    on_policy: dict[tuple[int, float, int], str] = field(default_factory=dict)
    """GRPO on the policy's own samples, by base epoch, beta and epoch."""
    extra_objectives: dict[tuple[int, str, int], str] = field(default_factory=dict)
    """Other objectives, by base epoch, name and epoch."""

    @property
    def base(self) -> int | None:
        """Return the latest RCE epoch with GRPO runs; these fill the documents' tables."""
        return max((base for base, _, _ in self.grpo), default=None)

    def betas(self, epoch: int | None = None) -> list[float]:
        """Return the betas from `base`, of all epochs or of one."""
        return sorted({b for base, b, e in self.grpo if base == self.base and epoch in (None, e)})

    @property
    def epochs(self) -> list[int]:
        """Return the GRPO epochs from `base`."""
        return sorted({e for base, _, e in self.grpo if base == self.base})

    @property
    def last(self) -> int | None:
        """Return the last GRPO epoch common to every base and beta."""
        return _last_common(self.grpo)

    @property
    def last_grpo(self) -> dict[float, str]:
        """Return the groups of the last common epoch from `base`, by beta."""
        return {beta: name for (base, beta), name in self.ended("grpo").items() if base == self.base}

    def ended(self, kind: Literal["grpo", "on_policy"]) -> dict[tuple[int, float], str]:
        """Return the groups of one kind of GRPO after the last common epoch, by base and beta in ascending order."""
        runs, last = (self.grpo, self.last) if kind == "grpo" else (self.on_policy, self.last_on_policy)
        return {(base, beta): name for (base, beta, epoch), name in sorted(runs.items()) if epoch == last}

    def over_betas(self, kind: Literal["grpo", "on_policy"]) -> dict[str, tuple[str, ...]]:
        """Return for each base the mean group over all betas after the last common epoch, with the groups of the betas.

        A base with one beta has no such group.

        Args:
            kind: of the runs.
        """
        last, groups = self.last if kind == "grpo" else self.last_on_policy, dict[str, tuple[str, ...]]()
        for (base, _), name in self.ended(kind).items():
            over = str(PolicyName(kind=kind, preset=self.preset, base=base, is_over_betas=True, epoch=last))
            groups[over] = (*groups.get(over, ()), name)
        return {name: names for name, names in groups.items() if len(names) > 1}

    @property
    def last_on_policy(self) -> int | None:
        """Return the last epoch common to every on-policy run and every extra objective, from any base."""
        return _last_common([*self.on_policy, *self.extra_objectives])

    @property
    def on_policy_base(self) -> int | None:
        """Return the latest RCE epoch with on-policy runs or extra objectives."""
        return max((base for base, _, _ in [*self.on_policy, *self.extra_objectives]), default=None)

    @property
    def on_policy_groups(self) -> dict[float, str]:
        """Return the on-policy groups of the last common epoch from `on_policy_base`, by beta."""
        return {beta: name for (base, beta), name in self.ended("on_policy").items() if base == self.on_policy_base}

    def extra_objective(self, name: str) -> str | None:
        """Return the group of an extra objective at `last_on_policy`, from `on_policy_base`."""
        base, epoch = self.on_policy_base, self.last_on_policy
        return None if base is None or epoch is None else self.extra_objectives.get((base, name, epoch))

    @property
    def extra_groups(self) -> list[str]:
        """Return the groups of all extra objectives at the same epoch, from the same base."""
        return [
            name
            for extra_objective in ("reinforce", "continued", "distil")
            if (name := self.extra_objective(extra_objective))
        ]

    def group_for_sweep(self, sweep: Sweep) -> str:
        """Return the arm's group in a sweep: at the reference beta, on-policy if on-policy settings are swept.

        Without such a run it is the last RCE epoch; without RCE, the last SFT epoch.
        """
        groups = self.on_policy_groups if any(key.startswith("on_policy.") for key in sweep.over) else self.last_grpo
        return groups.get(reference_of(sorted(groups)) or 0.0, self.last_rce or self.last_sft or "")

    @property
    def last_sft(self) -> str | None:
        """Return the group of the last SFT epoch."""
        return self.sft[max(self.sft)] if self.sft else None

    @property
    def last_rce(self) -> str | None:
        """Return the group of the last RCE epoch."""
        return self.rce[max(self.rce)] if self.rce else None

    @property
    def reference_beta(self) -> float | None:
        """Return the documents' 0.15, or the middle beta if it is absent."""
        return reference_of(self.betas())


def reference_of(betas: Sequence[float]) -> float | None:
    """Return 0.15 if it is among the ascending betas, else the middle one; None without betas."""
    if not betas:
        return None
    return REFERENCE_BETA if REFERENCE_BETA in betas else betas[len(betas) // 2]


def arms_of(groups: Iterable[str], main_preset: str) -> list[Arm]:
    """Return the presets among the groups, the main preset first; without a group it is an empty arm."""
    arms = {main_preset: Arm(main_preset)}
    for group in groups:
        name = PolicyName.parse(group) if group.startswith("preset~") else None
        if name is None or name.epoch is None or name.is_over_betas:
            continue
        arm, base = arms.setdefault(name.preset, Arm(name.preset)), name.base or 0
        match name.kind:
            case "sft":
                arm.sft[name.epoch] = group
            case "rce":
                arm.rce[name.epoch] = group
            case "grpo":
                arm.grpo[base, name.beta or 0.0, name.epoch] = group
            case "on_policy":
                arm.on_policy[base, name.beta or 0.0, name.epoch] = group
            case "reinforce" | "distil" | "continued":
                arm.extra_objectives[base, name.kind, name.epoch] = group
    return list(arms.values())


def _last_common(runs: Iterable[tuple[int, float | str, int]]) -> int | None:
    """Return the last epoch common to all runs, from tuples of base, beta or objective, and epoch."""
    latest: dict[tuple[int, float | str], int] = {}
    for base, which, epoch in runs:
        latest[base, which] = max(epoch, latest.get((base, which), 0))
    return min(latest.values(), default=None)


def family_of_sweep(
    sweep: Sweep, arms: Mapping[str, Arm], primary: PrimaryCells, samples: Sequence[int]
) -> ComparisonFamily:
    """Return the family of a sweep: every cell against the swept arm at the primary endpoint."""
    cells = {cell.arm: arms[cell.arm].group_for_sweep(sweep) for cell in sweep.cells}
    base = cells.pop(sweep.arm)
    n, name = max(samples) if primary.samples == "largest" else primary.samples, SWEEP + sweep.name
    return ComparisonFamily(name, n, tuple((cell, base) for cell in cells.values()), name, (str(primary.shots),))


class Family(NamedTuple):
    """A family of one preset: its name, its cells, and its pairs."""

    name: str
    cells: Literal["primary", "other cells", "all cells"]
    """The primary endpoint; the other cells of the largest sample count; or all cells. Only the first has role
    primary."""
    pairs: Callable[[Arm, Sequence[str]], Pairs]
    """Left and right, from the preset's groups and the baselines."""


# Lambdas, because the functions are defined below.
FAMILIES: Sequence[Family] = (
    # does GRPO help, does its KL_BETA matter, do on-policy samples matter
    Family("grpo-over-betas", "primary", lambda arm, _: _against_base(arm, arm.over_betas("grpo"))),
    Family("grpo-against-rce", "primary", lambda arm, _: _against_base(arm, arm.ended("grpo").values())),
    Family("grpo-betas", "primary", lambda arm, _: _against_smallest(arm.last_grpo)),
    Family("on-policy-over-betas", "primary", lambda arm, _: _against_base(arm, arm.over_betas("on_policy"))),
    Family("on-policy-against-rce", "primary", lambda arm, _: _against_base(arm, arm.ended("on_policy").values())),
    Family("on-policy-betas", "primary", lambda arm, _: _against_smallest(arm.on_policy_groups)),
    Family("on-policy-against-offline", "primary", lambda arm, _: _against_offline(arm)),
    # the gain of learning, and the bounds that the extra objectives give
    Family(
        "learning",
        "all cells",
        lambda arm, baselines: tuple((arm.last_rce, baseline) for baseline in baselines if arm.last_rce),
    ),
    Family("supervised", "all cells", lambda arm, baselines: _supervised(arm, baselines)),
    Family("extra_objectives", "all cells", lambda arm, baselines: _extra_objectives(arm, baselines)),
    # the primary comparisons at other cells
    Family("grpo-against-rce", "other cells", lambda arm, _: _against_base(arm, arm.ended("grpo").values())),
    Family("on-policy-against-rce", "other cells", lambda arm, _: _against_base(arm, arm.ended("on_policy").values())),
    Family("on-policy-against-offline", "other cells", lambda arm, _: _against_offline(arm)),
    Family("on-policy-betas", "other cells", lambda arm, _: _against_smallest(arm.on_policy_groups)),
)
"""In the order of the file; each is adjusted (Holm) separately, or together with the same family of other presets."""

DOCUMENTS: Mapping[str, Callable[[Mapping[float, str]], Pairs]] = {
    "document-001": lambda runs: _against_reference(runs),
    "document-002": lambda runs: tuple((runs[x], runs[y]) for x, y in DOCUMENT_002 if x in runs and y in runs),
}
"""The documents' comparisons after each epoch, from groups by KL_BETA, at the sample count nearest to
`DOCUMENT_SAMPLES`."""


def families_of(
    arm: Arm,
    primary: PrimaryCells,
    *,
    together: Container[tuple[str, str]],
    is_main: bool,
    baselines: Sequence[str],
    columns: Sequence[str],
    samples: Sequence[int],
) -> list[ComparisonFamily]:
    """Return the families of one preset that have comparisons, the primary endpoint first.

    Args:
        arm: the preset's groups.
        primary: the endpoint of the primary families.
        together: primary families by name and preset; families with the same name are adjusted as one.
        is_main: whether this is the main preset; others prefix the family's name with their own.
        baselines: groups to compare with the last RCE and SFT epochs.
        columns: the shot counts and `mean`.
        samples: evaluated sample counts.
    """
    prefix, largest, shots = "" if is_main else f"preset~{arm.preset}/", max(samples), str(primary.shots)
    n = largest if primary.samples == "largest" else primary.samples
    others = tuple(column for column in columns if (column, largest) != (shots, n))
    first, secondary = list[ComparisonFamily](), list[ComparisonFamily]()
    for family in FAMILIES:
        name, pairs = prefix + family.name, family.pairs(arm, baselines)
        if family.cells == "primary":
            name += TOGETHER if (family.name, arm.preset) in together else ""
            first.append(ComparisonFamily(name, n, pairs, adjusted_in(name), (shots,), PRIMARY))
        elif family.cells == "all cells":
            secondary.append(ComparisonFamily(name, largest, pairs, name))
        elif others:
            secondary.append(ComparisonFamily(name + BY_SHOTS, largest, pairs, name + BY_SHOTS, others))
    for epoch in arm.epochs:
        groups = {beta: arm.grpo[arm.base, beta, epoch] for beta in arm.betas(epoch) if arm.base is not None}
        for document, pairs_of in DOCUMENTS.items():
            name = f"{prefix}{document}/epoch~{epoch}"
            first.append(ComparisonFamily(name, near(samples, DOCUMENT_SAMPLES), pairs_of(groups), name))
    return [family for family in (*first, *secondary) if family.pairs]


def near(samples: Sequence[int], target: int) -> int:
    """Return the sample count nearest to the target; of two, the smaller."""
    return min(samples, key=lambda n: (abs(n - target), n))


def _against_offline(arm: Arm) -> Pairs:
    offline = arm.ended("grpo")
    return tuple((name, offline[key]) for key, name in arm.ended("on_policy").items() if key in offline)


def _against_reference(runs: Mapping[float, str]) -> Pairs:
    """Return each beta of document 001 against 0.15, or against the middle beta."""
    reference = reference_of(sorted(runs))
    return tuple((name, runs[reference]) for beta, name in runs.items() if reference is not None and beta != reference)


def _against_base(arm: Arm, groups: Iterable[str]) -> Pairs:
    """Return each group paired with its initial RCE epoch."""
    pairs = ((name, arm.rce.get(PolicyName.parse(name).base or 0)) for name in groups)
    return tuple((name, start) for name, start in pairs if start is not None)


def _against_smallest(groups: Mapping[float, str]) -> Pairs:
    """Return each beta, in ascending order, paired with the smallest one, which is 0 if 0 is among them."""
    smallest, *others = groups.values() or [""]
    return tuple((name, smallest) for name in others)


def _supervised(arm: Arm, baselines: Sequence[str]) -> Pairs:
    """Return the last SFT epoch against each baseline, and the last RCE epoch against it."""
    rce, sft = arm.last_rce, arm.last_sft
    if sft is None:
        return ()
    return (*((sft, name) for name in baselines), *([(rce, sft)] if rce is not None else []))


def _extra_objectives(arm: Arm, baselines: Sequence[str]) -> Pairs:
    """Return the pairs of extra objectives.

    Each is compared with the RCE base and the smallest on-policy beta, the upper bound also with the oracle. The
    offline GRPO of the smallest beta is compared with continued RCE.
    """
    rce = arm.rce.get(arm.on_policy_base) if arm.on_policy_base is not None else None
    on_policy = next(iter(arm.on_policy_groups.values()), None)
    smallest = [name for (base, _), name in arm.ended("grpo").items() if base == arm.on_policy_base][:1]
    lower, upper, continued = (
        arm.extra_objective("reinforce"),
        arm.extra_objective("distil"),
        arm.extra_objective("continued"),
    )
    oracle = ORACLE if ORACLE in baselines else None
    pairs = [(lower, rce), (on_policy, lower), (upper, rce), (upper, on_policy), (upper, oracle)]
    pairs += [(continued, rce), (on_policy, continued), *((offline, continued) for offline in smallest)]
    return tuple((left, right) for left, right in pairs if left is not None and right is not None)
