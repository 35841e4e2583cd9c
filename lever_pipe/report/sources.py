"""From the files that the rules write to rows of evidence: one function a kind of file, each row with its line."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lever_pipe.base.errors import RecordError
from lever_pipe.base.policy_names import PolicyName, group_of
from lever_pipe.report.evidence import NAN, EvidenceRow

Line = Mapping[str, str]
LEVER, INTENTION = "lever", "intention"
BETA_LABEL = re.compile(r"(?P<beta>\d+(?:\.\d+)?)(?:\(stored \d+(?:\.\d+)?\))?")
PUBLISHED_METRICS = {
    "vqa_acc_pct": "accuracy",
    "grpo_loss": "loss",
    "adv_std": "std_advantage",
    "adv_max": "max_advantage",
}
"""Names of metrics in the reference that are others than ours."""
BY_SEED = ("pg_loss", "kl", "entropy", "sequence_length", "response_length", "normalised_reward")
"""Training metrics of study `intention` that claims compare run by run."""
ENDPOINT = re.compile(
    r"(?:(?P<subset>test|val)_)?(?P<metric>.+?)(?:_(?P<mode>greedy|sampled))?(?:_(?P<at>last|best|start))?"
)


def intervals(path: Path) -> Iterator[EvidenceRow]:
    """Yield accuracies of groups with their intervals, of `intervals.csv`."""
    for source, line in _lines(path):
        yield EvidenceRow(
            LEVER,
            line["group"],
            "accuracy",
            float(line["accuracy"]),
            subset="prefix",
            samples=line["samples"],
            shots=line["shots"],
            **_ends(line),
            n=int(line["n_questions"]),
            runs=int(line["n_runs"]),
            source=source,
        )


def comparisons(path: Path) -> Iterator[EvidenceRow]:
    """Yield paired differences of groups, of `comparisons.csv` of study `lever`, and the levels that they are made of.

    `accuracy.left` and `accuracy.right` are over the runs that were compared, so that they subtract.
    """
    for source, line in _lines(path):
        found = EvidenceRow(
            LEVER,
            line["left"],
            "accuracy",
            float(line["difference"]),
            against=line["right"],
            subset="prefix",
            samples=line["samples"],
            shots=line["shots"],
            family=line["family"],
            **_ends(line),
            **_tested(line),
            n=int(line["n_questions"]),
            runs=int(line["n_runs"]),
            role=line.get("role", ""),
            how=line["test"],
            source=source,
        )
        yield found
        plain: dict[str, Any] = dict.fromkeys(("low", "high", "p", "p_holm", "detectable"), NAN)
        for side in ("left", "right"):
            if line.get(f"{side}_value"):
                value = float(line[f"{side}_value"])
                yield found._replace(metric=f"accuracy.{side}", value=value, how="runs compared", **plain)


def scores(*paths: Path) -> Iterator[EvidenceRow]:
    """Yield accuracies of single seeds and draws over prefixes of the questions, of `scores.csv` and `arms.csv`."""
    for path in paths:
        for source, line in _lines(path):
            subject = line["policy"] if line["preset"] else f"baseline/{line['policy']}"
            if line["subset"] == "prefix" and group_of(subject) != subject:
                at: dict[str, Any] = {"subset": "prefix", "samples": line["samples"], "shots": line["shots"]}
                n = int(line["n_questions"])
                yield EvidenceRow(LEVER, subject, "accuracy", float(line["accuracy"]), **at, n=n, runs=1, source=source)


def training(*paths: Path) -> Iterator[EvidenceRow]:
    """Yield training metrics of every epoch by seed and their means over seeds, of `training.csv` and its like."""
    for path in paths:
        yield from _with_means(_training_rows(path))


def agreement(path: Path) -> Iterator[EvidenceRow]:
    """Yield shares of queries with the same choice by pair of groups, mean over pairs of runs, of `agreement.csv`."""
    found: dict[tuple[str, str, str, str], list[tuple[float, str]]] = {}
    for source, line in _lines(path):
        pair = group_of(line["left"]), group_of(line["right"])
        for metric in ("as_sequence", "as_set", "at_position"):
            found.setdefault((*pair, line["shots"], metric), []).append((float(line[metric]), source))
    for (left, right, shots, metric), members in found.items():
        at: dict[str, Any] = {"against": right, "shots": shots, "runs": len(members)}
        value = math.fsum(value for value, _ in members) / len(members)
        source = _joint(source for _, source in members)
        yield EvidenceRow(LEVER, left, metric, value, **at, how="mean", source=source)


def parameters(path: Path) -> Iterator[EvidenceRow]:
    """Yield how parameters differ from those that training started from, by seed and mean, of `parameters.csv`."""

    def rows() -> Iterator[EvidenceRow]:
        for source, line in _lines(path):
            for metric in ("n_parameters", "share_differing", "norm", "relative_norm"):
                value = float(line[metric]) if line[metric] else NAN
                yield EvidenceRow(LEVER, line["policy"], metric, value, at="from base", runs=1, source=source)

    yield from _with_means(rows())


def breakdown(path: Path) -> Iterator[EvidenceRow]:
    """Yield accuracies by kind of question, of `breakdown.csv`; the subset is as `relation~color`."""
    for source, line in _lines(path):
        subset, n = f"{line['by']}~{line['kind']}", int(line["n_questions"])
        at: dict[str, Any] = {"subset": subset, "shots": line["shots"]}
        value = float(line["accuracy"])
        yield EvidenceRow(LEVER, line["group"], "accuracy", value, **at, **_ends(line), n=n, source=source)


def costs(path: Path) -> Iterator[EvidenceRow]:
    """Yield the prompts that an epoch has learned from, its own and those of its base, of `costs.csv`."""

    def rows() -> Iterator[EvidenceRow]:
        for source, line in _lines(path):
            for metric, column in (("prompts.own", "own_prompts"), ("prompts.all", "prompts")):
                yield EvidenceRow(LEVER, str(_trained(line)), metric, float(line[column]), runs=1, source=source)

    yield from _with_means(rows())


def flips(path: Path) -> Iterator[EvidenceRow]:
    """Yield how many questions a GRPO run answers better and worse than its base, by seed, of `flips.csv`."""
    for source, line in _lines(path):
        subject = _with_seed(line["left"], line["seed"])
        for metric in ("better", "worse", "equal"):
            at: dict[str, Any] = {"against": line["right"], "shots": line["shots"], "runs": 1}
            yield EvidenceRow(LEVER, subject, f"flips.{metric}", float(line[metric]), **at, source=source)


def selections(path: Path) -> Iterator[EvidenceRow]:
    """Yield what demonstrations have in common with their queries by rank, of `selections.csv`."""
    for source, line in _lines(path):
        at: dict[str, Any] = {"at": f"rank {line['rank']}", "subset": f"kind~{line['kind']}", "n": int(line["n"])}
        metric = f"agrees.{line['agrees_in']}"
        yield EvidenceRow(LEVER, line["group"], metric, float(line["share"]), **at, source=source)


def rewards(path: Path) -> Iterator[EvidenceRow]:
    """Yield the bins of rewards and advantages, of `rewards.csv`: shares by the bin's low and high end."""
    for source, line in _lines(path):
        settings = "/".join(f"{name}~{float(line[name]):g}" for name in ("hard", "soft", "relevance"))
        at: dict[str, Any] = {"at": f"{line['low']} {line['high']}", "subset": f"best {line['kept']}"}
        subject = f"rewards/{line['mode']}/{settings}"
        yield EvidenceRow(LEVER, subject, line["what"], float(line["share"]), **at, n=int(line["n"]), source=source)


def facts(subject: str, path: Path, *, study: str = LEVER) -> Iterator[EvidenceRow]:
    """Yield every number of a JSON file, or of a CSV file of the columns metric and value, under its path in it."""
    if path.suffix == ".csv":
        pairs = [(line["metric"], line["value"], source) for source, line in _lines(path)]
    else:
        pairs = [(name, value, str(path)) for name, value in _flat(json.loads(path.read_text(encoding="utf-8")))]
    for name, value, source in pairs:
        yield EvidenceRow(
            study, subject, name, _number(value), printed="" if _is_number(value) else str(value), source=source
        )


def work(paths: Sequence[Path]) -> Iterator[EvidenceRow]:
    """Yield the sum of each counter over the jobs; `seconds_per_limit` is taken anew over those that know a limit."""
    sums: dict[str, float] = {}
    limited = 0.0
    for path in paths:
        counters = json.loads(path.read_text(encoding="utf-8"))
        limited += counters["seconds"] if "limit_seconds" in counters else 0.0
        for name, value in counters.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                sums[name] = sums.get(name, 0) + value
    if sums.get("limit_seconds"):
        sums["seconds_per_limit"] = limited / sums["limit_seconds"]
    source = f"{paths[0].parent.parent}/*/{paths[0].name}" if paths else ""
    for name, value in sums.items():
        yield EvidenceRow(LEVER, "work", name, float(value), runs=len(paths), how="sum over jobs", source=source)


def emulated(scores: Path, prompts: Path, agreement: Path, training: Path) -> Iterator[EvidenceRow]:
    """Yield accuracies, prompts, equal choices and training metrics of emulated faults."""
    for source, line in _lines(scores):
        at: dict[str, Any] = {
            "subset": "prefix",
            "samples": line["samples"],
            "shots": line["shots"],
            "n": int(line["n_questions"]),
        }
        yield EvidenceRow(LEVER, _emulated(line), "accuracy", float(line["accuracy"]), **at, runs=1, source=source)
    for source, line in _lines(prompts):
        for metric in ("repeated_share", "prompts_a_query_mean", "prompts_a_query_max"):
            value = _number(line[metric])
            yield EvidenceRow(LEVER, f"emulation/{line['arm']}", metric, value, shots=line["shots"], source=source)
    for source, line in _lines(agreement):
        other = {"arm": line["arm"], "kl_beta": line["other_kl_beta"], "epoch": line["other_epoch"]}
        to: dict[str, Any] = {"against": _emulated(other), "shots": line["shots"]}
        yield EvidenceRow(LEVER, _emulated(line), "as_sequence", float(line["identical"]), **to, source=source)
    for source, line in _lines(training):
        subject = _emulated(line)
        yield EvidenceRow(LEVER, subject, line["metric"], _number(line["value"]), source=source)


def endpoints(path: Path) -> Iterator[EvidenceRow]:
    """Yield the endpoints of every arm, by seed and mean, of `endpoints.csv`."""
    for source, line in _lines(path):
        yield EvidenceRow(
            INTENTION,
            _agent(line["arm"], line["seed"]),
            value=_number(line["value"]),
            **_endpoint(line["endpoint"]),
            **_ends(line),
            n=int(line["n_tasks"]),
            runs=int(line["n_seeds"]),
            role=line["role"],
            source=source,
        )


def arm_comparisons(path: Path) -> Iterator[EvidenceRow]:
    """Yield paired differences of arms, of `comparisons.csv` of study `intention`; the family is the role."""
    for source, line in _lines(path):
        yield EvidenceRow(
            INTENTION,
            _agent(line["arm"], ""),
            value=_number(line["difference"]),
            against=_agent(line["reference"], ""),
            family=line["role"],
            **_endpoint(line["endpoint"]),
            **_ends(line),
            **_tested(line),
            n=int(line["n_tasks"]),
            runs=int(line["n_seeds"]),
            role=line["role"],
            how=line["test"],
            source=source,
        )


def curve_statistics(path: Path) -> Iterator[EvidenceRow]:
    """Yield what is known of every validation curve and pair of curves, of `statistics.csv`."""
    for source, line in _lines(path):
        against = _agent(line["against"], line["seed"]) if line["against"] else ""
        at: dict[str, Any] = {"against": against, "subset": "val", "mode": line["mode"]}
        subject, value = _agent(line["arm"], line["seed"]), _number(line["value"])
        yield EvidenceRow(INTENTION, subject, f"curve.{line['statistic']}", value, **at, source=source)


def curves(path: Path) -> Iterator[EvidenceRow]:
    """Yield every metric of every step as mean over seeds, of `curves.csv`.

    Evaluations stand by seed too, and so do the training metrics of `BY_SEED` at the first and the evaluated steps.
    A training metric has, for each arm, the least and most of all steps and seeds, and the sum and spread (standard
    deviation) over steps as means over seeds.
    """

    def rows() -> Iterator[EvidenceRow]:
        for source, line in _lines(path):
            at: dict[str, Any] = {"at": line["step"], "subset": line["split"], "mode": line["mode"]}
            subject = _agent(line["arm"], line["seed"])
            yield EvidenceRow(INTENTION, subject, line["metric"], _number(line["value"]), **at, runs=1, source=source)

    every = list(rows())
    evaluated = {row.at for row in every if row.subset == "val"} | {"1"}
    for row in _with_means(every):
        if row.subset != "train" or "/seed~" not in row.subject or (row.metric in BY_SEED and row.at in evaluated):
            yield row
    yield from _over_steps(path, every)


def _over_steps(path: Path, rows: Iterable[EvidenceRow]) -> Iterator[EvidenceRow]:
    by_run: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        if row.subset == "train":
            by_run.setdefault((row.subject, row.metric), []).append(row.value)
    by_arm: dict[tuple[str, str], list[list[float]]] = {}
    for (run, metric), values in by_run.items():
        by_arm.setdefault((group_of(run), metric), []).append(values)
    for (arm, metric), seeds in by_arm.items():
        summary = {
            "least": min(map(min, seeds)),
            "most": max(map(max, seeds)),
            "sum": statistics.fmean(map(math.fsum, seeds)),
            "spread": statistics.fmean(statistics.stdev(of) if len(of) > 1 else NAN for of in seeds),
        }
        for at, value in summary.items():
            told: dict[str, Any] = {"runs": len(seeds), "how": f"{at} over steps", "source": str(path)}
            yield EvidenceRow(INTENTION, arm, metric, value, at=at, subset="train", **told)


def runs(path: Path) -> Iterator[EvidenceRow]:
    """Yield what is known of every run of an arm, of `runs.csv`."""
    for source, line in _lines(path):
        subject = _agent(line["arm"], line["seed"])
        for metric in ("planned_steps", "executed_steps", "best_step", "n_parameters", "seconds"):
            yield EvidenceRow(INTENTION, subject, metric, _number(line[metric]), at="run", runs=1, source=source)
        for metric in ("engine", "reason", "version", "device"):
            texts: dict[str, Any] = {"at": "run", "printed": line[metric], "source": source}
            yield EvidenceRow(INTENTION, subject, metric, NAN, runs=1, **texts)


def published(path: Path) -> Iterator[EvidenceRow]:
    """Yield the published numbers of study `lever` that the documents quote: OK-VQA, Qwen2.5-VL, RandSampler.

    Of a number that one file prints twice the first counts.
    """
    seen: dict[tuple[str, ...], str] = {}
    for source, line in _lines(path):
        if line["dataset"] != "okvqa" or not line["lvlm"].startswith("Qwen2.5-VL"):
            continue
        label = BETA_LABEL.fullmatch(line["kl_beta"])
        epoch = "minimum" if line["notes"] == "minimum" else line["epoch"]
        stage = line["stage"].replace("grpo_frozen", "grpo").replace("rce_scratch", "rce")
        parts = [f"published/{stage}", f"beta~{float(label['beta']):g}" if label else ""]
        parts += [f"epoch~{epoch}"] if epoch.isdigit() else []
        subject = "/".join(filter(None, parts))
        file = line["source_file"].rpartition(":")[2]
        metric = PUBLISHED_METRICS.get(line["metric"], line["metric"])
        at: dict[str, Any] = {
            "at": "" if epoch.isdigit() else epoch or (line["notes"] if stage == "rl_data" else ""),
            "samples": line["samples"],
            "shots": line["shot"],
            "quoted": file,
        }
        key = (subject, metric, *at.values())
        if key in seen:
            continue
        seen[key] = line["value"]
        if epoch == "minimum" and line["epoch"].isdigit():
            when = {**at, "at": "minimum epoch", "printed": line["epoch"]}
            yield EvidenceRow(LEVER, subject, metric, float(line["epoch"]), **when, source=source)
        yield EvidenceRow(
            LEVER, subject, metric, float(line["value"]), **at, printed=line["value"], how=line["notes"], source=source
        )


def published_agents(path: Path) -> Iterator[EvidenceRow]:
    """Yield what documents 003 and 004 print of their two runs; a text has no value."""
    seen: set[tuple[str, ...]] = set()
    for source, line in _lines(path):
        subject, quoted = f"published/{line['run']}" if line["run"] else "published", line["source_file"][:3]
        key = (subject, line["metric"], line["step"], quoted)
        if key not in seen:
            seen.add(key)
            at: dict[str, Any] = {"at": line["step"], "quoted": quoted, "printed": line["value"], "how": line["notes"]}
            yield EvidenceRow(INTENTION, subject, line["metric"], _number(line["value"]), **at, source=source)


def _training_rows(path: Path) -> Iterator[EvidenceRow]:
    for source, line in _lines(path):
        yield EvidenceRow(LEVER, str(_trained(line)), line["metric"], _number(line["value"]), runs=1, source=source)


def _trained(line: Line) -> PolicyName:
    """Return the policy that the columns of a training file name."""
    kind = "on_policy" if (line["stage"], line["mode"]) == ("grpo", "on_policy") else line["stage"]
    return PolicyName(
        kind=kind,
        preset=line["preset"],
        base=_whole(line["base_rce_epoch"]),
        beta=float(line["kl_beta"]) if line["kl_beta"] else None,
        seed=_whole(line["seed"]),
        epoch=_whole(line["epoch"]),
    )


def _with_means(rows: Iterable[EvidenceRow]) -> Iterator[EvidenceRow]:
    """Yield the rows of single seeds and behind them their means over seeds, under the name of the group."""
    groups: dict[tuple[str, ...], list[EvidenceRow]] = {}
    for row in rows:
        yield row
        group = group_of(row.subject)
        if group != row.subject:
            groups.setdefault((group, row.metric, row.at, row.subset, row.mode), []).append(row)
    for (group, *_), members in groups.items():
        value = math.fsum(row.value for row in members) / len(members)
        first = members[0]
        source = _joint(row.source for row in members)
        yield first._replace(subject=group, value=value, runs=len(members), how="mean over seeds", source=source)


def _lines(path: Path) -> Iterator[tuple[str, Line]]:
    """Yield each line of a CSV file with where it stands.

    Raises:
        RecordError: there is no such file.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise RecordError(f"{path}: expected a file of results", found="none", do="Run its rule.") from None
    for number, line in enumerate(csv.DictReader(io.StringIO(text)), start=2):
        yield f"{path}:{number}", line


def _joint(sources: Iterable[str]) -> str:
    """Return several lines of one file as a source."""
    places = [text.rpartition(":") for text in sources]
    return f"{places[0][0]}:{'+'.join(line for _, _, line in places)}"


def _ends(line: Line) -> dict[str, Any]:
    return {name: _number(line[name]) for name in ("low", "high")}


def _tested(line: Line) -> dict[str, Any]:
    return {name: _number(line[name]) for name in ("p", "p_holm", "detectable")}


def _agent(arm: str, seed: str) -> str:
    return f"arm~{arm}/seed~{seed}" if seed else f"arm~{arm}"


def _with_seed(group: str, seed: str) -> str:
    return str(replace(PolicyName.parse(group), seed=int(seed)))


def _emulated(line: Line) -> str:
    numbers = {"base": line.get("base_rce_epoch"), "beta": line["kl_beta"], "epoch": line["epoch"]}
    return "/".join([f"emulation/{line['arm']}", *(f"{name}~{text}" for name, text in numbers.items() if text)])


def _endpoint(name: str) -> dict[str, Any]:
    found = ENDPOINT.fullmatch(name)
    return {key: value or "" for key, value in found.groupdict().items()} if found else {"metric": name}


def _flat(values: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    items: Sequence[tuple[Any, Any]] = list(values.items()) if isinstance(values, Mapping) else list(enumerate(values))
    for name, value in items:
        if isinstance(value, Mapping | list):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _is_number(value: Any) -> bool:
    return not math.isnan(_number(value))


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return NAN


def _whole(text: str) -> int | None:
    return int(text) if text else None
