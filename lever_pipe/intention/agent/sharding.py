"""A policy in parts: FSDP2 as the launcher's configuration asks for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lever_pipe.base.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Shards:
    """Spreads models over the devices of all processes, one group of parameters a layer."""

    def __init__(self, mesh: Any, precision: str) -> None:
        from torch.distributed.fsdp import MixedPrecisionPolicy

        half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        self._mesh = mesh
        self._policy = half if precision == "bfloat16" else MixedPrecisionPolicy()

    @classmethod
    def of_launcher(cls, device: torch.device, size: int, precision: str) -> Shards | None:
        """Return what accelerate's configuration asks for, None for whole models.

        Raises:
            ConfigError: it asks for FSDP1, for parameters in host memory or weights read by one process, or to keep
                gathered ones after a forward pass: outside `gathered` a model's parameters must be its parts.
        """
        if os.environ.get("ACCELERATE_USE_FSDP", "false") != "true":
            return None
        from accelerate.utils import FullyShardedDataParallelPlugin
        from torch.distributed.device_mesh import init_device_mesh

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
        return cls(init_device_mesh(device.type, (size,)), precision)

    def spread(self, model: PreTrainedModel) -> None:
        """Split each layer and what is left of the model, in place; float32 parts, computed in the precision."""
        from torch.distributed.fsdp import fully_shard

        layers = set(model._no_split_modules or ())  # noqa: SLF001 - the library's list of its layer classes
        for module in [*(m for m in model.modules() if type(m).__name__ in layers), model]:
            fully_shard(module, mesh=self._mesh, mp_policy=self._policy, reshard_after_forward=True)
        for module in _parts(model):
            # Losses are divided by global token counts already: gradients are sums, also where a backend can add only.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
        # Before the first whole forward pass the layers do not know which module is the outermost.
        with torch.no_grad():
            model(input_ids=torch.zeros((1, 2), dtype=torch.long, device=self._mesh.device_type), use_cache=False)

    @contextmanager
    def gathered(self, model: PreTrainedModel) -> Iterator[None]:
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


def full(tensor: Tensor) -> Tensor:
    """Return a tensor's whole value; every process must ask."""
    from torch.distributed.tensor import DTensor

    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def shard_like(value: Tensor, tensor: Tensor) -> Tensor:
    """Return a whole value split as `tensor` is."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(tensor, DTensor):
        return value
    return distribute_tensor(value, tensor.device_mesh, tensor.placements)


def _parts(model: nn.Module) -> list[Any]:
    from torch.distributed.fsdp import FSDPModule

    return [module for module in model.modules() if isinstance(module, FSDPModule)]
