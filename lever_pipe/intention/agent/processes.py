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
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch
from torch import Tensor

from lever_pipe.base.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

T = TypeVar("T")
Reduction = Literal["sum", "max"]
Precision = Literal["float32", "bfloat16"]


class Processes:
    """This process among those of its run, each of which must make the same calls; here it is the only one."""

    rank: int = 0
    size: int = 1

    def __init__(self, device: torch.device, precision: Precision) -> None:
        self.device = device
        self.precision = precision
        self.frozen: Precision = "float32"
        """How weights that are not trained are kept; they compute as those of a policy in training do."""

    def place(self, model: PreTrainedModel) -> None:
        """Move a model to where it computes, in place: to this device, or in parts over those of all processes."""
        model.to(self.device)

    def whole(self, model: PreTrainedModel) -> AbstractContextManager[None]:  # noqa: ARG002 - it is whole already
        """Return a context in which the policy computes without the other processes, as generation needs."""
        return nullcontext()

    def computing(self) -> AbstractContextManager[None]:
        """Return the context of every forward pass: bfloat16 is autocast, with weights and optimiser in float32."""
        if self.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    def add_gradients(self, model: PreTrainedModel) -> None:
        """Replace each gradient by its sum over processes."""

    def combine(self, values: Mapping[str, float], reduction: Reduction) -> dict[str, float]:  # noqa: ARG002 - no other
        """Return each named value's sum or maximum over processes; all give the same names."""
        return dict(values)

    def gather(self, text: str) -> list[str]:
        """Return the texts of all processes, by rank."""
        return [text]

    def collect(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return copies on the CPU of named tensors as one process would hold them; empty except on the main one."""
        return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}

    @torch.no_grad()
    def fill(self, tensors: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
        """Copy what `collect` gave into named tensors."""
        for name, tensor in tensors.items():
            tensor.copy_(values[name])


class Launched(Processes):
    """Processes that accelerate's launcher started, each with the whole policy."""

    def __init__(self, device: torch.device, precision: Precision) -> None:
        from accelerate import PartialState

        # One process may wait long for another's simulator; the usual ten minutes would end the run.
        self._state: Any = PartialState(cpu=device.type == "cpu", timeout=timedelta(days=1))
        super().__init__(torch.device(self._state.device), precision)
        self.rank = int(self._state.process_index)
        self.size = int(self._state.num_processes)

    def add_gradients(self, model: PreTrainedModel) -> None:
        """As `Processes` says."""
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
            if is_main(self):
                copies[name] = whole.to("cpu", copy=True)
        return copies

    @torch.no_grad()
    def fill(self, tensors: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
        """Copy this process's part of the values."""
        for name, tensor in tensors.items():
            tensor.copy_(_split_as(tensor, values[name].to(self.device)))


class Sharded(Launched):
    """Launched processes that spread the policy over their devices by FSDP2, one group of parameters a layer.

    Raises:
        ConfigError: the launcher's configuration asks for what this engine does not do.
    """

    def __init__(self, device: torch.device, precision: Precision) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy

        super().__init__(device, precision)
        require_fsdp2()
        self.frozen = precision
        self._mesh: Any = init_device_mesh(self.device.type, (self.size,))
        half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        self._casts = half if precision == "bfloat16" else MixedPrecisionPolicy()

    def place(self, model: PreTrainedModel) -> None:
        """Split each layer and what is left of the model, in place; float32 parts, computed in the precision."""
        from torch.distributed.fsdp import fully_shard

        layers = set(model._no_split_modules or ())  # noqa: SLF001 - the library's list of its layer classes
        for module in [*(m for m in model.modules() if type(m).__name__ in layers), model]:
            fully_shard(module, mesh=self._mesh, mp_policy=self._casts, reshard_after_forward=True)
        for module in _parts(model):
            # Losses are divided by global token counts already: gradients are sums, also where a backend can add only.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
        # Before the first whole forward pass the layers do not know which module is the outermost.
        with torch.no_grad():
            model(input_ids=torch.zeros((1, 2), dtype=torch.long, device=self._mesh.device_type), use_cache=False)

    @contextmanager
    def whole(self, model: PreTrainedModel) -> Iterator[None]:
        """Hold all parameters on each device, so that processes may make different numbers of forward passes."""
        parts = _parts(model)
        for module in parts:
            module.unshard()
            module.set_reshard_after_forward(False, recurse=False)
        try:
            yield
        finally:
            for module in parts:
                module.set_reshard_after_forward(True, recurse=False)
                module.reshard()

    def computing(self) -> AbstractContextManager[None]:
        """Do nothing: a spread model casts its parts itself."""
        return nullcontext()

    def add_gradients(self, model: PreTrainedModel) -> None:
        """Do nothing: the backward passes of a spread model add them up."""


def join(device: torch.device, precision: Precision) -> Processes:
    """Return the processes of this run: those of its launcher, a device each, or this one alone on `device`.

    Raises:
        ConfigError: the launcher's configuration asks for what this engine does not do.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) <= 1:
        return Processes(device, precision)
    is_sharded = os.environ.get("ACCELERATE_USE_FSDP", "false") == "true"
    return (Sharded if is_sharded else Launched)(device, precision)


def is_main(processes: Processes) -> bool:
    """Return whether this process is the one that writes files."""
    return processes.rank == 0


def own_share(items: Sequence[T], processes: Processes) -> list[T]:
    """Return every size-th item, beginning with this process's rank."""
    return list(items[processes.rank :: processes.size])


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


def require_fsdp2() -> None:
    """Refuse what accelerate's configuration may ask for beside parts that are gathered for each forward pass.

    Raises:
        ConfigError: it asks for FSDP1, for parameters in host memory or weights read by one process, or to keep
            gathered ones after a forward pass: outside `whole` a model's parameters must be its parts.
    """
    from accelerate.utils import FullyShardedDataParallelPlugin

    plugin = FullyShardedDataParallelPlugin()
    found = {
        "version": plugin.fsdp_version,
        "reshard_after_forward": plugin.reshard_after_forward,
        "offload_params": os.environ.get("FSDP_OFFLOAD_PARAMS", "false") == "true",
        "cpu_ram_efficient_loading": os.environ.get("FSDP_CPU_RAM_EFFICIENT_LOADING", "false") == "true",
    }
    if list(found.values()) != [2, True, False, False]:
        raise ConfigError(
            "the launcher's configuration: expected fsdp_version 2 with fsdp_reshard_after_forward, without"
            " fsdp_offload_params and fsdp_cpu_ram_efficient_loading",
            found=", ".join(f"{name} {value}" for name, value in found.items()),
            do="Use profiles/slurm/accelerate/fsdp.yaml.",
        )


def full(tensor: Tensor) -> Tensor:
    """Return a tensor's whole value; every process must ask."""
    from torch.distributed.tensor import DTensor

    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _split_as(tensor: Tensor, value: Tensor) -> Tensor:
    """Return a whole value split as `tensor` is."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(tensor, DTensor):
        return value
    return distribute_tensor(value, tensor.device_mesh, tensor.placements)


def _parts(model: PreTrainedModel) -> list[Any]:
    from torch.distributed.fsdp import FSDPModule

    return [module for module in model.modules() if isinstance(module, FSDPModule)]
