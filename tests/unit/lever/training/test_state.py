from __future__ import annotations

from pathlib import Path

import pytest
import torch
from small_selectors import NOISY, selector

from lever_pipe.base.checkpoints import load_tensors, save_tensors
from lever_pipe.base.errors import CheckpointError
from lever_pipe.base.optimiser import AdamW
from lever_pipe.lever.selector.network import PointerSelector
from lever_pipe.lever.training.epoch import resume_optimiser, save_optimiser


def stepped(module: PointerSelector, steps: int = 2) -> AdamW:
    adam = AdamW(module, learning_rate=0.01, weight_decay=0.1)
    for _ in range(steps):
        module.zero_grad()
        module.eval()(torch.ones(1, 6), torch.eye(6)[None]).square().sum().backward()
        adam.step()
    return adam


def test_the_state_of_another_stage_is_left_alone(tmp_path: Path) -> None:
    module = selector(**NOISY)
    save_optimiser(tmp_path / "o", stepped(module), stage="rce", epoch=5, kl_beta=0.3)
    adam = AdamW(module, learning_rate=0.01, weight_decay=0.1)
    assert resume_optimiser(tmp_path / "o", adam, stage="grpo") is None
    assert not any(tensor.any() for tensor in adam.state().values())


def test_moments_of_other_parameters_are_refused(tmp_path: Path) -> None:
    module = selector(**NOISY)
    save_optimiser(tmp_path / "o", stepped(module), stage="grpo", epoch=1, kl_beta=0.1)
    frozen = selector(**NOISY)
    frozen.freeze_projections()
    adam = AdamW(frozen, learning_rate=0.01, weight_decay=0.1)
    with pytest.raises(CheckpointError, match=r"cand_proj\.weight\.exp_avg"):
        resume_optimiser(tmp_path / "o", adam, stage="grpo")
    tensors, about = load_tensors(tmp_path / "o")
    del tensors["query_proj.weight.step"]
    save_tensors(tmp_path / "o", tensors, about=about)
    with pytest.raises(CheckpointError, match=r"query_proj\.weight\.step"):
        resume_optimiser(tmp_path / "o", AdamW(module, learning_rate=0.01, weight_decay=0.1), stage="grpo")


@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
def test_the_optimiser_is_the_librarys(weight_decay: float) -> None:
    ours, theirs = selector(**NOISY), selector(**NOISY)
    mine = AdamW(ours, learning_rate=0.01, weight_decay=weight_decay)
    library = torch.optim.AdamW(theirs.parameters(), lr=0.01, weight_decay=weight_decay, fused=True)
    for step in range(5):
        mine.learning_rate = library.param_groups[0]["lr"] = 0.01 / (step + 1)
        for module, optimiser in ((ours, mine), (theirs, library)):
            module.zero_grad()
            module(torch.ones(1, 6), torch.eye(6)[None]).square().sum().backward()
            optimiser.step()
    assert all(torch.equal(value, theirs.state_dict()[name]) for name, value in ours.state_dict().items())
