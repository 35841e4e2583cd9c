"""Output of `release`, used by its own model card without Snakemake: it reproduces the results."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from huggingface_hub import ModelCard

from lever_pipe.__main__ import main
from lever_pipe.base import storage
from lever_pipe.base.errors import CheckpointError, ConfigError, DataError
from lever_pipe.base.policy_names import group_of
from lever_pipe.base.records import Cell, Selection
from lever_pipe.commands.release_tool import _scores
from lever_pipe.experiment.evaluation import ScoreAnswersConfig
from lever_pipe.experiment.examples import EncoderSettings
from lever_pipe.experiment.selections import SelectDemonstrationsConfig
from lever_pipe.experiment.selector import InitialiseSelectorConfig, Selector
from lever_pipe.lever import released
from lever_pipe.report.evidence import EvidenceRow, write_evidence
from lever_pipe.stages.answers import score_answers
from lever_pipe.stages.selections import select_demonstrations
from lever_pipe.stages.selector_training import initialise_selector

from .conftest import Project

pytestmark = pytest.mark.workflow

LEVER, AGENTS = "results/smoke/lever", "results/smoke/intention"
RCE = "preset~world/rce/seed~0/epoch~2"
GRPO = "preset~world/grpo/base~2/beta~0.15/seed~0/epoch~2"
AGENT = "arm~baseline/seed~0"
ALL_OF_THEM = """
import json, os, sys
for name in ("snakemake", "snakemake_interface_common"):
    sys.modules[name] = None  # an import would fail
told = []
for folder, lines in json.loads(sys.argv[1]):
    os.chdir(folder)
    exec(lines, names := {"json": json})
    told.append(names["found"])
print(json.dumps(told))
"""
SELECTED = """
from pathlib import Path
asked = json.loads(Path("asked.json").read_text())
found = [[e.question_id for e in policy.select(q, i, k=2, pool=policy.pools[n])] for n, q, i in asked]
found = {"pool": found, "new": [[e.question_id for e in policy.select(q, i)] for _, q, i in asked[:5] * 2]}
"""
PLAY_SCRIPT = "found = [row.model_dump() for row in evaluation.rows]"
RELEASED = {RCE: (RCE, "last", SELECTED), GRPO: (GRPO, "last", SELECTED)}
RELEASED |= {checkpoint: (AGENT, checkpoint, PLAY_SCRIPT) for checkpoint in ("last", "best")}


class Released(NamedTuple):
    """A release, the evaluation next to it, and the output of its model card's code."""

    out: Path
    model_card: ModelCard
    found: Any


@pytest.fixture(scope="module")
def released_of(smoke: Project, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Released]:
    """Release policies and agents, and run the Python of each model card next to its folder, and then more."""
    outs, model_cards, calls = [], [], []
    for policy, checkpoint, then in RELEASED.values():
        parent = tmp_path_factory.mktemp("released")
        words = ("--license", "apache-2.0", "--checkpoint", checkpoint, "--configfile", "config/smoke.yaml")
        with chdir(smoke.folder):
            assert main(["release", policy, str(parent / "out"), *words]) == 0
        outs.append(parent / "out")
        model_cards.append(ModelCard.load(parent / "out/README.md"))
        (lines,) = re.findall(r"```python\n(.*?)```", model_cards[-1].text, re.DOTALL)
        calls.append((str(parent), lines + then))
        put_evaluation(smoke, parent)
    call = [sys.executable, "-c", ALL_OF_THEM, json.dumps(calls)]
    done = subprocess.run(call, cwd=outs[0], env=smoke.environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    return dict(zip(RELEASED, map(Released, outs, model_cards, found), strict=True))


def require_fit_for_others(project: Project, out: Path, model_card: ModelCard) -> None:
    """The model card describes the release, and no file of the folder names this machine."""
    assert model_card.data.license == "apache-2.0"
    data = {(of.dataset_type, of.dataset_name) for of in model_card.data.eval_results}
    assert data == {("lever-pipe-embedded-world", "embedded world")}
    assert "**Embedded world.**" in model_card.text
    settings = next(path for name in ("agent.json", "config.json") if (path := out / name).exists())
    assert storage.read_json(settings)["lineage"] in model_card.text
    held = b"".join(path.read_bytes() for path in out.rglob("*") if path.is_file())
    assert not [name for name in (project.folder, Path.cwd(), Path.home()) if str(name).encode() in held]


def lines_of(path: Path, **cells: str) -> list[dict[str, str]]:
    with path.open() as handle:
        return [row for row in csv.DictReader(handle) if all(row[name] == value for name, value in cells.items())]


def put_evaluation(project: Project, folder: Path) -> None:
    """Put the evaluation's images and questions into a folder."""
    examples = storage.read_examples(project.folder / LEVER / "examples/eval.jsonl")
    for name in {example.image for example in examples}:
        (folder / name).symlink_to(next((project.folder / "results/smoke/world").rglob(name)))
    asked = [(example.question_id, example.question, example.image) for example in examples]
    (folder / "asked.json").write_text(json.dumps(asked))


@pytest.mark.parametrize("policy", [RCE, GRPO])
def test_a_released_policy_selects_and_scores_as_in_the_results(
    smoke: Project, released_of: dict[str, Released], tmp_path: Path, policy: str
) -> None:
    out, model_card, found = released_of[policy]
    require_fit_for_others(smoke, out, model_card)
    queries = storage.read_examples(smoke.folder / LEVER / "examples/eval.jsonl")
    study, train = smoke.folder / LEVER, storage.read_examples(smoke.folder / LEVER / "examples/train.jsonl")
    example_ids = {example.question_id: example.example_id for example in train}
    chosen = [
        Selection(query_id=query.example_id, demonstrations=tuple(example_ids[name] for name in names))
        for query, names in zip(queries, found["pool"], strict=True)
    ]
    assert chosen == storage.read_rows(study / policy / "selections.jsonl", Selection)
    assert len({tuple(row.demonstrations) for row in chosen}) > len(chosen) / 2
    assert found["new"][:5] == found["new"][5:]

    storage.write_rows(tmp_path / "selections.jsonl", chosen)
    scored = study / "answers/preset~world/seed~0"
    own = {"policies": (policy,)}
    cells = score_answers(
        selections=(tmp_path / "selections.jsonl",),
        answers=scored / "answers.jsonl",
        train_examples=study / "examples/train.jsonl",
        eval_examples=study / "examples/eval.jsonl",
        per_question=tmp_path / "per_question.jsonl",
        cells=tmp_path / "cells.jsonl",
        config=ScoreAnswersConfig(**json.loads((scored / "scores.run.json").read_text())["config"] | own),
    )
    assert cells == [cell for cell in storage.read_rows(scored / "cells.jsonl", Cell) if str(cell.policy) == policy]
    reported = {
        (r.dataset_config, r.metric_name): (r.metric_value, r.metric_args) for r in model_card.data.eval_results
    }
    assert len(reported) == len(cells) == 4
    for cell in cells:
        key = f"first {cell.samples} evaluation questions", f"VQA accuracy in percent, shots: {cell.shots}"
        where = {"samples": str(cell.samples), "shots": str(cell.shots)}
        row = lines_of(study / "tables/intervals.csv", group=group_of(policy), **where)[0]
        mean = {"mean_of_runs": float(row["accuracy"]), "runs": int(row["n_runs"])}
        assert reported[key][0] == pytest.approx(cell.accuracy, rel=1e-8, abs=0)
        assert reported[key][1] == mean | {"low": float(row["low"]), "high": float(row["high"])}


@pytest.mark.parametrize("checkpoint", ["last", "best"])
def test_a_released_agent_plays_the_held_out_tasks_as_it_was_evaluated(
    smoke: Project, released_of: dict[str, Released], checkpoint: str
) -> None:
    out, model_card, found = released_of[checkpoint]
    require_fit_for_others(smoke, out, model_card)
    lines = (smoke.folder / AGENTS / AGENT / "test/evaluations.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert found == [row for row in rows if row["checkpoint"] == checkpoint]
    reported = {result.metric_name: result for result in model_card.data.eval_results}
    assert len(reported) == 4
    for mode in ("greedy", "sampled"):
        value = next(row["values"]["reward"] for row in rows if (row["checkpoint"], row["mode"]) == (checkpoint, mode))
        assert reported[f"{mode} reward"].metric_value == pytest.approx(value, rel=1e-8, abs=1e-12)
        endpoint = f"test_reward_{mode}_{checkpoint}"
        mean = lines_of(smoke.folder / AGENTS / "tables/endpoints.csv", arm="baseline", endpoint=endpoint, seed="")[0]
        assert reported[f"{mode} reward"].metric_args["low"] == float(mean["low"])


def test_a_score_is_the_seeds_own_and_the_interval_that_of_all_its_runs(tmp_path: Path) -> None:
    common = {"subset": "test", "mode": "greedy", "n": 8, "low": -1.0, "high": 9.0}
    values = {"arm~a/seed~0": 1.0, "arm~a/seed~1": 3.0, "arm~a": 2.0, "arm~b/seed~0": 5.0, "arm~b": 6.0}
    rows = [
        EvidenceRow("intention", of, "reward", values[of], at=at, **common) for of in values for at in ("last", "best")
    ]
    rows += [EvidenceRow("intention", of, "kl", 7.0, at="last", subset="train") for of in values]
    write_evidence(tmp_path / "report/evidence.csv", rows)
    found = _scores("arm~a/seed~1", tmp_path, "best")
    assert [(own.value, own.at, mean.value, mean.low) for own, mean in found] == [(3.0, "best", 2.0, -1.0)]


@pytest.fixture
def folder(released_of: dict[str, Released], tmp_path: Path) -> Path:
    return shutil.copytree(released_of[RCE].out, tmp_path / "out")


SELECTORS = [
    *({"head": head} for head in ("static", "gru", "stop")),
    {"network": "bi_encoder", "head": "blend"},
]
STEPS = {"gru", "stop"}


@pytest.mark.parametrize("values", SELECTORS, ids=lambda values: "-".join(map(str, values.values())))
def test_every_selector_chooses_as_the_stage_that_selects(smoke: Project, folder: Path, values: dict[str, Any]) -> None:
    study, settings = smoke.folder / LEVER, storage.read_row(folder / "config.json", released.ReleasedPolicy)
    steps = {"steps": 2} if values.get("head") in STEPS else {}
    config = SelectDemonstrationsConfig(selector=Selector(**{"width": 32} | steps | values), shots=2)
    initialise_selector(
        embeddings=study / "embeddings/train.safetensors",
        start=(),
        selector=folder / "model.safetensors",
        optimiser=folder / "optimiser.safetensors",
        metrics=folder / "metrics.json",
        config=InitialiseSelectorConfig(preset="any", selector=config.selector, seed=1),
    )
    storage.write_row(folder / "config.json", settings.model_copy(update={"selector": config.selector}))
    select_demonstrations(
        selector=folder / "model.safetensors",
        eval_pools=study / "pools/eval.jsonl",
        train_embeddings=study / "embeddings/train.safetensors",
        eval_embeddings=study / "embeddings/eval.safetensors",
        selections=folder / "chosen.jsonl",
        config=config,
    )
    chosen = storage.read_selections(folder / "chosen.jsonl")
    queries = storage.read_examples(study / "examples/eval.jsonl")
    policy = released.Policy(folder)
    for query in queries[::5]:
        image = next((smoke.folder / "results/smoke/world").rglob(query.image))
        found = policy.select(query.question, image, pool=policy.pools[query.question_id])
        assert tuple(example.example_id for example in found) == chosen[query.example_id]
    if steps:
        with pytest.raises(ConfigError, match=r"k: expected 1 to 2, .*; found 3\."):
            policy.select(query.question, image, 3)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["preset~world/rce/epoch~2", "out"], f"Did you mean '{RCE}'?"),
        (["arm~bundel/seed~0", "out"], "Did you mean 'arm~bundle/seed~0'?"),
        (["baseline/oracle", "out"], "found none of 'baseline/oracle'"),
        (["preset~world/init/seed~0", "out"], "found none of 'preset~world/init/seed~0'"),
        ([RCE, "config"], "config: expected no folder, or an empty one; found something. Name another one."),
        ([RCE, "Snakefile"], "Snakefile: expected no folder, or an empty one"),
    ],
)  # fmt: skip
def test_what_cannot_be_released_is_told(
    smoke: Project, refused: Callable[..., str], words: list[str], message: str
) -> None:
    assert message in refused(*words)
    assert not (smoke.folder / "out").exists()


@pytest.fixture
def refused(smoke: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def refusal(*words: str) -> str:
        monkeypatch.chdir(smoke.folder)
        assert main(["release", *words, "--license", "mit", "--configfile", "config/smoke.yaml"]) == 2
        return capsys.readouterr().err

    return refusal


def test_a_pool_is_the_evaluations_kind_and_what_cannot_be_selected_is_told(smoke: Project, folder: Path) -> None:
    policy, image = released.Policy(folder), next((smoke.folder / "results/smoke/world").rglob("*val2014*.png"))
    (pool,) = list(policy.pools.values())[:1]
    with pytest.raises(ConfigError, match=r"k: expected 1 to 64, .*; found 65\."):
        policy.select("what is its color?", image, 65)
    for wrong in (pool[:1] * 2, (*pool, 0)):
        with pytest.raises(ConfigError, match=rf"pool: .* each once; found {wrong[-1]}\."):
            policy.select("what is its color?", image, 1, pool=wrong)
    of, query = policy.settings.pools, next(iter(policy.examples.values()))
    others = {name for name, example in policy.examples.items() if example.image_digest != query.image_digest}
    policy.settings = policy.settings.model_copy(update={"pools": of.model_copy(update={"size": len(others)})})
    found = policy.select(query.question, next((smoke.folder / "results/smoke/world").rglob(query.image)), len(others))
    assert {example.question_id for example in found} == others, "none that shows the image"
    for pools, error in (({"size": 601}, DataError), ({"encoder": EncoderSettings(model="other")}, ConfigError)):
        policy.settings = policy.settings.model_copy(update={"pools": of.model_copy(update=pools)})
        with pytest.raises(error):
            policy.select("what is its color?", image, 1)


def test_files_that_are_not_the_runs_are_not_released(smoke: Project, refused: Callable[..., str]) -> None:
    weights = smoke.folder / LEVER / RCE / "selector.safetensors"
    whole, stat = weights.read_bytes(), weights.stat()
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    try:
        assert "RCE epoch 2 of seed 0 (world): selector" in refused(RCE, "out")
    finally:
        weights.write_bytes(whole)
        os.utime(weights, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def test_another_encoder_is_refused_when_releasing_and_when_loading(
    smoke: Project, folder: Path, refused: Callable[..., str]
) -> None:
    with smoke.edited("config.yaml", "model: resources/world/clip", "model: resources/world/lvlm"):
        assert "encoder.model: expected the model" in refused(RCE, "out")
    settings = folder / "encoder/config.json"
    settings.write_text(settings.read_text() + "\n")
    with pytest.raises(CheckpointError, match=r"expected the encoder .* Fetch the folder again, whole"):
        released.Policy(folder)
