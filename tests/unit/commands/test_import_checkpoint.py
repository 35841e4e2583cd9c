"""The original's checkpoints: what each kind holds, that nothing gets lost or made up, and what is refused."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import Runs
from safetensors.torch import save_file
from torch import Tensor, nn

from lever_pipe.__main__ import main
from lever_pipe.base import storage
from lever_pipe.base.errors import CheckpointError, ConfigError
from lever_pipe.base.seeding import torch_generator
from lever_pipe.commands.checkpoint_tool import (
    KINDS,
    Recognised,
    import_checkpoint,
    pick_tensors,
    recognise,
    shapes_of,
)
from lever_pipe.experiment.config import Selector
from lever_pipe.experiment.studies import Experiment, parse_experiment
from lever_pipe.lever.selector.network import build_selector, initialise
from lever_pipe.lever.training.embeddings import architecture_for
from lever_pipe.lever.training.state import load_selector

D, H = 12, 8
INVERSES: dict[str, Callable[[Tensor], Tensor]] = {
    "bilinear.weight": lambda weight: weight.T[None],
    "div_lambda": lambda penalty: torch.stack([torch.zeros(()), penalty]),
}


def settings_of(kind: str, layers: int = 1) -> Selector:
    of = KINDS[kind]
    sizes = {"layers": layers} if of.layered else {}
    sizes |= {"steps": 2} if "step_emb.weight" in of.shapes else {}
    return Selector(width=H, **of.selector, **sizes)  # type: ignore[arg-type] - of the table


PREFIX = "lever_lm.pointer_selector."
State = dict[str, Tensor]


def state_of(kind: str, layers: int = 1, *, d: int = D, h: int = H, rows: int = 2) -> State:
    """Return random tensors of a kind, under the original's newer names."""
    sizes = {"D": d, "H": h, "R": rows, "1": 1, "2H": 2 * h, "3H": 3 * h}
    generator = torch.Generator().manual_seed(layers)
    return {
        name: torch.randn([sizes[symbol] for symbol in shape.split()], generator=generator)
        for name, shape in shapes_of(kind, layers).items()
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


def recognised(path: Path) -> Recognised:
    found, stated, ignored = pick_tensors(path, torch.load(path, weights_only=True))
    return recognise(path, found, [*stated, *ignored])


def fault(path: Path, out: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        import_checkpoint(path, out, experiment())
    assert not out.exists()
    return str(caught.value)


@pytest.mark.parametrize(
    ("kind", "layers", "count"),
    [
        ("v1", 0, 1_054_721),
        ("static", 1, 525_824),
        ("static", 3, 1_053_184),
        ("gated", 1, 657_152),
        ("gated", 3, 1_184_512),
        ("gru", 1, 921_088),
        ("gru_mmr", 1, 921_090),
        ("additive", 1, 1_052_672),
        ("bilinear", 1, 986_624),
        ("stop", 1, 921_344),
    ],
)
def test_each_kind_has_the_published_number_of_parameters(kind: str, layers: int, count: int) -> None:
    width = 512 if kind == "v1" else 256
    assert sum(tensor.numel() for tensor in state_of(kind, layers, d=512, h=width).values()) == count


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("prefix", ["", "pointer_selector.", PREFIX])
def test_a_kind_is_told_by_its_names_alone(tmp_path: Path, kind: str, prefix: str) -> None:
    state = state_of(kind, 2)
    found = recognised(saved(tmp_path, {"state_dict": {prefix + name: tensor for name, tensor in state.items()}}))
    assert found.kind == kind
    assert found.embedding == D
    assert found.selector["width"] == H
    assert found.selector.get("layers") == (2 if KINDS[kind].layered else None)
    assert found.selector.get("steps") == (2 if "step_emb.weight" in state else None)
    assert found.mapped.keys() == state.keys()
    assert set(found.mapped.values()) == found.tensors.keys()


def test_a_bilinear_scorer_keeps_its_score() -> None:
    """The original scores by nn.Bilinear(h, v); here (W h) . v."""
    state = state_of("bilinear")
    bilinear = nn.Bilinear(H, H, 1, bias=False)
    bilinear.load_state_dict({"weight": state["bilinear.weight"]})
    h, v = torch.randn(2, 5, H, generator=torch.Generator().manual_seed(9))
    ours = recognise(Path("x"), state, {}).tensors["bilinear.weight"]
    assert torch.allclose(bilinear(h, v)[:, 0], ((h @ ours.T) * v).sum(-1), atol=1e-5)  # sums of 64 rounded products


def test_the_penalty_is_that_of_the_second_pick() -> None:
    state = state_of("gru_mmr")
    assert recognise(Path("x"), state, {}).tensors["div_lambda"] == state["div_lambda"][1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("wrapped", ["bare", "state_dict", "model_state_dict", "both"])
def test_a_round_trip_gives_equal_logits(tmp_path: Path, kind: str, layers: int, wrapped: str) -> None:
    architecture = architecture_for(settings_of(kind, layers), D)
    module = initialise(build_selector(architecture), torch_generator(0)).eval()
    theirs = {ours: name for name, ours in KINDS[kind].renamed.items()}
    state = {theirs.get(name, name): tensor for name, tensor in module.state_dict().items()}
    state |= {name: change(state[name]) for name, change in INVERSES.items() if name in KINDS[kind].changed}
    if layers == 1:
        state = older(state)
    lightning = OrderedDict((PREFIX + name, tensor) for name, tensor in state.items())
    beside = {"epoch": 4, "phase": "rce", "kl_beta": 0.1, "loss": float("nan"), "metrics": {"val_loss": 5.0}}
    values = {
        "bare": state,
        "state_dict": {"state_dict": lightning, "hyper_parameters": {"lr": 1e-4}},
        "model_state_dict": {"model_state_dict": state, **beside},
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
    assert record["assumed"].get("heads") == (1 if KINDS[kind].layered else None)
    assert record["assumed"]["temperature"] == 0.1
    stated = {"epoch": 4, "phase": "rce", "kl_beta": 0.1} if wrapped == "model_state_dict" else {}
    assert record["stated"] == stated
    ignored = {"model_state_dict": ["loss", "metrics"], "state_dict": ["hyper_parameters"]}
    assert record["ignored"] == ignored.get(wrapped, [])


def test_a_renamed_file_of_nine_tensors_recovers_all_parameters(tmp_path: Path, capsys: Any) -> None:
    """What the original's evaluation leaves random for its names: half of the network."""
    state = {PREFIX + name: tensor for name, tensor in older(state_of("static", d=512, h=256)).items()}
    assert len(state) == 9
    path, out = saved(tmp_path, {"state_dict": state, "epoch": 0, "global_step": 0}), tmp_path / "out"
    assert main(["import_checkpoint", str(path), str(out), "--preset", "published"]) == 0
    assert "v2 or v3, 525,824 parameters" in capsys.readouterr().out
    assert sorted(each.name for each in out.iterdir()) == ["import.json", "selector.safetensors"]
    selector = Selector(**storage.read_json(out / "import.json")["selector"])
    module = load_selector(out / "selector.safetensors", architecture_for(selector, 512))
    assert torch.equal(module.state_dict()["attn_norms.0.bias"], state[f"{PREFIX}attn_norm.bias"])


HARMS: dict[str, tuple[Callable[[State], object], str]] = {
    "missing": (lambda s: s.pop("cand_proj.weight"), "missing cand_proj.weight"),
    "half a layer": (lambda s: s.pop("attn_norms.1.bias"), "missing attn_norms.1.bias"),
    "unknown": (lambda s: s.update(scale=torch.ones(1)), "unknown scale"),
    "renamed": (lambda s: s.update(input=s.pop("input_proj.weight")), "missing input_proj.weight; unknown input"),
    "both names": (lambda s: s.update({"attn_norm.bias": torch.ones(H)}), "'attn_norm.bias' under its older name"),
    "twice": (lambda s: s.update({f"{PREFIX}query_proj.weight": torch.ones(H, H)}), "two, with and without prefix"),
    "gap": (
        lambda s: [s.update({n.replace(".1.", ".2."): s.pop(n)}) for n in list(s) if ".1." in n],
        "layers 0, 2",
    ),
    "shape": (lambda s: s.update({"cand_proj.weight": torch.ones(H, D)}), f"has shape [{H}, {D}], expected [{H}, {H}]"),
    "flat": (lambda s: s.update({"cand_proj.weight": torch.ones(H)}), f"has shape [{H}], expected [{H}, {H}]"),
    "width": (lambda s: s.update({"attn_norms.0.weight": torch.ones(H + 1)}), f"has shape [{H + 1}], expected [{H}]"),
    "half": (
        lambda s: s.update({"input_proj.weight": s["input_proj.weight"].half()}),
        "input_proj.weight is torch.float16",
    ),
    "nan": (lambda s: s["query_proj.weight"][0].fill_(float("nan")), "query_proj.weight is not finite"),
    "infinite": (lambda s: s["query_proj.weight"][0].fill_(float("inf")), "query_proj.weight is not finite"),
    "v0": (
        lambda s: s.update({"lever_lm.lm_model.lm_head.weight": torch.ones(2, 2)}),
        "'lm_model.lm_head.weight' of v0",
    ),
    "lora": (lambda s: s.update({"img_model.base_model.model.q_proj.lora_A.default.weight": torch.ones(1)}), "LoRA"),
    "V4-4": (lambda s: s.update({"cand_encoder.layers.0.norm1.weight": torch.ones(H)}), "of V4-4"),
    "V4-6": (lambda s: s.update({"topic_prototypes": torch.ones(16, H), "cover_lambda": torch.ones(())}), "of V4-6"),
    "V4-7": (lambda s: s.update({"dpp_proj.weight": torch.ones(32, H)}), "'dpp_proj.weight' of V4-7"),
    "V4-8": (lambda s: s.update({"slot_emb.weight": torch.ones(8, H)}), "'slot_emb.weight' of V4-8"),
    "V4-9": (lambda s: s.update({"refine_score.weight": torch.ones(1, H)}), "'refine_score.weight' of V4-9"),
}


BROKEN = {"shape", "flat", "width", "half", "nan", "infinite"}


@pytest.mark.parametrize("harm", HARMS)
def test_each_corruption_is_refused_by_name(tmp_path: Path, harm: str) -> None:
    state = state_of("static", 2)
    change, words = HARMS[harm]
    change(state)
    message = fault(saved(tmp_path, {"model_state_dict": state}), tmp_path / "out")
    assert words in message
    assert "rce_epoch5.pt: expected" in message
    assert ("Take another copy; this one is broken." in message) == (harm in BROKEN)


@pytest.mark.parametrize("kind", KINDS)
def test_no_tensor_of_any_kind_may_be_missing(kind: str) -> None:
    """Without a tensor a file is never taken for itself; GRU and MMR, or GRU and STOP, differ in one alone."""
    for name in state_of(kind):
        state = state_of(kind)
        del state[name]
        whole = [other for other in KINDS if shapes_of(other, 1).keys() == state.keys()]
        assert whole in ([], ["gru"])
        if whole:
            assert recognise(Path("x"), state, {}).kind == "gru" != kind
        else:
            with pytest.raises(CheckpointError, match=r"missing|unknown"):
                recognise(Path("x"), state, {})


def test_a_gru_that_lost_its_head_in_conversion_is_refused(tmp_path: Path) -> None:
    state = state_of("gru", rows=8)
    path = saved(tmp_path, {"model_state_dict": state, "config": {}, "converted": True})
    assert "whose converters drop them" in fault(path, tmp_path / "out")
    path = saved(tmp_path, {"model_state_dict": state_of("gru"), "dpp_rank": 32})
    assert "whose converters drop them" in fault(path, tmp_path / "out")


def test_two_different_dictionaries_are_refused(tmp_path: Path) -> None:
    one, other = state_of("static"), state_of("static")
    other["cand_proj.weight"] = other["cand_proj.weight"] + 1
    path = saved(tmp_path, {"state_dict": one, "model_state_dict": other})
    assert "state_dict and model_state_dict, which differ" in fault(path, tmp_path / "out")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([1], "expected a dictionary; found list"),
        ({"epoch": 3}, "the keys epoch"),
        ({}, "the keys of nothing"),
        ({"state_dict": {}}, "state_dict: no tensor"),
        ({"state_dict": {"a": 3}}, "state_dict: 'a': int"),
        ({"state_dict": {3: torch.ones(1)}}, "state_dict: 3: Tensor"),
        ({"state_dict": {"a": torch.ones(2, 2).to_sparse()}}, "tensor of layout torch.sparse_coo"),
        ({"state_dict": {"a": torch.ones(1).expand(10**11)}}, "tensors of 400000000000 bytes out of 4 that are stored"),
    ],
)
def test_other_content_is_refused(tmp_path: Path, value: object, words: str) -> None:
    assert words in fault(saved(tmp_path, value), tmp_path / "out")


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import_checkpoint", str(tmp_path / "none.ckpt"), str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.endswith("none.ckpt: expected weights; found no such file. Name one.\n")


@pytest.mark.parametrize("zipped", [True, False])
def test_an_object_is_named_and_not_built(tmp_path: Path, zipped: bool) -> None:
    path = tmp_path / "x.ckpt"
    value = {"state_dict": state_of("static"), "cfg": Runs(tmp_path / "ran")}
    torch.save(value, path, _use_new_zipfile_serialization=zipped)
    message = fault(path, tmp_path / "out")
    assert "the object posix.mkdir" in message
    assert "save its tensors alone" in message
    assert not (tmp_path / "ran").exists()


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
    state = {PREFIX + name: tensor for name, tensor in state_of("static").items()}
    record = import_checkpoint(saved(tmp_path, {"state_dict": state | towers}), tmp_path / "one", of)
    assert record["ignored"] == ["CLIP's text_projection.weight", "CLIP's vision_model.a.weight"]
    for name, value, words in (
        ("lever_lm.sen_model.text_projection.weight", torch.zeros(3), "CLIP was trained along"),
        ("lever_lm.sen_model.text_projection.bias", torch.ones(3), "which that folder lacks"),
    ):
        path = saved(tmp_path, {"state_dict": state | towers | {name: value}})
        with pytest.raises(CheckpointError, match=words):
            import_checkpoint(path, tmp_path / "two", of)


def test_what_no_tensor_tells_is_the_presets(tmp_path: Path) -> None:
    path = saved(tmp_path, state_of("static"))
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
