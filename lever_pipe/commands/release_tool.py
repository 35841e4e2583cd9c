"""`lever-pipe release POLICY OUT`: write a finished policy or agent as a folder for the Hugging Face Hub.

POLICY is a name from the tables: `preset~world/rce/seed~0/epoch~5`, or `arm~bundle/seed~0`. OUT gets the weights as
safetensors, the files for selecting or playing, and a model card: scores with intervals from the report's evidence,
lineage, and the Python code that loads the folder without Snakemake. Nothing is recomputed, and nothing is uploaded.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
from huggingface_hub import EvalResult, ModelCardData

import lever_pipe
from lever_pipe.base import atomic, contents, storage
from lever_pipe.base.artefacts import flat
from lever_pipe.base.errors import CheckpointError, ConfigError, RecordError, UnknownNameError
from lever_pipe.base.policy_names import AGENT, PolicyName, group_of
from lever_pipe.base.provenance import canonical_json
from lever_pipe.base.records import Pool
from lever_pipe.base.sections import did_you_mean
from lever_pipe.commands.trace import EVIDENCE, MISSING, REPORT, UNCHANGED, TracedJob, traced_back
from lever_pipe.experiment import configuration
from lever_pipe.experiment.studies import parse_experiment
from lever_pipe.intention import released as agents
from lever_pipe.intention.records import DoneRow
from lever_pipe.lever import released as selectors
from lever_pipe.report.evidence import EvidenceRow, read_evidence
from lever_pipe.runtime.snakemake_adapter import configured

MODEL_CARD, TEMPLATE = "README.md", Path(__file__).with_name("release.md.j2")
GENERATED = ("lever-pipe-embedded-world", "embedded world")
"""A generated data set in a model card: its id for the Hub and its name."""
SCORED = ("prefix", "test")
"""Subsets of evaluation questions and of tasks for a policy's scores."""
SUMMARIES = ("build_", "collect_", "compare_", "evaluate_start")
"""Prefixes of the stages that summarize or compare policies, or are compared with: they belong to no policy."""
Facts = dict[str, Any]
AGAIN = "Run the workflow to its end."


def main(words: Sequence[str]) -> int:
    """Write the folder of one policy atomically, print its model card's path and return 0."""
    parser = argparse.ArgumentParser(prog="lever-pipe release", description=__doc__)
    parser.add_argument("policy", help="its name in the tables, with its seed")
    parser.add_argument("out", type=Path, help="a new or empty folder")
    parser.add_argument("--license", required=True, help="of the weights, by the Hub's key, as apache-2.0 or other")
    parser.add_argument("--checkpoint", choices=("last", "best"), default="last", help="of an agent")
    configuration.add_options(parser)
    options = parser.parse_args(words[1:])
    out, name = options.out, options.policy
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise ConfigError(f"{out}: expected no folder, or an empty one", found="something", do="Name another one.")
    found = configured(vars(options))
    experiment = parse_experiment(found.values, source=found.source)
    results = Path(experiment.results)
    scores, policy = _scores(name, results, options.checkpoint), PolicyName.parse(name)
    steps = _previous_steps(scores[-1][0], results)
    chain = [step for step in steps if not step.origin.stage.startswith(SUMMARIES)]
    # Without times and machines, so that equal computations have equal lineages.
    lineage = [[step.name, step.origin.config, step.origin.code, _outputs_of(step)] for step in chain]
    facts = {"policy": name, "lineage": hashlib.sha256(canonical_json(lineage).encode()).hexdigest()}
    model_card = {
        **facts,
        "label": policy.label,
        "folder": out.resolve().name,
        "licence": options.license,
        "steps": chain,
    }

    def write(folder: Path) -> None:
        if policy.kind == AGENT:
            summary = _write_agent(folder, facts, steps, options.checkpoint)
        else:
            summary = _write_selector(folder, facts, steps, Path(experiment.encoder.model))
        storage.write_text(
            folder / MODEL_CARD, _model_card(scores, {**model_card, **summary, "is_agent": policy.kind == AGENT})
        )

    atomic.write_folder(out, write)
    sys.stdout.write(f"{out / MODEL_CARD}\n")
    return 0


def _scores(name: str, results: Path, checkpoint: str) -> list[tuple[EvidenceRow, EvidenceRow]]:
    """Return the scores of a checkpoint, each with the mean over its group's runs, which has the interval."""
    path = results / REPORT / EVIDENCE
    rows = {row.key: row for row in read_evidence(path)}
    of_runs = [row for row in rows.values() if row.subject.startswith(("preset~", "arm~")) and "/seed~" in row.subject]
    scored = [row for row in of_runs if row.subset in SCORED and row.at in ("", checkpoint)]
    means = {row: rows.get(row._replace(subject=group_of(name)).key) for row in scored if row.subject == name}
    pairs = [(row, mean) for row, mean in means.items() if mean is not None]
    if not pairs:
        do = did_you_mean(name, sorted({row.subject for row in scored}), "Name it as the tables do, or finish its run.")
        expected = f"{path}: expected scores of a trained policy or agent, as preset~world/rce/seed~0/epoch~5"
        raise UnknownNameError(expected, found=f"none of '{name}'", do=do)
    return pairs


def _previous_steps(score: EvidenceRow, results: Path) -> tuple[TracedJob, ...]:
    """Return all steps that led to a score, after checking that their files are unchanged."""
    steps = traced_back(score.key, results).steps
    sound = (UNCHANGED, MISSING)  # raw data may be gone; files to be copied must exist, or the copy fails
    changed = [f"{step.name}: {file}" for step in steps for file, state in step.states.items() if state not in sound]
    if changed:
        expected = f"{results}: expected the files that {score.subject} was scored with"
        raise RecordError(expected, found=f"others: {', '.join(changed[:5])}", do=AGAIN)
    return steps


def _write_selector(folder: Path, facts: Facts, steps: Sequence[TracedJob], encoder: Path) -> Facts:
    """Write all files of a selecting policy except the model card, and return the facts for the model card."""
    choice, lvlm = _step(steps, "select_demonstrations"), _step(steps, "answer_prompts").origin.config["lvlm"]
    sampled, seen = (steps[choice.makers[name]] for name in ("eval_pools", "train_embeddings"))
    if (identity := contents.model_identity(str(encoder))) != seen.origin.config["model_identity"]:
        expected = (
            f"encoder.model: expected the model {seen.origin.config['model_identity']}, which the policy sees with"
        )
        raise CheckpointError(expected, found=f"{identity} in {encoder}", do="Name its folder there.")
    _copy(encoder, folder / selectors.ENCODER)
    _copy(choice.inputs["selector"], folder / selectors.WEIGHTS)
    _copy(choice.inputs["train_embeddings"], folder / selectors.EMBEDDINGS)
    _copy(sampled.inputs["train_examples"], folder / selectors.EXAMPLES)
    train, queries = (storage.read_examples(sampled.inputs[f"{split}_examples"]) for split in ("train", "query"))
    pools = {row.query_id: row.candidates for row in storage.read_rows(choice.inputs["eval_pools"], Pool)}
    selections = storage.read_selections(choice.artefact.paths["selections"])
    for name, lists in ((selectors.POOLS, pools), (selectors.SELECTIONS, selections)):
        ids = {
            queries[query].question_id: tuple(train[i].question_id for i in example_ids)
            for query, example_ids in lists.items()
        }
        rows = (selectors.OfQuestion(question_id=query, train_question_ids=listed) for query, listed in ids.items())
        storage.write_rows(folder / name, rows)
    pool_settings = dict(sampled.origin.config["pools"])
    if pool_settings["encoder"]:  # a path on this machine means nothing on others
        pool_settings["encoder"] = pool_settings["encoder"] | {"model": Path(pool_settings["encoder"]["model"]).name}
    settings = {**facts, **choice.origin.config, "pools": pool_settings, "encoder": seen.origin.config}
    storage.write_row(folder / selectors.SETTINGS, selectors.ReleasedPolicy(**settings))
    reader = _step(steps, "prepare_examples").origin.config["reader"]
    return {
        "data": GENERATED if any(step.origin.stage == "generate_world" for step in steps) else (reader, reader),
        "trained": steps[choice.makers["selector"]].origin,
        "query": queries[0],
        # `ids` are those of the last file of the loop, the selections.
        "chosen": list(ids[queries[0].question_id]),
        "shots": choice.origin.config["shots"],
        "lvlm": f"{lvlm['engine']} {lvlm['model_identity']}",
        "n_train": len(train),
    }


def _write_agent(folder: Path, facts: Facts, steps: Sequence[TracedJob], checkpoint: str) -> Facts:
    """Write all files of an agent except the model card, and return the facts for the model card."""
    evaluation, source = _step(steps, "evaluate_agent"), _step(steps, "prepare_tasks").origin.config["source"]
    done, config = storage.read_row(evaluation.inputs["done"], DoneRow), evaluation.origin.config
    step = done.executed_steps if checkpoint == "last" else done.best_step
    _copy(evaluation.inputs[checkpoint], folder)
    _copy(evaluation.inputs["test_tasks"], folder / agents.TASKS)
    settings = {**facts, "checkpoint": checkpoint, "step": step, "evaluation": config}
    storage.write_row(folder / agents.SETTINGS, agents.ReleasedAgent(**settings))
    return {
        "data": GENERATED if source == "synthetic" else ("intention", f"IntentionGym ({source})"),
        "trained": steps[evaluation.makers[checkpoint]].origin,
        "checkpoint": checkpoint,
        "user": config["simulator"]["kind"],
    }


def _step(steps: Sequence[TracedJob], stage: str) -> TracedJob:
    return next(step for step in steps if step.origin.stage == stage)


def _outputs_of(step: TracedJob) -> dict[str, str]:
    return {name: step.origin.outputs[name] for name in step.outputs}


def _copy(source: Path, target: Path) -> None:
    """Copy a file, or the content of a folder without hidden files."""
    if source.is_dir():
        shutil.copytree(
            source, target, ignore=shutil.ignore_patterns(".*"), copy_function=shutil.copyfile, dirs_exist_ok=True
        )
    else:
        shutil.copyfile(source, target)


def _model_card(scores: Sequence[tuple[EvidenceRow, EvidenceRow]], facts: Facts) -> str:
    """Return the model card: front matter by the Hub's own library, then text."""
    is_agent, (data_type, data_name) = facts["is_agent"], facts["data"]
    results = [
        EvalResult(
            task_type="text-generation" if is_agent else "visual-question-answering",
            dataset_type=data_type,
            dataset_name=data_name,
            dataset_config=f"{row.n} held-out tasks" if is_agent else f"first {row.n} evaluation questions",
            metric_type=row.metric,
            metric_name=f"{row.mode} {row.metric}" if is_agent else f"VQA accuracy in percent, shots: {row.shots}",
            metric_value=row.value,
            metric_args={"mean_of_runs": mean.value, "runs": mean.runs}
            | ({"low": mean.low, "high": mean.high} if mean.has_interval else {}),
        )
        for row, mean in scores
    ]
    name = facts["policy"]
    head = ModelCardData(license=facts["licence"], library_name="lever-pipe", model_name=name, eval_results=results)
    # Strict, so that a missing fact is an error and not an empty cell.
    template = jinja2.Template(
        TEMPLATE.read_text(encoding="utf-8"), undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    values = {**facts, "results": results, "is_world": facts["data"] == GENERATED, "version": lever_pipe.__version__}
    return f"---\n{head.to_yaml()}\n---\n\n{template.render(values, python=repr, flat=flat, outputs_of=_outputs_of)}\n"
