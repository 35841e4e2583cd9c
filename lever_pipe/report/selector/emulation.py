"""The emulation of published faults: what each arm switches on, its accuracies, and its logged KL."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

from lever_pipe.base.policy_names import beta_text
from lever_pipe.experiment.evaluation_config import Emulate
from lever_pipe.experiment.faults import ARMS, CONTROL
from lever_pipe.report.cells import Cell, Code, Name, Number, average, level, minus, say
from lever_pipe.report.evidence import Evidence, EvidenceRow
from lever_pipe.report.material import DOCUMENT_SAMPLES, Material
from lever_pipe.report.reference import ACCURACY_015, BETAS
from lever_pipe.report.table import Column, Table, TableLine, Whose

Run = tuple[float, int]
"""KL_BETA and epoch of a policy."""
Rows = tuple[EvidenceRow, ...]
PUBLISHED, DROPOUT = "published", "dropout"
TRAINED = (DROPOUT, CONTROL)
"""The arms whose training differs."""
DIGITS = 2
"""Decimals of an accuracy."""


@dataclass(frozen=True)
class EmulatedStudy:
    """The emulation, its settings, and the published numbers beside it."""

    material: Material
    emulate: Emulate

    @cached_property
    def samples(self) -> int:
        """Return our sample count that is nearest to that of the published rows of all betas."""
        return min(self.material.samples, key=lambda n: (abs(n - DOCUMENT_SAMPLES), n))

    @property
    def epochs(self) -> list[int]:
        """Return the trained epochs."""
        return list(range(1, self.emulate.grpo_epochs + 1))

    @property
    def others(self) -> list[float]:
        """Return the betas that share one base in the published runs."""
        return [beta for beta in self.emulate.kl_betas if beta != self.emulate.other_kl_beta]

    @property
    def evidence(self) -> Evidence:
        """Return every row."""
        return self.material.evidence

    def cells(
        self, arm: str, run: Run, samples: Collection[int] = (), shots: Collection[int] = (), file: str = BETAS
    ) -> Rows:
        """Return the accuracies of one policy, sample counts outermost; of `published` none where one is absent."""
        is_ours, policy = arm != PUBLISHED, f"beta~{beta_text(run[0])}/epoch~{run[1]}"
        at = product(samples or (self.samples if is_ours else DOCUMENT_SAMPLES,), shots or self.material.shots)
        if is_ours:
            where = {"subject": f"emulation/{arm}/{policy}", "metric": "accuracy", "subset": "prefix"}
            return tuple(self.evidence.get(**where, samples=n, shots=k) for n, k in at)
        where = {"subject": f"published/grpo/{policy}", "metric": "accuracy", "quoted": file}
        found = [self.evidence.find(**where, samples=n, shots=k) for n, k in at]
        return tuple(row for row in found if row is not None) if None not in found else ()

    def metric(self, arm: str, name: str, epoch: int, beta: float | None = None) -> EvidenceRow:
        """Return a training metric of an epoch from the right base; without a beta of one in which nothing is updated.

        Of the latter there are 1 and 2, which stands for any later one.
        """
        trained = "" if beta is None else f"/beta~{beta_text(beta)}"
        subject = f"emulation/{arm}/base~{self.emulate.base_rce_epoch}{trained}/epoch~{epoch}"
        return self.evidence.get(subject, name)

    def metrics(self, arm: str, name: str, epoch: int, betas: Sequence[float] = ()) -> Rows:
        """Return a training metric of one epoch for these betas or every one."""
        return tuple(self.metric(arm, name, epoch, beta) for beta in betas or self.emulate.kl_betas)

    def printed(
        self, name: str, epoch: int, betas: Sequence[float] = (), stage: str = "grpo", file: str = BETAS
    ) -> Rows:
        """Return a published training metric of one epoch for the betas, or every one, that have it."""
        subjects = [f"published/{stage}/beta~{beta_text(b)}/epoch~{epoch}" for b in betas or self.emulate.kl_betas]
        found = [self.evidence.find(subject, name, quoted=file) for subject in subjects]
        return tuple(row for row in found if row is not None)

    def agreements(self, arm: str, runs: Collection[Run], shots: int) -> Rows:
        """Return the share of queries that two policies give the same prompt, for every two of these policies."""
        names = [f"emulation/{arm}/beta~{beta_text(beta)}/epoch~{epoch}" for beta, epoch in runs]
        rows = (row for name in names for row in self.evidence.where(name, "as_sequence", shots=shots))
        return tuple(row for row in rows if row.against in names)


def emulation_of(material: Material) -> EmulatedStudy | None:
    """Return the emulation of a run, None where it has none."""
    is_run = material.config.emulate is not None and material.evidence.where("emulation/none", "repeated_share")
    return EmulatedStudy(material, material.config.emulate) if is_run else None  # type: ignore[arg-type]


def tables(material: Material) -> Iterator[Table]:
    """Yield what every arm is, its accuracies and its KL."""
    if study := emulation_of(material):
        for table in (arms_table(study), accuracies(study), divergences(study)):
            yield table.without_empty_columns()


def arms_table(study: EmulatedStudy) -> Table:
    """Return what each arm switches on."""
    of = study.emulate
    given = {"base": of.base_rce_epoch, "seed": of.head_seed, "items": of.pool_items, "beta": of.other_kl_beta}
    told = {arm: say(f"emulation.fault.{arm}", **given, other=of.other_base_rce_epoch) for arm in ARMS}
    lines = tuple(TableLine((Code(arm), fault)) for arm, fault in told.items())
    columns = (Column(say("pattern.head.arm"), "name"), Column(say("emulation.head.fault"), "words"))
    title = say("emulation.arms", preset=Code(of.preset), seed=of.seed)
    return Table("emulated-arms", "emulation", title, columns, lines)


def accuracies(study: EmulatedStudy) -> Table:
    """Return the accuracies of every arm, beta and epoch at one sample count, below them what was published."""
    lines: list[TableLine] = []
    alone = study.emulate.other_kl_beta

    def cells(arm: str, run: Run) -> list[Number | None]:
        return [level(row) for row in study.cells(arm, run, file=ACCURACY_015) or study.cells(arm, run)]

    for epoch, arm in product(study.epochs, (PUBLISHED, *ARMS)):
        base = average(cells(arm, (alone, epoch)), DIGITS)
        for beta in study.emulate.kl_betas:
            if of := cells(arm, (beta, epoch)):
                whose: Whose = "published" if arm == PUBLISHED else "emulated"
                source = say("word.published") if arm == PUBLISHED else Code(arm)
                mean = average(of, DIGITS)
                cells_of = (source, Name(str(epoch)), Name(beta_text(beta)), *of, mean, minus(mean, base))
                lines.append(TableLine(cells_of, whose))
    columns = [Column(say(f"emulation.head.{word}"), "name") for word in ("arm", "epoch", "beta")]
    columns += [Column(say("head.shot", shots=k)) for k in study.material.shots]
    columns += [Column(say("head.mean")), Column(say("head.against", reference=beta_text(alone)))]
    title = say("emulation.accuracies", samples=study.samples)
    return Table("emulated-accuracies", "emulation", title, tuple(columns), tuple(lines))


def divergences(study: EmulatedStudy) -> Table:
    """Return the logged KL with and without dropout in the policy: without an update, then by epoch and beta."""

    def line(first: Cell, at: str, published: Cell, epoch: int, beta: float | None = None) -> TableLine:
        rows = [study.metric(arm, name, epoch, beta) for arm in TRAINED for name in ("kl", "kl_exact")]
        return TableLine((first, Name(at), published, *(level(row, 5) for row in rows)), "emulated")

    lines = [line(say("emulation.no_update"), at, None, epoch) for epoch, at in ((1, "1"), (2, ">1"))]
    for epoch, beta in product(study.epochs, study.emulate.kl_betas):
        printed = next((level(row, 5) for row in study.printed("kl", epoch, [beta])), None)
        lines.append(line(Name(beta_text(beta)), str(epoch), printed, epoch, beta))
    words = ("beta", "epoch", "published_kl", "kl_dropout", "exact_dropout", "kl_none", "exact_none")
    columns = [Column(say(f"emulation.head.{word}"), "name" if i < 2 else "number") for i, word in enumerate(words)]
    return Table("emulated-kl", "emulation", say("emulation.kl"), tuple(columns), tuple(lines))
