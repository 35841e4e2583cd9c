"""The two policies that GRPO compares, whichever its mode."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from lever_pipe.lever.selector.network import PointerSelector
from lever_pipe.lever.training.embeddings import EmbeddingTable, FrozenSelector
from lever_pipe.lever.training.groups import Groups
from lever_pipe.losses.surrogate import PolicyTerms


@dataclass(frozen=True, slots=True)
class Policies:
    """The trained policy and the frozen RCE checkpoint that anchors it, both without dropout.

    So the ratio is 1 and the penalty 0 before the first update.
    """

    policy: PointerSelector
    reference: FrozenSelector

    def trained(self, table: EmbeddingTable, batch: Groups, *, may_stop: bool = False) -> Tensor:
        """Return the logits of the trained policy (`EmbeddingTable.scores`)."""
        if self.policy.training:
            self.policy.eval()
        return table.scores(self.policy, batch, may_stop=may_stop)


def trained_share(module: PointerSelector) -> float:
    """Return which share of the parameters trains: 0.50146 with frozen projections at D = 512, H = 256."""
    sizes = [(p.numel(), p.requires_grad) for p in module.parameters()]
    return sum(n for n, trains in sizes if trains) / sum(n for n, _ in sizes)


def logged(terms: PolicyTerms, kl_beta: float, **more: float) -> dict[str, float]:
    """Return the metrics under their published names, more of them behind the penalty.

    `kl` is what is penalised: offline the k3 over stored selections, of drawn ones the divergence of whole selections;
    `kl_exact` is the divergence per step.
    """
    penalty = float(terms.penalty.detach())
    return {
        "ppo_loss": float(terms.policy.detach()),
        "kl": penalty,
        "kl_loss": kl_beta * penalty,
        **more,
        "mean_ratio": float(terms.mean_ratio),
        "clip_fraction": float(terms.clip_fraction),
        "mean_advantage": float(terms.mean_advantage),
        "std_advantage": float(terms.std_advantage),
        "max_advantage": float(terms.max_advantage),
        "gradient_share": float(terms.gradient_share),
    }
