"""The agent's loss as specified, token by token: the reference for the fast loss and its gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

ADDED = ("policy", "penalty", "entropy", "total", "clipped", "dual_clipped", "ratio_sum")
BY_TOKEN = (
    "log_probs_BT",
    "behaviour_log_probs_BT",
    "reference_log_probs_BT",
    "entropies_BT",
    "advantages_BT",
    "mask_BT",
)


def slow_terms(batch: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the sums of `AgentTerms`, in the words of the published code; the inputs may require gradients."""
    low, high, dual = batch["clip_low"], batch["clip_high"], batch["dual_clip"]
    sums = dict.fromkeys(ADDED, torch.tensor(0.0))
    for new, old, ref, entropy, a, sampled in zip(*(batch[name].flatten() for name in BY_TOKEN), strict=True):
        if sampled:
            rho = torch.exp(new - old)
            first, second, third = -a * rho, -a * min(max(rho, 1 - low), 1 + high), -a * dual
            loss = max(first, second)
            sums["policy"] = sums["policy"] + (min(third, loss) if a < 0 else loss)
            sums["penalty"] = sums["penalty"] + min(max(torch.exp(ref - new) - (ref - new) - 1, -10), 10)
            sums["entropy"] = sums["entropy"] + entropy
            sums["clipped"] = sums["clipped"] + (second > first)
            sums["dual_clipped"] = sums["dual_clipped"] + (a < 0 and loss > third)
            sums["ratio_sum"] = sums["ratio_sum"] + rho
    for name in ("policy", "penalty", "entropy"):
        sums[name] = sums[name] / batch["n_tokens"]
    return sums | {"total": sums["policy"] + batch["kl"] * sums["penalty"] - batch["entropy"] * sums["entropy"]}
