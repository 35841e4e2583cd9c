"""The paged memory of a GPU: keys and values in pages, read by one kernel call a layer, without masks.

A pass is a set of sequences. Each begins with whole pages that it shares by reference and goes on in pages of its own,
the first of which starts as a copy of the last, partly filled one that it continues; a block table lists both. The
kernel is `torch.nn.attention.varlen.varlen_attn`; the queries of a sequence are its last tokens, and its causal window
is aligned to the end, so the table and two lengths say all that a mask would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lever_pipe.lvlms._layers import LanguageModel
from lever_pipe.lvlms._pages import SCRATCH, STORED, Indices, PagePool
from lever_pipe.lvlms._planner import TrieNode

Kernel = Callable[..., Any]  # with the arguments of `varlen_attn`


class PagedMemory:
    """Keys and values in pages (`_packed.Memory`).

    A kept node owns the pages from the one on that holds its first token; `release` gives them back. All else that a
    wave takes goes back when it leaves.

    Args:
        language: whose keys and values.
        stored: tokens that the plan keeps at one time; partly filled pages come on top (`PagePool`).
        spare: generated tokens a prompt that are stored, of all its beams together.
        page: tokens of a page.
        kernel: reads the pages.
        name: of the kernel.
    """

    def __init__(
        self, language: LanguageModel, *, stored: int, spare: int, page: int, kernel: Kernel, name: str = "varlen_attn"
    ) -> None:
        self.pool = PagePool(language, -(-stored // page), page)
        self.kind = f"pages of {page}, {name}"
        self.spare = spare
        self.kernel = kernel
        self.tables: dict[TrieNode, Indices] = {}  # of kept nodes: the pages of all tokens up to their end

    def place(self, wave: Sequence[TrieNode]) -> _PagedWave:
        """Return places for a wave whose parents are there."""
        return _PagedWave(self, wave)

    def release(self, nodes: Iterable[TrieNode]) -> None:
        """Forget kept nodes."""
        for node in nodes:
            self.pool.give(self.tables.pop(node)[node.past // self.pool.page :])

    def kept(self) -> list[TrieNode]:
        """Return the kept nodes."""
        return list(self.tables)


@dataclass(frozen=True)
class _ByLayer:
    """Frames or slots in the first layer, and what each layer adds to them."""

    first: Tensor
    stride: Tensor | int

    def at(self, layer: int) -> Tensor:
        return self.first + layer * self.stride


@dataclass(frozen=True)
class _Copy:
    """Whole frames start as copies of others."""

    sources: _ByLayer
    targets: _ByLayer

    def __call__(self, pool: PagePool, layer: int, keys: Tensor, values: Tensor) -> None:
        del keys, values
        pool.copy(self.sources.at(layer), self.targets.at(layer))


@dataclass(frozen=True)
class _Write:
    """The pass's tokens of some rows, or of all, are written to slots."""

    rows: Tensor | None
    slots: _ByLayer

    def __call__(self, pool: PagePool, layer: int, keys: Tensor, values: Tensor) -> None:
        if self.rows is not None:
            keys, values = keys[self.rows], values[self.rows]
        pool.write(self.slots.at(layer), keys, values)


@dataclass(frozen=True)
class _Move:
    """Stored tokens are copied to other slots."""

    sources: _ByLayer
    targets: _ByLayer

    def __call__(self, pool: PagePool, layer: int, keys: Tensor, values: Tensor) -> None:
        del keys, values
        pool.move(self.sources.at(layer), self.targets.at(layer))


_Store = _Copy | _Write | _Move


@dataclass(frozen=True)
class _Sequence:
    """Keys and values in pages, whole shared ones first, and the queries at their end.

    Attributes:
        shared: stored frames in the first layer.
        own: frames behind them.
        stride: whether the own frames are stored or scratch.
        copied: stored frame that the first own one begins as a copy of; None if it begins empty.
        past: tokens before the queries.
        size: queries.
    """

    shared: Indices
    own: Indices
    stride: int
    copied: int | None
    past: int
    size: int

    def slots(self, page: int) -> Indices:
        """Return where the tokens of the queries are in the own frames."""
        at = self.past % page + np.arange(self.size)
        return self.own[at // page] * page + at % page


@dataclass(frozen=True)
class _Reads:
    """What the kernel is told about the sequences of a pass.

    Attributes:
        ends: queries of all sequences up to each one's end, int32 [N + 1].
        most: queries of a sequence at most.
        used: keys of each sequence, int32 [N].
        longest: keys of a sequence at most.
        table: frames of each sequence, int32 [N, n]; zeros behind its last one.
    """

    ends: Tensor
    most: int
    used: Tensor
    longest: int
    table: _ByLayer


@dataclass(frozen=True)
class _PagedAttention:
    """Attention of one pass (`_layers.PassAttention`)."""

    pool: PagePool
    kernel: Kernel
    stores: tuple[_Store, ...]
    every: _Reads
    wanted: _Reads | None

    def store(self, layer: int, keys: Tensor, values: Tensor) -> None:
        for step in self.stores:
            step(self.pool, layer, keys, values)

    def attend(self, layer: int, queries: Tensor, *, wanted: bool) -> Tensor:
        reads = self.wanted if wanted else self.every
        assert reads is not None
        return torch.as_tensor(
            self.kernel(
                queries,
                self.pool.keys,
                self.pool.values,
                reads.ends,
                None,
                reads.most,
                reads.longest,
                scale=queries.shape[-1] ** -0.5,
                window_size=(-1, 0),
                enable_gqa=True,
                seqused_k=reads.used,
                block_table=reads.table.at(layer),
                num_splits=1,  # more would make a result depend on what else is asked, and corrupt paged ones
            )
        )


@dataclass(frozen=True)
class _Tails:
    """Where generated tokens of G prompts with W beams each lie, for up to S steps.

    Every generated token is stored once. Before a pass, each beam's own ones are copied to scratch frames behind a
    copy of the last, partly filled page of its prompt, because a sequence of the kernel has its tokens in order.

    Attributes:
        lengths: tokens of the prompts [G].
        stored: slots by column in the order of feeding [G, W * S].
        first: first scratch frame of each beam [G, W].
        copied: the frame that it begins as a copy of [G]; -1 if it begins empty.
        slots: scratch slots of each beam's generated tokens [G, W, S].
        table: frames of each beam's sequence [G, W, n].
        strides: what a layer adds to them [G, W, n].
    """

    lengths: Indices
    stored: Indices
    first: Indices
    copied: Indices
    slots: Indices
    table: Indices
    strides: Indices


class _PagedWave:
    """A wave with its pages (`_packed.Placed`)."""

    def __init__(self, memory: PagedMemory, wave: Sequence[TrieNode]) -> None:
        self._memory = memory
        self._pool = memory.pool
        self._device = memory.pool.keys.device
        self._temporary: list[Indices] = []
        self._prompts: list[tuple[int, Indices]] = []  # of generating nodes: tokens and pages up to the end
        self._tails: _Tails | None = None
        self.attention = self._prefill(wave)

    def step(self, alive: Sequence[int], step: int, visible: Tensor) -> _PagedAttention:
        width, columns = visible.shape[1:]
        if self._tails is None:
            self._tails = self._make_tails(width)
        tails, rows = self._tails, np.asarray(alive)
        new = tails.stored[rows][:, columns - width : columns].ravel()
        stores: tuple[_Store, ...] = (
            _Write(None, self._slots(new, STORED)),
            *self._copy_ends(tails, rows),
            self._gather(tails, rows, step, visible),
        )
        reads = self._read_beams(tails, rows, np.repeat(tails.lengths[rows] + step + 1, width))
        return _PagedAttention(self._pool, self._memory.kernel, stores, reads, reads)

    def leave(self) -> None:
        for pages in self._temporary:
            self._pool.give(pages)

    def _prefill(self, wave: Sequence[TrieNode]) -> _PagedAttention:
        every: list[_Sequence] = []
        wanted: list[_Sequence] = []
        frames = self._take_scratch([self._count(node.length, n) for node in wave for n in node.branches if n])
        for node in wave:
            prompt, table = self._place(node)
            answers = [self._continue(table, node.length, n, next(frames), SCRATCH) for n in node.branches if n]
            every += [prompt, *answers]
            if node.request is not None:
                wanted += [replace(prompt, past=node.length - 1, size=1), *answers]
            if node.generates:
                self._prompts.append((node.length, table))
        stores = tuple(self._stores(every))
        reads = self._reads(wanted) if wanted else None
        return _PagedAttention(self._pool, self._memory.kernel, stores, self._reads(every), reads)

    def _place(self, node: TrieNode) -> tuple[_Sequence, Indices]:
        """Return a node's sequence and the pages of all tokens up to its end."""
        before = self._memory.tables[node.parent] if node.parent else np.empty(0, dtype=np.int64)
        own = self._pool.take(self._count(node.past, node.size))
        table = np.concatenate([before[: node.past // self._pool.page], own])
        if node.kept:
            self._memory.tables[node] = table
        else:
            self._temporary.append(own)
        return self._continue(before, node.past, node.size, own * self._pool.layers, STORED), table

    def _continue(self, table: Indices, past: int, size: int, own: Indices, stride: int) -> _Sequence:
        """Return the sequence of `size` tokens behind the `past` ones that the pages of `table` hold."""
        whole, partial = divmod(past, self._pool.page)
        frames = table * self._pool.layers
        return _Sequence(frames[:whole], own, stride, int(frames[whole]) if partial else None, past, size)

    def _count(self, past: int, size: int) -> int:
        """Return how many own pages `size` tokens behind `past` others have."""
        return -(-(past + size) // self._pool.page) - past // self._pool.page

    def _take_scratch(self, counts: Sequence[int]) -> Iterator[Indices]:
        """Return so many scratch frames each."""
        layers = self._pool.layers
        pages = self._pool.take(-(-sum(counts) // layers))
        self._temporary.append(pages)
        return iter(np.split((pages[:, None] * layers + np.arange(layers)).ravel(), np.cumsum(counts)))

    def _stores(self, sequences: Sequence[_Sequence]) -> Iterator[_Copy | _Write]:
        """Yield what is stored: prompts before the answers, whose first pages are copies of the prompts' last ones."""
        ends = np.cumsum([sequence.size for sequence in sequences])
        for stride in (STORED, SCRATCH):
            chosen = [(s, end) for s, end in zip(sequences, ends, strict=True) if s.stride == stride]
            copied = [(s.copied, s.own[0]) for s, _ in chosen if s.copied is not None]
            if copied:
                yield self._copy(np.array(copied).T, stride)
            if chosen:
                rows = np.concatenate([np.arange(end - s.size, end) for s, end in chosen])
                slots = np.concatenate([s.slots(self._pool.page) for s, _ in chosen])
                yield _Write(None if len(chosen) == len(sequences) else self._tensor(rows), self._slots(slots, stride))

    def _reads(self, sequences: Sequence[_Sequence]) -> _Reads:
        sizes = np.array([s.size for s in sequences])
        return self._to_reads(sizes, sizes + [s.past for s in sequences], *_tables(sequences))

    def _make_tails(self, width: int) -> _Tails:
        """Take pages for all steps of all beams."""
        pool, prompts = self._pool, self._prompts
        steps, rows = self._memory.spare // width, len(prompts)
        frames = self._take_scratch([self._count(length, steps) for length, _ in prompts for _ in range(width)])
        beams = [
            self._continue(table, length, steps, next(frames), SCRATCH)
            for length, table in prompts
            for _ in range(width)
        ]
        stored = pool.take(-(-rows * steps * width // pool.page))
        self._temporary.append(stored)
        slots = (stored[:, None] * (pool.layers * pool.page) + np.arange(pool.page)).ravel()
        table, strides = _tables(beams)
        return _Tails(
            lengths=np.array([length for length, _ in prompts]),
            stored=slots[: rows * steps * width].reshape(rows, -1),
            first=np.array([beam.own[0] for beam in beams]).reshape(rows, width),
            copied=np.array([-1 if beam.copied is None else beam.copied for beam in beams[::width]]),
            slots=np.stack([beam.slots(pool.page) for beam in beams]).reshape(rows, width, steps),
            table=table.reshape(rows, width, -1),
            strides=strides.reshape(rows, width, -1),
        )

    def _copy_ends(self, tails: _Tails, rows: Indices) -> Iterator[_Copy]:
        """Yield the copies of the prompts' partly filled pages to the first page of each beam."""
        partial = rows[tails.copied[rows] >= 0]
        if partial.size:
            targets = tails.first[partial]
            sources = np.repeat(tails.copied[partial], targets.shape[1])
            yield self._copy(np.stack([sources, targets.ravel()]), SCRATCH)

    def _gather(self, tails: _Tails, rows: Indices, step: int, visible: Tensor) -> _Move:
        """Return the copying of each beam's own tokens, one of each step in rising columns, behind its prompt."""
        own = visible.to(torch.uint8).argsort(dim=-1, descending=True, stable=True)[:, :, : step + 1]
        stored = self._tensor(tails.stored[rows])[:, None].expand(-1, visible.shape[1], -1)
        sources = _ByLayer(stored.gather(2, own).flatten(), self._pool.page)
        return _Move(sources, self._slots(tails.slots[rows][:, :, : step + 1].ravel(), SCRATCH))

    def _read_beams(self, tails: _Tails, rows: Indices, used: Indices) -> _Reads:
        """Return the sequences of one query for each beam."""
        table, strides = (part[rows].reshape(used.size, -1) for part in (tails.table, tails.strides))
        return self._to_reads(np.ones_like(used), used, table, strides)

    def _to_reads(self, sizes: Indices, used: Indices, table: Indices, strides: Indices) -> _Reads:
        ends = np.concatenate([[0], np.cumsum(sizes)])
        return _Reads(
            ends=self._tensor(ends.astype(np.int32)),
            most=int(sizes.max()),
            used=self._tensor(used.astype(np.int32)),
            longest=int(used.max()),
            table=_ByLayer(self._tensor(table.astype(np.int32)), self._tensor(strides.astype(np.int32))),
        )

    def _copy(self, pairs: Indices, stride: int) -> _Copy:
        sources, targets = self._tensor(pairs)
        return _Copy(_ByLayer(sources, STORED), _ByLayer(targets, stride))

    def _slots(self, slots: Indices, stride: int) -> _ByLayer:
        return _ByLayer(self._tensor(slots), stride * self._pool.page)

    def _tensor(self, array: Any) -> Tensor:
        return torch.from_numpy(array).to(self._device)


def _tables(sequences: Sequence[_Sequence]) -> tuple[Indices, Indices]:
    """Return the frames of each sequence [N, n], zeros behind its last one, and what a layer adds to them."""
    shape = len(sequences), max(s.shared.size + s.own.size for s in sequences)
    table, strides = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    for row, s in enumerate(sequences):
        end = s.shared.size + s.own.size
        table[row, : s.shared.size], table[row, s.shared.size : end] = s.shared, s.own
        strides[row, : s.shared.size], strides[row, s.shared.size : end] = STORED, s.stride
    return table, strides
