"""`lever-pipe import_checkpoint`: convert a selector of the original's training to this package's format.

Supported are the pointer networks of v2 and v3. The shapes of the tensors determine the sizes; other settings
(attention heads, dropout, temperature) come from the configuration, and the record calls them assumed. It also lists
ignored tensors; missing ones are errors. The original's own converters report neither, and evaluate half a network.

Source: Lever-Plus (published code), `models/v2`, `models/v3`
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lever_pipe.base import atomic, storage
from lever_pipe.base.checkpoints import load_tensors, require_same_tensors
from lever_pipe.base.errors import ConfigError, first
from lever_pipe.base.parsing import parse_model
from lever_pipe.base.sections import did_you_mean
from lever_pipe.commands.convert_tool import load_restricted, no_tensors, refuse
from lever_pipe.experiment import configuration
from lever_pipe.experiment.arms import Preset
from lever_pipe.experiment.selector import Selector
from lever_pipe.experiment.studies import Experiment, parse_experiment
from lever_pipe.lever.selector.network import architecture_of, build_selector, save_selector
from lever_pipe.runtime.snakemake_adapter import configured

SELECTOR, RECORD = "selector.safetensors", "import.json"
DICTS = ("state_dict", "model_state_dict")
PREFIX = re.compile(r"^(lever_lm\.)?(pointer_selector\.)?")
"""Prefixes of Lightning's module, and of the selector in it."""
TOWER = re.compile(r"^(img_model|sen_model)\.")
"""Prefix of CLIP's tensors, which do not belong to the selector."""
BUFFER = "position_ids"
"""Suffix of CLIP's buffers, which newer files do not contain."""
FIRST_LAYER = {"cross_attn.": "cross_attn_layers.0.", "attn_norm.": "attn_norms.0."}
"""Names in files with one layer -> current names."""
LAYER = re.compile(r"attn_norms\.\d+\.weight")
OTHER_FILE = "Name a checkpoint of the original's training."
UNTOLD = ("temperature", "dropout", "heads", "attention_dropout")
"""Fields of `selector` that do not follow from any tensor."""
WHAT = "a pointer selector of v2 or v3"


def main(words: Sequence[str]) -> int:
    """Import one checkpoint, print a summary, and return the exit status."""
    parser = argparse.ArgumentParser(prog="lever-pipe import_checkpoint", description=__doc__)
    parser.add_argument("source", type=Path, help="a .ckpt or .pt file of the original")
    parser.add_argument("out", type=Path, help=f"a new folder for {SELECTOR} and {RECORD}")
    parser.add_argument("--preset", default="", help="for settings that no tensor determines; default: the first arm's")
    configuration.add_options(parser)
    options = parser.parse_args(words[1:])
    found = configured(vars(options))
    record = import_checkpoint(
        options.source, options.out, parse_experiment(found.values, source=found.source), options.preset
    )
    sys.stdout.write(f"{options.out / SELECTOR}: {record['is']}, {record['parameters']:,} parameters\n")
    return 0


def import_checkpoint(source: Path, out: Path, experiment: Experiment, preset: str = "") -> dict[str, Any]:
    """Write the selector of a file into a folder, with a record of the import, and return the record.

    The preset, by default the first arm's, supplies the settings that no tensor determines. The encoder's folder
    contains the CLIP that the file's CLIP tensors must equal.
    """
    if out.exists():
        refuse(f"{out}: expected no folder yet", "one", "Name another, or remove it.")
    settings = _preset(experiment, preset).selector
    state, ignored = _state_in(source, load_restricted(source))
    pairs = [(PREFIX.sub("", name), tensor) for name, tensor in state.items()]
    towers = {TOWER.sub("", n): tensor for n, tensor in pairs if TOWER.match(n) and not n.endswith(BUFFER)}
    _require_stock(source, towers, Path(experiment.encoder.model))
    selected = [(name, tensor) for name, tensor in pairs if not TOWER.match(name)]
    old_names = {_newer(name): name for name, _ in selected}
    tensors = {
        _newer(n): tensor.clone().contiguous() for n, tensor in sorted(selected, key=lambda pair: _newer(pair[0]))
    }
    # Old and new names of one tensor would silently overwrite each other.
    if len(tensors) < len(selected):
        refuse(f"{source}: expected each tensor once", "one under two names", "Take one of them out.")
    projection = tensors.get("input_proj.weight")
    if projection is None or projection.ndim != 2:
        refuse(f"{source}: expected {WHAT}", "no matrix input_proj.weight", OTHER_FILE)
    width, embedding = projection.shape
    assumed = {name: getattr(settings, name) for name in UNTOLD}
    sizes = {"width": width, "layers": sum(bool(LAYER.fullmatch(name)) for name in tensors)}
    values = {"inputs": "fused", "head": "static", **sizes, **assumed}
    selector = parse_model(Selector, values, source=f"{source}: its selector")
    module = build_selector(architecture_of(selector, embedding))
    require_same_tensors(source, tensors, module.state_dict())
    module.load_state_dict(tensors, strict=True)
    record = {
        "source": source.name,
        "sha256": storage.digest(source),
        "is": WHAT,
        "parameters": sum(tensor.numel() for tensor in tensors.values()),
        "selector": selector.model_dump(),
        "mapped": {old_names[name]: name for name in tensors},
        "ignored": sorted([*ignored, *(f"CLIP's {name}" for name in towers)]),
        "assumed": assumed,
    }

    def write(folder: Path) -> None:
        save_selector(folder / SELECTOR, module, stage="imported", epoch=0)
        storage.write_json(folder / RECORD, record)

    atomic.write_folder(out, write)
    return record


def _state_in(source: Path, content: Any) -> tuple[dict[str, Tensor], list[str]]:
    """Return the tensors in a file's content, and the names of its ignored entries."""
    key = next((name for name in DICTS if isinstance(content, dict) and name in content), "")
    state = content[key] if key else content
    if wrong := list(no_tensors(state)):
        refuse(f"{source}: expected plain tensors by name, alone or as {' or '.join(DICTS)}", first(wrong), OTHER_FILE)
    return state, sorted(str(name) for name in content if name != key) if key else []


def _newer(name: str) -> str:
    old = next((old for old in FIRST_LAYER if name.startswith(old)), "")
    return FIRST_LAYER[old] + name.removeprefix(old) if old else name


def _require_stock(source: Path, towers: Mapping[str, Tensor], folder: Path) -> None:
    """Refuse CLIP tensors that differ from the encoder's folder: the selector was trained on other inputs then."""
    if not towers:
        return
    stock: dict[str, Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        stock |= load_tensors(path)[0]
    unknown = sorted(towers.keys() - stock.keys())
    # Compared as float32, because files may differ in precision.
    tuned = sorted(n for n in towers.keys() & stock.keys() if not torch.equal(towers[n].float(), stock[n].float()))
    if unknown or tuned:
        found = f"{first(unknown)}, which that folder lacks" if unknown else f"others: {first(tuned)}: CLIP was trained"
        do = "Name the CLIP that it was trained with as encoder.model, or save the selector's tensors alone."
        refuse(f"{source}: expected CLIP's tensors as in {folder} (encoder.model)", found, do)


def _preset(experiment: Experiment, name: str) -> Preset:
    name = name or experiment.arms[0].preset
    if name not in experiment.presets:
        do = did_you_mean(name, experiment.presets, "Name one of them.")
        raise ConfigError(f"--preset: expected one of {', '.join(experiment.presets)}", found=f"'{name}'", do=do)
    return experiment.presets[name]
