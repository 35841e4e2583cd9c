"""A selector that starts from a checkpoint: from an epoch of the same kind or an import; other files are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from chains import SELECTOR, Chain
from safetensors.torch import load_file, save_file
from torch import Tensor

from lever_pipe.base import storage
from lever_pipe.base.errors import CheckpointError, RecordError
from lever_pipe.commands.checkpoint_tool import import_checkpoint
from lever_pipe.experiment.manifests import carry_out
from lever_pipe.experiment.selector import InitialiseSelectorConfig, Selector
from lever_pipe.experiment.studies import parse_experiment
from lever_pipe.stages.selector_training import initialise_selector, train_rce_epoch


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Chain:
    chain = Chain(tmp_path_factory.mktemp("chain"))
    chain.initialise()
    chain.epoch("rce", 1)
    return chain


def started(chain: Chain, path: Path, run: str, selector: Selector = SELECTOR) -> dict[str, Tensor]:
    """Start a run from a checkpoint, with its manifest; return its tensors."""
    files: dict[str, Any] = {"embeddings": chain.files["embeddings"], "start": (path,), **chain.outputs(run)}
    config = InitialiseSelectorConfig(preset="p", selector=selector, seed=0)
    carry_out(initialise_selector, chain.folder / run / "run.json", config=config, **files)
    return load_file(files["selector"])


def test_a_run_goes_on_from_the_tensors_of_another_with_a_fresh_optimiser(chain: Chain) -> None:
    own = chain.outputs("rce1")["selector"]
    found, wanted = started(chain, own, "started"), load_file(own)
    assert found.keys() == wanted.keys()
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in found.items())
    assert storage.read_json(chain.folder / "started" / "run.json")["inputs"].keys() == {"embeddings", "start[0]"}
    for run, before in (("by-start", "started"), ("by-hand", "rce1")):
        start, unused = chain.outputs(before)["selector"], chain.outputs("rce0")["optimiser"]
        train_rce_epoch(
            **chain.files, start=start, start_optimiser=unused, **chain.outputs(run), config=chain.config("rce", 1)
        )
    assert chain.bytes_of("by-start") == chain.bytes_of("by-hand")


def test_what_was_imported_is_a_start_of_the_selector_that_it_says(chain: Chain, tmp_path: Path) -> None:
    state = load_file(chain.outputs("rce1")["selector"])
    torch.save({"state_dict": state}, tmp_path / "x.ckpt")
    presets = {"published": {"selector": SELECTOR.model_dump()}}
    record = import_checkpoint(tmp_path / "x.ckpt", tmp_path / "imported", parse_experiment({"presets": presets}))
    path, selector = tmp_path / "imported" / "selector.safetensors", Selector.model_validate(record["selector"])
    found = started(chain, path, "imported", selector)
    assert all(torch.equal(tensor, state[name]) for name, tensor in found.items())
    for other, words in (({"heads": 2}, "heads 1, here 2"), ({"temperature": 0.5}, "temperature 0.1, here 0.5"),
                         ({"head": "gru"}, "head 'static', here 'gru'")):  # fmt: skip
        with pytest.raises(CheckpointError, match=f"{words} .import.json next to it.*Set presets.p.selector"):
            started(chain, path, "refused", selector.model_copy(update=other))
    started(chain, path, "free", selector.model_copy(update={"dropout": 0.0, "attention_dropout": 0.0}))
    (tmp_path / "imported" / "import.json").write_text("{")
    with pytest.raises(RecordError, match=r"import\.json: "):
        started(chain, path, "refused", selector)


@pytest.mark.parametrize(
    ("change", "selector", "words"),
    [
        ({"own": torch.ones(1)}, {}, "extra own"),
        ({"input_proj.weight": None}, {}, "missing input_proj.weight"),
        ({"query_proj.weight": torch.ones(3, 3)}, {}, "query_proj.weight is torch.float32"),
        ({}, {"head": "gru"}, "missing decoder_gru.bias_hh"),
        ({}, {"network": "bi_encoder", "head": "blend"}, "extra attn_norms.0.bias"),
    ],
)
def test_another_checkpoint_is_refused_by_name(
    chain: Chain, tmp_path: Path, change: dict[str, Any], selector: dict[str, Any], words: str
) -> None:
    state = load_file(chain.outputs("rce1")["selector"]) | change
    path = tmp_path / "other.safetensors"
    save_file({name: tensor for name, tensor in state.items() if tensor is not None}, path)
    with pytest.raises(CheckpointError, match=words):
        started(chain, path, "refused", Selector(width=SELECTOR.width, **selector))
