"""Lineage in the plan of stages that compare policies."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import shipped

from lever_pipe.base.policy_names import PolicyName
from lever_pipe.experiment.collected import CollectLineageConfig
from lever_pipe.experiment.identities import config_of
from lever_pipe.experiment.plans import policies
from lever_pipe.experiment.studies import Experiment, parse_experiment

ROOT = Path(__file__).parents[3]


def experiment(**changed: object) -> Experiment:
    return parse_experiment({**shipped(), **changed})


def test_every_start_is_a_policy_or_is_named() -> None:
    given = experiment()
    names, starts = policies.evaluated(given), policies.starts(given)
    trained = [name for name in names if not name.startswith("baseline/")]
    assert {str(PolicyName.parse(name).start) for name in trained} <= {*trained, *starts}
    assert not set(starts) & set(trained)
    assert starts == [*(f"preset~world/init/seed~{seed}" for seed in (0, 1, 2)), "preset~published/init/seed~0"]


def test_batch_sizes_follow_the_batches() -> None:
    given = experiment()
    config = config_of(given, "collect_lineage", {})
    assert isinstance(config, CollectLineageConfig)
    assert sum(config.batch_sizes) == len(policies.evaluated(given))
    assert len(config.batch_sizes) == len(policies.batches(given))
    ends = [sum(config.batch_sizes[: i + 1]) for i in range(len(config.batch_sizes))]
    for batch, size, end in zip(policies.batches(given), config.batch_sizes, ends, strict=True):
        assert policies.evaluated(given)[end - size : end] == policies.policies_of(given, batch)


@pytest.mark.parametrize(
    ("lvlm", "source", "scale"),
    [
        ("resources/world/lvlm", "world", "embedded world, 0.7 M parameters"),
        ("models/Absent-3B", "files", "Absent-3B on okvqa"),
        ("models/absent", "world", "embedded world"),
    ],
)
def test_the_scale_names_model_and_data(lvlm: str, source: str, scale: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    data = {**shipped()["data"], "source": source}
    config = config_of(experiment(lvlm={"model": lvlm}, data=data), "collect_lineage", {})
    assert isinstance(config, CollectLineageConfig)
    assert config.scale == scale


def test_a_folder_whose_weights_cannot_be_read_has_no_size(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"no weights at all")
    config = config_of(experiment(lvlm={"model": str(tmp_path)}), "collect_lineage", {})
    assert isinstance(config, CollectLineageConfig)
    assert config.scale == "embedded world"
