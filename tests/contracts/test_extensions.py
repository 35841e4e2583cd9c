"""A user's plugin outside the package is found by its name, used by its stage, and part of the stage's identity."""

from __future__ import annotations

import csv
import hashlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from lever_pipe.base import provenance, storage
from lever_pipe.base.errors import ConfigError
from lever_pipe.base.plugins import VARIABLE, available
from lever_pipe.base.records import Example, ExampleId, Pool, PoolPosition, Proposal, RlGroup
from lever_pipe.experiment.examples import PrepareExamplesConfig
from lever_pipe.experiment.identities import config_of, plugins_of
from lever_pipe.experiment.pools import Pools, SamplePoolsConfig
from lever_pipe.experiment.reward import Reward, RewardGroupsConfig
from lever_pipe.experiment.studies import Experiment, parse_experiment
from lever_pipe.lever.selector.decoding import greedy
from lever_pipe.lever.selector.network import Architecture, Encoded, build_selector
from lever_pipe.lever.training.groups import load_groups
from lever_pipe.lever.trajectories import make_group, score_trajectory
from lever_pipe.report import contents
from lever_pipe.report.selector import document_002
from lever_pipe.runtime import plan, snapshot
from lever_pipe.runtime.snapshot import package_digest
from lever_pipe.stages.examples import prepare_examples
from lever_pipe.stages.pools import sample_pools
from lever_pipe.stages.rewards import reward_groups
from tests.unit.builders import example
from tests.unit.stages import synthetic_page as small

ROOT = Path(__file__).parents[2]

EXAMPLES = (ROOT / "CONTRIBUTING.md").read_text()
PAGES_002 = ("documents-selector.html", "documents-selector.zh.html")
PYTHON = re.findall(r"```python\n(.*?)```", EXAMPLES, flags=re.DOTALL)
SAMPLER, REWARD, *_ = PYTHON
HEAD = '''"""The nearest of what is not like the first pick."""
from lever_pipe.lever.heads.protocol import Head


class Contrary(Head):
    """Each pick turns the query's vector round."""

    def moved(self, vectors_BGH, picked_BGH):
        """Return the vectors after a pick."""
        return -picked_BGH


def build(settings):
    """Return the head."""
    return Contrary(settings)
'''
READER = '''"""One JSON file."""
import hashlib
import json

from lever_pipe.base.records import Example
from lever_pipe.lever.datasets.protocol import ReadResult


def read(files, options):
    """Return the examples of the questions file."""
    rows = json.loads(files.questions.read_text())[: options.limit]
    digests = [hashlib.sha256((files.images / row["image"]).read_bytes()).hexdigest() for row in rows]
    made = [
        Example(example_id=i, image_digest=digest, question_type="any", answer=row["answers"][0], **row)
        for i, (row, digest) in enumerate(zip(rows, digests, strict=True))
    ]
    return ReadResult(made)
'''


@pytest.fixture
def plugin_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of plugins outside the package's tree; their imports are removed from the module cache afterwards."""
    folder, before = tmp_path / "mine", set(sys.modules)
    monkeypatch.setenv(VARIABLE, str(folder))
    _forget()
    yield folder
    for name in set(sys.modules) - before:
        if name.rpartition(".")[2] == "mine":
            del sys.modules[name]
    _forget()


def _forget() -> None:
    for cached in (provenance._module, provenance.modules_of, package_digest):
        cached.cache_clear()
    snapshot._codes.clear()


def added(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    _forget()
    return path


def configured(**changed: object) -> Experiment:
    return parse_experiment({**yaml.safe_load((ROOT / "config.yaml").read_text()), **changed})


def identity_follows(path: Path, stage: str, experiment: Experiment, **wildcards: str) -> bool:
    """Return whether the stage's identity and the snapshot's digest change with the file's code, and with it alone."""

    def seen() -> tuple[str, str]:
        _forget()
        return plan.spec_of(experiment, stage, wildcards), package_digest()

    text, (spec, whole) = path.read_text(), seen()
    path.write_text(f"# A remark.\n{text}")
    remarked = seen()
    path.write_text(f"{text}\nMORE = 1\n")
    changed = seen()
    path.write_text(text)
    return remarked[0] == spec and remarked[1] != whole and changed[0] != spec and seen() == (spec, whole)


def test_a_head_is_one_file(plugin_folder: Path) -> None:
    presets = yaml.safe_load((ROOT / "config.yaml").read_text())["presets"]
    mine = presets | {"mine": {"selector": {"head": "mine", "steps": 4}}}
    with pytest.raises(ConfigError, match=r"presets.mine.selector.head: "):
        configured(presets=mine)
    path = added(plugin_folder, "lever/heads/mine.py", HEAD)
    given = configured(presets=mine)
    wildcards = {"seed": "0", "epoch": "1"}
    assert identity_follows(path, "train_rce_epoch", given, preset="mine", **wildcards)
    assert not identity_follows(path, "train_rce_epoch", given, preset="world", **wildcards)
    module = build_selector(Architecture(2, 2, 1, 1, 0.0, 0.0, 1.0, head="mine"))
    v = torch.tensor([[[1.0, 0.0], [0.9, 0.1], [-1.0, 0.0]]])
    picks = greedy(module, Encoded(torch.tensor([[1.0, 0.0]]), v), 2)
    assert picks.tolist() == [[0, 2]]


def test_a_sampler_is_one_file(plugin_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"pools.sampler: "):
        configured(pools={"sampler": "mine"})
    path = added(plugin_folder, "lever/samplers/mine.py", SAMPLER)
    assert {"mine", "uniform"} <= set(available("lever/samplers"))
    assert identity_follows(path, "sample_pools", configured(pools={"sampler": "mine"}), split="eval")
    rows = [example(i) for i in range(6)]
    vectors = np.eye(6, dtype=np.float32)
    storage.write_rows(tmp_path / "examples", rows)
    storage.write_arrays(tmp_path / "embeddings", {"image": vectors, "question": vectors})
    files = {f"{of}_{kind}": tmp_path / kind for of in ("train", "query") for kind in ("examples", "embeddings")}
    config = SamplePoolsConfig(split="eval", pools=Pools(sampler="mine", size=2), n_rl_queries=3, rl_seed=0)
    sample_pools(**files, pools=tmp_path / "pools", config=config)
    lines = [json.loads(line) for line in (tmp_path / "pools").read_text().splitlines()]
    assert [line["candidates"] for line in lines] == [[1, 2], [0, 2]] + [[0, 1]] * 4


def test_a_reward_is_one_function(plugin_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"reward.mode: "):
        configured(presets={"world": {"reward": {"mode": "mine"}}})
    path = added(plugin_folder, "lever/rewards/mine.py", REWARD)
    chosen = {"reward": {"mode": "mine"}, "on_policy": {"reward": {"mode": "mine"}}}
    experiment = configured(presets={"world": chosen, "published": {}})
    assert identity_follows(path, "reward_groups", experiment, preset="world", rewarded="groups")
    assert "lever.rewards.mine" in plugins_of(config_of(experiment, "measure_rewards", {}))
    queries = [example(i, answer="a") for i in range(2)]
    groups = [_group(query, correct) for query, correct in zip(queries, ("a", "b"), strict=True)]
    storage.write_rows(tmp_path / "rl_data", groups)
    config = RewardGroupsConfig(reward=Reward(mode="mine", hard=0.5))
    reward_groups(rl_data=tmp_path / "rl_data", groups=tmp_path / "groups", config=config)
    assert load_groups(tmp_path / "groups").rewards.tolist() == [[0.5], [0.0]]


def _group(query: Example, text: str) -> RlGroup:
    proposal = Proposal(
        query_id=query.example_id, pointer=(PoolPosition(0),), pointer_global=(ExampleId(3),), gen_method="mine"
    )
    pool = Pool(query_id=query.example_id, candidates=(ExampleId(3), ExampleId(4)))
    return make_group(query, pool, [score_trajectory(proposal, query, text, [-1.0])])


def test_a_data_set_is_one_file(plugin_folder: Path, tmp_path: Path) -> None:
    path = added(plugin_folder, "lever/datasets/mine.py", READER)
    assert identity_follows(
        path, "prepare_examples", configured(data={"source": "files", "reader": "mine"}), split="train"
    )
    Image.new("RGB", (8, 8)).save(tmp_path / "0.png")
    row = {"question_id": 0, "image_id": 0, "image": "0.png", "question": "which?", "answers": ["a"]}
    (tmp_path / "questions").write_text(json.dumps([row | {"question_id": 1}]))
    raw = {"questions": tmp_path / "questions", "annotations": tmp_path / "questions", "images": tmp_path}
    outputs = {name: tmp_path / name for name in ("examples", "summary")}
    config = PrepareExamplesConfig(
        split="eval",
        reader="mine",
        train_image_name="",
        eval_image_name="",
        n_eval=1,
        n_answers=1,
        on_bad_image="stop",
        on_split_overlap="count",
    )
    storage.write_listing(tmp_path / "listing", {})
    listing = tmp_path / "listing"
    assert prepare_examples(**raw, **outputs, image_listing=listing, train_examples=(), config=config) == 1
    (read,) = storage.read_examples(outputs["examples"])
    assert (read.question_id, read.image_digest) == (1, hashlib.sha256((tmp_path / "0.png").read_bytes()).hexdigest())


def test_a_table_and_a_sentence_are_one_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are in CONTRIBUTING.md; the pages have the table with the numbers of the rows, in both languages."""
    (function,) = (block for block in PYTHON if "-> Table" in block)
    (sentence,), (chinese,) = (re.findall(f"```{of}\n(.*?)```", EXAMPLES, flags=re.DOTALL) for of in ("jinja", "po"))
    assert len([*function.split("\n"), *sentence.split("\n"), *chinese.split("\n")]) < 25
    written: dict[str, Any] = dict(vars(document_002))
    exec(function, written)
    monkeypatch.setattr(contents, "TABLES", (lambda material: [written["by_shots"](material)],))
    inputs = small.write_inputs(tmp_path, small.of_lever())
    translation = tmp_path / "report.po"
    translation.write_text(f"{inputs['chinese'].read_text()}\n{chinese}")
    (template,) = (path for path in inputs["templates"] if path.name.startswith("sentences"))
    edited = tmp_path / template.name
    edited.write_text(f"{template.read_text()}\n{sentence}")
    changed = {
        "chinese": translation,
        "templates": [edited if of == template else of for of in inputs["templates"]],
    }
    folder = small.build(inputs | changed, tmp_path, small.config("lever"))
    pages = {name: (folder / "report" / name).read_text(encoding="utf-8") for name in PAGES_002}
    assert re.search(r"After epoch \d, with 95\s% intervals\.", pages["documents-selector.html"])
    assert re.search(r"第 \d 轮之后，附 95% 区间。", pages["documents-selector.zh.html"])
    head, *lines = csv.reader((folder / "report" / "tables" / "002-mine.csv").read_text().splitlines())
    assert [line[0] for line in lines] == list(small.BETAS)
    assert lines[0][head.index("Shot 1")] == "60.86"
