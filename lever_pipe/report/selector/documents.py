"""Documents 000 to 002: their tables, with our numbers next to the published ones.

`document_002` contains the conclusions of document 002.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from lever_pipe.base.policy_names import PolicyName, beta_text
from lever_pipe.report.cells import (
    Cell,
    Estimate,
    Message,
    average,
    code,
    derived,
    gap,
    holm,
    level,
    message,
    minus,
    numbers_in,
)
from lever_pipe.report.context import ReportContext
from lever_pipe.report.evidence import MEAN
from lever_pipe.report.format import number_text
from lever_pipe.report.inference.families import reference_of
from lever_pipe.report.reference import (
    ACCURACY_012,
    ACCURACY_015,
    BETAS,
    CURVE_BETAS,
    CURVES,
    FILES,
    published_run,
    quoted,
)
from lever_pipe.report.selector import data, document_002
from lever_pipe.report.table import SOURCE, Row, Table, framed, paired_rows

K64, OLD = "rl_data_k64_v3.json", "rl_data_RandSampler_Qwen2_5-VL-3B-Instruct.json"
LAST_PUBLISHED_EPOCH = 50
REMARKS = (
    *(("KL", max, "highest KL"), ("KL", min, "lowest KL")),
    *(("Train Loss", min, "lowest train loss"), ("PPO Loss", min, "lowest PPO loss")),
)
"""Head of a training table of document 001, extreme, and the document's remark about it."""
METRICS = {
    "kl": ("KL divergence", 6),
    "kl_loss": ("KL loss", 8),
    "ppo_loss": ("PPO loss", 8),
    "loss": ("GRPO loss", 8),
    "val_loss": ("Validation loss", 6),
    "mean_ratio": ("Mean ratio", 6),
    "mean_advantage": ("Mean advantage", 8),
}
"""Names of document 000's metrics, with the decimals that it prints."""
PRINTED = {
    "mean": ("", "mean(1-50)"),
    "first": ("/epoch~1", ""),
    "last": (f"/epoch~{LAST_PUBLISHED_EPOCH}", ""),
    "minimum": ("", "minimum"),
    "minimum_epoch": ("", "minimum epoch"),
}
"""Statistics of its curves: suffix of the subject, and `at` of the evidence row."""
BETAS_001, EPOCHS = (0.12, 0.145, 0.15, 0.155, 0.18), (1, 2, 3)
TRAINING = {
    "001": ("kl", "loss", "ppo_loss", "std_advantage", "max_advantage"),
    "002": ("loss", "val_loss", "ppo_loss", "kl", "std_advantage", "max_advantage"),
}
"""Metrics of documents 001 and 002, in their order."""
TRAINING_METRICS = {
    "kl": ("KL", 5),
    "loss": ("Train Loss", 5),
    "val_loss": ("Val Loss", 5),
    "ppo_loss": ("PPO Loss", 5),
    "std_advantage": ("Adv Std", 4),
    "max_advantage": ("Adv Max", 4),
}
"""Names of these metrics, with their decimals."""
FURTHER = {"kl": "Change", "val_loss": "Minimum"}
"""Statistic of a metric that the document prints in addition to its mean, first and last epoch."""


def tables(context: ReportContext) -> Iterator[Table]:
    """Yield the tables of documents 000 to 002 and of the data, in reading order."""
    if not context.has("lever"):
        return
    yield published_and_ours(context)
    for document in (_document_000, _document_001, _document_002):
        yield from document(context)
    yield from data.tables(context)


def _document_000(context: ReportContext) -> Iterator[Table]:
    runs = long_runs(context)
    betas = [beta for beta in CURVE_BETAS if beta in runs] or list(runs)
    if not betas:
        return
    policies = (
        [context.grpo(beta, max(runs[beta])) for beta in betas],
        [f"published/grpo_balanced/beta~{beta_text(b)}/epoch~{LAST_PUBLISHED_EPOCH}" for b in CURVE_BETAS],
    )
    heads = [message("KL_BETA={beta}", beta=beta) for beta in betas]
    rows: list[Row] = []
    for metric, (called, digits) in METRICS.items():
        ours = [_statistics(_curve(context, metric, runs[beta]), digits) for beta in betas]
        published = [_published_statistics(context, metric, beta) for beta in betas]
        for name in filter(None, ("Mean", "First", "Last", FURTHER.get(metric))):
            decimals = 2 if name == "Change" else digits
            left, right = (_with_difference(heads, [s.get(name) for s in side], decimals) for side in (ours, published))
            rows += paired_rows({"Metric": called, "Statistic": name}, left, right, policies)
    facts = {
        "epochs": max(max(run) for run in runs.values()),
        "seeds": max(len(subjects) for run in runs.values() for subjects in run.values()),
        "theirs": LAST_PUBLISHED_EPOCH,
    }
    title = "Training curves of the long runs, KL_BETA 0.12 and 0.15"
    yield Table("000-curves", "000", title, framed(rows), facts=facts, factor="kl_beta statistic")


def long_runs(context: ReportContext) -> dict[float, dict[int, list[str]]]:
    """Return the policies of the longest GRPO runs of the main preset, one per seed, by beta and epoch.

    Shorter runs, and betas without a long run, are omitted, because means over different spans do not compare.
    """
    start = f"preset~{context.main.preset}/grpo/base~{context.main.base}/"
    runs: dict[tuple[float, int], dict[int, str]] = {}
    for subject in context.evidence.subjects("kl", study="lever"):
        if subject.startswith(start) and "/seed~" in subject:
            name = PolicyName.parse(subject)
            runs.setdefault((name.beta or 0.0, name.seed or 0), {})[name.epoch or 0] = subject
    longest = max((max(run) for run in runs.values()), default=0)
    by_beta: dict[float, dict[int, list[str]]] = {}
    for (beta, _), run in sorted(runs.items()):
        if max(run) == longest:
            for epoch, subject in run.items():
                by_beta.setdefault(beta, {}).setdefault(epoch, []).append(subject)
    return by_beta


def _curve(context: ReportContext, metric: str, run: Mapping[int, Sequence[str]]) -> dict[int, Estimate]:
    """Return a metric by epoch, mean over seeds."""
    curve: dict[int, Estimate] = {}
    for epoch, subjects in sorted(run.items()):
        cells = [level(context.evidence.find(subject, metric), METRICS[metric][1]) for subject in subjects]
        value = average(cells) if len(cells) > 1 else cells[0]
        if value is not None:
            curve[epoch] = value
    return curve


def _statistics(curve: Mapping[int, Estimate], digits: int) -> dict[str, Cell]:
    if not curve:
        return {}
    first, last, epoch = curve[min(curve)], curve[max(curve)], min(curve, key=lambda epoch: curve[epoch].value)
    where = derived(epoch, 0, [curve[epoch]], "epoch of the minimum")
    return _by_name(average(list(curve.values()), digits), first, last, curve[epoch], where)


def printed_statistic(context: ReportContext, beta: float, metric: str, name: str) -> Estimate | None:
    """Return a statistic of a training curve as document 000 prints it, or None if it does not print it."""
    if name not in PRINTED:
        return None
    epoch, statistic = PRINTED[name]
    subject = f"published/grpo_balanced/beta~{beta_text(beta)}{epoch}"
    row = context.evidence.find(subject, metric, at=statistic, quoted=CURVES)
    return level(row, 0 if name == "minimum_epoch" else METRICS[metric][1])


def _published_statistics(context: ReportContext, metric: str, beta: float) -> dict[str, Cell]:
    cells = (printed_statistic(context, beta, metric, name) for name in PRINTED)
    return _by_name(*(cell and replace(cell, printed="") for cell in cells))


def _by_name(
    mean: Estimate | None, first: Estimate | None, last: Estimate | None, least: Estimate | None, epoch: Estimate | None
) -> dict[str, Cell]:
    """Return the statistics of a curve by name, with its change in percent and the epoch of its minimum."""
    statistics: dict[str, Cell] = {"Mean": mean, "First": first, "Last": last}
    if first is not None and last is not None and first.value:
        value = 100 * (last.value - first.value) / first.value
        change = derived(value, 2, [first, last], "percent of the first", sign=True)
        statistics["Change"] = change and replace(change, unit=" %")
    return statistics | {"Minimum": least and message("{value} (epoch {epoch})", value=least, epoch=epoch)}


def _with_difference(heads: Sequence[Message], cells: Sequence[Cell], digits: int) -> dict[Any, Cell]:
    """Return cells by their heads; two cells also with their difference."""
    row: dict[Any, Cell] = dict(zip(heads, cells, strict=True))
    if len(cells) == 2:
        left, right = (next(iter(numbers_in(cell)), None) for cell in cells)
        difference = minus(left, right, digits)
        row["Difference"] = difference and replace(difference, unit=left.unit if left else "")
    return row


def _document_001(context: ReportContext) -> Iterator[Table]:
    stated: Row = {"Base checkpoint": code("kl012/rce_epoch5.pt"), "RL data": code(K64), "Batch size (queries)": 1}
    yield from _configuration(context, "001", {"Document": stated})
    epochs = [epoch for epoch in EPOCHS if epoch in context.main.epochs]
    yield from (_training(context, "001", BETAS_001, (epoch,)) for epoch in epochs)
    yield from (_accuracies_001(context, epoch) for epoch in epochs)


def _document_002(context: ReportContext) -> Iterator[Table]:
    loss = level(context.evidence.find("published/rce/epoch~2", "val_loss", quoted=ACCURACY_015), 4)
    facts = {metric: row for metric in ("queries", "positive_pct") for row in context.rl_data(metric, K64)}
    data_of = {name: level(row, 1) for name, row in facts.items()}
    old: Row = {"Base checkpoint": message("RCE epoch {epoch}", epoch=5), "RL data": code(OLD)}
    of_015: Row = {
        "Base checkpoint": message("RCE epoch {epoch} (val_loss {loss})", epoch=2, loss=loss)
        if loss
        else message("RCE epoch {epoch}", epoch=2),
        "RL data": message("{file} ({queries} queries, {positive_pct} % positive)", file=code(K64), **data_of)
        if len(data_of) == 2
        else code(K64),
    }
    columns = {
        message("Document, {beta}", beta=beta): row for beta, row in {0.18: old, 0.15: of_015, 0.12: old}.items()
    }
    common = {"Reward mode": code("hard_plus_soft")}
    columns = {head: {**row, **common, "KL beta": dict(head.args)["beta"]} for head, row in columns.items()}
    yield from _configuration(context, "002", columns)
    yield _training(context, "002", document_002.BETAS, EPOCHS)
    yield from (_accuracies_002(context, epoch) for epoch in EPOCHS if epoch in context.main.epochs)
    yield from document_002.tables(context)


def published_and_ours(context: ReportContext) -> Table:
    """Return the published accuracies of the first epoch next to ours, for the main page."""
    samples, files = context.document_samples, (BETAS, ACCURACY_012, ACCURACY_015)
    rows: list[Row] = []
    for beta, _ in _evaluated(context, BETAS_001, (1,)):
        ours, published = _accuracies(context, files, beta, 1, samples)
        mean = level(context.accuracy(context.grpo(beta, 1), samples=samples))
        rows += _paired(context, beta, 1, {}, ours | {"Average": mean}, published | {"Average": _average(published)})
    title = message("Published beside ours: offline GRPO, epoch 1, {near200} questions", near200=samples)
    facts = _without(context, BETAS_001, ())
    return Table("published-beside-ours", "selector", title, framed(rows), facts, "without", "kl_beta")


def _training(context: ReportContext, document: str, betas: Sequence[float], epochs: Sequence[int]) -> Table:
    """Return the training metrics of a document: of one epoch, or of several epochs with separate rows."""
    metrics, is_of_one = {metric: TRAINING_METRICS[metric] for metric in TRAINING[document]}, len(epochs) == 1
    rows: list[Row] = []
    for beta, epoch in _evaluated(context, betas, epochs):
        measured = {metric: context.evidence.find(context.grpo(beta, epoch), metric) for metric in metrics}
        ours: Row = {head: level(measured[metric], digits) for metric, (head, digits) in metrics.items()}
        printed = {metric: quoted(context.evidence, FILES[document], beta, epoch, metric) for metric in metrics}
        published: Row = {head: level(printed[metric], digits) for metric, (head, digits) in metrics.items()}
        rows += _paired(context, beta, epoch, {} if is_of_one else {"Epoch": str(epoch)}, ours, published)
    name, facts = f"{document}-training", _without(context, betas, EPOCHS)
    if not is_of_one:
        return Table(name, document, "Training metrics", framed(rows), facts, "without", "kl_beta epoch")
    title = message("Training metrics, GRPO epoch {epoch}", epoch=epochs[0])
    return Table(f"{name}-epoch~{epochs[0]}", document, title, framed(_remarked(rows)), facts, "without", "kl_beta")


def _accuracies_001(context: ReportContext, epoch: int) -> Table:
    """Return accuracies by shots with their mean, and the mean's difference from the reference KL_BETA."""
    samples, files = context.document_samples, FILES["001"]
    reference = reference_of(context.main.betas()) or 0.0
    published_reference = _average(_accuracies(context, files, document_002.REFERENCE, epoch, samples)[1])
    rows: list[Row] = []
    for beta, _ in _evaluated(context, BETAS_001, (epoch,)):
        group, (ours, published) = context.grpo(beta, epoch), _accuracies(context, files, beta, epoch, samples)
        location = {"subset": "prefix", "samples": samples, "shots": MEAN, "family": f"document-001/epoch~{epoch}"}
        row = context.evidence.find(group, "accuracy", against=context.grpo(reference, epoch), **location)
        mean, less = _average(published), message("vs {reference}", reference=reference)
        further = {"Average": level(context.accuracy(group, samples=samples)), less: gap(row), "Holm p": holm(row)}
        below = None if beta == document_002.REFERENCE else minus(mean, published_reference)
        rows += _paired(context, beta, epoch, {}, ours | further, published | {"Average": mean, less: below})
    title = message("Accuracy at {near200} samples, GRPO epoch {epoch}", epoch=epoch, near200=samples)
    facts = _without(context, BETAS_001, EPOCHS)
    return Table(f"001-accuracy-epoch~{epoch}", "001", title, framed(rows), facts, "without", "kl_beta")


def _accuracies_002(context: ReportContext, epoch: int) -> Table:
    """Return accuracies by shots at every sample count."""
    betas = document_002.BETAS
    rows: list[Row] = []
    for (beta, _), samples in product(_evaluated(context, betas, (epoch,)), context.samples):
        sides = _accuracies(context, FILES["002"], beta, epoch, samples)
        rows += _paired(context, beta, epoch, {"Samples": str(samples)}, *sides)
    title, facts = message("Accuracy by samples, GRPO epoch {epoch}", epoch=epoch), _without(context, betas, EPOCHS)
    return Table(f"002-accuracy-epoch~{epoch}", "002", title, framed(rows), facts, "without", "kl_beta samples")


def _accuracies(
    context: ReportContext, files: Sequence[str], beta: float, epoch: int, samples: int
) -> tuple[dict[Any, Estimate | None], dict[Any, Estimate | None]]:
    """Return accuracies by shots, ours and published."""
    ours, published = dict[Any, Estimate | None](), dict[Any, Estimate | None]()
    for k in context.shots:
        head = message("Shot {shots}", shots=k)
        ours[head] = level(context.accuracy(context.grpo(beta, epoch), k, samples))
        published[head] = level(quoted(context.evidence, files, beta, epoch, "accuracy", samples=samples, shots=k), 2)
    return ours, published


def _average(cells: Mapping[Any, Estimate | None]) -> Estimate | None:
    return average(list(cells.values()), 2)


def _paired(context: ReportContext, beta: float, epoch: int, names: Row, ours: Row, published: Row) -> Iterator[Row]:
    """Yield our row of a policy and below it the published one; none without ours."""
    if any(cell is not None for cell in ours.values()):
        policies = [context.grpo(beta, epoch)], [published_run(beta, epoch)]
        yield from paired_rows({"KL_BETA": f"{beta:g}", **names}, ours, published, policies)


def _evaluated(context: ReportContext, betas: Sequence[float], epochs: Sequence[int]) -> Iterator[tuple[float, int]]:
    """Yield the document's betas and epochs that this run compares; longer training runs have more."""
    trained, main = context.main.betas(), context.main
    return ((beta, epoch) for beta, epoch in product(betas, epochs) if beta in trained and epoch in main.epochs)


def _without(context: ReportContext, betas: Sequence[float], epochs: Sequence[int]) -> dict[str, Any]:
    """Return the document's betas and epochs that this run lacks."""
    return {
        "betas": [beta for beta in betas if beta not in context.main.betas()],
        "epochs": [epoch for epoch in epochs if epoch not in context.main.epochs],
    }


def _configuration(context: ReportContext, section: str, stated: Mapping[Any, Row]) -> Iterator[Table]:
    """Yield our settings next to a document's settings, with one column per KL_BETA if these differ."""
    ours = _our_settings(context)
    if not ours:
        return
    common: Row = {"GRPO epochs": 3, "GRPO LR": "5e-06", "Backbone frozen": "yes (50.1 % of the parameters train)"}
    columns = {head: {**common, **values} for head, values in stated.items()}
    rows = [
        {"Parameter": name, "Ours": value, **{head: values.get(name) for head, values in columns.items()}}
        for name, value in ours.items()
        if any(values.get(name) is not None for values in columns.values())
    ]
    facts = {"near200": context.document_samples}
    yield Table(f"{section}-configuration", section, "Training configuration", framed(rows), facts)


def _our_settings(context: ReportContext) -> dict[str, Cell]:
    main, find = context.main, context.evidence.find
    preset = context.config.presets.get(main.preset)
    if preset is None or not main.epochs or main.base is None:
        return {}
    loss = level(find(f"preset~{main.preset}/rce/epoch~{main.base}", "val_loss"), 4)
    share = level(find(context.grpo(main.betas()[0], main.epochs[0]), "trained_share"), 1, scale=100)
    facts = {"queries": level(find("rl_data", "queries"), 0), "positive_pct": level(find("rl_data", "positive_pct"), 1)}
    frozen, share = "yes" if preset.grpo.freeze_projections else "no", share and replace(share, unit=" %")
    file = code("rl_data_k64_v3.jsonl")
    return {
        "Base checkpoint": message("RCE epoch {epoch} (val_loss {loss})", epoch=main.base, loss=loss),
        "RL data": message("{file} ({queries} queries, {positive_pct} % positive)", file=file, **facts),
        "GRPO epochs": max(main.epochs),
        "GRPO LR": f"{preset.grpo.learning_rate:g}",
        "KL beta": [beta_text(beta) for beta in main.betas()],
        "Batch size (queries)": preset.grpo.batch_queries,
        "Backbone frozen": message("{which} ({share} of the parameters train)", which=frozen, share=share),
        "Reward mode": code(preset.reward.mode),
    }


def _remarked(rows: Sequence[Row]) -> Iterator[Row]:
    """Yield rows of a training table with remarks on extremes, as printed, if one row alone of its source has them."""
    for row in rows:
        remarks = []
        for head, extreme, remark in REMARKS:
            values = [n for other in rows if other[SOURCE] == row[SOURCE] and (n := _number(other[head])) is not None]
            number = _number(row[head])
            if number is not None and len(values) > 1 and number == extreme(values) and values.count(number) == 1:
                remarks.append(remark)
        yield {**row, "Remark": tuple(remarks) or None}


def _number(cell: Cell) -> float | None:
    return float(number_text(cell.value, cell.digits)) if isinstance(cell, Estimate) else None
