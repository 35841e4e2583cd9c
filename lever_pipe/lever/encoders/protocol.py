"""Interface of a frozen encoder of images and questions.

To add an encoder, add a module `lever_pipe/lever/encoders/<name>.py` with a function `load` of the
signature below; its name is then valid in `encoder.plugin`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Encoder(Protocol):
    """Image and text towers with one common width D."""

    def images(self, paths: Sequence[Path]) -> NDArray[np.float32]:
        """Return one unit vector for each image file, float32 [N, D]; each distinct path is encoded once.

        Raises:
            ImageError: an image cannot be read.
        """
        ...

    def texts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return one unit vector for each text, float32 [N, D]; each distinct text is encoded once."""
        ...


class EncoderPlugin(Protocol):
    """A module of `lever_pipe/lever/encoders`."""

    def load(self, folder: Path, *, device: str, batch_size: int) -> Encoder:
        """Return the encoder of a model folder.

        Raises:
            CheckpointError: no folder, no safetensors, or tensors that differ from the model's.
        """
        ...
