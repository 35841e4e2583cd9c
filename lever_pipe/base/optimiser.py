"""AdamW with its whole state in named tensors, so that a file can carry it from one epoch to the next."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from lever_pipe.base.errors import TrainingError

BETAS = (0.9, 0.999)
EPSILON = 1e-8


def require_finite(values: Mapping[str, float], *, where: str = "", do: str) -> None:
    """Refuse to continue from a loss or gradient that is infinite or NaN.

    Raises:
        TrainingError: names such values.
    """
    infinite = {name: value for name, value in values.items() if not math.isfinite(value)}
    if infinite:
        found = ", ".join(f"{name} {value}" for name, value in infinite.items())
        raise TrainingError(f"{where}expected a finite loss and gradient", found=found, do=do)


class AdamW:
    """AdamW over the trainable parameters of a module, in its order, with the library's defaults.

    The arithmetic is `torch.optim.adamw.adamw`. The class `torch.optim.AdamW` around it imports the compiler at its
    first step, which takes a one-epoch job longer than the epoch.
    """

    def __init__(self, module: nn.Module, *, learning_rate: float, weight_decay: float) -> None:
        self.parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.means = {name: torch.zeros_like(p) for name, p in self.parameters.items()}
        self.squares = {name: torch.zeros_like(p) for name, p in self.parameters.items()}
        # On the parameter's device: a fused step on a GPU reads them there.
        self.steps = {name: torch.zeros((), device=p.device) for name, p in self.parameters.items()}

    @torch.no_grad()
    def step(self) -> None:
        """Update every parameter by its gradient, in place.

        Raises:
            RuntimeError: a trainable parameter has no gradient.
        """
        gradients = [p.grad for p in self.parameters.values() if p.grad is not None]
        # `adamw` matches lists by position: a missing gradient would shift all later ones.
        if len(gradients) < len(self.parameters):
            raise RuntimeError("a trainable parameter has no gradient")
        adamw(
            list(self.parameters.values()),
            gradients,
            list(self.means.values()),
            list(self.squares.values()),
            [],
            list(self.steps.values()),
            fused=True,
            amsgrad=False,
            beta1=BETAS[0],
            beta2=BETAS[1],
            lr=self.learning_rate,
            weight_decay=self.weight_decay,
            eps=EPSILON,
            maximize=False,
        )

    def state(self) -> dict[str, Tensor]:
        """Return step counts and moments by parameter name; the tensors themselves, not copies."""
        moments = {"step": self.steps, "exp_avg": self.means, "exp_avg_sq": self.squares}
        return {f"{name}.{moment}": tensors[name] for moment, tensors in moments.items() for name in tensors}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Copy a state that has the names and shapes of `state()`."""
        for name, tensor in self.state().items():
            tensor.copy_(state[name])
