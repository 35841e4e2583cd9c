"""Which command brings a published model folder; `docs/production.md` tells of sizes and licences."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath

WORLD = PurePath("resources/world")
PUBLISHED: Mapping[str, str] = {
    "Qwen2.5-VL-3B-Instruct": "Qwen/Qwen2.5-VL-3B-Instruct",
    "Qwen3-VL-2B-Instruct": "Qwen/Qwen3-VL-2B-Instruct",
    "InternVL3-2B-hf": "OpenGVLab/InternVL3-2B-hf",
    "SmolVLM2-2.2B-Instruct": "HuggingFaceTB/SmolVLM2-2.2B-Instruct",
    "Idefics3-8B-Llama3": "HuggingFaceM4/Idefics3-8B-Llama3",
    "clip-vit-base-patch32": "openai/clip-vit-base-patch32",
    "Qwen3-8B": "Qwen/Qwen3-8B",
}
"""Repository on the hub by the name of the folder that a configuration gives it."""
UNKNOWN = "OWNER/NAME"
OTHER_FORMATS = ("*.h5", "*.msgpack")
"""Weights for other libraries, which some repositories hold beside those that are read."""


def is_embedded(folder: str) -> bool:
    """Return whether a model folder is one that the repository holds."""
    return PurePath(folder).is_relative_to(WORLD)


def command(folder: str) -> str:
    """Return the command that brings a model folder to where the configuration names it."""
    if is_embedded(folder):
        return f"git checkout -- {folder}"
    without = " ".join(f"--exclude '{pattern}'" for pattern in OTHER_FORMATS)
    return f"hf download {PUBLISHED.get(PurePath(folder).name, UNKNOWN)} --local-dir {folder} {without}"
