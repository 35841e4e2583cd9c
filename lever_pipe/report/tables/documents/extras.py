"""Tables that the documents lack: overview, every epoch, random subsets, RL data, other presets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import pandas as pd

from lever_pipe.report.tables import policies
from lever_pipe.report.tables.evidence import MEAN, Evidence, p_text, separated
from lever_pipe.report.tables.policies import PolicyGroup, label_of
from lever_pipe.report.tables.published import Key, Lineage, Published
from lever_pipe.report.tables.results import Mean, Results, means, offline_grpo, split_by, standard_error
from lever_pipe.report.tables.table import GROUP, Table, frame_of, groups_of
from lever_pipe.report.tables.text import beta_text, mean, number, sentences
from lever_pipe.statistics.summary import mean_and_sd

RL_FILE = "rl_data_k64_v3.json"
RL_LABELS = {
    "queries": "Queries",
    "trajectories": "Trajectories",
    "traj_per_query": "Trajectories a query",
    "traj_min": "Fewest trajectories of a query",
    "traj_max": "Most trajectories of a query",
    "positive_trajectories": "Trajectories with a correct answer",
    "positive_pct": "Trajectories with a correct answer (%)",
    "queries_with_positive": "Queries with a correct trajectory",
    "queries_with_positive_pct": "Queries with a correct trajectory (%)",
    "all_negative_queries": "Queries with wrong trajectories only",
    "all_positive_queries": "Queries with correct trajectories only",
    "mixed_queries": "Queries with both",
    "one_accuracy_queries": "Queries whose trajectories all have one accuracy",
    "duplicate_selections": "Repeated selections within a query",
    "mean_accuracy": "Mean accuracy",
    "mean_reward": "Mean reward",
    "reward_std": "Standard deviation of the reward",
}

LEVEL = "accuracy_"  # prefix of the count of trajectories of one accuracy

TRAINING_TITLES = {
    "kl": "KL (k3)",
    "kl_exact": "KL (exact)",
    "mean_ratio": "Mean ratio",
    "loss": "Train Loss",
    "val_loss": "Val Loss",
    "std_advantage": "Adv Std",
    "gradient_share": "Gradient share",
}


def overview(results: Results) -> list[Table]:
    """Return baselines, RCE epochs and the last GRPO epoch at the largest sample count, with what follows."""
    scores = results.scores
    groups = [*policies.baselines(scores), *policies.rce_epochs(scores), *policies.last_grpo(scores)]
    if not groups:
        return []
    samples = int(scores["samples"].max())
    title, caption = f"Overview at {samples} samples", _accuracy_sentence(samples)
    table = _accuracy_table("overview", title, caption, groups, scores, results.evidence)
    return [replace(table, lead=sentences(answer(groups, scores), *separations(results.evidence)))]


def separations(evidence: Evidence) -> Iterator[str]:
    """Yield whether any beta of the main preset is separated from the highest one and from its RCE base."""
    for family, none, some in (
        ("highest-beta", "No KL_BETA is separated from the highest one", "Separated from the highest KL_BETA"),
        ("grpo-against-rce", "No GRPO setting is separated from its RCE base", "Separated from its RCE base"),
    ):
        found = [
            (label_of(pair.left), paired)
            for pair, paired in evidence.comparisons.items()
            if pair.family == family and pair.shots == MEAN
        ]
        if not found:
            continue
        smallest = f"the smallest Holm p is {p_text(min(paired.p for _, paired in found))}."
        apart = [name for name, paired in found if separated([paired])]
        yield f"{some}: {'; '.join(apart)}." if apart else f"{none}: {smallest}"


def every_epoch(results: Results) -> list[Table]:
    """Return every GRPO epoch of every beta at the largest sample count."""
    groups = policies.grpo_epochs(results.scores)
    if not groups:
        return []
    samples = int(results.scores["samples"].max())
    title = f"Every GRPO epoch at {samples} samples"
    caption = _accuracy_sentence(samples)
    return [_accuracy_table("grpo-epochs", title, caption, groups, results.scores, results.evidence)]


def other_presets(arms: pd.DataFrame, evidence: Evidence) -> list[Table]:
    """Return the overview of each preset other than the main one."""
    tables = []
    for preset, scores in split_by(arms, ["preset"]):
        groups = [*policies.rce_epochs(scores), *policies.last_grpo(scores)]
        samples = int(scores["samples"].max())
        title = f"This run with preset {preset} at {samples} samples"
        caption = _accuracy_sentence(samples)
        tables.append(_accuracy_table(f"arm-{preset}", title, caption, groups, scores, evidence))
    return tables


def _accuracy_table(
    name: str, title: str, caption: str, groups: Sequence[PolicyGroup], scores: pd.DataFrame, evidence: Evidence
) -> Table:
    """Return one row a group: accuracy with its interval by shots and their mean, spread over runs, prompts."""
    samples, shots = int(scores["samples"].max()), shots_of(scores)
    lines = [_accuracy_line(group, samples, shots, evidence) for group in groups]
    columns = ["Policy", "Runs", *(f"Shot {k}" for k in shots), "Mean", "sd over runs", "Distinct prompts"]
    factor = "policy base" if len({group.base for group in groups} - {None}) > 1 else "policy"
    return Table(name, "extra", title, caption, frame_of(lines, columns), factor=factor, groups=groups_of(lines))


def _accuracy_line(group: PolicyGroup, samples: int, shots: Sequence[int], evidence: Evidence) -> dict[str, str]:
    found = {k: evidence.interval(group.group, samples, k).text() for k in shots}
    return {
        "Policy": group.label,
        "Runs": str(group.runs),
        **{f"Shot {k}": text for k, text in found.items()},
        "Mean": evidence.interval(group.group, samples, MEAN).text(),
        "sd over runs": number(_sd_over_runs(group, samples), 2),
        "Distinct prompts": _distinct_prompts(group, samples),
        GROUP: group.group,
    }


def _sd_over_runs(group: PolicyGroup, samples: int) -> float | None:
    """Return the standard deviation over seeds or draws of the mean over shots; None for a single run."""
    rows = group.rows[(group.rows["subset"] == "prefix") & (group.rows["samples"] == samples)]
    runs = rows.groupby("policy")["accuracy"].mean().to_numpy(dtype=float)
    return mean_and_sd(runs)[1] if len(runs) > 1 else None


def random_subsets(scores: pd.DataFrame) -> list[Table]:
    """Return mean and spread of accuracy over random subsets of each sample count."""
    rows = scores[scores["subset"] != "prefix"]
    if rows.empty:
        return []
    groups = [*policies.baselines(scores), *policies.rce_epochs(scores)[-1:], *policies.last_grpo(scores)]
    shots, subsets = shots_of(scores), int(rows["subset"].nunique())
    lines = [line for group in groups for line in _subset_lines(group, shots)]
    caption = (
        f"VQA accuracy in percent: mean ± standard deviation over {subsets} random subsets of the evaluated "
        "questions; with several runs, the mean over runs of both. A subset of all questions has no spread."
    )
    columns = ["Policy", "Samples", *(f"Shot {k}" for k in shots)]
    title = f"Spread over {subsets} random subsets"
    return [Table("random-subsets", "extra", title, caption, frame_of(lines, columns))]


def training_by_preset(main: pd.DataFrame, arms: pd.DataFrame) -> list[Table]:
    """Return the first and the last common GRPO epoch of every preset, beside each other."""
    rows = pd.concat([main, arms]) if len(arms) else main
    rows = offline_grpo(rows)
    if arms.empty or rows.empty:
        return []
    last = int(rows.groupby(["preset", "base_rce_epoch", "kl_beta", "seed"])["epoch"].max().min())
    keys = ["preset", "base_rce_epoch", "kl_beta", "epoch"]
    lines = []
    for (preset, base, beta, epoch), group in split_by(rows[rows["epoch"].isin([1, last])], keys):
        found = means(group, ["metric"], "value")
        cells = {title: number(found[m].value if m in found else None, 5) for m, title in TRAINING_TITLES.items()}
        identity = {"Preset": str(preset), "RCE epoch": str(base), "KL_BETA": beta_text(beta)}
        lines.append({**identity, "Epoch": str(epoch), **cells})
    caption = (
        "Mean over seeds. KL (k3) is the logged penalty over the stored selections; KL (exact) is the divergence over "
        "all candidates."
    )
    columns = ["Preset", "RCE epoch", "KL_BETA", "Epoch", *TRAINING_TITLES.values()]
    frame = frame_of(lines, columns)
    return [Table("training-by-preset", "extra", "GRPO training by preset", caption, frame)]


def rl_data(measured: Mapping[str, str], published: Published) -> list[Table]:
    """Return our RL data beside the published k64 v3 file."""
    lineage = Lineage()
    rows = []
    for metric in [*(m for m in RL_LABELS if m in measured), *(m for m in measured if m not in RL_LABELS)]:
        found = published.of_rl_data(metric, RL_FILE)
        text = lineage.add(Key("rl_data", None, "", metric), found)
        rows.append({"Quantity": _rl_label(metric), "Ours": _short(measured[metric]), "Published": text})
    if not rows:
        return []
    caption = "A trajectory is one ordered selection of demonstrations with the answer that the LVLM gave to it."
    frame = frame_of(rows, ["Quantity", "Ours", "Published"])
    return [Table("rl-data", "rl_data", "RL data beside the published file", caption, frame, lineage.notes())]


def shots_of(scores: pd.DataFrame) -> list[int]:
    """Return the shot counts of a table; a policy without shots adds no column."""
    return sorted(int(k) for k in scores["shots"].unique() if k > 0)


def mean_and_spread(entry: Mean | None) -> str:
    """Return `43.12 ± 0.45`, or the mean alone for a single run."""
    if entry is None:
        return ""
    return number(entry.value, 2) + (f" ± {number(entry.sd, 2)}" if entry.n > 1 else "")


def answer(groups: Sequence[PolicyGroup], scores: pd.DataFrame) -> str:
    """Return the overview in two sentences, every number computed from the groups."""
    samples, shots = int(scores["samples"].max()), shots_of(scores)
    averages = {group.label: _average(group, samples, shots) for group in groups}
    lead = [group for group in groups if group.kind == "baseline"]
    lead += [group for group in groups if group.kind == "rce"][-1:]
    listed = [f"{g.label} {number(averages[g.label], 1)}" for g in lead if averages[g.label] is not None]
    grpo = [(averages[g.label], g) for g in groups if g.kind == "grpo"]
    known = [(value, group) for value, group in grpo if value is not None]
    over = f"shots {shots[0]}-{shots[-1]}" if len(shots) > 1 else f"{shots[0]} shot(s)"
    first = f"Mean accuracy over {over} at {samples} samples: {', '.join(listed)}." if listed else ""
    return sentences(first, _grpo_range(known, samples))


def _grpo_range(known: Sequence[tuple[float, PolicyGroup]], samples: int) -> str:
    if not known:
        return ""
    low, high = min(known, key=lambda pair: pair[0]), max(known, key=lambda pair: pair[0])
    error = number(standard_error(high[0], samples), 1)
    if len(known) == 1:
        return f"GRPO {number(low[0], 1)}; standard error of one accuracy {error} points."
    ends = [f"{number(value, 1)} (KL_BETA={beta_text(group.beta or 0.0)})" for value, group in (low, high)]
    return (
        f"GRPO lies between {ends[0]} and {ends[1]}, a range of {number(high[0] - low[0], 2)} points "
        f"over {len(known)} settings; the standard error of one accuracy is {error} points."
    )


def _average(group: PolicyGroup, samples: int, shots: Sequence[int]) -> float | None:
    by_shots = group.by_shots(samples, shots)
    return mean([by_shots[k].value if k in by_shots else None for k in shots])


def _distinct_prompts(group: PolicyGroup, samples: int) -> str:
    rows = group.rows[(group.rows["subset"] == "prefix") & (group.rows["samples"] == samples)]
    rows = rows[rows["shots"] == rows["shots"].max()]
    return number(float(rows["n_distinct_prompts"].mean()), 0) if len(rows) else ""


def _subset_lines(group: PolicyGroup, shots: Sequence[int]) -> list[dict[str, str]]:
    rows = group.rows[group.rows["subset"] != "prefix"]
    lines = []
    for samples, at in split_by(rows, ["samples"]):
        cells = {}
        for k, of_shots in split_by(at, ["shots"]):
            for column in shots if k == 0 else [k]:
                cells[f"Shot {column}"] = _spread_over_subsets(of_shots)
        lines.append({"Policy": group.label, "Samples": str(samples), **cells})
    return lines


def _spread_over_subsets(rows: pd.DataFrame) -> str:
    runs = [mean_and_sd(run["accuracy"].to_numpy(dtype=float)) for _, run in split_by(rows, ["policy"])]
    center = sum(run[0] for run in runs) / len(runs)
    sd = sum(run[1] for run in runs) / len(runs)
    return mean_and_spread(Mean(center, sd, len(rows) // len(runs)))


def _accuracy_sentence(samples: int) -> str:
    return (
        f"VQA accuracy in percent on the first {samples} questions, mean over the runs (seeds or draws) of a row. "
        "In brackets: 95 % interval over questions and, with several runs, over runs. "
        "sd over runs: standard deviation of the mean over shots. Distinct prompts: at the largest number of shots."
    )


def _rl_label(metric: str) -> str:
    if metric.startswith(LEVEL):
        return f"Trajectories of accuracy {metric.removeprefix(LEVEL)}"
    return RL_LABELS.get(metric, metric.replace("_", " ").capitalize())


def _short(text: str) -> str:
    """Return a whole number as it is and another with four significant decimals at most."""
    try:
        value = float(text)
    except ValueError:
        return text
    return text if value.is_integer() else f"{value:.4f}".rstrip("0").rstrip(".")
