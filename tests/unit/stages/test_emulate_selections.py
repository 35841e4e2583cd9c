from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from builders import evaluation_files

from lever_pipe.base import storage
from lever_pipe.base.records import Selection
from lever_pipe.base.torch_streams import torch_generator
from lever_pipe.experiment.emulation import EmulateSelectionsConfig
from lever_pipe.experiment.selections import EmulateFirstItemsConfig, SelectDemonstrationsConfig
from lever_pipe.experiment.selector import Selector
from lever_pipe.lever.emulation import head_names
from lever_pipe.lever.selector.embeddings import read_table
from lever_pipe.lever.selector.network import (
    PointerSelector,
    architecture_of,
    build_selector,
    initialise,
    save_selector,
)
from lever_pipe.stages.emulation import emulate_first_items, emulate_selections
from lever_pipe.stages.selections import select_demonstrations

N_TRAIN, N_EVAL, RUNS = 40, 60, 3
SMALL = Selector(width=8)


@dataclass
class Study:
    """Three checkpoints from one base that differ in the tensors that frozen GRPO trains, and one from another."""

    folder: Path

    def __post_init__(self) -> None:
        self.files = evaluation_files(self.folder, N_TRAIN, N_EVAL)
        for name in ("train_examples", "eval_examples"):
            del self.files[name]
        base = self.module(0)
        for run in range(RUNS):
            save_selector(self.folder / f"run{run}", self.tuned(base, run), stage="grpo", epoch=1)
        save_selector(self.folder / "other", self.module(1), stage="grpo", epoch=1)

    def module(self, seed: int) -> PointerSelector:
        architecture = architecture_of(SMALL, read_table(self.files["train_embeddings"], torch.device("cpu")).width)
        return initialise(build_selector(architecture), torch_generator(seed)).eval()

    def tuned(self, base: PointerSelector, run: int) -> PointerSelector:
        module = self.module(0)
        module.load_state_dict(base.state_dict())
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                if name in head_names(module):
                    parameter.add_(torch.randn(parameter.shape, generator=torch_generator(run, name)))
        return module

    def select(self, *checkpoints: str, arm: str = "none", selector: Selector = SMALL, **bugs: int) -> list[bytes]:
        """Return the files of selections."""
        config = EmulateSelectionsConfig.model_validate(
            {"arm": arm, "selector": selector, "shots": 4, "head_seed": None, "pool_items": None} | bugs
        )
        targets = tuple(self.folder / f"{name}.jsonl" for name in checkpoints)
        n = emulate_selections(
            selectors=tuple(self.folder / name for name in checkpoints),
            **self.files,
            selections=targets,
            config=config,
        )
        assert n == len(checkpoints)
        return [target.read_bytes() for target in targets]

    def rows(self, name: str) -> list[tuple[int, ...]]:
        return [row.demonstrations for row in storage.read_rows(self.folder / f"{name}.jsonl", Selection)]


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return Study(tmp_path)


TUNED = [f"run{run}" for run in range(RUNS)]


def test_without_a_bug_it_is_the_right_evaluation(study: Study) -> None:
    found = study.select(*TUNED)
    for name, rows in zip(TUNED, found, strict=True):
        select_demonstrations(
            **study.files,
            selector=study.folder / name,
            selections=study.folder / "right",
            config=SelectDemonstrationsConfig(selector=SMALL, shots=4),
        )
        assert (study.folder / "right").read_bytes() == rows
    assert len(set(found)) == RUNS


def test_a_lost_head_makes_checkpoints_of_one_base_alike(study: Study) -> None:
    one, two, three, other = study.select(*TUNED, "other", head_seed=42)
    assert one == two == three != other
    again = study.select(*TUNED, head_seed=43)
    assert again[0] == again[1] != one


def test_a_pool_of_two_leaves_two_rows(study: Study) -> None:
    """Of two items and four shots each row is the better one, the other, and the first twice."""
    study.select(*TUNED, "other", pool_items=2)
    rows = [row for name in (*TUNED, "other") for row in study.rows(name)]
    assert set(rows) == {(1, 0, 0, 0), (0, 1, 0, 0)}
    config = EmulateFirstItemsConfig(selector=SMALL, shots=4, items=2)
    alone = study.folder / "alone.jsonl"
    assert emulate_first_items(**study.files, selector=study.folder / "run0", selections=alone, config=config) == 1
    assert study.rows("alone") == study.rows("run0")
