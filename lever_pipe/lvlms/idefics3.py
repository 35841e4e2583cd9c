"""Idefics3, of which SmolVLM is one as long as it sees no videos: a Llama that sees tiles."""

from __future__ import annotations

from pathlib import Path

from transformers import Idefics3ForConditionalGeneration
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

from lever_pipe.lvlms._family import Family
from lever_pipe.lvlms._tiles import load_tiled


def load(folder: Path, *, dtype: str, device: str) -> Family:
    """Return model, tokenizer and image processor of a folder as `save_pretrained` writes it.

    Raises:
        CheckpointError: as `load_tiled`.
    """
    return load_tiled(
        __name__,
        folder,
        title="an Idefics3",
        model=Idefics3ForConditionalGeneration,
        processor=Idefics3ImageProcessorPil,
        dtype=dtype,
        device=device,
    )
