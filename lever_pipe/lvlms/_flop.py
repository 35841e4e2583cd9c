"""Counted work, so that a run can be compared with what its device could do."""

from __future__ import annotations

import time

import torch

from lever_pipe.lvlms._layers import LanguageModel
from lever_pipe.lvlms._planner import TrieNode


def flop_per_second(device: torch.device, dtype: torch.dtype, *, size: int = 8192, repeats: int = 10) -> float:
    """Return what a device reaches in a large matrix product: the limit that counted work is held against.

    Args:
        device: a CUDA device.
        dtype: of the weights.
        size: side of the square matrices.
        repeats: products timed.
    """
    one = torch.ones(size, size, device=device, dtype=dtype)
    for _ in range(2):  # the first product loads and chooses kernels
        one @ one
    torch.cuda.synchronize(device)
    begin = time.perf_counter()
    for _ in range(repeats):
        one @ one
    torch.cuda.synchronize(device)
    return 2 * size**3 * repeats / (time.perf_counter() - begin)


class TextFlop:
    """Multiply-adds times two of the language model on real tokens, padding excluded.

    The last layer computes keys and values of every token, and the rest for those whose output somebody reads.
    """

    def __init__(self, language: LanguageModel) -> None:
        config, layers = language.config, language.decoder.layers
        attention = layers[-1].self_attn
        self._layer = 2 * sum(p.numel() for p in layers[-1].parameters())
        self._store = 2 * sum(p.numel() for part in (attention.k_proj, attention.v_proj) for p in part.parameters())
        self._pair = 4 * config.num_attention_heads * language.head_width
        self._before = len(layers) - 1
        self._logits = 2 * language.head.weight.numel()

    def of_node(self, node: TrieNode) -> int:
        """Return the work of a node's prompt tokens and of the answers given behind it."""
        tokens = node.size + node.n_branches
        branch_pairs = sum(chain_pairs(count, node.length) for count in node.branches)
        all_layers = self._before * (
            tokens * self._layer + (chain_pairs(node.size, node.past) + branch_pairs) * self._pair
        )
        if node.request is None:
            return int(all_layers + tokens * self._store)
        read = 1 + node.n_branches
        last = (tokens - read) * self._store + read * self._layer + (node.length + branch_pairs) * self._pair
        return int(all_layers + last + read * self._logits)

    def of_step(self, width: int, context: int) -> int:
        """Return the work of `width` tokens fed side by side behind `context` others."""
        layers = (self._before + 1) * (self._layer + (context + 1) * self._pair)
        return int(width * (layers + self._logits))


def chain_pairs(tokens: int, past: int) -> int:
    """Return how many query-key pairs a causal chain behind `past` others has."""
    return tokens * past + tokens * (tokens + 1) // 2
