"""Why the published tables look as they do: each published pattern, and what an emulated fault makes of it.

A verdict follows from the criterion of its line, never from the eye: a pattern that holds without the fault too does
not point to it. A pattern whose numbers the configuration does not make (too few betas, epochs or shots) has no line.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, pairwise
from math import isclose, nan, perm, sqrt
from statistics import fmean

from lever_pipe.base.policy_names import beta_text
from lever_pipe.experiment.config import Emulate
from lever_pipe.report.catalogue import number_text
from lever_pipe.report.cells import (
    Cell,
    Code,
    Message,
    Name,
    Number,
    Series,
    Verdict,
    average,
    derived,
    level,
    minus,
    say,
)
from lever_pipe.report.evidence import EvidenceRow
from lever_pipe.report.material import DOCUMENT_SAMPLES, Material
from lever_pipe.report.table import Column, Table, TableLine

Run = tuple[float, int]
"""KL_BETA and epoch of a policy."""
Rows = tuple[EvidenceRow, ...]
ARMS = ("none", "head", "pool", "dropout", "bases", "all")
NONE, DROPOUT = "none", "dropout"
BETAS_FILE, ACCURACY_FILE = "KL_BETA_0145_0155对比.md", "2025-12-20正确率.md"
CURVES_FILE, FINAL_FILE = "KL_BETA_012_vs_015_训练曲线分析报告.md", "KL_BETA_012_vs_015_最终对比报告.md"
"""Files of the reference, as published rows quote them."""
CURVE_BETAS = (0.12, 0.15)
DIGITS = 2
"""Decimals of an accuracy: two rows agree when they print alike."""
LEVEL_TOLERANCE = 0.25
"""How far a KL may lie from the published mean and still be called near it, as a share of it."""
RATIO_BOUND = 0.95
"""A mean ratio below it is off 1."""
SHARE_TOLERANCE = 0.01
"""The floor under the spread of rewards shrinks the advantages of a few queries, so Adv Std may miss the share."""
ONE_OF_THREE = 2 / sqrt(3)
"""Largest size over spread of three advantages of which one differs: (2, -1, -1) over its unbiased deviation."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """A published pattern and what the emulation makes of it.

    Lines of one `statement` differ in their arm or criterion; `is_defined` is whether anything can be judged.
    """

    id: str
    statement: Message
    published: Cell
    arm: str
    with_fault: Cell
    without: Cell
    holds: bool
    holds_without: bool
    criterion: Message
    remark: Cell = None
    is_defined: bool = True

    @property
    def verdict(self) -> Verdict:
        """Return what follows for the fault."""
        if not self.is_defined:
            return Verdict("pattern.verdict.undefined", "mute")
        if not self.holds:
            return Verdict("pattern.verdict.missed", "open")
        return (
            Verdict("pattern.verdict.unspecific", "mute")
            if self.holds_without
            else Verdict("pattern.verdict.reproduced", "yes")
        )


def tables(material: Material) -> Iterator[Table]:
    """Yield the patterns (section `why`), and accuracies and KL of every arm (section `emulation`)."""
    if material.config.emulate is None or not material.evidence.where("emulation/none", "repeated_share"):
        return
    study = EmulatedStudy(material, material.config.emulate)
    found = patterns(study)
    lines = tuple(TableLine(_cells(pattern), "emulated") for pattern in found)
    words = ("statement", "published", "arm", "with_fault", "without", "verdict")
    heads = tuple(Column(say(f"pattern.head.{word}"), "words" if word == "statement" else "number") for word in words)
    criteria = tuple(
        TableLine((pattern.statement, Code(pattern.arm), pattern.criterion, pattern.remark)) for pattern in found
    )
    told = tuple(Column(say(f"pattern.head.{word}"), "words") for word in ("statement", "arm", "criterion", "remark"))
    yield Table("patterns", "why", say("pattern.title"), heads, lines, lead=tally(found), notes=_notes(study))
    yield Table("patterns-criteria", "emulation", say("pattern.criteria"), told, criteria)
    for table in (arms_table(study), accuracies(study), divergences(study)):
        yield table.without_empty_columns()


def patterns(study: EmulatedStudy) -> list[Pattern]:
    """Return every pattern that the configuration can judge."""
    makers = (
        identical_rows,
        identical_choices,
        repeats,
        reused_rows,
        kl_without_update,
        kl_falls,
        ratio,
        one_beta_apart,
        advantages,
    )
    return [pattern for make in makers for pattern in make(study)]


def coincidences(study: EmulatedStudy) -> Cell:
    """Return how far the training alone, without any fault, makes all betas one row; None where it does not."""
    betas = study.emulate.kl_betas
    one = [e for e in study.epochs if len({_digits(study.cells(NONE, (beta, e))) for beta in betas}) == 1]
    given = {"epochs": [Name(str(epoch)) for epoch in one], "samples": study.samples, "n": len(betas)}
    return say("pattern.coincidence", **given, preset=Code(study.emulate.preset)) if one else None


def tally(found: Sequence[Pattern]) -> Message:
    """Return how many published statements some fault reproduces; a statement counts once, whatever its arms."""
    verdicts: dict[Message, set[str]] = {}
    for pattern in found:
        verdicts.setdefault(pattern.statement, set()).add(pattern.verdict.id if pattern.published is not None else "")
    reproduced = sum("pattern.verdict.reproduced" in of for of in verdicts.values())
    aside = sum(not of & {"pattern.verdict.reproduced", "pattern.verdict.missed"} for of in verdicts.values())
    counts = {"reproduced": reproduced, "all": len(verdicts) - aside, "aside": aside}
    return say("pattern.tally", **{name: _counted(value, ()) for name, value in counts.items()})


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
    def shots(self) -> list[int]:
        """Return the shot counts."""
        return self.material.shots

    @property
    def epochs(self) -> list[int]:
        """Return the trained epochs."""
        return list(range(1, self.emulate.grpo_epochs + 1))

    @property
    def others(self) -> list[float]:
        """Return the betas that share one base in the published runs."""
        return [beta for beta in self.emulate.kl_betas if beta != self.emulate.other_kl_beta]

    def cells(self, arm: str, run: Run, samples: Collection[int] = (), shots: Collection[int] = ()) -> Rows:
        """Return the accuracies of one policy, sample counts outermost."""
        subject = f"emulation/{arm}/beta~{beta_text(run[0])}/epoch~{run[1]}"
        at = [(n, k) for n in samples or (self.samples,) for k in shots or self.shots]
        return tuple(
            self.material.evidence.get(subject, "accuracy", subset="prefix", samples=n, shots=k) for n, k in at
        )

    def published(
        self, run: Run, samples: Collection[int] = (), shots: Collection[int] = (), file: str = BETAS_FILE
    ) -> Rows:
        """Return the published accuracies of one beta and epoch in the same cells; none where one is absent."""
        subject = f"published/grpo/beta~{beta_text(run[0])}/epoch~{run[1]}"
        at = [(n, k) for n in samples or (DOCUMENT_SAMPLES,) for k in shots or self.shots]
        found = [self.material.evidence.find(subject, "accuracy", samples=n, shots=k, quoted=file) for n, k in at]
        return tuple(row for row in found if row is not None) if None not in found else ()

    def metric(self, arm: str, name: str, run: Run) -> EvidenceRow:
        """Return a training metric of an epoch from the right base."""
        subject = f"emulation/{arm}/base~{self.emulate.base_rce_epoch}/beta~{beta_text(run[0])}/epoch~{run[1]}"
        return self.material.evidence.get(subject, name)

    def metrics(self, arm: str, name: str, epoch: int, betas: Sequence[float] = ()) -> Rows:
        """Return a training metric of one epoch for these betas or every one."""
        return tuple(self.metric(arm, name, (beta, epoch)) for beta in betas or self.emulate.kl_betas)

    def untouched(self, arm: str, name: str, epoch: int) -> EvidenceRow:
        """Return a metric of an epoch (1, or 2 for any later one) in which nothing is updated."""
        return self.material.evidence.get(f"emulation/{arm}/base~{self.emulate.base_rce_epoch}/epoch~{epoch}", name)

    def printed(self, name: str, epoch: int, betas: Sequence[float]) -> Rows:
        """Return a published training metric of one epoch for the betas that have it."""
        subjects = [f"published/grpo/beta~{beta_text(beta)}/epoch~{epoch}" for beta in betas]
        found = [self.material.evidence.find(subject, name, quoted=BETAS_FILE) for subject in subjects]
        return tuple(row for row in found if row is not None)

    def agreements(self, arm: str, runs: Collection[Run], shots: int) -> Rows:
        """Return the share of queries that two policies give the same prompt, for every two of these policies."""
        names = [f"emulation/{arm}/beta~{beta_text(beta)}/epoch~{epoch}" for beta, epoch in runs]
        rows = (row for name in names for row in self.material.evidence.where(name, "as_sequence", shots=shots))
        return tuple(row for row in rows if row.against in names)

    def prompts(self, arm: str, metric: str, shots: int | str = "") -> EvidenceRow:
        """Return what is known of an arm's prompts."""
        return self.material.evidence.get(f"emulation/{arm}", metric, shots=shots)


def identical_rows(study: EmulatedStudy) -> Iterator[Pattern]:
    """Yield whether the betas of one base agree in every published cell, for each fault that may be the cause."""
    if len(study.others) < 2:
        return
    wanted = [(beta, epoch) for beta in study.others for epoch in study.epochs]
    published = {run: printed for run in wanted if (printed := study.published(run))}
    runs = list(published) or wanted
    control = [study.cells(NONE, run) for run in runs]
    for arm in ("head", "pool", "all"):
        rows = [study.cells(arm, run) for run in runs]
        least = min((row for k in study.shots for row in study.agreements(arm, runs, k)), key=lambda row: row.value)
        yield Pattern(
            id=f"identical-rows-{arm}",
            statement=say("pattern.identical_rows", betas=study.others),
            published=_distinct(list(published.values())),
            arm=arm,
            with_fault=_distinct(rows),
            without=_distinct(control),
            criterion=say("pattern.one_row"),
            holds=len(set(map(_digits, rows))) == 1,
            holds_without=len(set(map(_digits, control))) == 1,
            remark=say("pattern.least_agreement", share=_percent(least)),
        )


def identical_choices(study: EmulatedStudy) -> Iterator[Pattern]:
    """Yield whether checkpoints with different weights choose alike."""
    shots, runs = min(study.shots), [(beta, epoch) for beta in study.emulate.kl_betas for epoch in study.epochs]
    quoted = study.material.evidence.where("published/grpo_balanced", "identical_selection_rate", quoted=FINAL_FILE)
    ours, control = (study.agreements(arm, runs, shots) for arm in ("head", NONE))
    if ours:
        yield Pattern(
            id="identical-choices",
            statement=say("pattern.identical_choices"),
            published=_percent(quoted[0]) if quoted else None,
            arm="head",
            with_fault=_alike(ours),
            without=_alike(control),
            criterion=say("pattern.every_pair"),
            holds=min(row.value for row in ours) == 1,
            holds_without=max(row.value for row in control) == 1,
            remark=say("pattern.one_pair"),
        )


def repeats(study: EmulatedStudy) -> Iterator[Pattern]:
    """Yield whether long prompts repeat demonstrations, and how few prompts there are."""
    items = study.emulate.pool_items
    long = [k for k in study.shots if k > items]
    most = sum(perm(items, min(k, items)) for k in study.shots)
    if long:
        shares = {arm: [study.prompts(arm, "repeated_share", k) for k in long] for arm in ("pool", NONE)}
        yield Pattern(
            id="repeated-demonstrations",
            statement=say("pattern.repeated", shots=[Name(str(k)) for k in long]),
            published=None,
            arm="pool",
            with_fault=_mean_percent(shares["pool"]),
            without=_mean_percent(shares[NONE]),
            criterion=say("pattern.all_prompts"),
            holds=min(row.value for row in shares["pool"]) == 1,
            holds_without=max(row.value for row in shares[NONE]) > 0,
        )
    prompts, control = (study.prompts(arm, "prompts_a_query_max") for arm in ("pool", NONE))
    yield Pattern(
        id="few-prompts",
        statement=say("pattern.few_prompts", most=most),
        published=None,
        arm="pool",
        with_fault=level(prompts, 0),
        without=level(control, 0),
        criterion=say("pattern.at_most", most=most),
        holds=prompts.value <= most,
        holds_without=control.value <= most,
    )


def reused_rows(study: EmulatedStudy) -> Iterator[Pattern]:
    """Yield whether two epochs of one beta can differ at few shots and agree at many."""
    short, long = ([k for k in study.shots if (k > 2) == more] for more in (False, True))
    beta, samples = study.emulate.other_kl_beta, study.material.samples
    if not (short and long and 2 in study.epochs):
        return
    sides = {
        arm: [_differing(*(study.cells(arm, (beta, e), samples, k) for e in (1, 2))) for k in (short, long)]
        for arm in ("pool", "all", NONE)
    }
    printed = [[study.published((beta, e), samples, k, ACCURACY_FILE) for e in (1, 2)] for k in (short, long)]
    published = [_differing(*pair) for pair in printed] if all(all(pair) for pair in printed) else []
    holds = {arm: counts[0][0] > 0 == counts[1][0] for arm, counts in sides.items()}
    for arm in ("pool", "all"):
        yield Pattern(
            id=f"reused-rows-{arm}",
            statement=say("pattern.reused_rows", beta=beta),
            published=_of_each(published) if published else None,
            arm=arm,
            with_fault=_of_each(sides[arm]),
            without=_of_each(sides[NONE]),
            criterion=say("pattern.some_and_none"),
            holds=holds[arm],
            holds_without=holds[NONE],
            remark=None if holds[arm] else say("pattern.copied"),
        )


def kl_without_update(study: EmulatedStudy) -> Iterator[Pattern]:
    """Yield whether the logged KL needs an update, and whether its level is the published one."""
    published = study.printed("kl", 1, study.emulate.kl_betas)
    if not published:
        return
    mean = fmean(row.value for row in published)
    ours, control = (study.untouched(arm, "kl", 1) for arm in (DROPOUT, NONE))
    trained = {arm: study.metrics(arm, "kl", 1) for arm in (DROPOUT, NONE)}
    near = {
        arm: abs(fmean(row.value for row in rows) - mean) <= LEVEL_TOLERANCE * mean for arm, rows in trained.items()
    }
    least = min(row.value for row in published)
    yield Pattern(
        id="kl-without-update",
        statement=say("pattern.kl_without_update"),
        published=_extent(published),
        arm=DROPOUT,
        with_fault=level(ours, 5),
        without=level(control, 5),
        criterion=say("pattern.at_least_published"),
        holds=ours.value >= least,
        holds_without=control.value >= least,
    )
    yield Pattern(
        id="kl-level",
        statement=say("pattern.kl_level"),
        published=_mean(published),
        arm=DROPOUT,
        with_fault=_mean(trained[DROPOUT]),
        without=_mean(trained[NONE]),
        criterion=say("pattern.near_published", share=int(100 * LEVEL_TOLERANCE)),
        holds=near[DROPOUT],
        holds_without=near[NONE],
        remark=say("pattern.noise_depends"),
    )


def kl_falls(study: EmulatedStudy) -> Iterator[Pattern]:
    """Yield whether the logged KL falls from epoch to epoch, without updates and with them."""
    still = {arm: [study.untouched(arm, "kl", epoch) for epoch in (1, 2)] for arm in (DROPOUT, NONE)}
    yield Pattern(
        id="kl-falls-without-update",
        statement=say("pattern.kl_falls"),
        published=_course(study, "kl", (1, 2)),
        arm=DROPOUT,
        with_fault=_listed([level(row, 5) for row in still[DROPOUT]]),
        without=_listed([level(row, 5) for row in still[NONE]]),
        criterion=say("pattern.falls_untouched"),
        holds=_falls(still[DROPOUT]),
        holds_without=_falls(still[NONE]),
        remark=say("pattern.more_selections"),
    )
    if len(study.epochs) > 1:
        courses = {arm: [study.metrics(arm, "kl", epoch) for epoch in study.epochs] for arm in (DROPOUT, NONE)}
        fall = {arm: [_falls(course) for course in zip(*rows, strict=True)] for arm, rows in courses.items()}
        yield Pattern(
            id="kl-falls",
            statement=say("pattern.kl_falls"),
            published=_course(study, "kl", study.epochs),
            arm=DROPOUT,
            with_fault=_listed([_mean(rows) for rows in courses[DROPOUT]]),
            without=_listed([_mean(rows) for rows in courses[NONE]]),
            criterion=say("pattern.falls_every"),
            holds=all(fall[DROPOUT]),
            holds_without=any(fall[NONE]),
        )


def ratio(study: EmulatedStudy) -> Iterator[Pattern]:
    """Yield whether the mean ratio of a trained epoch is off 1, as the published ones are means of such an epoch."""
    subjects = [f"published/grpo_balanced/beta~{beta_text(beta)}/epoch~1" for beta in CURVE_BETAS]
    found = [study.material.evidence.find(subject, "mean_ratio", quoted=CURVES_FILE) for subject in subjects]
    published = tuple(row for row in found if row is not None)
    betas = [beta for beta in study.emulate.kl_betas if beta in CURVE_BETAS]
    trained = {arm: study.metrics(arm, "mean_ratio", 1, betas) for arm in (DROPOUT, NONE)}
    still = {arm: study.untouched(arm, "mean_ratio", 1) for arm in trained}
    cells = {
        arm: say("pattern.trained_and_still", trained=_extent(rows), still=level(still[arm], 5))
        for arm, rows in trained.items()
    }
    off = {arm: max(row.value for row in rows) < RATIO_BOUND for arm, rows in trained.items()}
    moved = off[NONE] and isclose(still[NONE].value, 1) and still[DROPOUT].value < RATIO_BOUND
    yield Pattern(
        id="ratio-off-one",
        statement=say("pattern.ratio_off_one"),
        published=_extent(published),
        arm=DROPOUT,
        with_fault=cells[DROPOUT],
        without=cells[NONE],
        criterion=say("pattern.below_bound", bound=RATIO_BOUND),
        holds=off[DROPOUT],
        holds_without=off[NONE],
        remark=say("pattern.training_moves") if moved else None,
    )


def one_beta_apart(study: EmulatedStudy) -> Iterator[Pattern]:
    """Yield whether the beta with another base stands apart from those that share one, in the published cells."""
    if len(study.others) < 2:
        return
    alone, betas = study.emulate.other_kl_beta, study.emulate.kl_betas
    published = {beta: printed for beta in betas if (printed := study.published((beta, 1)))}
    if not (alone in published and len(published) > 2):
        published = {}
    judged = list(published) or list(betas)
    rows = {arm: {beta: study.cells(arm, (beta, 1)) for beta in judged} for arm in ("bases", "all", NONE)}
    yield Pattern(
        id="one-beta-apart",
        statement=say("pattern.one_beta_apart", beta=alone),
        published=_gaps_cell(published, alone),
        arm="bases",
        with_fault=_gaps_cell(rows["bases"], alone),
        without=_gaps_cell(rows[NONE], alone),
        criterion=say("pattern.apart_criterion", beta=alone),
        holds=_is_apart(rows["bases"], alone),
        holds_without=_is_apart(rows[NONE], alone),
    )
    yield Pattern(
        id="one-beta-alone",
        statement=say("pattern.one_beta_alone", beta=alone),
        published=_distance_cell(published, alone),
        arm="all",
        with_fault=_distance_cell(rows["all"], alone),
        without=_distance_cell(rows[NONE], alone),
        criterion=say("pattern.alone_criterion", beta=alone),
        holds=_is_alone(rows["all"], alone),
        holds_without=_is_alone(rows[NONE], alone),
    )


def advantages(study: EmulatedStudy) -> Iterator[Pattern]:
    """Yield what Adv Std and Adv Max are: facts of the data, with and without faults."""
    found = [_spread(study), _largest(study)]
    if 2 in study.epochs:
        courses = {arm: [study.metrics(arm, "std_advantage", epoch)[0] for epoch in (1, 2)] for arm in (DROPOUT, NONE)}
        rises = {arm: first.value < second.value for arm, (first, second) in courses.items()}
        cells = {arm: _listed([level(row, 4) for row in rows]) for arm, rows in courses.items()}
        found.append(
            Pattern(
                id="adv-std-rises",
                statement=say("pattern.adv_std_rises"),
                published=_course(study, "std_advantage", (1, 2), digits=4),
                arm="any",
                with_fault=cells[DROPOUT],
                without=cells[NONE],
                criterion=say("pattern.rises"),
                holds=rises[DROPOUT],
                holds_without=rises[NONE],
            )
        )
    is_empty = any(not row.value for arm in (DROPOUT, NONE) for row in study.metrics(arm, "std_advantage", 1))
    undefined = say("pattern.no_gradient")
    yield from (replace(each, is_defined=False, remark=undefined) if is_empty else each for each in found)


def arms_table(study: EmulatedStudy) -> Table:
    """Return what each arm switches on."""
    of = study.emulate
    given = {
        "base": of.base_rce_epoch,
        "seed": of.head_seed,
        "items": of.pool_items,
        "beta": of.other_kl_beta,
        "other": of.other_base_rce_epoch,
    }
    lines = tuple(TableLine((Code(arm), say(f"emulation.fault.{arm}", **given))) for arm in ARMS)
    heads = (Column(say("pattern.head.arm"), "name"), Column(say("emulation.head.fault"), "words"))
    return Table(
        "emulated-arms", "emulation", say("emulation.arms", preset=Code(of.preset), seed=of.seed), heads, lines
    )


def accuracies(study: EmulatedStudy) -> Table:
    """Return the accuracies of every arm, beta and epoch at one sample count, below them what was published."""
    lines: list[TableLine] = []
    alone = study.emulate.other_kl_beta
    for epoch in study.epochs:
        for source in ("published", *ARMS):
            is_published = source == "published"
            rows = {b: _of_source(study, source, (b, epoch)) for b in study.emulate.kl_betas}
            base = average([level(row) for row in rows[alone]], DIGITS)
            for beta, of in rows.items():
                cells = [level(row) for row in of] or [None] * len(study.shots)
                mean = average(cells, DIGITS)
                names = (
                    say("word.published") if is_published else Code(source),
                    Name(str(epoch)),
                    Name(beta_text(beta)),
                )
                line = TableLine((*names, *cells, mean, minus(mean, base)), "published" if is_published else "emulated")
                lines += [line] if of else []
    heads = [Column(say(f"emulation.head.{word}"), "name") for word in ("arm", "epoch", "beta")]
    heads += [Column(say("head.shot", shots=k)) for k in study.shots]
    heads += [Column(say("head.mean")), Column(say("head.against", reference=beta_text(alone)))]
    title = say("emulation.accuracies", samples=study.samples)
    return Table("emulated-accuracies", "emulation", title, tuple(heads), tuple(lines))


def divergences(study: EmulatedStudy) -> Table:
    """Return the logged KL with and without dropout in the policy: without an update, then by epoch and beta."""
    arms = (DROPOUT, NONE)
    lines = [
        TableLine(
            (
                say("emulation.no_update"),
                Name("1" if epoch == 1 else ">1"),
                None,
                *(level(study.untouched(arm, name, epoch), 5) for arm in arms for name in ("kl", "kl_exact")),
            ),
            "emulated",
        )
        for epoch in (1, 2)
    ]
    for epoch in study.epochs:
        for beta in study.emulate.kl_betas:
            printed = study.printed("kl", epoch, [beta])
            ours = [level(study.metric(arm, name, (beta, epoch)), 5) for arm in arms for name in ("kl", "kl_exact")]
            published = level(printed[0], 5) if printed else None
            lines.append(TableLine((Name(beta_text(beta)), Name(str(epoch)), published, *ours), "emulated"))
    words = ("beta", "epoch", "published_kl", "kl_dropout", "exact_dropout", "kl_none", "exact_none")
    heads = tuple(
        Column(say(f"emulation.head.{word}"), "name" if word in ("beta", "epoch") else "number") for word in words
    )
    return Table("emulated-kl", "emulation", say("emulation.kl"), heads, tuple(lines))


def _notes(study: EmulatedStudy) -> tuple[Cell, ...]:
    return tuple(note for note in (say("pattern.note"), coincidences(study)) if note is not None)


def _of_source(study: EmulatedStudy, source: str, run: Run) -> Rows:
    if source != "published":
        return study.cells(source, run)
    return study.published(run, file=ACCURACY_FILE) or study.published(run)


def _cells(pattern: Pattern) -> tuple[Cell, ...]:
    numbers = (pattern.published, Code(pattern.arm), pattern.with_fault, pattern.without)
    return (pattern.statement, *numbers, pattern.verdict)


def _spread(study: EmulatedStudy) -> Pattern:
    cells, holds = {}, {}
    for arm in (DROPOUT, NONE):
        spreads, shares = (
            [study.metrics(arm, name, e) for e in study.epochs] for name in ("std_advantage", "gradient_share")
        )
        pairs = [pair for a, b in zip(spreads, shares, strict=True) for pair in zip(a, b, strict=True)]
        is_close = all(abs(spread.value - share.value) <= SHARE_TOLERANCE for spread, share in pairs)
        holds[arm] = is_close and all(len({number_text(row.value, 4) for row in rows}) == 1 for rows in spreads)
        cells[arm] = say("pattern.spread_and_share", spread=level(spreads[0][0], 4), share=level(shares[0][0], 4))
    return Pattern(
        id="adv-std",
        statement=say("pattern.adv_std"),
        published=_course(study, "std_advantage", (1,), digits=4),
        arm="any",
        with_fault=cells[DROPOUT],
        without=cells[NONE],
        criterion=say("pattern.equals_share", tolerance=SHARE_TOLERANCE),
        holds=holds[DROPOUT],
        holds_without=holds[NONE],
        remark=say("pattern.mean_over_queries"),
    )


def _largest(study: EmulatedStudy) -> Pattern:
    def over(largest: Rows, spread: Rows) -> float:
        below = fmean(row.value for row in spread) if spread else 0.0
        return fmean(row.value for row in largest) / below if below and largest else nan

    names = ("max_advantage", "std_advantage")
    rows = {arm: [study.metrics(arm, name, 1)[:1] for name in names] for arm in (DROPOUT, NONE)}
    printed = [study.printed(name, 1, study.emulate.kl_betas) for name in names]
    ratios = {arm: over(*of) for arm, of in rows.items()}
    holds = {arm: abs(value - ONE_OF_THREE) <= SHARE_TOLERANCE for arm, value in ratios.items()}
    return Pattern(
        id="adv-max",
        statement=say("pattern.adv_max"),
        published=derived(over(*printed), 3, [*printed[0], *printed[1]], "mean over mean"),
        arm="any",
        with_fault=derived(ratios[DROPOUT], 3, [row for of in rows[DROPOUT] for row in of], "largest over spread"),
        without=derived(ratios[NONE], 3, [row for of in rows[NONE] for row in of], "largest over spread"),
        criterion=say("pattern.of_three", tolerance=SHARE_TOLERANCE),
        holds=holds[DROPOUT],
        holds_without=holds[NONE],
    )


def _digits(rows: Rows) -> tuple[str, ...]:
    return tuple(number_text(row.value, DIGITS) for row in rows)


def _counted(count: int, of: Sequence[EvidenceRow]) -> Number:
    return Number(count, 0, of=tuple(row.key for row in of), how="count")


def _distinct(rows: Sequence[Rows]) -> Cell:
    """Return how many of the rows differ."""
    behind = [row for of in rows for row in of]
    found = {"n": _counted(len(set(map(_digits, rows))), behind), "all": _counted(len(rows), behind)}
    return say("pattern.distinct", **found) if rows else None


def _percent(row: EvidenceRow) -> Number:
    """Return a share in percent; only 1 prints as 100.0 and only 0 as 0.0."""
    inside = min(max(100 * row.value, 0.1), 99.9) if 0 < row.value < 1 else 100 * row.value
    return Number(inside, 1, row.key, unit=" %")


def _mean_percent(rows: Sequence[EvidenceRow]) -> Cell:
    found = derived(100 * fmean(row.value for row in rows), 1, rows, "mean, in percent")
    return None if found is None else replace(found, unit=" %")


def _alike(rows: Rows) -> Cell:
    least = min(rows, key=lambda row: row.value)
    equal = _counted(sum(row.value == 1 for row in rows), rows)
    return say("pattern.pairs_alike", n=equal, all=_counted(len(rows), rows), least=_percent(least))


def _differing(one: Rows, other: Rows) -> tuple[int, int, Rows]:
    """Return in how many of the cells two epochs differ, of how many, and the cells."""
    differ = sum(a != b for a, b in zip(_digits(one), _digits(other), strict=True))
    return differ, len(one), (*one, *other)


def _of_each(counts: Sequence[tuple[int, int, Rows]]) -> Cell:
    return Series(tuple(say("pattern.n_of", n=_counted(n, rows), all=_counted(of, rows)) for n, of, rows in counts))


def _extent(rows: Rows) -> Cell:
    if not rows:
        return None
    low, high = (end(rows, key=lambda row: row.value) for end in (min, max))
    return say("pattern.extent", low=level(low, 5), high=level(high, 5))


def _mean(rows: Sequence[EvidenceRow], digits: int = 5) -> Number | None:
    return derived(fmean(row.value for row in rows), digits, rows, "mean over KL_BETA") if rows else None


def _listed(cells: Sequence[Cell]) -> Cell:
    return Series(tuple(cells), "parts")


def _course(study: EmulatedStudy, name: str, epochs: Sequence[int], *, digits: int = 5) -> Cell:
    """Return a published metric epoch by epoch, mean over the betas that have all of these epochs."""
    runs = [[row for epoch in epochs for row in study.printed(name, epoch, [beta])] for beta in study.emulate.kl_betas]
    whole = [run for run in runs if len(run) == len(epochs)]
    return _listed([_mean(rows, digits) for rows in zip(*whole, strict=True)]) if whole else None


def _falls(rows: Sequence[EvidenceRow]) -> bool:
    return all(later.value < earlier.value for earlier, later in pairwise(rows))


def _difference(one: Rows, other: Rows) -> float:
    sides = ([float(text) for text in _digits(rows)] for rows in (one, other))
    return fmean(abs(a - b) for a, b in zip(*sides, strict=True))


def _gaps(rows: Mapping[float, Rows], alone: float) -> tuple[float, float]:
    """Return the smallest difference of one beta from another, and the largest between any two others."""
    others = [of for beta, of in rows.items() if beta != alone]
    nearest = min(_difference(rows[alone], of) for of in others)
    return nearest, max(_difference(one, other) for one, other in combinations(others, 2))


def _gaps_cell(rows: Mapping[float, Rows], alone: float) -> Cell:
    if not rows:
        return None
    behind = [row for of in rows.values() for row in of]
    nearest, widest = (derived(gap, 2, behind, "mean size of differences") for gap in _gaps(rows, alone))
    return say("pattern.points_against", nearest=nearest, widest=widest)


def _distance_cell(rows: Mapping[float, Rows], alone: float) -> Cell:
    if not rows:
        return None
    behind = [row for of in rows.values() for row in of]
    distance = derived(_gaps(rows, alone)[0], 2, behind, "mean size of differences")
    return say("pattern.rows_apart", rows=_distinct(list(rows.values())), points=distance)


def _is_apart(rows: Mapping[float, Rows], alone: float) -> bool:
    nearest, widest = _gaps(rows, alone)
    return nearest > widest


def _is_alone(rows: Mapping[float, Rows], alone: float) -> bool:
    others = {_digits(of) for beta, of in rows.items() if beta != alone}
    return len(others) == 1 and _digits(rows[alone]) not in others
