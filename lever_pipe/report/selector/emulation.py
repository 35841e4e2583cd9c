"""The emulation of published bugs: the bug of each arm, its accuracies, and the KL without an update."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from lever_pipe.base.policy_names import beta_text
from lever_pipe.experiment.emulation import CONTROL, DROPOUT, EMULATED_ARMS, Emulate
from lever_pipe.report.cells import Cell, average, code, level, message
from lever_pipe.report.context import DOCUMENT_SAMPLES, ReportContext
from lever_pipe.report.evidence import Evidence, EvidenceRow
from lever_pipe.report.reference import ACCURACY_015, BETAS
from lever_pipe.report.table import Row, Table, framed

Run = tuple[float, int]
"""KL_BETA and epoch of a policy."""
Rows = tuple[EvidenceRow, ...]
PUBLISHED = "published"
OF_ANOTHER_BASE = 0.15
"""The KL_BETA whose published runs start from a different RCE checkpoint than the others."""
DIGITS = 2
"""Decimals of an accuracy."""
BUGS = {
    "none": ("Nothing, the right evaluation of the same checkpoints; pools of their own, RCE epoch {base} as base"),
    "head": ("The trained attention and layer norm are lost at load and drawn afresh from stream {seed}"),
    "pool": "Every query is offered the same first {items} train items",
    "dropout": "GRPO compares a policy with dropout to a reference without",
}


@dataclass(frozen=True)
class EmulatedStudy:
    """The emulation, its settings, and the corresponding published numbers."""

    context: ReportContext
    emulate: Emulate

    @property
    def epochs(self) -> list[int]:
        """Return the trained epochs."""
        return list(range(1, self.emulate.grpo_epochs + 1))

    @property
    def others(self) -> list[float]:
        """Return the betas that share one base in the published runs."""
        return [beta for beta in self.emulate.kl_betas if beta != OF_ANOTHER_BASE]

    @property
    def evidence(self) -> Evidence:
        """Return every row."""
        return self.context.evidence

    def cells(
        self, arm: str, run: Run, samples: Collection[int] = (), shots: Collection[int] = (), file: str = BETAS
    ) -> Rows:
        """Return the accuracies of one policy by sample count, then shots; `published` is empty if one is absent."""
        is_ours, policy = arm != PUBLISHED, f"beta~{beta_text(run[0])}/epoch~{run[1]}"
        cells = product(
            samples or (self.context.document_samples if is_ours else DOCUMENT_SAMPLES,), shots or self.context.shots
        )
        if is_ours:
            where = {"subject": f"emulation/{arm}/{policy}", "metric": "accuracy", "subset": "prefix"}
            return tuple(self.evidence.get(**where, samples=n, shots=k) for n, k in cells)
        where = {"subject": f"published/grpo/{policy}", "metric": "accuracy", "quoted": file}
        rows = [self.evidence.find(**where, samples=n, shots=k) for n, k in cells]
        return tuple(row for row in rows if row is not None) if None not in rows else ()

    def untouched(self, arm: str, name: str, epoch: int) -> EvidenceRow:
        """Return a metric of an epoch without any update: epoch 1, or 2 for any later one."""
        return self.evidence.get(f"emulation/{arm}/base~{self.emulate.base_rce_epoch}/epoch~{epoch}", name)

    def printed(self, name: str, epoch: int, betas: Sequence[float] = ()) -> Rows:
        """Return a published training metric of one epoch, for all betas, or those given, if they have it."""
        subjects = [f"published/grpo/beta~{beta_text(b)}/epoch~{epoch}" for b in betas or self.emulate.kl_betas]
        rows = [self.evidence.find(subject, name, quoted=BETAS) for subject in subjects]
        return tuple(row for row in rows if row is not None)


def emulation_of(context: ReportContext) -> EmulatedStudy | None:
    """Return the emulation of a run, or None without one."""
    is_run = context.config.emulate is not None and context.evidence.where("emulation/none", "repeated_share")
    return EmulatedStudy(context, context.config.emulate) if is_run else None  # type: ignore[arg-type]


def tables(context: ReportContext) -> Iterator[Table]:
    """Yield the tables of the arms, of their accuracies and of their KL."""
    study = emulation_of(context)
    if study is None:
        return
    emulate = study.emulate
    given = {"base": emulate.base_rce_epoch, "seed": emulate.head_seed, "items": emulate.pool_items}
    bugs: list[Row] = [
        {"Bug": code(arm), "What it switches on": message(BUGS[arm], **given)} for arm in (*EMULATED_ARMS, DROPOUT)
    ]
    title = message("The bugs; preset {preset}, seed {seed}", preset=code(emulate.preset), seed=emulate.seed)
    yield Table("emulated-arms", "emulation", title, framed(bugs))
    title = message("Accuracy of every arm at {samples} samples", samples=study.context.document_samples)
    yield Table("emulated-accuracies", "emulation", title, framed(_accuracies(study)))
    rows = framed(_divergences(study))
    yield Table("emulated-kl", "emulation", "Logged KL with and without dropout in the policy", rows)


def _accuracies(study: EmulatedStudy) -> Iterator[Row]:
    """Yield the accuracies of every arm, beta and epoch at one sample count, with the published ones first."""
    for epoch, arm, beta in product(study.epochs, (PUBLISHED, *EMULATED_ARMS), study.emulate.kl_betas):
        run = (beta, epoch)
        cells = [level(row) for row in study.cells(arm, run, file=ACCURACY_015) or study.cells(arm, run)]
        if cells:
            by_shots = zip((message("Shot {shots}", shots=k) for k in study.context.shots), cells, strict=True)
            names: Row = {
                "Arm": arm if arm == PUBLISHED else code(arm),
                "Epoch": str(epoch),
                "KL_BETA": beta_text(beta),
            }
            yield {**names, **dict(by_shots), "Mean": average(cells, DIGITS)}


def _divergences(study: EmulatedStudy) -> Iterator[Row]:
    """Yield the KL that is logged without an update, with and without dropout in the policy."""
    for text, epoch in (("1", 1), (">1", 2)):
        row: dict[str, Cell] = {"Epoch": text}
        for arm, side in ((DROPOUT, "with dropout"), (CONTROL, "without")):
            row[f"KL {side}"] = level(study.untouched(arm, "kl", epoch), 5)
            row[f"Exact KL {side}"] = level(study.untouched(arm, "kl_exact", epoch), 5)
        yield row
