"""Estimate the prompts, tokens and FLOP of planned jobs for the vision-language model, at most."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from tabulate import tabulate

from lever_pipe.experiment.lvlm import LvlmSettings
from lever_pipe.experiment.manifests import flat
from lever_pipe.experiment.plans import grid, models
from lever_pipe.experiment.studies import Experiment
from lever_pipe.metrics.throughput import peak_flop
from lever_pipe.runtime.sizing import ASKING
from lever_pipe.runtime.snakemake_adapter import PlannedJob

EXAMPLE_TOKENS = 460
"""Assumed tokens of an example with a photograph of COCO's size: Qwen2.5-VL has about 2,300 for five."""
REFERENCES = 10
"""Annotators' answers per query; each RL prompt needs the probability of every distinct one."""
UTILISATION = 0.3
"""Assumed share of a GPU's peak."""
GPUS = ("A100", "H100", "L40")
PUBLISHED = {"Qwen2.5-VL-3B-Instruct": 3_750_000_000}
"""Parameters of models whose folder may not exist yet."""
ASSUMED = (
    f"Assumed: {UTILISATION:.0%} of the dense bfloat16 peak, {EXAMPLE_TOKENS} tokens an example with its photograph, "
    f"{REFERENCES} different given answers a prompt of an RL query, 2 FLOP a parameter and token."
)
HEADS = ("LVLM", "rule", "prompts", "given answers", "million tokens", "PFLOP")


class LvlmWork(NamedTuple):
    """The work of a rule's jobs for one model."""

    model: str
    rule: str
    prompts: int
    given: int  # answers whose probability is needed
    tokens: int | None  # includes a prompt per given answer if the plugin computes one; None for an embedded model
    flop: float | None  # 2 x parameters x tokens; None if either is unknown


def lvlm_work(jobs: Iterable[PlannedJob], experiment: Experiment) -> list[LvlmWork]:
    """Return the work of all jobs that are not skipped, by model and rule in the order of the jobs."""
    prompts_by_rule: dict[tuple[str, str], list[tuple[int, float]]] = {}
    models: dict[str, LvlmSettings] = {}
    for job in jobs:
        if job.rule in ASKING and not job.skipped:
            here = grid.at(experiment, job.wildcards)
            models[here.lvlm.model] = here.lvlm
            prompts_by_rule.setdefault((here.lvlm.model, job.rule), []).extend(_prompts_of(job, here))
    sums = (_summed(models[model], rule, prompts) for (model, rule), prompts in prompts_by_rule.items())
    return [work for work in sums if work.prompts]


def _prompts_of(job: PlannedJob, here: Experiment) -> list[tuple[int, float]]:
    """Return pairs (number of prompts, demonstrations per prompt); empty for imported RL data."""
    rl = here.rl_data
    match job.rule:
        case "answer_prompts" if job.call:
            of_a_length = len(flat({"selections": job.call.inputs["selections"]})) * here.data.n_eval
            return [(of_a_length, shots) for shots in here.evaluation.shots]
        case "generate_rl_data" if not rl.import_from:
            queries = len(range(int(job.wildcards["shard"]), rl.n_queries, rl.n_shards))
            return [(queries * (rl.per_query + rl.diversity_budget), rl.shots)]
        case "search_beams":
            return [(count, shots) for shots, count in here.beams.prompts(here.pools.size)]
        case "train_on_policy_epoch":
            preset = here.presets[job.wildcards["preset"]]
            n_queries = preset.on_policy.queries_of(int(preset.train_share * rl.n_queries))
            return [(n_queries * preset.on_policy.group, fmean(preset.on_policy.shots))]
    return []


def _summed(lvlm: LvlmSettings, rule: str, batches: Sequence[tuple[int, float]]) -> LvlmWork:
    prompts = sum(count for count, _ in batches)
    answers = 0 if rule == "answer_prompts" else REFERENCES
    name = Path(lvlm.model).name
    if not models.is_large(lvlm.model):
        return LvlmWork(name, rule, prompts, answers * prompts, None, None)
    # The plugin `qwen2_5_vl` computes all given answers' probabilities in the prompt's own pass.
    passes = 1 if models.lvlm_engine(lvlm) == "qwen2_5_vl" else 1 + answers
    examples = sum(count * (1 + shots) for count, shots in batches)
    generated = prompts * lvlm.decode.num_beams * lvlm.decode.max_new_tokens  # an upper bound: answers may end early
    tokens = int(passes * EXAMPLE_TOKENS * examples) + generated
    parameters = models.parameters_of(lvlm.model) or PUBLISHED.get(name)
    return LvlmWork(name, rule, prompts, answers * prompts, tokens, 2.0 * parameters * tokens if parameters else None)


def hours(work: Sequence[LvlmWork]) -> dict[str, float]:
    """Return the hours of one GPU of each kind; empty if the work of a model is unknown."""
    if not work or any(entry.flop is None for entry in work):
        return {}
    flop = sum(entry.flop or 0 for entry in work)
    return {gpu: flop / ((peak_flop(gpu) or 0) * UTILISATION) / 3600 for gpu in GPUS}


def text(work: Sequence[LvlmWork]) -> str:
    """Return the work as a table with its assumptions; empty without work."""
    if not work:
        return ""
    rows = [(*w[:4], w.tokens and w.tokens / 1e6, w.flop and w.flop / 1e15) for w in work]
    table = tabulate(rows, HEADS, "plain", intfmt=",", floatfmt=",.1f")
    body = f"\nAsked of the LVLM at most; equal prompts, and those in the ledger, are answered once:\n\n{table}\n"
    listed = ", ".join(f"{gpu} {value:,.1f}" for gpu, value in hours(work).items())
    return body + (f"\nHours of one GPU, an estimate and no measurement: {listed}. {ASSUMED}\n" if listed else "")
