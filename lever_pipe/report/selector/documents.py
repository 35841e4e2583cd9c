"""Documents 000 to 002: their tables with ours beside the published numbers.

`document_002` has what document 002 concludes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from lever_pipe.base.policy_names import PolicyName, beta_text
from lever_pipe.report.cells import (
    Cell,
    Code,
    Estimate,
    Series,
    average,
    derived,
    gap,
    holm,
    level,
    minus,
    numbers_in,
    say,
)
from lever_pipe.report.evidence import MEAN
from lever_pipe.report.format import number_text
from lever_pipe.report.inference.families import reference_of
from lever_pipe.report.material import Material
from lever_pipe.report.reference import ACCURACY_012, ACCURACY_015, BETAS, CURVE_BETAS, CURVES, FILES
from lever_pipe.report.selector import data, document_002
from lever_pipe.report.table import Column, Table, TableLine, beside

K64, OLD = "rl_data_k64_v3.json", "rl_data_RandSampler_Qwen2_5-VL-3B-Instruct.json"
LAST_PUBLISHED_EPOCH = 50
PARAMETERS = ("base", "rl_data", "epochs", "lr", "kl_beta", "batch", "frozen", "reward")
"""Lines of a table of configurations."""
REMARKS = ((2, max, "highest KL"), (2, min, "lowest KL"), (3, min, "lowest train loss"), (4, min, "lowest PPO loss"))
"""Cell of a line of a training table of document 001, extreme, and the document's remark about it."""
DECIMALS = {"kl": 6, "kl_loss": 8, "ppo_loss": 8, "loss": 8, "val_loss": 6, "mean_ratio": 6, "mean_advantage": 8}
"""The metrics of document 000, with the decimals that it prints."""
BETAS_001, EPOCHS = (0.12, 0.145, 0.15, 0.155, 0.18), (1, 2, 3)
TRAINING = {
    "001": ("kl", "loss", "ppo_loss", "std_advantage", "max_advantage"),
    "002": ("loss", "val_loss", "ppo_loss", "kl", "std_advantage", "max_advantage"),
}
"""Metrics of documents 001 and 002, in their order."""
TRAINING_DIGITS = {"kl": 5, "loss": 5, "val_loss": 5, "ppo_loss": 5, "std_advantage": 4, "max_advantage": 4}
TRAINING_HEADS = {
    "kl": "KL",
    "loss": "Train Loss",
    "val_loss": "Val Loss",
    "ppo_loss": "PPO Loss",
    "std_advantage": "Adv Std",
    "max_advantage": "Adv Max",
}
FURTHER = {"kl": "change", "val_loss": "minimum"}
"""What the document prints of a metric beside its mean, first and last epoch."""
TRAINING_TITLES = {
    "001": "Training metrics, GRPO epoch {epoch}",
    "002": "Training metrics",
}
WITHOUT = {
    "beta": "Without KL_BETA {values}: not part of this configuration.",
    "epoch": "Without epoch {values}: not part of this configuration.",
}
METRIC_NAMES = {
    "kl": "KL divergence",
    "kl_loss": "KL loss",
    "ppo_loss": "PPO loss",
    "loss": "GRPO loss",
    "val_loss": "Validation loss",
    "mean_ratio": "Mean ratio",
    "mean_advantage": "Mean advantage",
}
STATISTIC_NAMES = {
    "mean": "Mean",
    "first": "First",
    "last": "Last",
    "change": "Change",
    "minimum": "Minimum",
}
PARAMETER_NAMES = {
    "base": "Base checkpoint",
    "rl_data": "RL data",
    "epochs": "GRPO epochs",
    "lr": "GRPO LR",
    "kl_beta": "KL beta",
    "batch": "Batch size (queries)",
    "frozen": "Backbone frozen",
    "reward": "Reward mode",
}
LEADS = {
    "001": (
        "Accuracy in percent over the first {near200} questions, with 95 % intervals; ours is "
        "the mean over seeds. Holm p is adjusted over all comparisons of the epoch, shots "
        "included. Published averages and differences are recomputed from the printed shots; no "
        "interval was published. Published lines come from another model and other data: each "
        "kind is compared with itself only. KL is the k3 penalty. Adv Std and Adv Max: spread "
        "and largest size of a query's advantages, mean over queries. Remark: an extreme that "
        "one line alone holds among those of its source, untested."
    ),
    "002": (
        "KL_BETA 0.18, 0.15 and 0.12. Read as document 001; differences are paired over the "
        "{near200} questions and the seeds. Our betas share one base and one RL data file, the "
        "document's do not."
    ),
}


def tables(material: Material) -> Iterator[Table]:
    """Yield the tables of documents 000 to 002 and of the data, in reading order."""
    if not material.has("lever"):
        return
    yield from (table for table in (beside_ours(material),) if table.lines)
    for document in (_document_000, _document_001, _document_002):
        yield from (table for table in document(material) if table.lines)
    yield from data.tables(material)


def _document_000(material: Material) -> Iterator[Table]:
    runs = long_runs(material)
    betas = [beta for beta in CURVE_BETAS if beta in runs] or list(runs)
    if not betas:
        return
    groups = tuple(material.grpo(beta, max(runs[beta])) for beta in betas)
    quoted = tuple(f"published/grpo_balanced/beta~{beta_text(b)}/epoch~{LAST_PUBLISHED_EPOCH}" for b in CURVE_BETAS)
    lines: list[TableLine] = []
    for metric, digits in DECIMALS.items():
        ours = [_statistics(_curve(material, metric, runs[beta]), digits) for beta in betas]
        theirs = [_published_statistics(material, metric, beta) for beta in betas]
        for name in filter(None, ("mean", "first", "last", FURTHER.get(metric))):
            names = (say(METRIC_NAMES[metric]), say(STATISTIC_NAMES[name]))
            of = 2 if name == "change" else digits
            left, right = (_with_difference([each.get(name) for each in side], of) for side in (ours, theirs))
            lines += beside(names, left, right, (groups, quoted))
    seeds = max(len(subjects) for run in runs.values() for subjects in run.values())
    columns = [Column(say(head), "name") for head in ("Metric", "Statistic", "Source")]
    columns += [Column(say("KL_BETA={beta}", beta=beta)) for beta in betas]
    columns += [Column(say("Difference"))] if len(betas) == 2 else []
    epochs = max(max(run) for run in runs.values())
    yield Table(
        id="000-curves",
        section="000",
        title=say("Training curves of the long runs, KL_BETA 0.12 and 0.15"),
        columns=tuple(columns),
        lines=tuple(lines),
        lead=say(
            (
                "Ours: epochs 1 to {epochs}, {seeds:seed|seeds} a KL_BETA. Published: epochs 1 to "
                "{theirs}, one run each, other model and data; its KL is logged with dropout in the "
                "policy alone. Difference: left minus right."
            ),
            epochs=epochs,
            seeds=seeds,
            theirs=LAST_PUBLISHED_EPOCH,
        ),
        notes=(say("**One seed** a KL_BETA, so the differences say nothing about the spread of training."),)
        if seeds == 1
        else (),
        factor="kl_beta statistic",
    )


def long_runs(material: Material) -> dict[float, dict[int, list[str]]]:
    """Return the policies of the longest GRPO runs of the main preset, one a seed, by beta and epoch.

    Shorter runs of a beta, and betas without a long one, are left out: means over other spans do not compare.
    """
    start = f"preset~{material.main.preset}/grpo/base~{material.main.base}/"
    runs: dict[tuple[float, int], dict[int, str]] = {}
    for subject in material.evidence.subjects("kl", study="lever"):
        if subject.startswith(start) and "/seed~" in subject:
            name = PolicyName.parse(subject)
            runs.setdefault((name.beta or 0.0, name.seed or 0), {})[name.epoch or 0] = subject
    longest = max((max(run) for run in runs.values()), default=0)
    found: dict[float, dict[int, list[str]]] = {}
    for (beta, _), run in sorted(runs.items()):
        if max(run) == longest:
            for epoch, subject in run.items():
                found.setdefault(beta, {}).setdefault(epoch, []).append(subject)
    return found


def _curve(material: Material, metric: str, run: Mapping[int, Sequence[str]]) -> dict[int, Estimate]:
    """Return a metric by epoch, mean over seeds."""
    found: dict[int, Estimate] = {}
    for epoch, subjects in sorted(run.items()):
        cells = [level(material.evidence.find(subject, metric), DECIMALS[metric]) for subject in subjects]
        value = average(cells) if len(cells) > 1 else cells[0]
        if value is not None:
            found[epoch] = value
    return found


def _statistics(curve: Mapping[int, Estimate], digits: int) -> dict[str, Cell]:
    if not curve:
        return {}
    first, last, epoch = curve[min(curve)], curve[max(curve)], min(curve, key=lambda at: curve[at].value)
    where = derived(epoch, 0, [curve[epoch]], "epoch of the minimum")
    return _named(average(list(curve.values()), digits), first, last, curve[epoch], where)


def _published_statistics(material: Material, metric: str, beta: float) -> dict[str, Cell]:
    subject = f"published/grpo_balanced/beta~{beta_text(beta)}"
    places = (("", "mean(1-50)"), ("/epoch~1", ""), (f"/epoch~{LAST_PUBLISHED_EPOCH}", ""))
    found = []
    for epoch, at in (*places, ("", "minimum"), ("", "minimum epoch")):
        row = material.evidence.find(f"{subject}{epoch}", metric, at=at, quoted=CURVES)
        cell = level(row, 0 if at == "minimum epoch" else DECIMALS[metric])
        found.append(cell and replace(cell, printed=""))
    return _named(*found)


def _named(
    mean: Estimate | None, first: Estimate | None, last: Estimate | None, least: Estimate | None, at: Estimate | None
) -> dict[str, Cell]:
    """Return the statistics of a curve by name, with its change in percent and the epoch of its minimum."""
    found: dict[str, Cell] = {"mean": mean, "first": first, "last": last}
    if first is not None and last is not None and first.value:
        value = 100 * (last.value - first.value) / first.value
        change = derived(value, 2, [first, last], "percent of the first", sign=True)
        found["change"] = change and replace(change, unit=" %")
    return found | {"minimum": least and say("{value} (epoch {epoch})", value=least, epoch=at)}


def _with_difference(cells: list[Cell], digits: int) -> list[Cell]:
    if len(cells) != 2:
        return cells
    left, right = (next((n for n in numbers_in(cell) if isinstance(n, Estimate)), None) for cell in cells)
    difference = minus(left, right, digits)
    return [*cells, difference and replace(difference, unit=left.unit if left else "")]


def _document_001(material: Material) -> Iterator[Table]:
    stated = {"base": Code("kl012/rce_epoch5.pt"), "rl_data": Code(K64), "batch": 1, "reward": None, "kl_beta": None}
    yield from _configuration(material, "001", {"": stated})
    epochs = [epoch for epoch in EPOCHS if epoch in material.main.epochs]
    yield from (_remarked(_training(material, "001", BETAS_001, (epoch,))) for epoch in epochs)
    yield from (_accuracies_001(material, epoch) for epoch in epochs)


def _document_002(material: Material) -> Iterator[Table]:
    loss = level(material.evidence.find("published/rce/epoch~2", "val_loss", quoted=ACCURACY_015), 4)
    facts = {metric: row for metric in ("queries", "positive_pct") for row in material.rl_data(metric, K64)}
    data_of = {name: level(row, 1) for name, row in facts.items()}
    old = {"base": say("RCE epoch {epoch}", epoch=5), "rl_data": Code(OLD), "batch": None}
    of_015 = {
        "base": say("RCE epoch {epoch} (val_loss {loss})", epoch=2, loss=loss)
        if loss
        else say("RCE epoch {epoch}", epoch=2),
        "rl_data": say("{file} ({queries} queries, {positive_pct} % positive)", file=Code(K64), **data_of)
        if len(data_of) == 2
        else Code(K64),
        "batch": None,
    }
    yield from _configuration(material, "002", {"0.18": old, "0.15": of_015, "0.12": old})
    yield _training(material, "002", document_002.BETAS, EPOCHS)
    yield from (_accuracies_002(material, epoch) for epoch in EPOCHS if epoch in material.main.epochs)
    yield from document_002.tables(material)


def beside_ours(material: Material) -> Table:
    """Return the published accuracies of the first epoch beside ours, as the main page shows them."""
    samples, files = material.document_samples, (BETAS, ACCURACY_012, ACCURACY_015)
    lines: list[TableLine] = []
    for beta, _ in _evaluated(material, BETAS_001, (1,)):
        ours, theirs = _accuracies(material, files, beta, 1, samples)
        mean = level(material.accuracy(material.grpo(beta, 1), samples=samples))
        lines += _beside(material, beta, 1, (), [*ours, mean], [*theirs, average(theirs, 2)])
    columns = (*_heads("KL_BETA", "Source"), *_shots(material), Column(say("Average")))
    title, notes = (
        say("Published beside ours: offline GRPO, epoch 1, {near200} questions", near200=samples),
        _without(material, BETAS_001, ()),
    )
    found = Table("published-beside-ours", "selector", title, columns, tuple(lines), notes=notes, factor="kl_beta")
    return found.without_empty_columns()


def _training(material: Material, document: str, betas: Sequence[float], epochs: Sequence[int]) -> Table:
    """Return the training metrics of a document: of one epoch, or of several, each with lines of its own."""
    metrics, is_of_one = TRAINING[document], len(epochs) == 1
    lines: list[TableLine] = []
    for beta, epoch in _evaluated(material, betas, epochs):
        rows = (material.evidence.find(material.grpo(beta, epoch), metric) for metric in metrics)
        ours = [level(row, TRAINING_DIGITS[metric]) for row, metric in zip(rows, metrics, strict=True)]
        theirs = [_quoted(material, FILES[document], beta, epoch, of, TRAINING_DIGITS[of]) for of in metrics]
        lines += _beside(material, beta, epoch, () if is_of_one else (str(epoch),), ours, theirs)
    names = ("KL_BETA", *(() if is_of_one else ("Epoch",)), "Source")
    columns = (*_heads(*names), *(Column(say(TRAINING_HEADS[of])) for of in metrics))
    found = Table(
        id=f"{document}-training" + (f"-epoch~{epochs[0]}" if is_of_one else ""),
        section=document,
        title=say(TRAINING_TITLES[document], epoch=epochs[0]),
        columns=columns,
        lines=tuple(lines),
        notes=_without(material, betas, EPOCHS),
        factor="kl_beta" if is_of_one else "kl_beta epoch",
    )
    return found.without_empty_columns()


def _accuracies_001(material: Material, epoch: int) -> Table:
    """Return accuracies by shots with their mean, and the mean's difference to the reference KL_BETA."""
    samples, files = material.document_samples, FILES["001"]
    reference = reference_of(material.main.betas()) or 0.0
    published_reference = average(_accuracies(material, files, document_002.REFERENCE, epoch, samples)[1], 2)
    lines: list[TableLine] = []
    for beta, _ in _evaluated(material, BETAS_001, (epoch,)):
        group, (ours, theirs) = material.grpo(beta, epoch), _accuracies(material, files, beta, epoch, samples)
        at = {"subset": "prefix", "samples": samples, "shots": MEAN, "family": f"document-001/epoch~{epoch}"}
        row = material.evidence.find(group, "accuracy", against=material.grpo(reference, epoch), **at)
        mean = average(theirs, 2)
        less = None if beta == document_002.REFERENCE else minus(mean, published_reference)
        own = [*ours, level(material.accuracy(group, samples=samples)), gap(row), holm(row)]
        lines += _beside(material, beta, epoch, (), own, [*theirs, mean, less, None])
    heads = (say("Average"), say("vs {reference}", reference=reference), say("Holm p"))
    columns = (*_heads("KL_BETA", "Source"), *_shots(material), *map(Column, heads))
    title, notes = (
        say("Accuracy at {near200} samples, GRPO epoch {epoch}", epoch=epoch, near200=samples),
        _without(material, BETAS_001, EPOCHS),
    )
    name = f"001-accuracy-epoch~{epoch}"
    return Table(name, "001", title, columns, tuple(lines), notes=notes, factor="kl_beta").without_empty_columns()


def _accuracies_002(material: Material, epoch: int) -> Table:
    """Return accuracies by shots at every sample count."""
    betas, lines = document_002.BETAS, []
    for (beta, _), samples in product(_evaluated(material, betas, (epoch,)), material.samples):
        ours, theirs = _accuracies(material, FILES["002"], beta, epoch, samples)
        lines += list(_beside(material, beta, epoch, (str(samples),), ours, theirs))
    columns = (*_heads("KL_BETA", "Samples", "Source"), *_shots(material))
    title, notes = say("Accuracy by samples, GRPO epoch {epoch}", epoch=epoch), _without(material, betas, EPOCHS)
    name, factor = f"002-accuracy-epoch~{epoch}", "kl_beta samples"
    return Table(name, "002", title, columns, tuple(lines), notes=notes, factor=factor).without_empty_columns()


def _accuracies(
    material: Material, files: Sequence[str], beta: float, epoch: int, samples: int
) -> tuple[list[Estimate | None], list[Estimate | None]]:
    """Return accuracies by shots, ours and published."""
    ours = [level(material.accuracy(material.grpo(beta, epoch), k, samples)) for k in material.shots]
    at = ({"samples": samples, "shots": k} for k in material.shots)
    return ours, [_quoted(material, files, beta, epoch, "accuracy", 2, **place) for place in at]


def _quoted(
    material: Material, files: Sequence[str], beta: float, epoch: int, metric: str, digits: int, **place: int
) -> Estimate | None:
    """Return a published number of the first file that prints it."""
    rows = (material.evidence.find(_published_run(beta, epoch), metric, quoted=file, **place) for file in files)
    return level(next((row for row in rows if row is not None), None), digits)


def _published_run(beta: float, epoch: int) -> str:
    return f"published/grpo/beta~{beta_text(beta)}/epoch~{epoch}"


def _beside(
    material: Material, beta: float, epoch: int, names: Sequence[Cell], ours: Sequence[Cell], theirs: Sequence[Cell]
) -> Iterator[TableLine]:
    """Yield the line of a policy of ours and below it the published one; none without ours."""
    if any(cell is not None for cell in ours):
        groups = (material.grpo(beta, epoch),), (_published_run(beta, epoch),)
        yield from beside((f"{beta:g}", *names), ours, theirs, groups)


def _heads(*names: str) -> Iterator[Column]:
    return (Column(say(name), "name") for name in names)


def _shots(material: Material) -> Iterator[Column]:
    return (Column(say("Shot {shots}", shots=k)) for k in material.shots)


def _evaluated(material: Material, betas: Sequence[float], epochs: Sequence[int]) -> Iterator[tuple[float, int]]:
    """Yield the document's betas and epochs that this run compares; longer training runs have more."""
    known, main = material.main.betas(), material.main
    return ((beta, epoch) for beta, epoch in product(betas, epochs) if beta in known and epoch in main.epochs)


def _without(material: Material, betas: Sequence[float], epochs: Sequence[int]) -> tuple[Cell, ...]:
    """Return which of the document's betas and epochs this run lacks."""
    of_betas = [beta for beta in betas if beta not in material.main.betas()]
    of_epochs = [epoch for epoch in epochs if epoch not in material.main.epochs]
    lacking = {"beta": of_betas, "epoch": of_epochs}
    return tuple(say(WITHOUT[axis], values=values) for axis, values in lacking.items() if values)


def _configuration(material: Material, section: str, stated: Mapping[str, Mapping[str, Any]]) -> Iterator[Table]:
    """Yield our settings beside those that a document states, one column a KL_BETA where it tells them apart."""
    ours = _our_settings(material)
    if not ours:
        return
    common: dict[str, Cell] = {"epochs": 3, "lr": "5e-06", "frozen": say("yes (50.1 % of the parameters train)")}
    common |= {"reward": Code("hard_plus_soft")}
    columns = {beta: {**common, "kl_beta": beta, **values} for beta, values in stated.items()}
    wanted = [name for name in PARAMETERS if any(values[name] is not None for values in columns.values())]
    lines = [
        TableLine((say(PARAMETER_NAMES[name]), ours[name], *(values[name] for values in columns.values())))
        for name in wanted
    ]
    heads = [say("Document, {beta}", beta=beta) if beta else say("Document") for beta in columns]
    yield Table(
        id=f"{section}-configuration",
        section=section,
        title=say("Training configuration"),
        columns=(
            Column(say("Parameter"), "name"),
            Column(say("Ours"), "words", "ours"),
            *(Column(head, "words", "published") for head in heads),
        ),
        lines=tuple(lines),
        lead=say(LEADS[section], near200=material.document_samples),
    )


def _our_settings(material: Material) -> dict[str, Cell]:
    main, find = material.main, material.evidence.find
    preset = material.config.presets.get(main.preset)
    if preset is None or not main.epochs or main.base is None:
        return {}
    loss = level(find(f"preset~{main.preset}/rce/epoch~{main.base}", "val_loss"), 4)
    share = level(find(material.grpo(main.betas()[0], main.epochs[0]), "trained_share"), 1, scale=100)
    facts = {"queries": level(find("rl_data", "queries"), 0), "positive_pct": level(find("rl_data", "positive_pct"), 1)}
    frozen = say("yes" if preset.grpo.freeze_projections else "no")
    return {
        "base": say("RCE epoch {epoch} (val_loss {loss})", epoch=main.base, loss=loss),
        "rl_data": say(
            "{file} ({queries} queries, {positive_pct} % positive)", file=Code("rl_data_k64_v3.jsonl"), **facts
        ),
        "epochs": max(main.epochs),
        "lr": f"{preset.grpo.learning_rate:g}",
        "kl_beta": Series(tuple(beta_text(beta) for beta in main.betas())),
        "batch": preset.grpo.batch_queries,
        "frozen": say(
            "{which} ({share} of the parameters train)", which=frozen, share=share and replace(share, unit=" %")
        ),
        "reward": Code(preset.reward.mode),
    }


def _remarked(table: Table) -> Table:
    """Return a training table with the extremes that a row alone holds among those of its source, as printed."""
    lines = []
    for line in table.lines:
        same = [other for other in table.lines if other.whose == line.whose]
        told = []
        for column, extreme, message in REMARKS:
            values = [_shown(other.cells[column]) for other in same]
            known = [value for value in values if value is not None]
            mine = _shown(line.cells[column])
            if mine is not None and len(known) > 1 and mine == extreme(known) and known.count(mine) == 1:
                told.append(say(message))
        lines.append(replace(line, cells=(*line.cells, Series(tuple(told), "parts") if told else None)))
    columns = (*table.columns, Column(say("Remark"), "words"))
    return replace(table, columns=columns, lines=tuple(lines))


def _shown(cell: Cell) -> float | None:
    return float(number_text(cell.value, cell.digits)) if isinstance(cell, Estimate) else None
