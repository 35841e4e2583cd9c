"""The pointer network, and what all of its training epochs share."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from lever_pipe.base.plugins import plugin_of
from lever_pipe.base.policy_names import PolicyName
from lever_pipe.base.sections import Epoch, Problem, Section, Seed, dividing, rule

SELECTOR: tuple[str, ...] = ("lever.networks.{selector.network}", "lever.heads.{selector.head}")


class Selector(Section):
    """The pointer network (source: Lever-Plus v3, published code)."""

    inputs: Literal["fused", "parts"] = "fused"
    """Input of an example: one vector fused from image and question (published), or the two vectors side by side."""
    width: int = Field(256, ge=8, le=4096)
    feed_forward: int = Field(0, ge=0, le=16384)
    """Hidden width of a residual block after the input projection; 0 for none (published). Without the block, only the
    attention over the pool lets a question select the attribute in which two images must match."""
    layers: int = Field(1, ge=1, le=8)
    heads: int = Field(1, ge=1, le=64)
    dropout: float = Field(0.5, ge=0, lt=1)
    attention_dropout: float = Field(0.1, ge=0, lt=1)
    temperature: float = Field(0.1, gt=0, le=10)
    network: Annotated[str, plugin_of("lever/networks")] = "cross_attention"
    """A plugin of `lever_pipe/lever/networks`: `cross_attention` lets the query attend to its pool (published v2 to
    v4); `bi_encoder` maps query and candidates separately (published v1, with head `blend`)."""
    head: Annotated[str, plugin_of("lever/heads")] = "static"
    """A plugin of `lever_pipe/lever/heads`. `static`: one ranking, independent of earlier choices (published v3). In
    all other heads each choice changes the scores of later ones, so that they may complement it."""
    steps: int = Field(0, ge=0, le=16)
    """Rows of step embeddings, one per shot; 0 for none. Used by `gru` and the heads that derive from it."""

    @rule
    def _heads_divide_width(self) -> list[Problem]:
        return dividing(("heads",), self.heads, "width", self.width)


class InitialiseSelectorConfig(Section):
    PLUGINS = SELECTOR
    preset: str
    selector: Selector
    seed: Seed


class TrainingConfig(InitialiseSelectorConfig):
    """Common identity of training epochs; it omits the number of epochs, so that extending a run keeps earlier ones."""

    train_share: float
    max_gradient_norm: float
    epoch: Epoch

    def policy(self, kind: str, *, base: int | None = None, beta: float | None = None) -> PolicyName:
        """Return the policy of this epoch; `kind` is a key of `policy_names.TRAINED`."""
        run = PolicyName(kind=kind, preset=self.preset, base=base, beta=beta, seed=self.seed)
        return run.at(self.epoch)


class TrainingFromBaseConfig(TrainingConfig):
    """Common identity of epochs in runs that start from an RCE epoch."""

    base_rce_epoch: Epoch
