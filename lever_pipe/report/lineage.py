"""Lineage of the compared policies: fields from our manifests, and the known fields of published rows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from lever_pipe.base.errors import RecordError
from lever_pipe.base.policy_names import PolicyName, beta_text
from lever_pipe.base.records import Manifest, Row
from lever_pipe.base.storage import read_yaml
from lever_pipe.report.long_format import read_csv

COLUMNS = ("group", "field", "value")
UNKNOWN = "unknown"
"""Value of a published field that no source states."""
EXCHANGED = "exchanged"
"""Field with the input files of a policy that were replaced by hand after their rules made them."""
Fields = Mapping[str, str]
"""Value by field; a field that does not apply is absent."""
Lineages = Mapping[str, Fields]
"""Fields by group: `policy_names.group_of` of ours, `published_key` of theirs."""
DIGEST = 12  # hexadecimal digits of a content digest that distinguish two files


class Stated(Row):
    """The value of a field, and the part of the published code or text that states it."""

    value: str
    source: str


class PublishedRuns(Row):
    """Published runs that share a lineage; `documents` restricts it to the documents that quote these files."""

    stage: str
    betas: tuple[float, ...]
    first_epoch: int
    last_epoch: int
    files: tuple[str, ...]
    documents: tuple[str, ...] = ()
    fields: dict[str, Stated]


class PublishedLineage(Row):
    """The file `resources/reference/lineage.yaml`."""

    common: dict[str, Stated]
    runs: tuple[PublishedRuns, ...]


def published_key(beta: float, epoch: int, *, stage: str = "grpo", document: str = "") -> str:
    """Return the group of a published row, or of the row that a document quotes."""
    return str(PolicyName(kind="published", variant=stage, beta=beta, epoch=epoch, document=document))


def read_lineage(path: Path) -> dict[str, dict[str, str]]:
    """Return the fields of every group of ours from `lineage.csv`.

    Raises:
        RecordError: a missing file or column.
    """
    lineages: dict[str, dict[str, str]] = {}
    for group, field, value in read_csv(path, COLUMNS)[1:]:
        lineages.setdefault(group, {})[field] = value
    return lineages


def read_published_lineage(path: Path) -> dict[str, dict[str, str]]:
    """Return the fields of every published run and epoch.

    Raises:
        RecordError: a missing or malformed file.
    """
    lineage = read_published_runs(path)
    lineages: dict[str, dict[str, str]] = {}
    for runs in lineage.runs:
        stated = {**lineage.common, **runs.fields}
        for beta in runs.betas:
            for epoch in range(runs.first_epoch, runs.last_epoch + 1):
                identity = {"kl_beta": beta_text(beta), "epoch": str(epoch)}
                values = {**identity, **{name: entry.value for name, entry in stated.items()}}
                for document in runs.documents or ("",):
                    lineages[published_key(beta, epoch, stage=runs.stage, document=document)] = values
    return lineages


def read_published_runs(path: Path) -> PublishedLineage:
    """Return the published lineage as in its file, with the source of every field.

    Raises:
        RecordError: a missing or malformed file.
    """
    try:
        return PublishedLineage.model_validate(read_yaml(path, "a file"))
    except ValidationError as error:
        raise RecordError(f"{path}: expected the published lineage", found=str(error), do="Fix the file.") from None


def group_of_training(manifest: Manifest) -> str:
    """Return the group of the epoch that a training manifest describes."""
    config = manifest.config
    base, beta = config.get("base_rce_epoch"), config.get("kl_beta")
    name = PolicyName(kind=_method(manifest), preset=config["preset"], base=base, beta=beta, epoch=config["epoch"])
    return str(name)


def of_training(manifest: Manifest) -> dict[str, str]:
    """Return the fields of one training epoch of one seed; every value of its config is in one of them.

    An epoch may have its own reward. If it scores its own samples, section `scorer` contains the fields of its LVLM.
    """
    # Copies, because values are removed once a field has them.
    config, section = dict(manifest.config), manifest.stage.removeprefix("train_").removesuffix("_epoch")
    part, _ = dict(config.pop(section)), config.pop("objective", None)  # the objective is the method
    fields = {"method": _method(manifest), "preset": config.pop("preset"), "epoch": str(config.pop("epoch"))}
    if "base_rce_epoch" in config:
        fields["base_rce_epoch"] = str(config.pop("base_rce_epoch"))
    if "kl_beta" in config:
        fields |= {
            "base_checkpoint": manifest.inputs["reference"][:DIGEST],
            "kl_beta": beta_text(config.pop("kl_beta")),
            "kl_control": f"adaptive; {_listed(adaptive)}" if (adaptive := part.pop("adaptive_kl", None)) else "fixed",
            "dropout": "off",  # the stages pair policy and reference without dropout
            "trained": "attention and layer norm" if part.pop("freeze_projections") else "all parameters",
        }
    if reward := part.pop("reward", None):
        fields |= _of_reward(reward)
    if "lvlm" in config:
        fields |= {f"scorer.{name}": value for name, value in _of_lvlm(config.pop("lvlm")).items()}
    fields |= {
        "seeds": str(config.pop("seed")),
        "rewarded_groups" if learns_from_rewards(manifest) else "beams": manifest.inputs["groups"][:DIGEST],
        "learning_rate": _plain(part.pop("learning_rate")),
        "training_embeddings": manifest.inputs["embeddings"][:DIGEST],
        "training_code": manifest.code,
    }
    if "train_examples" in manifest.inputs:
        fields["training_examples"] = manifest.inputs["train_examples"][:DIGEST]
    # All remaining values, so that a new key of the config is compared, too.
    return fields | _texts("", {**config, section: part})


UNTRAINED = {"start_checkpoint": "untrained"}
"""The field of a run that starts from random weights while others start from a checkpoint."""


def of_start(manifest: Manifest) -> dict[str, str]:
    """Return the start checkpoint as a field, for runs of presets that start from one."""
    return {"start_checkpoint": manifest.inputs["start[0]"][:DIGEST]}


def learns_from_rewards(manifest: Manifest) -> bool:
    """Return whether a training epoch reads the rewarded RL data; supervised learning reads beams instead."""
    return _method(manifest) != "sft"


def of_reward(manifest: Manifest) -> dict[str, str]:
    """Return the fields of a preset's rewarded RL data."""
    return {"rl_data": manifest.inputs["rl_data"][:DIGEST], **_of_reward(manifest.config["reward"])}


def of_selection(manifest: Manifest, policy: str) -> dict[str, str]:
    """Return the fields of the selections of one policy."""
    config = dict(manifest.config)
    baseline = config.pop("baseline", None)
    fields = {} if baseline is None else {"method": "baseline"}
    if policy.startswith("baseline/random-"):
        fields["draws"] = policy.rpartition("-")[2]
    return {
        **fields,
        "pool": manifest.inputs["eval_pools"][:DIGEST],
        "embeddings": " ".join(manifest.inputs[f"{split}_embeddings"][:DIGEST] for split in ("train", "eval")),
        "selection_code": manifest.code,
        **_texts("selection", config),
    }


def of_answers(manifest: Manifest) -> dict[str, str]:
    """Return the fields of a batch of answers."""
    return {
        **_of_lvlm(manifest.config["lvlm"]),
        "demonstrations": manifest.inputs["train_examples"][:DIGEST],
        "answering_code": manifest.code,
    }


def of_scores(manifest: Manifest) -> dict[str, str]:
    """Return the fields of the scores of a batch."""
    # Each batch scores other policies, which is no difference between them.
    config = {name: value for name, value in manifest.config.items() if name != "policies"}
    return {
        "questions": manifest.inputs["eval_examples"][:DIGEST],
        "scoring_code": manifest.code,
        **_texts("scoring", config),
    }


def of_environment(manifest: Manifest) -> dict[str, str]:
    """Return the library versions and the device of a job."""
    return {"device": manifest.device, **{f"version.{name}": version for name, version in manifest.versions.items()}}


def _method(manifest: Manifest) -> str:
    """Return the training method, as policy names contain it."""
    return str(manifest.config.get("objective", manifest.stage.removeprefix("train_").removesuffix("_epoch")))


def _of_reward(reward: Mapping[str, Any]) -> dict[str, str]:
    weights = {name: value for name, value in reward.items() if name != "mode"}
    return {"reward": reward["mode"], **_texts("reward", weights)}


def _of_lvlm(lvlm: Mapping[str, Any]) -> dict[str, str]:
    # A digest, because the templates are too long for a table.
    templates = hashlib.sha256(json.dumps(lvlm["prompt"], sort_keys=True).encode()).hexdigest()[:8]
    return {
        "lvlm": f"{lvlm['engine']} {lvlm['model_identity']}",
        "precision": lvlm["dtype"],
        "decode": _listed(lvlm["decode"]),
        "prompt": f"{lvlm['prompt']['layout']} {templates}",
        "batching": f"{lvlm['wave_tokens']} tokens a forward; {lvlm['kv_tokens']} tokens stored",
    }


def _listed(values: Mapping[str, Any]) -> str:
    return "; ".join(f"{name} {_plain(value)}" for name, value in values.items())


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every leaf of a configuration as `section.key` with its value."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _texts(section: str, values: Mapping[str, Any]) -> dict[str, str]:
    """Return every leaf as text, so that the comparison covers every value of a config."""
    return {name: _plain(value) for name, value in flat(values, section and f"{section}.")}


def _plain(value: object) -> str:
    if isinstance(value, list | tuple):
        return "; ".join(map(_plain, value))
    return value if isinstance(value, str) else json.dumps(value)
