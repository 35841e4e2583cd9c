"""The selector: a network that makes queries and candidates comparable, and a head that scores a pool pick by pick.

Both are plugins: `lever/networks/NAME.py` by `selector.network`, whose `build` returns a
`PointerSelector` for an `Architecture`, and `lever/heads/NAME.py` by `selector.head` (`lever/heads/protocol.py`).
The code that trains or decodes a selector refers to neither by name.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lever_pipe.base.checkpoints import load_tensors, require_same_tensors, save_tensors
from lever_pipe.base.plugins import plugin
from lever_pipe.base.rowwise import rowwise
from lever_pipe.base.shapes import require_shapes, shaped
from lever_pipe.base.torch_streams import ambient_stream
from lever_pipe.experiment.selector import Selector
from lever_pipe.lever.heads.protocol import Head, HeadSettings, State


@dataclass(frozen=True, slots=True)
class Architecture:
    """Sizes and plugins that determine the tensors of a selector."""

    embedding: int  # D, width of the encoder's embeddings
    width: int  # H
    layers: int
    heads: int
    dropout: float
    attention_dropout: float
    temperature: float
    head: str = "static"
    feed_forward: int = 0  # hidden width of the input block; 0 for none
    network: str = "cross_attention"
    steps: int = 0  # rows of step embeddings; 0 for none


class Encoded(NamedTuple):
    """A batch as unit vectors whose products are cosines."""

    queries: Tensor  # [B, H]
    candidates: Tensor  # [B, K, H]


class PointerSelector(nn.Module):
    """Scores of a pool. For all plugins, permuting the pool permutes the picks, and greedy k shots are the first k of
    more shots.
    """

    PROJECTIONS: tuple[str, ...] = ()
    """Names of the attributes that `freeze_projections` freezes; an attribute may be None."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.architecture = architecture

    @property
    def head(self) -> Head:
        """Return the head that scores the pool after some picks."""
        return self._head[0]

    def _adopt_head(self) -> None:
        """Register the head's tensors under the head's names; their order among the others determines the last bits of
        gradient norms.
        """
        a = self.architecture
        head: Head = plugin("lever/heads", a.head).build(HeadSettings(a.width, a.temperature, a.steps))
        self._head = (head,)  # in a tuple: as a submodule it would prefix the names of its tensors
        for name, part in head.named_children():
            self.add_module(name, part)
        for name, tensor in head.named_parameters(recurse=False):
            self.register_parameter(name, tensor)

    def forward(self, query_BD: Tensor, pool_BKD: Tensor) -> Tensor:
        """Return the logits `[B, K]` of the first pick (cosine over the temperature)."""
        return self.first(self.encode(query_BD, pool_BKD))

    def first(self, encoded: Encoded) -> Tensor:
        """Return the logits `[B, K]` of the first pick."""
        return self.head.first(*encoded)

    @shaped
    def encode(self, query_BD: Tensor, pool_BKD: Tensor) -> Encoded:
        """Return the vectors of the first pick; in training, with dropout as published for the head."""
        query_BH, pool_BKH = self.project(query_BD), self.project(pool_BKD)
        return Encoded(self.as_query(query_BH, pool_BKH), self.as_candidates(pool_BKH))

    @abstractmethod
    def initialise(self, generator: torch.Generator) -> None:
        """Fill the network's weights from `generator`."""

    @abstractmethod
    def project(self, x: Tensor) -> Tensor:
        """Return examples `[..., D]` in the comparison space: the same map for query and candidate, each on its own."""

    @abstractmethod
    def as_query(self, query_BH: Tensor, pool_BKH: Tensor) -> Tensor:
        """Return the unit vectors `[B, H]` of projected queries, given their projected pools."""

    @abstractmethod
    def as_candidates(self, projected: Tensor) -> Tensor:
        """Return the unit vectors `[..., H]` of projected candidates, each independent of the others."""

    def following(self, encoded: Encoded, selections_BGS: Tensor, *, may_stop: bool = False) -> Tensor:
        """Return the logits `[B, G, S, K]` of each step of given selections, without a mask over earlier picks.

        `selections_BGS` are pool positions in 0..K-1; with `may_stop`, K marks the end of a selection. A head that
        ranks once gives the same K logits for every step of a query, and `first` computes them faster. With
        `may_stop`, a head that stops gives K + 1 logits.
        """
        v = encoded.candidates
        require_shapes(candidates_BKH=v, selections_BGS=selections_BGS)
        states = [self.start(encoded, selections_BGS.shape[1])]
        for picks_BG in selections_BGS.unbind(dim=-1)[:-1]:
            states.append(self.head.after(states[-1], picks_BG, v))
        return self.head.logits(states, v, may_stop=may_stop)

    def start(self, encoded: Encoded, group: int) -> State:
        """Return the head's state before the first pick of `group` selections a query."""
        return self.head.start(encoded.queries[:, None].expand(-1, group, -1))

    def outcomes(self, encoded: Encoded) -> int:
        """Return the number of outcomes of a pick: K, and one more if a selection may end."""
        return encoded.candidates.shape[1] + self.head.stops

    def freeze_projections(self) -> None:
        """Freeze the projections; the rest still trains (static head: 263,680 of 525,824 parameters at D = 512)."""
        for name in self.PROJECTIONS:
            module = getattr(self, name)
            if module is not None:
                module.requires_grad_(False)


def architecture_of(selector: Selector, embedding: int) -> Architecture:
    """Return the architecture for embeddings of this width."""
    return Architecture(embedding=embedding, **selector.model_dump(exclude={"inputs"}))


def build_selector(architecture: Architecture) -> PointerSelector:
    """Return a selector with arbitrary weights, to be filled by `initialise` or a checkpoint."""
    with ambient_stream(0, "construction"):  # the library draws weights from the global stream, which must not change
        module: PointerSelector = plugin("lever/networks", architecture.network).build(architecture)
        # Row-wise products make the vector of an example independent of the rest of its batch.
        return rowwise(module)


def initialise(module: PointerSelector, generator: torch.Generator) -> PointerSelector:
    """Fill the weights from `generator`; the head draws last, so that the other weights do not depend on it."""
    module.initialise(generator)
    module.head.initialise(generator)
    return module


def load_selector(path: Path, architecture: Architecture) -> PointerSelector:
    """Return the selector of a checkpoint, in eval mode."""
    return load_into(build_selector(architecture), path)


def load_into(module: PointerSelector, path: Path) -> PointerSelector:
    """Return a module with the tensors of a checkpoint, in eval mode."""
    tensors, _ = load_tensors(path)
    require_same_tensors(path, tensors, module.state_dict())
    module.load_state_dict(tensors, strict=True)
    return module.eval()


def save_selector(path: Path, module: nn.Module, *, stage: str, epoch: int) -> None:
    """Write a selector's weights."""
    save_tensors(path, module.state_dict(), about={"stage": stage, "epoch": epoch})
