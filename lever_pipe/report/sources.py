"""Readers that turn the rules' output files into rows of evidence, one reader for each kind of file."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lever_pipe.base.policy_names import PolicyName, group_of
from lever_pipe.report.evidence import NAN, EvidenceRow
from lever_pipe.report.inference.endpoints import taken_apart
from lever_pipe.report.long_format import read_csv

Line = Mapping[str, str]
LEVER, INTENTION = "lever", "intention"
TESTED = ("p", "p_holm", "detectable")
COUNTS = {"n": ("n_questions", "n_tasks", "n"), "runs": ("n_runs", "n_seeds")}
"""Columns of a file with counts, by field of a row."""
# A label may also contain the value stored in the checkpoint: `0.15(stored 0.1)`.
BETA_LABEL = re.compile(r"(?P<beta>\d+(?:\.\d+)?)(?:\(stored \d+(?:\.\d+)?\))?")
PUBLISHED_METRICS = {
    "vqa_acc_pct": "accuracy",
    "grpo_loss": "loss",
    "adv_std": "std_advantage",
    "adv_max": "max_advantage",
}
"""Metrics with other names in the reference -> our names."""
BY_SEED = ("pg_loss", "kl", "entropy", "sequence_length", "normalised_reward")
"""Training metrics of study `intention` that claims compare by seed."""


@dataclass(frozen=True, slots=True)
class Lines:
    """Reader of a kind of file whose lines all have the same structure; a line's columns fill the templates.

    Columns named like parts of a row (`samples`, `shots`, `role`, the ends of an interval, tests, counts) fill these
    parts.

    Attributes:
        subject: template, or function of a line.
        metrics: metric -> column of its value; each makes a row.
        parts: templates of other parts of a row.
        runs: training runs of a row, unless a column contains them.
        has_means: whether to add means over seeds after the rows of single seeds.
        study: of the subject.
    """

    subject: str | Callable[[Line], str]
    metrics: Mapping[str, str]
    parts: Mapping[str, str] = field(default_factory=dict)
    runs: int = 0
    has_means: bool = False
    study: str = LEVER

    def __call__(self, *paths: Path) -> Iterator[EvidenceRow]:
        """Yield the rows of each file.

        Raises:
            RecordError: a missing file.
        """
        for path in paths:
            rows = (row for source, line in _lines(path) for row in self.rows(source, line))
            yield from _with_means(rows) if self.has_means else rows

    def rows(self, source: str, line: Line) -> Iterator[EvidenceRow]:
        """Yield the rows of a line."""
        subject = self.subject(line) if callable(self.subject) else self.subject.format_map(line)
        parts = {name: template.format_map(line) for name, template in self.parts.items()}
        fields: dict[str, Any] = {name: line[name] for name in ("samples", "shots", "role") if name in line}
        fields |= {name: _number(line[name]) for name in ("low", "high", *TESTED) if name in line}
        counted = ((name, int(line[column])) for name, heads in COUNTS.items() for column in heads if column in line)
        fields |= {"runs": self.runs, **dict(counted), **parts, "source": source}
        for metric, column in self.metrics.items():
            yield EvidenceRow(self.study, subject, metric.format_map(line), _number(line[column]), **fields)


def trained(line: Line) -> str:
    """Return the name of the policy in the columns of a training file."""
    # Training files record on-policy GRPO as stage `grpo` in another mode.
    kind = "on_policy" if (line["stage"], line["mode"]) == ("grpo", "on_policy") else line["stage"]
    base, seed, epoch = (int(line[name]) if line[name] else None for name in ("base_rce_epoch", "seed", "epoch"))
    beta = float(line["kl_beta"]) if line["kl_beta"] else None
    return str(PolicyName(kind=kind, preset=line["preset"], base=base, beta=beta, seed=seed, epoch=epoch))


def _agent(line: Line) -> str:
    return f"arm~{line['arm']}/seed~{line['seed']}" if line.get("seed") else f"arm~{line['arm']}"


def _emulated(line: Line) -> str:
    numbers = {"base": line.get("base_rce_epoch"), "beta": line.get("kl_beta"), "epoch": line["epoch"]}
    return "/".join([f"emulation/{line['arm']}", *(f"{name}~{text}" for name, text in numbers.items() if text)])


ACCURACY = {"accuracy": "accuracy"}
VALUE = {"{metric}": "value"}
PREFIX = {"subset": "prefix"}
RUN = {"at": "run"}

intervals = Lines("{group}", ACCURACY, PREFIX)
training = Lines(trained, VALUE, runs=1, has_means=True)
parameters = Lines(
    "{policy}",
    {name: name for name in ("n_parameters", "kl_to_base")},
    {"at": "from base"},
    runs=1,
    has_means=True,
)
costs = Lines(trained, {"prompts.own": "own_prompts", "prompts.all": "prompts"}, runs=1, has_means=True)
"""Prompts that an epoch has learned from: its own, and all including the RL data's."""
selections = Lines("{group}", {"agrees.{agrees_in}": "share"}, {"at": "rank {rank}"})
"""Agreement of demonstrations with their queries, by rank."""
copying = Lines("{group}", {"copying.{measure}": "value"})
"""Dependence of answers on the demonstrations in their prompts."""
_differences = Lines(
    "{left}", {"accuracy": "difference"}, {**PREFIX, "against": "{right}", "family": "{family}", "how": "{test}"}
)
_scores = Lines(
    lambda line: line["policy"] if line["preset"] else f"baseline/{line['policy']}", ACCURACY, PREFIX, runs=1
)
_endpoints = Lines(_agent, {"{endpoint}": "value"}, study=INTENTION)
_arm_differences = Lines(
    lambda line: f"arm~{line['arm']}",
    {"{endpoint}": "difference"},
    {"against": "arm~{reference}", "family": "{role}", "how": "{test}"},
    study=INTENTION,
)
agent_curves = Lines(_agent, VALUE, {"at": "{step}", "subset": "{split}", "mode": "{mode}"}, runs=1, study=INTENTION)
_runs = Lines(
    _agent,
    {name: name for name in ("planned_steps", "executed_steps", "best_step", "n_parameters", "seconds")},
    RUN,
    runs=1,
    study=INTENTION,
)


def comparisons(path: Path) -> Iterator[EvidenceRow]:
    """Yield paired differences of groups and both sides' accuracies, from `comparisons.csv` of study `lever`.

    `accuracy.left` and `accuracy.right` cover only the compared runs, so that they subtract to the difference.
    """
    # Interval and tests of a comparison do not apply to the accuracy of one side.
    plain: dict[str, Any] = dict.fromkeys(("low", "high", *TESTED), NAN) | {"how": "runs compared"}
    for source, line in _lines(path):
        for row in _differences.rows(source, line):
            yield row
            for side in (side for side in ("left", "right") if line.get(f"{side}_value")):
                yield row._replace(metric=f"accuracy.{side}", value=float(line[f"{side}_value"]), **plain)


def scores(*paths: Path) -> Iterator[EvidenceRow]:
    """Yield accuracies of single seeds and draws on prefixes of the questions, from `scores.csv` and `arms.csv`."""
    for source, line in (pair for path in paths for pair in _lines(path)):
        if line["subset"] == "prefix":
            # Only rows of single seeds and draws: `intervals` reads the groups' rows.
            yield from (row for row in _scores.rows(source, line) if group_of(row.subject) != row.subject)


def facts(subject: str, path: Path, *, study: str = LEVER) -> Iterator[EvidenceRow]:
    """Yield every number of a JSON file under its path, or of a CSV file with the columns metric and value."""
    if path.suffix == ".csv":
        pairs = [(line["metric"], line["value"], source) for source, line in _lines(path)]
    else:
        pairs = [(name, value, str(path)) for name, value in _flat(json.loads(path.read_text(encoding="utf-8")))]
    for name, value, source in pairs:
        number = _number(value)
        # A text has no value, so it is stored as printed.
        printed = str(value) if math.isnan(number) else ""
        yield EvidenceRow(study, subject, name, number, printed=printed, source=source)


def emulated(scores: Path, prompts: Path, training: Path) -> Iterator[EvidenceRow]:
    """Yield accuracies and prompts of emulated bugs, and the metrics that are logged without an update."""
    yield from Lines(_emulated, ACCURACY, PREFIX, runs=1)(scores)
    counted = ("repeated_share", "prompts_a_query_mean", "prompts_a_query_max")
    yield from Lines("emulation/{arm}", {name: name for name in counted})(prompts)
    yield from Lines(_emulated, VALUE)(training)


def endpoints(path: Path) -> Iterator[EvidenceRow]:
    """Yield the endpoints of every arm, by seed and mean, from `endpoints.csv`."""
    return map(_of_endpoint, _endpoints(path))


def arm_comparisons(path: Path) -> Iterator[EvidenceRow]:
    """Yield paired differences of arms from `comparisons.csv` of study `intention`; the family is the role."""
    return map(_of_endpoint, _arm_differences(path))


def curves(path: Path) -> Iterator[EvidenceRow]:
    """Yield every metric of every step as a mean over seeds, from `curves.csv`, if all seeds reached the step.

    Evaluations also have rows by seed, and so do the training metrics of `BY_SEED` at the first and the evaluated
    steps.
    A training metric has, for each arm, the sum over steps as mean over seeds.
    """
    every = list(agent_curves(path))
    evaluated = {row.at for row in every if row.subset == "val"} | {"1"}
    n_seeds = Counter(group_of(subject) for subject in {row.subject for row in every})
    for row in _with_means(every):
        is_mean = "/seed~" not in row.subject
        if is_mean and row.subset != "test" and row.runs < n_seeds[row.subject]:
            continue  # some seeds ended before this step, so its mean would cover other runs
        if row.subset != "train" or is_mean or (row.metric in BY_SEED and row.at in evaluated):
            yield row
    yield from _sums(path, [row for row in every if row.subset == "train"])


def _sums(path: Path, rows: Iterable[EvidenceRow]) -> Iterator[EvidenceRow]:
    by_arm: dict[tuple[str, str], dict[str, list[float]]] = {}
    for row in rows:
        by_arm.setdefault((group_of(row.subject), row.metric), {}).setdefault(row.subject, []).append(row.value)
    for (arm, metric), by_run in by_arm.items():
        parts: dict[str, Any] = {"at": "sum", "runs": len(by_run), "how": "sum over steps", "source": str(path)}
        value = statistics.fmean(map(math.fsum, by_run.values()))
        yield EvidenceRow(INTENTION, arm, metric, value, subset="train", **parts)


def runs(path: Path) -> Iterator[EvidenceRow]:
    """Yield the facts of every run of an arm from `runs.csv`; a text has no value."""
    for source, line in _lines(path):
        yield from _runs.rows(source, line)
        for metric in ("engine", "reason", "version", "device"):
            parts: dict[str, Any] = {**RUN, "runs": 1, "printed": line[metric], "source": source}
            yield EvidenceRow(INTENTION, _agent(line), metric, NAN, **parts)


def published(path: Path) -> Iterator[EvidenceRow]:
    """Yield the published numbers of study `lever` that the documents quote: OK-VQA, Qwen2.5-VL, RandSampler.

    If a file prints a number twice, the first one counts.
    """
    keys: set[str] = set()
    for source, line in _lines(path):
        if line["dataset"] != "okvqa" or not line["lvlm"].startswith("Qwen2.5-VL"):
            continue
        label = BETA_LABEL.fullmatch(line["kl_beta"])
        epoch = "minimum" if line["notes"] == "minimum" else line["epoch"]
        stage = line["stage"].replace("grpo_frozen", "grpo").replace("rce_scratch", "rce")
        parts = [f"published/{stage}", f"beta~{float(label['beta']):g}" if label else ""]
        parts += [f"epoch~{epoch}"] if epoch.isdigit() else []
        metric = PUBLISHED_METRICS.get(line["metric"], line["metric"])
        at = "" if epoch.isdigit() else epoch or (line["notes"] if stage == "rl_data" else "")
        row = EvidenceRow(LEVER, "/".join(filter(None, parts)), metric, 0.0, at=at)
        row = row._replace(samples=line["samples"], shots=line["shot"], quoted=line["source_file"].rpartition(":")[2])
        if row.key in keys:
            continue
        keys.add(row.key)
        # The epoch of a published minimum gets its own row.
        if epoch == "minimum" and line["epoch"].isdigit():
            minimum: dict[str, Any] = {"value": float(line["epoch"]), "printed": line["epoch"], "source": source}
            yield row._replace(at="minimum epoch", **minimum)
        value = float(line["value"])
        yield row._replace(value=value, printed=line["value"], how=line["notes"], source=source)


def published_agents(path: Path) -> Iterator[EvidenceRow]:
    """Yield the numbers that documents 003 and 004 print for their two runs; a text has no value."""
    keys: set[tuple[str, ...]] = set()
    for source, line in _lines(path):
        # The file's name starts with the document's number.
        subject, quoted = f"published/{line['run']}" if line["run"] else "published", line["source_file"][:3]
        key = (subject, line["metric"], line["step"], quoted)
        if key not in keys:
            keys.add(key)
            row: dict[str, Any] = {"at": line["step"], "quoted": quoted, "printed": line["value"], "how": line["notes"]}
            yield EvidenceRow(INTENTION, subject, line["metric"], _number(line["value"]), **row, source=source)


def _of_endpoint(row: EvidenceRow) -> EvidenceRow:
    """Return a row whose metric is an endpoint's name, with this name split into its parts."""
    parts: dict[str, Any] = {**taken_apart(row.metric)}
    return row._replace(**parts)


def _with_means(rows: Iterable[EvidenceRow]) -> Iterator[EvidenceRow]:
    """Yield the rows of single seeds, then their means over seeds under the name of the group."""
    groups: dict[tuple[str, ...], list[EvidenceRow]] = {}
    for row in rows:
        yield row
        group = group_of(row.subject)
        if group != row.subject:
            groups.setdefault((group, row.metric, row.at, row.subset, row.mode), []).append(row)
    for (group, *_), members in groups.items():
        # The source of a mean lists the line of each seed in their file.
        origins = [row.source.rpartition(":") for row in members]
        source = f"{origins[0][0]}:{'+'.join(line for _, _, line in origins)}"
        mean: dict[str, Any] = {"value": math.fsum(row.value for row in members) / len(members), "runs": len(members)}
        yield members[0]._replace(subject=group, **mean, how="mean over seeds", source=source)


def _lines(path: Path) -> Iterator[tuple[str, Line]]:
    """Yield each line of a CSV file with its location.

    Raises:
        RecordError: a missing file.
    """
    head, *lines = read_csv(path) or [[]]
    # Line 1 is the head.
    for number, line in enumerate(lines, start=2):
        yield f"{path}:{number}", dict(zip(head, line, strict=True))


def _flat(values: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    items: Sequence[tuple[Any, Any]] = list(values.items()) if isinstance(values, Mapping) else list(enumerate(values))
    for name, value in items:
        if isinstance(value, Mapping | list):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return NAN
