"""The processes that share one training run, one a device, and how what each computes becomes one number.

A run of one process knows nothing of this. Several are started by a launcher (`python -m lever_pipe --processes N`):
each computes the episodes that it owns with the whole policy, or with its part of it where the launcher's
configuration says FSDP. Gradients are sums over processes of losses that are divided by global token counts already,
so N processes take the same step as one, up to rounding.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

import torch
from torch import Tensor

from lever_pipe.base.errors import ConfigError
from lever_pipe.intention.agent.sharding import Shards, full, shard_like

if TYPE_CHECKING:
    from transformers import PreTrainedModel

T = TypeVar("T")
Reduction = Literal["sum", "max"]
Precision = Literal["float32", "bfloat16"]


class Processes(Protocol):
    """This process among those of its run."""

    rank: int
    size: int
    device: torch.device
    frozen: Precision
    """How weights that are not trained are kept; they compute as those of a policy in training do."""

    def place(self, model: PreTrainedModel) -> None:
        """Move a model to where it computes, in place: to this device, or in parts over those of all processes."""
        ...

    def whole(self, model: PreTrainedModel) -> AbstractContextManager[None]:
        """Return a context in which the policy computes without the other processes, as generation needs."""
        ...

    def computing(self) -> AbstractContextManager[None]:
        """Return the context of every forward pass: the arithmetic of the configured precision."""
        ...

    def add_gradients(self, model: PreTrainedModel) -> None:
        """Replace each gradient by its sum over processes."""
        ...

    def combine(self, values: Mapping[str, float], reduction: Reduction) -> dict[str, float]:
        """Return each named value's sum or maximum over processes; all give the same names."""
        ...

    def gather(self, text: str) -> list[str]:
        """Return the texts of all processes, by rank."""
        ...

    def collect(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return copies on the CPU of named tensors as one process would hold them; empty except on the main one."""
        ...

    def fill(self, tensors: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
        """Copy what `collect` gave into named tensors."""
        ...


def is_main(processes: Processes) -> bool:
    """Return whether this process is the one that writes files."""
    return processes.rank == 0


def own_share(items: Sequence[T], processes: Processes) -> list[T]:
    """Return every size-th item, beginning with this process's rank."""
    return list(items[processes.rank :: processes.size])


class Alone:
    """A run of one process."""

    rank = 0
    size = 1

    def __init__(self, device: torch.device, precision: Precision) -> None:
        self.device = device
        self.frozen: Precision = "float32"
        self._precision = precision

    def place(self, model: PreTrainedModel) -> None:
        """Move a model to the device, in place."""
        model.to(self.device)

    def whole(self, model: PreTrainedModel) -> AbstractContextManager[None]:  # noqa: ARG002 - it is whole already
        """Return a context that does nothing."""
        return nullcontext()

    def computing(self) -> AbstractContextManager[None]:
        """Return autocast to bfloat16, with weights and optimiser in float32; nothing for float32."""
        return _arithmetic(self.device, self._precision)

    def add_gradients(self, model: PreTrainedModel) -> None:
        """Leave the gradients as they are."""

    def combine(self, values: Mapping[str, float], reduction: Reduction) -> dict[str, float]:  # noqa: ARG002 - no other
        """Return the values."""
        return dict(values)

    def gather(self, text: str) -> list[str]:
        """Return the text alone."""
        return [text]

    def collect(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return copies on the CPU."""
        return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}

    @torch.no_grad()
    def fill(self, tensors: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
        """Copy the values into the tensors."""
        for name, tensor in tensors.items():
            tensor.copy_(values[name])


class Launched:
    """Processes that accelerate's launcher started; with `shards` the policy is spread over their devices."""

    def __init__(self, device: torch.device, precision: Precision) -> None:
        from accelerate import PartialState

        # One process may wait long for another's simulator; the usual ten minutes would end the run.
        self._state: Any = PartialState(cpu=device.type == "cpu", timeout=timedelta(days=1))
        self.rank = int(self._state.process_index)
        self.size = int(self._state.num_processes)
        self.device = torch.device(self._state.device)
        self._precision = precision
        self._shards = Shards.of_launcher(self.device, self.size, precision)
        self.frozen: Precision = "float32" if self._shards is None else precision

    def place(self, model: PreTrainedModel) -> None:
        """Move a model to the device, or spread it over all devices."""
        if self._shards is None:
            model.to(self.device)
        else:
            self._shards.spread(model)

    def whole(self, model: PreTrainedModel) -> AbstractContextManager[None]:
        """Return a context that holds all parameters of a spread model on each device."""
        return nullcontext() if self._shards is None else self._shards.gathered(model)

    def computing(self) -> AbstractContextManager[None]:
        """Return as a single process does; a spread model casts its parts itself."""
        return _arithmetic(self.device, self._precision) if self._shards is None else nullcontext()

    def add_gradients(self, model: PreTrainedModel) -> None:
        """Add up the gradients; those of a spread model were added up by its backward passes."""
        if self._shards is None:
            for parameter in model.parameters():
                if parameter.grad is not None:
                    torch.distributed.all_reduce(parameter.grad)

    def combine(self, values: Mapping[str, float], reduction: Reduction) -> dict[str, float]:
        """Reduce in float64, which holds every integer up to 2**53."""
        own = torch.tensor(list(values.values()), dtype=torch.float64, device=self.device)
        operation = {"sum": torch.distributed.ReduceOp.SUM, "max": torch.distributed.ReduceOp.MAX}[reduction]
        torch.distributed.all_reduce(own, operation)
        return dict(zip(values, own.tolist(), strict=True))

    def gather(self, text: str) -> list[str]:
        """Exchange the texts as bytes, each padded to the longest."""
        own = torch.tensor(list(text.encode()), dtype=torch.uint8, device=self.device)
        lengths = [int(self.combine({"n": len(own) if i == self.rank else 0}, "sum")["n"]) for i in range(self.size)]
        padded = torch.nn.functional.pad(own, (0, max(lengths) - len(own)))
        parts = [torch.empty_like(padded) for _ in range(self.size)]
        torch.distributed.all_gather(parts, padded)
        return [bytes(part[:n].tolist()).decode() for part, n in zip(parts, lengths, strict=True)]

    def collect(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Gather one tensor after the other, so that no device holds more than one whole tensor."""
        copies: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            whole = full(tensor.detach())
            if self.rank == 0:
                copies[name] = whole.to("cpu", copy=True)
        return copies

    @torch.no_grad()
    def fill(self, tensors: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
        """Copy this process's part of the values."""
        for name, tensor in tensors.items():
            tensor.copy_(shard_like(values[name].to(self.device), tensor))


def join(device: torch.device, precision: Precision) -> Processes:
    """Return the processes of this run: those of its launcher, a device each, or this one alone on `device`.

    Raises:
        ConfigError: the launcher's configuration asks for what this engine does not do.
    """
    return Launched(device, precision) if int(os.environ.get("WORLD_SIZE", "1")) > 1 else Alone(device, precision)


def require_equal_shares(n_prompts: int, n_minibatches: int, processes: Processes) -> None:
    """Refuse a number of processes that cannot share a mini-batch evenly.

    Raises:
        ConfigError: it does not divide the prompts of a mini-batch.
    """
    a_minibatch = n_prompts // n_minibatches
    if a_minibatch % processes.size:
        raise ConfigError(
            f"expected a number of processes that divides the {a_minibatch} prompts of a mini-batch"
            f" (grpo.prompts={n_prompts} / grpo.minibatches={n_minibatches})",
            found=f"{processes.size} processes",
            do="Change the number of processes, grpo.prompts or grpo.minibatches.",
        )


@contextmanager
def _arithmetic(device: torch.device, precision: Precision) -> Iterator[None]:
    if precision == "float32":
        yield
        return
    with torch.autocast(device.type, dtype=torch.bfloat16):
        yield
