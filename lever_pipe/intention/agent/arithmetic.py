"""Where a policy computes, and in which precision."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal

import torch

Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class Arithmetic:
    """The device of a run, and the precision of its forward passes."""

    device: torch.device
    precision: Precision

    def context(self) -> AbstractContextManager[None]:
        """Return the context of every forward pass: bfloat16 is autocast, with weights and optimiser in float32."""
        if self.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)
