from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from lineage_manifests import answers, continued, distil, grpo, on_policy, rce, reward, scores, selection, sft

from lever_pipe.base.errors import RecordError
from lever_pipe.base.records import Manifest
from lever_pipe.experiment.grpo import AdaptiveKl, Grpo
from lever_pipe.experiment.on_policy import OnPolicy
from lever_pipe.experiment.reward import Reward
from lever_pipe.report import lineage

FOLDER = Path(__file__).parents[3] / "resources" / "reference"
FILE = FOLDER / "lineage.yaml"
STAGES = {"grpo_frozen": "grpo", "grpo_balanced": "grpo_balanced"}
"""Stage in the reference and in the lineage."""
OLD_DATA = "rl_data_RandSampler_Qwen2_5-VL-3B-Instruct.json"


def leaves(values: Mapping[str, Any], prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from leaves(value, (*prefix, name))
        else:
            yield (*prefix, name)


def with_leaf(manifest: Manifest, path: tuple[str, ...]) -> Manifest:
    """Return the manifest with another value of the same kind at one place of its config."""
    config = json.loads(json.dumps(manifest.config))
    section = config
    for name in path[:-1]:
        section = section[name]
    value = section[path[-1]]
    if isinstance(value, bool):
        section[path[-1]] = not value
    elif isinstance(value, list):
        section[path[-1]] = [*value, 99]
    elif isinstance(value, str):
        section[path[-1]] = f"{value}x"
    elif value is None:
        section[path[-1]] = (Reward() if path[-1] == "reward" else AdaptiveKl()).model_dump()
    else:
        section[path[-1]] = value + 1
    return manifest.model_copy(update={"config": config})


FieldsOf = Callable[[Manifest], Mapping[str, str]]
MANIFESTS: dict[str, tuple[Manifest, FieldsOf]] = {
    "grpo": (grpo(), lineage.of_training),
    "on_policy": (on_policy(), lineage.of_training),
    "distil": (distil(), lineage.of_training),
    "continued": (continued(), lineage.of_training),
    "rce": (rce(), lineage.of_training),
    "sft": (sft(), lineage.of_training),
    "reward": (reward(), lineage.of_reward),
    "selection": (
        selection("preset~p/rce/seed~0/epoch~1"),
        lambda manifest: lineage.of_selection(manifest, "preset~p/rce"),
    ),
    "baseline": (selection("baseline/random-3"), lambda manifest: lineage.of_selection(manifest, "baseline/random-3")),
    "answers": (answers(), lineage.of_answers),
    "scores": (scores("baseline/oracle"), lineage.of_scores),
}
# Fields that name a group or its files; they are not part of its lineage.
NAMES = {("baseline",), ("policies",)}
LOCATIONS = [
    (name, path)
    for name, (manifest, _) in MANIFESTS.items()
    for path in leaves(manifest.config)
    if path[:1] not in NAMES and (name, path) != ("answers", ("shots",))
]


@pytest.mark.parametrize(
    ("name", "path"), LOCATIONS, ids=lambda value: value if isinstance(value, str) else ".".join(value)
)
def test_every_value_of_a_config_is_in_a_field(name: str, path: tuple[str, ...]) -> None:
    manifest, fields_of = MANIFESTS[name]
    assert fields_of(with_leaf(manifest, path)) != fields_of(manifest)


@pytest.mark.parametrize("name", MANIFESTS)
def test_code_and_inputs_are_in_a_field(name: str) -> None:
    manifest, fields_of = MANIFESTS[name]
    if name != "reward":  # the rewarded file itself is an input of training
        assert fields_of(manifest.model_copy(update={"code": "other"})) != fields_of(manifest)
    used = {
        "grpo": ("reference", "groups", "embeddings"),
        "on_policy": ("reference", "groups", "embeddings", "train_examples"),
        "distil": ("groups", "embeddings", "train_examples"),
        "rce": ("groups", "embeddings"),
        "sft": ("groups", "embeddings"),
        "continued": ("groups", "embeddings"),
        "reward": ("rl_data",),
        "selection": ("eval_pools", "train_embeddings", "eval_embeddings"),
        "baseline": ("eval_pools", "train_embeddings", "eval_embeddings"),
        "answers": ("train_examples",),
        "scores": ("eval_examples",),
    }
    for key in used[name]:
        other = manifest.model_copy(update={"inputs": {**manifest.inputs, key: "f" * 64}})
        assert fields_of(other) != fields_of(manifest), key


def test_a_training_manifest_names_its_group() -> None:
    assert lineage.group_of_training(grpo(beta=0.145, seed=3, epoch=2)) == "preset~p/grpo/base~5/beta~0.145/epoch~2"
    assert lineage.group_of_training(rce(epoch=4)) == "preset~p/rce/epoch~4"
    sampled = lineage.group_of_training(on_policy(beta=0.145, seed=3, epoch=2))
    assert sampled == "preset~p/on_policy/base~5/beta~0.145/epoch~2"
    lower = lineage.group_of_training(on_policy(beta=0.0, epoch=3, objective="reinforce"))
    assert lower == "preset~p/reinforce/base~5/beta~0/epoch~3"
    assert lineage.group_of_training(distil(seed=1, base=2)) == "preset~p/distil/base~2/epoch~1"


def test_supervised_learning_has_beams_in_place_of_rewards() -> None:
    found = lineage.of_training(sft(epoch=3))
    assert (found["method"], found["epoch"], found["sft.targets"]) == ("sft", "3", "best")
    assert found["beams"] == lineage.of_training(rce())["rewarded_groups"]
    assert "rewarded_groups" not in found
    assert [lineage.learns_from_rewards(manifest) for manifest in (sft(), rce(), grpo())] == [False, True, True]
    assert lineage.group_of_training(sft(epoch=3)) == "preset~p/sft/epoch~3"


def test_an_epoch_that_scores_its_draws_has_a_reward_and_an_lvlm_of_its_own() -> None:
    found = lineage.of_training(on_policy())
    stored = lineage.of_reward(reward())
    assert found["reward"] == OnPolicy().reward.mode != stored["reward"]
    assert found.keys() >= stored.keys() - {"rl_data"}  # so that no field of the stored reward is used instead
    of_answers = lineage.of_answers(answers())
    assert {name: found[f"scorer.{name}"] for name in ("lvlm", "precision", "decode", "prompt", "batching")} == {
        name: of_answers[name] for name in ("lvlm", "precision", "decode", "prompt", "batching")
    }
    assert (found["method"], found["kl_control"], found["dropout"]) == ("on_policy", "fixed", "off")
    assert lineage.of_training(on_policy(objective="reinforce"))["method"] == "reinforce"
    assert not {"reward", "kl_beta", "scorer.lvlm"} & lineage.of_training(distil()).keys()
    assert "reward" not in lineage.of_training(grpo())
    own = lineage.of_training(grpo(grpo=Grpo(reward=Reward(mode="soft_only"))))
    assert (own["reward"], own.keys() >= stored.keys() - {"rl_data"}) == ("soft_only", True)


def test_every_published_grpo_number_has_a_lineage() -> None:
    """Each row of the reference belongs to a run that names its file, beta and epoch."""
    reference = pd.read_csv(FOLDER / "lever-plus-published.csv", dtype=str, keep_default_na=False)
    runs = lineage.read_published_runs(FILE).runs
    rows = reference[reference["stage"].isin(STAGES) & reference["epoch"].str.fullmatch(r"\d+")]
    assert len(rows) > 100
    for row in rows.to_dict("records"):
        source, beta = row["source_file"].rpartition(":")[2], float(row["kl_beta"].partition("(")[0])
        fitting = [
            run
            for run in runs
            if run.stage == STAGES[row["stage"]]
            and source in run.files
            and beta in run.betas
            and run.first_epoch <= int(row["epoch"]) <= run.last_epoch
        ]
        assert len(fitting) == 1, row


def test_published_runs_are_alike_but_for_what_is_known() -> None:
    found = lineage.read_published_lineage(FILE)
    key = lineage.published_key
    of_012, of_018, of_015 = found[key(0.12, 1)], found[key(0.18, 1)], found[key(0.15, 1)]
    differing = {name for name in of_018 if of_018[name] != of_015[name]}
    assert differing == {
        "kl_beta", "base_checkpoint", "base_rce_epoch", "kl_beta_applied", "kl_control", "learning_rate", "trained",
    }  # fmt: skip
    assert of_015["kl_beta_applied"].startswith("0.1,")
    assert of_015["learning_rate"] == lineage.UNKNOWN
    assert {name for name in of_018 if of_018[name] != of_012[name]} == {"kl_beta"}
    # Document 002 quotes the older file for 0.12.
    older = found[key(0.12, 1, document="002")]
    assert {name: older[name] for name in older if older[name] != of_012[name]} == {"rl_data": OLD_DATA}
    long = found[key(0.12, 50, stage="grpo_balanced")]
    assert long["rl_data"].startswith("rl_data_k64_v3_balanced.json")
    assert all(fields.keys() == of_012.keys() for fields in found.values())


def test_lineage_files_are_read_strictly(tmp_path: Path) -> None:
    path = tmp_path / "lineage.csv"
    path.write_text("group,field\na,b\n")
    with pytest.raises(RecordError, match="expected the columns group, field, value"):
        lineage.read_lineage(path)
    path.write_text('group,field,value\na,seeds,"0, 1"\na,draws,\nb,seeds,2\n')
    assert lineage.read_lineage(path) == {"a": {"seeds": "0, 1", "draws": ""}, "b": {"seeds": "2"}}
    for text in ("common: {}\n", "common: [", "common: {}\nruns: []\nmore: 1\n"):
        path.write_text(text)
        with pytest.raises(RecordError, match=r"expected (YAML|the published lineage)"):
            lineage.read_published_lineage(path)
    with pytest.raises(RecordError, match="expected a file"):
        lineage.read_published_lineage(tmp_path / "none.yaml")
