"""The original's checkpoints: the contents of each kind, lossless import, and refused files."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from lever_pipe.__main__ import main
from lever_pipe.base import storage
from lever_pipe.base.errors import CheckpointError, ConfigError
from lever_pipe.base.torch_streams import torch_generator
from lever_pipe.commands.checkpoint_tool import import_checkpoint
from lever_pipe.experiment.selector import Selector
from lever_pipe.experiment.studies import Experiment, parse_experiment
from lever_pipe.lever.selector.network import architecture_of, build_selector, initialise, load_selector

D, H = 12, 8
PREFIX = "lever_lm.pointer_selector."
State = dict[str, Tensor]
ONCE = {"input_proj.weight": "H D", "query_proj.weight": "H H", "cand_proj.weight": "H H"}
LAYER = {
    "cross_attn_layers.{}.in_proj_weight": "3H H",
    "cross_attn_layers.{}.in_proj_bias": "3H",
    "cross_attn_layers.{}.out_proj.weight": "H H",
    "cross_attn_layers.{}.out_proj.bias": "H",
    "attn_norms.{}.weight": "H",
    "attn_norms.{}.bias": "H",
}
"""Tensors of the original, and of each of its layers, by their newer names, with their shapes."""


def state_of(layers: int = 1, *, d: int = D, h: int = H) -> State:
    """Return random tensors under the original's newer names."""
    sizes = {"D": d, "H": h, "3H": 3 * h}
    shapes = ONCE | {name.format(i): shape for i in range(layers) for name, shape in LAYER.items()}
    generator = torch.Generator().manual_seed(layers)
    return {
        name: torch.randn([sizes[symbol] for symbol in shape.split()], generator=generator)
        for name, shape in shapes.items()
    }


def older(state: State) -> State:
    """Return tensors as files of one layer name them."""
    swaps = {"cross_attn_layers.0.": "cross_attn.", "attn_norms.0.": "attn_norm."}
    return {next((o + n[len(s) :] for s, o in swaps.items() if n.startswith(s)), n): t for n, t in state.items()}


def experiment(**values: Any) -> Experiment:
    return parse_experiment({"presets": {"published": {}}, **values})


def saved(folder: Path, value: object) -> Path:
    path = folder / "rce_epoch5.pt"
    torch.save(value, path)
    return path


def problem(path: Path, out: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        import_checkpoint(path, out, experiment())
    assert not out.exists()
    return str(caught.value)


@pytest.mark.parametrize("prefix", ["", "pointer_selector.", PREFIX])
def test_sizes_are_told_by_the_tensors_alone(tmp_path: Path, prefix: str) -> None:
    state = {prefix + name: tensor for name, tensor in state_of(2).items()}
    record = import_checkpoint(saved(tmp_path, {"state_dict": state}), tmp_path / "out", experiment())
    assert (record["selector"]["width"], record["selector"]["layers"]) == (H, 2)
    assert record["mapped"] == {name: name for name in sorted(state_of(2))}


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("wrapped", ["bare", "state_dict", "model_state_dict", "both"])
def test_a_round_trip_gives_equal_logits(tmp_path: Path, layers: int, wrapped: str) -> None:
    architecture = architecture_of(Selector(width=H, layers=layers), D)
    module = initialise(build_selector(architecture), torch_generator(0)).eval()
    state = dict(module.state_dict())
    if layers == 1:
        state = older(state)
    lightning = OrderedDict((PREFIX + name, tensor) for name, tensor in state.items())
    others = {"epoch": 4, "phase": "rce", "kl_beta": 0.1, "loss": float("nan"), "metrics": {"val_loss": 5.0}}
    values = {
        "bare": state,
        "state_dict": {"state_dict": lightning, "hyper_parameters": {"lr": 1e-4}},
        "model_state_dict": {"model_state_dict": state, **others},
        "both": {"state_dict": lightning, "model_state_dict": state},
    }
    path = saved(tmp_path, values[wrapped])
    record = import_checkpoint(path, tmp_path / "out", experiment())
    again = load_selector(tmp_path / "out" / "selector.safetensors", architecture)
    generator = torch.Generator().manual_seed(1)
    query, pool = torch.randn(3, D, generator=generator), torch.randn(3, 6, D, generator=generator)
    assert torch.equal(module(query, pool), again(query, pool))
    picks = torch.tensor([[[0, 4]], [[5, 1]], [[2, 3]]])
    both = (each.following(each.encode(query, pool), picks) for each in (module, again))
    assert torch.equal(*both)
    assert record == storage.read_json(tmp_path / "out" / "import.json")
    assert record["sha256"] == storage.digest(path)
    assert record["mapped"].keys() == state.keys()
    assert record["assumed"]["heads"] == 1
    assert record["assumed"]["temperature"] == 0.1
    ignored = {
        "model_state_dict": ["epoch", "kl_beta", "loss", "metrics", "phase"],
        "state_dict": ["hyper_parameters"],
        "both": ["model_state_dict"],
    }
    assert record["ignored"] == ignored.get(wrapped, [])


def test_a_renamed_file_of_nine_tensors_recovers_all_parameters(tmp_path: Path, capsys: Any) -> None:
    """The names that the original's evaluation initializes at random: half of the network."""
    state = {PREFIX + name: tensor for name, tensor in older(state_of(d=512, h=256)).items()}
    assert len(state) == 9
    path, out = saved(tmp_path, {"state_dict": state, "epoch": 0, "global_step": 0}), tmp_path / "out"
    assert main(["import_checkpoint", str(path), str(out), "--preset", "published"]) == 0
    assert "a pointer selector of v2 or v3, 525,824 parameters" in capsys.readouterr().out
    assert sorted(each.name for each in out.iterdir()) == ["import.json", "selector.safetensors"]
    selector = Selector(**storage.read_json(out / "import.json")["selector"])
    module = load_selector(out / "selector.safetensors", architecture_of(selector, 512))
    assert torch.equal(module.state_dict()["attn_norms.0.bias"], state[f"{PREFIX}attn_norm.bias"])


CORRUPTIONS: dict[str, tuple[Callable[[State], object], str]] = {
    "missing": (lambda s: s.pop("cand_proj.weight"), "missing cand_proj.weight"),
    "half a layer": (lambda s: s.pop("attn_norms.1.bias"), "missing attn_norms.1.bias"),
    "no first matrix": (lambda s: s.pop("input_proj.weight"), "no matrix input_proj.weight"),
    "unknown": (lambda s: s.update(scale=torch.ones(1)), "extra scale"),
    "both names": (lambda s: s.update({"attn_norm.bias": torch.ones(H)}), "expected each tensor once"),
    "twice": (lambda s: s.update({f"{PREFIX}query_proj.weight": torch.ones(H, H)}), "expected each tensor once"),
    "gap": (
        lambda s: [s.update({n.replace(".1.", ".2."): s.pop(n)}) for n in list(s) if ".1." in n],
        "missing attn_norms.1.bias",
    ),
    "shape": (
        lambda s: s.update({"cand_proj.weight": torch.ones(H, D)}),
        f"is torch.float32 [{H}, {D}], expected torch.float32 [{H}, {H}]",
    ),
    "half": (
        lambda s: s.update({"input_proj.weight": s["input_proj.weight"].half()}),
        "input_proj.weight is torch.float16",
    ),
    "infinite": (lambda s: s["query_proj.weight"][0].fill_(float("inf")), "query_proj.weight is not finite"),
    "another head": (lambda s: s.update({"query_update_gate.bias": torch.ones(H)}), "extra query_update_gate.bias"),
}


@pytest.mark.parametrize("corruption", CORRUPTIONS)
def test_each_corruption_is_refused_by_name(tmp_path: Path, corruption: str) -> None:
    state = state_of(2)
    change, words = CORRUPTIONS[corruption]
    change(state)
    message = problem(saved(tmp_path, {"model_state_dict": state}), tmp_path / "out")
    assert "rce_epoch5.pt: expected" in message
    assert words in message


def test_clips_tensors_are_ignored_only_where_they_are_the_encoders(tmp_path: Path) -> None:
    stock = {"vision_model.a.weight": torch.ones(2, 2), "text_projection.weight": torch.ones(3)}
    (tmp_path / "clip").mkdir()
    save_file(stock, tmp_path / "clip" / "model.safetensors")
    of = experiment(encoder={"model": str(tmp_path / "clip")})
    towers = {
        "lever_lm.img_model.vision_model.a.weight": torch.ones(2, 2),
        "lever_lm.sen_model.text_projection.weight": torch.ones(3),
        "lever_lm.img_model.vision_model.embeddings.position_ids": torch.arange(4),
    }
    state = {PREFIX + name: tensor for name, tensor in state_of().items()}
    record = import_checkpoint(saved(tmp_path, {"state_dict": state | towers}), tmp_path / "one", of)
    assert record["ignored"] == ["CLIP's text_projection.weight", "CLIP's vision_model.a.weight"]
    for name, value, words in (
        ("lever_lm.sen_model.text_projection.weight", torch.zeros(3), "CLIP was trained"),
        ("lever_lm.sen_model.text_projection.bias", torch.ones(3), "which that folder lacks"),
    ):
        path = saved(tmp_path, {"state_dict": state | towers | {name: value}})
        with pytest.raises(CheckpointError, match=words):
            import_checkpoint(path, tmp_path / "two", of)


def test_what_no_tensor_tells_is_the_presets(tmp_path: Path) -> None:
    path = saved(tmp_path, state_of())
    of = experiment(
        presets={"published": {}, "wide": {"selector": {"heads": 4, "temperature": 0.2, "feed_forward": 64}}}
    )
    record = import_checkpoint(path, tmp_path / "out", of, "wide")
    assert (record["assumed"]["heads"], record["assumed"]["temperature"]) == (4, 0.2)
    assert record["selector"]["feed_forward"] == 0
    with pytest.raises(ConfigError, match="Did you mean 'wide'"):
        import_checkpoint(path, tmp_path / "other", of, "wid")
    with pytest.raises(CheckpointError, match="expected no folder yet"):
        import_checkpoint(path, tmp_path / "out", of, "wide")
    narrow = experiment(presets={"published": {"selector": {"width": 9, "heads": 3}}})
    with pytest.raises(ConfigError, match="heads"):
        import_checkpoint(path, tmp_path / "third", narrow)
