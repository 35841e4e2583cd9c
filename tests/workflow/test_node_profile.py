"""Inside one allocation the same rules run side by side, with the same results."""

from __future__ import annotations

from .conftest import Project
from .test_contents_decide import ran

TARGETS = [f"results/smoke/lever/{name}" for name in ("examples/train.jsonl", "embeddings/train.safetensors")]


def test_the_profile_of_a_node_makes_the_same_bytes(project: Project) -> None:
    small = ("--config", "data={world: {n_train: 100}}")
    project.snakemake("--cores", "2", *small, "--", *TARGETS)
    before = [(project.folder / target).read_bytes() for target in TARGETS]
    words = ("--workflow-profile", "profiles/node", "--resources", "gpu=1", "mem_mb=8000", "--forceall")
    text = project.snakemake(*words, *small, "--", *TARGETS)
    assert "Using workflow specific profile profiles/node" in text
    assert ran(text) == {"generate_world": 1, "prepare_examples": 1, "embed_examples": 1}
    assert [(project.folder / target).read_bytes() for target in TARGETS] == before
