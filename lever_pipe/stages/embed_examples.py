"""Rule `embed_examples`: unit vectors of every image and question of a split."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lever_pipe.base import storage
from lever_pipe.base.errors import CheckpointError, ImageError
from lever_pipe.base.members import member
from lever_pipe.base.records import Example
from lever_pipe.experiment import execution
from lever_pipe.experiment.stage_configs import EmbedExamplesConfig, Runtime
from lever_pipe.experiment.stage_files import External, Input, Output
from lever_pipe.lever.encoders.protocol import EncoderMember


def embed_examples(
    *,
    examples: Input,
    images: External,
    encoder: External,
    embeddings: Output,
    config: EmbedExamplesConfig,
    runtime: Runtime = Runtime(),
) -> dict[str, tuple[int, int]]:
    """Write `image` and `question`, each `[N, D]` float32 with unit rows; return their shapes.

    Raises:
        CheckpointError: the encoder's folder is missing, incomplete or damaged.
        ImageError: an image cannot be read, or is not the one that the examples were prepared with.
    """
    execution.prepare(runtime)
    encoders: EncoderMember = member("lever/encoders", config.member)
    model = encoders.load(encoder, device=runtime.device, batch_size=config.batch_size)
    rows = storage.read_examples(examples)
    _require_same_images(rows, images)
    arrays = {
        "image": model.images([images / example.image for example in rows]),
        "question": model.texts([example.question for example in rows]),
    }
    if not all(np.isfinite(array).all() for array in arrays.values()):
        where = f"{encoder}: expected an encoder that gives finite vectors"
        raise CheckpointError(where, found="others", do="Mend its weights or config.json.")
    storage.write_arrays(embeddings, arrays)
    return {name: array.shape for name, array in arrays.items()}


def _require_same_images(examples: Sequence[Example], root: Path) -> None:
    files = {root / example.image: example.image_digest for example in examples}
    changed = [str(path) for path, digest in files.items() if path.is_file() and storage.digest(path) != digest]
    if changed:
        raise ImageError(
            f"{root}: expected the images that the examples were prepared with",
            found=f"{len(changed)} with other bytes, first {changed[0]}",
            do="Restore the images, or rerun the rule prepare_examples: snakemake --forcerun prepare_examples",
        )
