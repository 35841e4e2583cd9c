"""Two operators that torchvision's wheel for CUDA lacks on a CPU, for the environment of these tests alone."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class Operators(MetaPathFinder):
    """Defines them before torchvision is imported; no image is processed by them."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == "torchvision":
            sys.meta_path.remove(self)
            import torch

            self.library = torch.library.Library("torchvision", "DEF")
            for operator in ("nms", "qnms"):
                self.library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        return None


sys.meta_path.insert(0, OPERATORS := Operators())
