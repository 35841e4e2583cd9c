from __future__ import annotations

from pathlib import Path
from typing import Any

from lineage_manifests import answers, distil, grpo, on_policy, rce, reward, scores, selection

from lever_pipe.base import storage
from lever_pipe.base.records import Manifest
from lever_pipe.experiment.collected import CollectLineageConfig
from lever_pipe.report.lineage import read_lineage
from lever_pipe.stages.collect_results import collect_lineage

BASELINES = ("baseline/oracle", "baseline/random-0", "baseline/random-1", "baseline/random-10")
TRAINED = tuple(f"preset~p/grpo/base~5/beta~0.1/seed~{seed}/epoch~1" for seed in (0, 1))
GROUP = "preset~p/grpo/base~5/beta~0.1/epoch~1"
LONG = "preset~p/grpo/base~5/beta~0.1/epoch~7"


def manifests() -> dict[str, list[Manifest]]:
    """Return every manifest of two seeds of one GRPO epoch, a long run of one, and the baselines."""
    policies = [*BASELINES, *TRAINED]
    return {
        "training": [grpo(seed=1), grpo(seed=0), grpo(seed=0, epoch=7), rce()],
        "started": [],
        "rewards": [reward()],
        "selections": [selection(policy) for policy in policies],
        "answers": [answers(), answers(), answers()],
        "scores": [scores(*BASELINES), *map(scores, TRAINED)],
    }


def run(folder: Path, given: dict[str, list[Manifest]], **config: Any) -> dict[str, dict[str, str]]:
    paths: dict[str, Any] = {}
    for name, rows in given.items():
        paths[name] = tuple(folder / f"{name}-{i}.json" for i in range(len(rows)))
        for path, row in zip(paths[name], rows, strict=True):
            storage.write_row(path, row)
    values: dict[str, Any] = {"presets": ("p",), "batch_sizes": (4, 1, 1), "scale": "tiny, 0.1 M parameters"}
    collect_lineage(**paths, lineage=folder / "lineage.csv", config=CollectLineageConfig(**{**values, **config}))
    return read_lineage(folder / "lineage.csv")


def test_a_group_has_the_fields_that_apply_to_it(tmp_path: Path) -> None:
    found = run(tmp_path, manifests())
    assert set(found) == {"baseline/oracle", "baseline/random", GROUP, LONG, "preset~p/rce/epoch~5"}
    ours = found[GROUP]
    expected = {
        "method": "grpo",
        "preset": "p",
        "base_rce_epoch": "5",
        "base_checkpoint": "referenc0000",
        "kl_beta": "0.1",
        "kl_control": "fixed",
        "epoch": "1",
        "seeds": "0, 1",
        "rl_data": "rl_data_0000",
        "rewarded_groups": "groups__0000",
        "reward": "hard_plus_soft",
        "dropout": "off",
        "trained": "attention and layer norm",
        "learning_rate": "5e-06",
        "pool": "eval_poo0000",
        "embeddings": "train_em0000 eval_emb0000",
        "questions": "eval_exa0000",
        "demonstrations": "train_ex0000",
        "lvlm": "qwen2_5_vl 0123456789abcdef",
        "scale": "tiny, 0.1 M parameters",
        "precision": "float32",
        "decode": "ends ; length_penalty 0.0; max_new_tokens 5; num_beams 3; repetition_penalty 1.05",
        "batching": "2048 tokens a forward; 65536 tokens stored",
        "training_code": "code of train_grpo_epoch",
        "selection_code": "code of select_demonstrations",
        "answering_code": "code of answer_prompts",
        "scoring_code": "code of score_answers",
        "device": "cpu",
        "version.torch": "2.13.0",
    }
    assert {name: ours.get(name) for name in expected} == expected
    assert found["baseline/random"]["draws"] == "0, 1, 10"
    assert found["baseline/random"]["method"] == "baseline"
    assert not {"seeds", "rl_data", "dropout", "training_code"} & found["baseline/oracle"].keys()
    assert "draws" not in found["baseline/oracle"]
    assert not {"pool", "questions", "scale"} & found[LONG].keys()  # trained, not evaluated
    assert "base_checkpoint" not in found["preset~p/rce/epoch~5"]


def test_a_reward_of_draws_stands_for_that_of_the_stored_selections(tmp_path: Path) -> None:
    given = manifests()
    given["training"] += [on_policy(seed=0, epoch=2), distil(seed=0, epoch=3)]
    found = run(tmp_path, given)
    sampled, upper = found["preset~p/on_policy/base~5/beta~0.1/epoch~2"], found["preset~p/distil/base~5/epoch~3"]
    assert (sampled["reward"], sampled["reward.hard"]) == ("accuracy_plus_expected", "0.5")
    assert (upper["reward"], upper["reward.hard"]) == ("hard_plus_soft", "1.0")
    assert (sampled["rl_data"], sampled["training_examples"]) == ("rl_data_0000", "train_ex0000")  # queries and pools
    assert sampled["scorer.lvlm"] == found[GROUP]["lvlm"]
    assert found[GROUP]["method"] == "grpo"  # of the same beta, but a separate group


def test_a_policy_names_the_exchanged_files_that_it_follows_from(tmp_path: Path) -> None:
    """Two betas swap their checkpoints of epoch 1: their later epochs change, these two and RCE do not."""

    def of(row: Manifest, folder: str, read: dict[str, str], digest: str) -> Manifest:
        locations = {**read, "selector": folder}
        paths = {name: f"{location}/selector.safetensors" for name, location in locations.items()}
        return row.model_copy(update={"paths": paths, "outputs": {"selector": digest}})

    def reads(row: Manifest, **digests: str) -> Manifest:
        return row.model_copy(update={"inputs": row.inputs | digests})

    base = of(rce(), "rce", {}, "base")
    first = [
        of(reads(grpo(beta=beta), reference="base"), f"{beta}/1", {"reference": "rce"}, f"made {beta}")
        for beta in (0.1, 0.2)
    ]
    second = [
        of(reads(grpo(beta=beta, epoch=2), start=f"made {other}"), f"{beta}/2", {"start": f"{beta}/1"}, f"then {beta}")
        for beta, other in ((0.1, 0.2), (0.2, 0.1))
    ]
    same = [reads(row, start=f"made {row.config['kl_beta']}") for row in second]
    given = {name: [] for name in manifests()} | {"training": [base, *first, *second], "rewards": [reward()]}
    found = run(tmp_path / "swapped", given, batch_sizes=())
    exchanged = {group: of["exchanged"] for group, of in found.items() if "exchanged" in of}
    assert exchanged == {
        f"preset~p/grpo/base~5/beta~{beta}/epoch~2": f"{beta}/1/selector.safetensors" for beta in (0.1, 0.2)
    }
    own = run(tmp_path / "own", given | {"training": [base, *first, *same]}, batch_sizes=())
    assert not any("exchanged" in of for of in own.values())
    third = of(reads(grpo(beta=0.1, epoch=3), start="then 0.1"), "0.1/3", {"start": "0.1/2"}, "last")
    later = run(tmp_path / "later", given | {"training": [base, *first, *second, third]}, batch_sizes=())
    assert later["preset~p/grpo/base~5/beta~0.1/epoch~3"]["exchanged"] == "0.1/1/selector.safetensors"
