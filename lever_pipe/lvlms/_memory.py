"""Storage of keys and values, one slot a token, and plain attention over nodes of one shape at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from lever_pipe.lvlms._planner import TrieNode
from lever_pipe.lvlms._requests import Array

FIRST_SLOTS = 4096


class SlotPool:
    """Memory for the keys and values of tokens; a token has the same slot in every layer.

    It starts small and doubles up to `limit` slots, so that small plans need little memory.

    Attributes:
        keys, values: [layers, slots, kv heads, width].
        shared: query heads for each head of keys.
        paths: slots of all tokens up to the end of each kept node.
    """

    def __init__(self, model: Any, limit: int) -> None:
        config = model.config.text_config
        width = model.model.language_model.layers[0].self_attn.head_dim
        shape = (config.num_hidden_layers, 0, config.num_key_value_heads, width)
        weight = model.lm_head.weight
        self.keys = torch.empty(shape, dtype=weight.dtype, device=weight.device)
        self.values = torch.empty_like(self.keys)
        self.shared = config.num_attention_heads // config.num_key_value_heads
        self.paths: dict[TrieNode, Array] = {}
        self.limit = limit
        # A stack: the slots that were returned last are still in the processor's cache.
        self._free: Array = np.empty(0, dtype=np.int64)
        self._n_free = 0
        self._grow(min(limit, FIRST_SLOTS))

    @property
    def size(self) -> int:
        """Number of allocated slots."""
        return self._free.size

    @property
    def used(self) -> int:
        """Slots in use."""
        return self.size - self._n_free

    def take(self, count: int) -> Array:
        """Return free slots; the planner's budget ensures that there are enough.

        Raises:
            MemoryError: too few are free, which a plan within the budget prevents.
        """
        while count > self._n_free and self.size < self.limit:
            self._grow(min(self.limit, 2 * self.size))
        if count > self._n_free:
            raise MemoryError(f"expected {count} free slots of {self.limit}; found {self._n_free}")
        self._n_free -= count
        return self._free[self._n_free : self._n_free + count][::-1].copy()

    def give(self, slots: Array) -> None:
        """Return slots to the pool."""
        self._free[self._n_free : self._n_free + slots.size] = slots[::-1]
        self._n_free += slots.size

    def release(self, nodes: Iterable[TrieNode]) -> None:
        """Return the slots of kept nodes to the pool."""
        for node in nodes:
            self.give(self.paths.pop(node)[node.past :])

    def _grow(self, size: int) -> None:
        more = size - self.size
        # Grown one after the other, so that only one of them exists twice at a time.
        self.keys = _longer(self.keys, more)
        self.values = _longer(self.values, more)
        fresh = np.arange(size - 1, self.size - 1, -1, dtype=np.int64)
        free = np.concatenate([fresh, self._free[: self._n_free]])
        self._free = np.concatenate([free, np.empty(size - free.size, dtype=np.int64)])
        self._n_free = free.size

    def store(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Write keys and values [n, kv heads, width] to the slots [n]."""
        self.keys[layer].index_copy_(0, slots, keys)
        self.values[layer].index_copy_(0, slots, values)

    def read(self, layer: int, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values [n, kv heads, width] of slots [n]."""
        return self.keys[layer].index_select(0, slots), self.values[layer].index_select(0, slots)


def _longer(stored: Tensor, more: int) -> Tensor:
    return torch.cat([stored, stored.new_empty(stored.shape[0], more, *stored.shape[2:])], dim=1)


@dataclass(frozen=True)
class _Group:
    """Nodes of one shape, adjacent in the packed row.

    Attributes:
        begin: first token.
        rows: nodes.
        width: tokens a node.
        context: slots that each node sees [rows, n], including masked ones.
        mask: [..., heads that share keys x width, n]; None if every token sees all.
    """

    begin: int
    rows: int
    width: int
    context: Array
    mask: Tensor | None

    @property
    def end(self) -> int:
        return self.begin + self.rows * self.width


class _Reading:
    """Slots that a pass reads in a layer: fetched for all groups at once, then attended group by group.

    The groups have the order of their tokens.
    """

    def __init__(self, groups: Iterable[_Group], device: torch.device) -> None:
        self.groups = tuple(groups)
        self.sizes = [group.context.size for group in self.groups]
        contexts = [group.context.ravel() for group in self.groups]
        self.slots = torch.from_numpy(np.concatenate(contexts) if contexts else np.empty(0, dtype=np.int64)).to(device)


@dataclass(frozen=True)
class PassAttention:
    """Attention of one pass over the slots of a pool.

    Attributes:
        pool: keys and values.
        slots: slots of the pass's own tokens [n].
        all: slots that all tokens of the pass read.
        outputs: slots that the wanted tokens read.
    """

    pool: SlotPool
    slots: Tensor
    all: _Reading
    outputs: _Reading

    def store(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Store the keys and values [n, kv heads, D] of the pass's tokens."""
        self.pool.store(layer, self.slots, keys, values)

    def attend(self, layer: int, queries: Tensor, *, for_output: bool) -> Tensor:
        """Return the attention output of the queries [n, heads, D]: all tokens of the pass, or the wanted ones."""
        reading = self.outputs if for_output else self.all
        stored = [torch.split(part, reading.sizes) for part in self.pool.read(layer, reading.slots)]
        outputs = []
        for group, *parts in zip(reading.groups, *stored, strict=True):
            keys, values = (part.view(group.rows, -1, *part.shape[1:]).transpose(1, 2) for part in parts)
            rows = queries[group.begin : group.end].view(group.rows, group.width, *queries.shape[1:])
            outputs.append(_attend(rows, keys, values, group.mask).flatten(0, 1))
        return torch.cat(outputs) if len(outputs) > 1 else outputs[0]


def _attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """Return [rows, width, heads, D]; query heads that share keys become further queries, so no key is repeated."""
    rows, width, heads, size = queries.shape
    shared = heads // keys.shape[1]
    folded = queries.view(rows, width, -1, shared, size).permute(0, 2, 3, 1, 4).flatten(2, 3)
    mixed = scaled_dot_product_attention(folded, keys, values, attn_mask=mask)
    return mixed.view(rows, -1, shared, width, size).permute(0, 3, 1, 2, 4).flatten(2, 3)


class WaveSlots:
    """The slots of a wave whose parents are stored; its packed row has each node's prompt, then its answer tokens.

    `attention` serves the wave's own pass, whose wanted tokens are the last prompt token and all answer tokens of
    requests. A node that generates takes `n_generated` more slots for the generated tokens.
    """

    def __init__(self, pool: SlotPool, wave: Sequence[TrieNode], n_generated: int) -> None:
        self._pool = pool
        self._device = pool.keys.device
        self._new = pool.take(sum(node.size + node.n_branches for node in wave))
        generating = sum(node.generates for node in wave)
        self._answer_slots = pool.take(generating * n_generated).reshape(generating, n_generated)
        self._prompts: list[Array] = []  # of generating nodes
        self._temporary: list[Array] = [self._answer_slots.ravel()]
        groups, outputs = (_Reading(groups, self._device) for groups in self._groups(wave))
        self.attention = PassAttention(pool, self._tensor(self._new), groups, outputs)

    def step(self, alive: Sequence[int], step: int, visible: Tensor) -> PassAttention:
        """Return the attention of a decoding pass.

        Args:
            alive: indices among the wave's generating nodes, ascending.
            step: counted from 0.
            visible: mask of the generated columns that each of a row's new tokens sees, bool [alive, n, columns + n].
        """
        width, columns = visible.shape[1:]
        slots = self._answer_slots[list(alive)]
        groups = _Reading(self._step_groups(alive, slots[:, :columns], visible), self._device)
        return PassAttention(self._pool, self._tensor(slots[:, step * width : columns].ravel()), groups, groups)

    def leave(self) -> None:
        """Return all slots to the pool except those of kept nodes' prompt tokens."""
        for slots in self._temporary:
            self._pool.give(slots)

    def _groups(self, wave: Sequence[TrieNode]) -> tuple[list[_Group], list[_Group]]:
        """Return the groups of all tokens and of the wanted ones."""
        groups, outputs = [], []
        begin = begin_outputs = 0
        for _, members in groupby(wave, key=lambda node: (node.shape, node.request is None)):
            nodes = list(members)
            node = nodes[0]
            width = node.size + node.n_branches
            context = self._contexts(nodes, self._new[begin : begin + len(nodes) * width].reshape(len(nodes), width))
            mask = prompt_mask(node.size, node.past, node.branches, self._pool.shared).to(self._device)
            groups.append(_Group(begin, len(nodes), width, context, mask.flatten(0, 1)))
            begin = groups[-1].end
            if node.request is not None:
                n_read = 1 + node.n_branches
                # A single wanted token is the last one of its node and sees all of its context.
                read_mask = mask[:, -n_read:].flatten(0, 1) if n_read > 1 else None
                outputs.append(_Group(begin_outputs, len(nodes), n_read, context, read_mask))
                begin_outputs = outputs[-1].end
        return groups, outputs

    def _contexts(self, nodes: Sequence[TrieNode], new: Array) -> Array:
        """Return the slots that nodes of one shape see, and record which of their own slots are kept or temporary."""
        node = nodes[0]
        contexts = np.empty((len(nodes), node.past + new.shape[1]), dtype=np.int64)
        contexts[:, node.past :] = new
        for row, node in zip(contexts, nodes, strict=True):
            if node.parent is not None:
                row[: node.past] = self._pool.paths[node.parent]
            if node.generates:
                self._prompts.append(row[: node.length])
            if node.is_kept:
                # A copy, because a view would keep the contexts of the whole group in memory.
                self._pool.paths[node] = row[: node.length].copy()
            self._temporary.append(row[node.length if node.is_kept else node.past :])
        return contexts

    def _step_groups(self, alive: Sequence[int], slots: Array, visible: Tensor) -> Iterator[_Group]:
        width = visible.shape[1]
        begin = row = 0
        for length, members in groupby(alive, key=lambda index: self._prompts[index].size):
            prompts = np.stack([self._prompts[index] for index in members])
            rows = len(prompts)
            context = np.concatenate([prompts, slots[row : row + rows]], axis=1)
            mask = None
            # A single hypothesis sees all tokens of its answer, so only beams need a mask.
            if width > 1:
                all_prompt = torch.ones(rows, 1, width, length, dtype=torch.bool, device=self._device)
                readable = torch.cat([all_prompt, visible[row : row + rows, None]], dim=-1)
                mask = readable.repeat(1, 1, self._pool.shared, 1)
            yield _Group(begin, rows, width, context, mask)
            begin, row = begin + rows * width, row + rows

    def _tensor(self, array: Array) -> Tensor:
        return torch.from_numpy(array).to(self._device)


@lru_cache(maxsize=256)
def prompt_mask(size: int, past: int, branches: tuple[int, ...], shared: int = 1) -> Tensor:
    """Return the mask of visible tokens, bool [shared, size + answer tokens, past + size + answer tokens].

    A prompt token sees the tokens before it; an answer token sees the prompt and its own answer's earlier tokens.
    """
    branch = np.repeat(np.arange(len(branches) + 1), [size, *branches])
    # Branch 0 is the prompt, visible to every answer.
    seen = np.tril((branch[:, None] == branch) | (branch == 0))
    mask = torch.from_numpy(np.concatenate([np.ones((len(branch), past), dtype=bool), seen], axis=1))
    return mask.repeat(shared, 1, 1)  # once for each of the query heads that share keys
