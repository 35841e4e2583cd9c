"""SmolVLM2: as Idefics3, with class and image processor of its own."""

from __future__ import annotations

from pathlib import Path

from transformers import SmolVLMForConditionalGeneration
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

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
        title="a SmolVLM",
        model=SmolVLMForConditionalGeneration,
        processor=SmolVLMImageProcessorPil,
        dtype=dtype,
        device=device,
    )
