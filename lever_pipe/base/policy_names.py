"""The path-like names of policies: parse, format and label them.

A name identifies a selector: `baseline/random-3`, `preset~world/rce/seed~0/epoch~5`,
`preset~world/grpo/base~5/beta~0.1/seed~0/epoch~3`, `emulation/head/beta~0.1/epoch~2`. In study `intention` it
identifies an agent: `arm~reference/seed~0`. Published rows have such names too: `published/grpo/beta~0.15/epoch~3`. A
*group* is a name without its seed or draw; `preset~world/grpo/base~5/beta~all/epoch~3` is the mean over all KL_BETA.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, NamedTuple, Self

from lever_pipe.base.errors import RecordError

Mode = Literal["", "offline", "on_policy"]
Phase = Literal["baseline", "own", "init", "sft", "rce", "grpo", "reinforce", "distil", "continued"]

EMULATION = "emulation"
"""First part of every emulated policy's name, and name of its answer batch."""
BASELINE = "baseline"
OWN = "own"
"""First part of the names of a user's own selectors, and name of their answer batch."""
TRANSFER, FIRST_ITEMS = "transfer", "first_items"
"""Answer batches of selectors trained elsewhere in the grid, and of selectors offered the first train items."""
ALL_BETAS = "all"
AGENT = "agent"
STARTS = ("preset~", "arm~")
"""Prefixes of the names of trained policies and agents, after an optional origin."""
ORIGIN, ITEMS = "from~", "items~"
NUMBERS = {"base", "beta", "seed", "epoch", "untouched", "items"}


class Training(NamedTuple):
    """A training method: its label, and the numbers in a policy's name; a group has no seed."""

    method: str
    numbers: tuple[str, ...]


TRAINED = {
    "init": Training("initialisation", ()),
    "sft": Training("SFT", ("epoch",)),
    "rce": Training("RCE", ("epoch",)),
    "grpo": Training("GRPO", ("base", "beta", "epoch")),
    "on_policy": Training("on-policy GRPO", ("base", "beta", "epoch")),
    "reinforce": Training("REINFORCE", ("base", "beta", "epoch")),
    "distil": Training("oracle distillation", ("base", "epoch")),
    "continued": Training("continued RCE", ("base", "epoch")),
}
"""Methods by the kind of a trained policy."""


@dataclass(frozen=True, kw_only=True)
class PolicyName:
    """A policy's name in parts; an empty part does not apply to its kind.

    Attributes:
        kind: `baseline`, `own`, a key of `TRAINED`, `emulation`, `published`, or `agent`.
        preset: of a trained policy.
        variant: name of a baseline, of an arm of the emulation or of the agents, or of a published phase.
        draw: number of a draw, for baselines with several draws.
        base: the RCE epoch that training started from.
        beta: KL_BETA.
        is_over_betas: whether the name means the average over all KL_BETA of GRPO, written `beta~all`.
        is_untouched: whether an emulated epoch makes no updates.
        document: the document that quotes a published row, if several do.
        origin: data set or LVLM of the training, if the policy is evaluated in another setting of the grid.
        items: number of first train items offered to the policy, instead of each query's own pool.
    """

    kind: str
    preset: str = ""
    variant: str = ""
    draw: int | None = None
    base: int | None = None
    beta: float | None = None
    is_over_betas: bool = False
    seed: int | None = None
    epoch: int | None = None
    is_untouched: bool = False
    document: str = ""
    origin: str = ""
    items: int | None = None

    @classmethod
    @lru_cache(maxsize=65_536)  # a plan parses each name a dozen times
    def parse(cls, text: str) -> Self:
        """Return the parts of a policy's or group's name.

        Raises:
            RecordError: the text is not a name, or differs from the form that `str` writes.
        """
        # Formatting the parts again refuses other spellings (`seed~00`): one policy has one name and one folder.
        with suppress(KeyError, TypeError, ValueError):
            name = cls._read(text)
            if str(name) == text and name.is_whole:
                return name
        raise RecordError(
            "expected a policy's name, such as preset~world/rce/seed~0/epoch~5 or baseline/oracle",
            found=repr(text),
            do="Name a policy as the results name its folder.",
        )

    @classmethod
    def in_path(cls, path: str) -> Self | None:
        """Return the policy or agent whose folder contains a path, or None; a trained one's folder has a seed."""
        parts = path.split("/")
        # From the end, because folders above may resemble a name; longest first, because a name may begin with another.
        for start in range(len(parts) - 1, -1, -1):
            if parts[start] not in (BASELINE, EMULATION, OWN) and not parts[start].startswith(STARTS):
                continue
            start -= start > 0 and parts[start - 1].startswith((ORIGIN, ITEMS))
            for end in range(len(parts), start, -1):
                try:
                    name = cls.parse("/".join(parts[start:end]))
                except RecordError:
                    continue
                if name.kind in (BASELINE, OWN) or name.seed is not None:
                    return name
        return None

    @classmethod
    def _read(cls, text: str) -> Self:
        values: dict[str, Any] = values_in(text)
        # Unknown fields raise TypeError in `cls`, which `parse` reports.
        if values.get("beta") == ALL_BETAS:
            values |= {"is_over_betas": bool(values.pop("beta"))}
        for name in NUMBERS & values.keys():
            values[name] = float(values[name]) if name == "beta" else int(values[name])
        if "untouched" in values:
            values |= {"epoch": values.pop("untouched"), "is_untouched": True}
        values["origin"] = values.pop("from", "")
        match [part for part in text.split("/") if "~" not in part]:
            case ["baseline", variant]:
                name, _, draw = variant.rpartition("-")
                fields = {"variant": name, "draw": int(draw)} if name and draw.isdecimal() else {"variant": variant}
                return cls(kind=BASELINE, **fields, **values)
            case ["emulation" | "published" | "own" as kind, variant]:
                return cls(kind=kind, variant=variant, **values)
            case [kind]:
                return cls(kind=kind, **values)
            case []:
                return cls(kind=AGENT, variant=values.pop("arm"), **values)
            case _:
                raise ValueError(text)

    @property
    def is_whole(self) -> bool:
        """Whether the name has exactly the parts of its kind, not counting seed and draw."""
        stated = {name for name in ("base", "beta", "epoch") if getattr(self, name) is not None}
        if self.is_over_betas:
            stated = stated | {"beta"} if self.kind in ("grpo", "on_policy") and self.beta is None else set()
        match self.kind:
            case "baseline" | "agent" | "own":
                return bool(self.variant) and not stated
            case "emulation" | "published":
                return bool(self.variant) and "epoch" in stated
            case _:
                others = self.document or self.is_untouched
                return bool(self.preset) and not others and stated == set(TRAINED[self.kind].numbers)

    def __str__(self) -> str:
        """Return the name as it occurs in paths, files and tables."""
        if self.kind == BASELINE:
            return f"{BASELINE}/{self.variant}" + ("" if self.draw is None else f"-{self.draw}")
        numbers = {
            "base": self.base,
            "beta": ALL_BETAS if self.is_over_betas else None if self.beta is None else beta_text(self.beta),
            "seed": self.seed,
            "untouched" if self.is_untouched else "epoch": self.epoch,
            "document": self.document or None,
        }
        stated = [f"{name}~{value}" for name, value in numbers.items() if value is not None]
        before = [f"{ORIGIN}{self.origin}"] if self.origin else []
        before += [] if self.items is None else [f"{ITEMS}{self.items}"]
        return "/".join([*before, *self._head, *stated])

    @property
    def _head(self) -> tuple[str, ...]:
        match self.kind:
            case "emulation" | "published" | "own":
                return self.kind, self.variant
            case "agent":
                return (f"arm~{self.variant}",)
            case _:
                return f"preset~{self.preset}", self.kind

    @property
    def phase(self) -> Phase:
        """The stage of training that produced it: GRPO may be offline or on-policy (`mode`)."""
        phase: Phase = "grpo" if self.kind in ("on_policy", EMULATION) else self.kind  # type: ignore[assignment]
        return phase

    @property
    def mode(self) -> Mode:
        """Source of the samples in its last training phase: stored selections, the policy itself, or none."""
        if self.kind in ("on_policy", "reinforce"):
            return "on_policy"
        return "offline" if self.kind == "grpo" else ""

    @property
    def start(self) -> PolicyName:
        """The policy whose weights it starts from: the RCE base of GRPO, the initialization of RCE."""
        if self.base is not None:
            return PolicyName(kind="rce", preset=self.preset, seed=self.seed, epoch=self.base)
        return PolicyName(kind="init", preset=self.preset, seed=self.seed)

    @property
    def home(self) -> PolicyName:
        """The same policy in the grid setting where it was trained, with each query's own pool."""
        return replace(self, origin="", items=None)

    @property
    def batch(self) -> str:
        """The answer batch that contains its prompts."""
        if self.origin:
            return TRANSFER
        if self.items is not None:
            return FIRST_ITEMS
        if self.kind in (BASELINE, EMULATION, OWN, "published"):
            return self.kind
        return f"{self._head[0]}/seed~{self.seed}"

    def at(self, epoch: int) -> PolicyName:
        """Return another epoch of the same run."""
        return replace(self, epoch=epoch)

    @property
    def label(self) -> str:
        """Text for readers, as `RCE epoch 5 of seed 1 (world)`."""
        notes: list[str] = []
        match self.kind:
            case "baseline":
                return f"baseline {str(self).removeprefix('baseline/')}"
            case "own":
                return f"own policy {self.variant}"
            case "agent":
                subject = f"arm {self.variant}"
            case "emulation":
                subject = f"GRPO with {self.variant}"
            case "published":
                subject = f"published {TRAINED[self.variant].method}"
            case _:
                subject, notes = TRAINED[self.kind].method, [self.preset]
        subject += " over all betas" if self.is_over_betas else ""
        subject += "" if self.beta is None else f" beta {beta_text(self.beta)}"
        subject += "" if self.epoch is None else f" epoch {self.epoch}"
        subject += "" if self.seed is None else f" of seed {self.seed}"
        notes += [] if self.base is None else [f"base {self.base}"]
        notes += [f"trained on {self.origin}"] if self.origin else []
        notes += [] if self.items is None else [f"offered the first {self.items} train items"]
        return f"{subject} ({', '.join(notes)})" if notes else subject


def values_in(path: str) -> dict[str, str]:
    """Return the values in a path, as `seed~1`; values of file names do not count."""
    return dict(part.split("~", 1) for part in path.split("/") if "~" in part)


def group_of(path: str) -> str:
    """Return a policy's name, or a path that contains one, without seed or draw: `preset~world/rce/epoch~5`."""
    return re.sub(r"/seed~\d+", "", re.sub(r"((?:^|/)baseline/[^/]*)-\d+(?=/|$)", r"\1", path))


def beta_text(kl_beta: float) -> str:
    """Return a beta in the form of policy names: the shortest text that parses to the same number."""
    text = f"{kl_beta:g}"
    return text if float(text) == kl_beta else repr(kl_beta)
