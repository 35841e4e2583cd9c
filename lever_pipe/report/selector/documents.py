"""Documents 000 to 002: their tables, with our numbers next to the published ones.

`document_002` contains the conclusions of document 002.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

from lever_pipe.base.policy_names import PolicyName, beta_text
from lever_pipe.report.cells import Cell, Estimate, average, code, derived, holm, level, message, minus
from lever_pipe.report.context import ReportContext
from lever_pipe.report.format import number_text
from lever_pipe.report.inference.families import REFERENCE_BETA
from lever_pipe.report.selector import data, document_002
from lever_pipe.report.selector.sides import ACCURACY_015, CURVES, EPOCHS, Point, Side, paired
from lever_pipe.report.table import SOURCE, Row, Table, framed, paired_rows

OLD = "rl_data_RandSampler_Qwen2_5-VL-3B-Instruct.json"
"""The RL data of the older runs."""
CURVE_BETAS, CURVE_EPOCHS = (0.12, 0.15), 50
"""Betas and length of the published training-curve runs."""
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
    "last": (f"/epoch~{CURVE_EPOCHS}", ""),
    "minimum": ("", "minimum"),
    "minimum_epoch": ("", "minimum epoch"),
}
"""Statistics of its curves: suffix of the subject, and `at` of the evidence row."""
FURTHER = {"kl": "Change", "val_loss": "Minimum"}
"""Statistic of a metric that the document prints in addition to its mean, first and last epoch."""
BETAS_001, BETAS_002 = (0.12, 0.145, 0.15, 0.155, 0.18), document_002.BETAS
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
REMARKS = (
    *(("KL", max, "highest KL"), ("KL", min, "lowest KL")),
    *(("Train Loss", min, "lowest train loss"), ("PPO Loss", min, "lowest PPO loss")),
)
"""Head of a training table of document 001, extreme, and the document's remark about it."""


def tables(context: ReportContext) -> Iterator[Table]:
    """Yield the tables of documents 000 to 002 and of the data, in reading order."""
    if not context.has("lever"):
        return
    yield from _declared(context, "selector")
    yield from _training_curves(context)
    yield from _configuration(context, "001", STATED_001)
    yield from _declared(context, "001")
    yield from _configuration(context, "002", _stated_002(context))
    yield from _declared(context, "002")
    yield from document_002.tables(context)
    yield from data.tables(context)


def long_runs(context: ReportContext) -> dict[float, dict[int, dict[int, str]]]:
    """Return the policies of the longest GRPO runs of the main preset by beta, seed and epoch.

    Shorter runs, and betas without a long run, are omitted, because means over different spans do not compare.
    """
    start = f"preset~{context.main.preset}/grpo/base~{context.main.base}/"
    runs: dict[tuple[float, int], dict[int, str]] = {}
    for subject in context.evidence.subjects("kl", study="lever"):
        if subject.startswith(start) and "/seed~" in subject:
            name = PolicyName.parse(subject)
            runs.setdefault((name.beta or 0.0, name.seed or 0), {})[name.epoch or 0] = subject
    longest = max((max(run) for run in runs.values()), default=0)
    by_beta: dict[float, dict[int, dict[int, str]]] = {}
    for (beta, seed), run in sorted(runs.items()):
        if max(run) == longest:
            by_beta.setdefault(beta, {})[seed] = dict(sorted(run.items()))
    return by_beta


def _training_curves(context: ReportContext) -> Iterator[Table]:
    runs = long_runs(context)
    betas = [beta for beta in CURVE_BETAS if beta in runs] or list(runs)
    if not betas:
        return
    last = max(epoch for run in runs[betas[0]].values() for epoch in run)
    policies = (
        [context.grpo(beta, last) for beta in betas],
        [f"published/grpo_balanced/beta~{beta_text(beta)}/epoch~{CURVE_EPOCHS}" for beta in CURVE_BETAS],
    )
    rows: list[Row] = []
    for metric, (called, digits) in METRICS.items():
        ours = {beta: _measured(context, metric, runs[beta]) for beta in betas}
        published = {beta: {name: printed_statistic(context, beta, metric, name) for name in PRINTED} for beta in betas}
        for name in filter(None, ("Mean", "First", "Last", FURTHER.get(metric))):
            decimals = 2 if name == "Change" else digits
            left, right = (_with_difference(side, name, decimals) for side in (ours, published))
            rows += paired_rows({"Metric": called, "Statistic": name}, left, right, policies)
    facts = {"epochs": last, "seeds": max(map(len, runs.values())), "theirs": CURVE_EPOCHS}
    title = "Training curves of the long runs, KL_BETA 0.12 and 0.15"
    yield Table("000-curves", "000", title, framed(rows), facts=facts, factor="kl_beta statistic")


Statistics = Mapping[str, Estimate | None]
"""Statistics of a curve, by the names of `PRINTED`."""


def _measured(context: ReportContext, metric: str, runs: Mapping[int, Mapping[int, str]]) -> Statistics:
    """Return the statistics of our curve, which is the mean over the seeds' runs."""
    curve, digits = dict[int, Estimate](), METRICS[metric][1]
    for epoch in sorted({epoch for run in runs.values() for epoch in run}):
        cells = [level(context.evidence.find(run[epoch], metric), digits) for run in runs.values() if epoch in run]
        value = average(cells) if len(cells) > 1 else cells[0]
        curve |= {} if value is None else {epoch: value}
    if not curve:
        return {}
    epoch = min(curve, key=lambda epoch: curve[epoch].value)
    return {
        "mean": average(list(curve.values()), digits),
        "first": curve[min(curve)],
        "last": curve[max(curve)],
        "minimum": curve[epoch],
        "minimum_epoch": derived(epoch, 0, [curve[epoch]], "epoch of the minimum"),
    }


def printed_statistic(context: ReportContext, beta: float, metric: str, name: str) -> Estimate | None:
    """Return a statistic of a training curve as document 000 prints it, or None if it does not print it."""
    if name not in PRINTED:
        return None
    epoch, statistic = PRINTED[name]
    subject = f"published/grpo_balanced/beta~{beta_text(beta)}{epoch}"
    row = context.evidence.find(subject, metric, at=statistic, quoted=CURVES)
    return level(row, 0 if name == "minimum_epoch" else METRICS[metric][1])


def _with_difference(by_beta: Mapping[float, Statistics], name: str, digits: int) -> dict[Any, Cell]:
    """Return a statistic of every beta, and of two betas also the difference."""
    cells = {beta: statistics.get(name.lower()) for beta, statistics in by_beta.items()}
    # Without the printed text, published numbers have as many decimals as ours.
    numbers = {beta: cell and replace(cell, printed="") for beta, cell in cells.items()}
    if name == "Change":
        numbers = {beta: _change(statistics) for beta, statistics in by_beta.items()}
    row: dict[Any, Cell] = {message("KL_BETA={beta}", beta=beta): number for beta, number in numbers.items()}
    if len(row) == 2:
        left, right = numbers.values()
        difference = minus(left, right, digits)
        row["Difference"] = difference and replace(difference, unit=left.unit if left else "")
    if name == "Minimum":
        for head, statistics in zip(tuple(row), by_beta.values(), strict=False):
            at = {"value": row[head], "epoch": statistics.get("minimum_epoch")}
            row[head] = row[head] and message("{value} (epoch {epoch})", **at)
    return row


def _change(statistics: Statistics) -> Estimate | None:
    """Return the change from the first to the last epoch, in percent of the first."""
    first, last = statistics.get("first"), statistics.get("last")
    if first is None or last is None or not first.value:
        return None
    change = derived(
        100 * (last.value - first.value) / first.value, 2, [first, last], "percent of the first", sign=True
    )
    return change and replace(change, unit=" %")


def _metrics(side: Side, point: Point) -> Row:
    """Return the training metrics of the document."""
    declared = {metric: TRAINING_METRICS[metric] for metric in TRAINING[side.section]}
    return {head: side.number(*point.policy, metric, digits) for metric, (head, digits) in declared.items()}


def _by_shots(side: Side, point: Point) -> Row:
    """Return accuracies by shots."""
    return side.by_shots(*point.policy, point.samples)


def _accuracies(side: Side, point: Point) -> Row:
    """Return accuracies by shots with their mean."""
    return {**side.by_shots(*point.policy), "Average": side.accuracy(*point.policy)}


def _against_reference(side: Side, point: Point) -> Row:
    """Return accuracies by shots with their mean, and the mean's difference from the reference KL_BETA."""
    ours = side.context.main.reference_beta or 0.0
    pair = (point.betas[0], ours if side.is_ours else REFERENCE_BETA)
    less: Row = {message("vs {reference}", reference=ours): side.gap(*pair, point.epoch)}
    return {**_accuracies(side, point), **less, "Holm p": holm(side.compared(*pair, point.epoch))}


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


class DocumentTable(NamedTuple):
    """A table with a row of each side for every KL_BETA and epoch that this run compares."""

    id: str
    """With `{epoch}` if each epoch has a table."""
    title: str
    betas: tuple[float, ...]
    cells: Callable[[Side, Point], Row]
    keys: tuple[str, ...] = ("KL_BETA",)
    """Key columns, in which the rows may differ."""
    epochs: tuple[int, ...] = EPOCHS
    finish: Callable[[list[Row]], Iterable[Row]] = list


BY_SAMPLES, AT_SAMPLES = "Accuracy by samples, GRPO epoch {epoch}", "Accuracy at {near200} samples, GRPO epoch {epoch}"
BESIDE = "Published beside ours: offline GRPO, epoch 1, {near200} questions"
OF_EPOCH = "Training metrics, GRPO epoch {epoch}"
DECLARED: Mapping[str, Sequence[DocumentTable]] = {
    "selector": (DocumentTable("published-beside-ours", BESIDE, BETAS_001, _accuracies, epochs=(1,)),),
    "001": (
        DocumentTable("001-training-epoch~{epoch}", OF_EPOCH, BETAS_001, _metrics, finish=_remarked),
        DocumentTable("001-accuracy-epoch~{epoch}", AT_SAMPLES, BETAS_001, _against_reference),
    ),
    "002": (
        DocumentTable("002-training", "Training metrics", BETAS_002, _metrics, ("KL_BETA", "Epoch")),
        DocumentTable("002-accuracy-epoch~{epoch}", BY_SAMPLES, BETAS_002, _by_shots, ("KL_BETA", "Samples")),
    ),
}
"""Tables by section."""


def _declared(context: ReportContext, section: str) -> Iterator[Table]:
    """Yield the declared tables of a section, each with the betas and epochs that this run lacks."""
    trained, compared = context.main.betas(), context.main.epochs
    for of in DECLARED[section]:
        betas, present = [beta for beta in of.betas if beta in trained], [e for e in of.epochs if e in compared]
        lacks = {
            "betas": [beta for beta in of.betas if beta not in betas],
            "epochs": [epoch for epoch in of.epochs if epoch not in present],
        }
        for epochs in [[epoch] for epoch in present] if "{epoch}" in of.id else [present]:
            points = []
            for beta, epoch, samples in product(betas, epochs, context.samples if "Samples" in of.keys else [0]):
                names = {"KL_BETA": f"{beta:g}", "Epoch": str(epoch), "Samples": str(samples)}
                points.append(Point({key: names[key] for key in of.keys}, epoch, (beta,), samples))
            rows = framed(of.finish(paired(context, section, points, of.cells)))
            named = {"epoch": max(epochs, default=0), "near200": context.document_samples}
            name, factor = of.id.format_map(named), " ".join(of.keys).lower()
            yield Table(name, section, message(of.title, **named), rows, lacks, "without", factor)


STATED: Row = {"GRPO epochs": 3, "GRPO LR": "5e-06", "Backbone frozen": "yes (50.1 % of the parameters train)"}
"""Settings of documents 001 and 002."""
STATED_001: Mapping[Any, Row] = {
    "Document": {
        "Base checkpoint": code("kl012/rce_epoch5.pt"),
        "RL data": code(data.RL_FILE),
        "Batch size (queries)": 1,
    }
}
RL_DATA = "{file} ({queries} queries, {positive_pct} % positive)"
BASE = "RCE epoch {epoch} (val_loss {loss})"


def _stated_002(context: ReportContext) -> dict[Any, Row]:
    """Return the settings of each KL_BETA of document 002."""
    loss = level(context.evidence.find("published/rce/epoch~2", "val_loss", quoted=ACCURACY_015), 4)
    facts = {name: level(row, 1) for name in ("queries", "positive_pct") for row in context.rl_data(name, data.RL_FILE)}
    file, plain = code(data.RL_FILE), "RCE epoch {epoch}"
    old: Row = {"Base checkpoint": message(plain, epoch=5), "RL data": code(OLD)}
    of_015: Row = {
        "Base checkpoint": message(BASE, epoch=2, loss=loss) if loss else message(plain, epoch=2),
        "RL data": message(RL_DATA, file=file, **facts) if len(facts) == 2 else file,
    }
    return {
        message("Document, {beta}", beta=beta): {**row, "Reward mode": code("hard_plus_soft"), "KL beta": beta}
        for beta, row in {0.18: old, 0.15: of_015, 0.12: old}.items()
    }


def _configuration(context: ReportContext, section: str, stated: Mapping[Any, Row]) -> Iterator[Table]:
    """Yield our settings next to a document's settings, with one column per KL_BETA if these differ."""
    columns = {head: {**STATED, **values} for head, values in stated.items()}
    rows: list[Row] = []
    for name, value in _our_settings(context).items():
        cells = {head: values.get(name) for head, values in columns.items()}
        rows += (
            [{"Parameter": name, "Ours": value, **cells}] if any(cell is not None for cell in cells.values()) else []
        )
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
    return {
        "Base checkpoint": message(BASE, epoch=main.base, loss=loss),
        "RL data": message(RL_DATA, file=code("rl_data_k64_v3.jsonl"), **facts),
        "GRPO epochs": max(main.epochs),
        "GRPO LR": f"{preset.grpo.learning_rate:g}",
        "KL beta": [beta_text(beta) for beta in main.betas()],
        "Batch size (queries)": preset.grpo.batch_queries,
        "Backbone frozen": message("{which} ({share} of the parameters train)", which=frozen, share=share),
        "Reward mode": code(preset.reward.mode),
    }
