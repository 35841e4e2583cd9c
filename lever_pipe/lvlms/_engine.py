"""Answers to many prompts at once: each image encoded once, each common beginning of prompts computed once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from lever_pipe.lvlms import _planner, _positions
from lever_pipe.lvlms._decoding import DecodeOptions
from lever_pipe.lvlms._layers import LanguageModel
from lever_pipe.lvlms._memory import SlotMemory
from lever_pipe.lvlms._packed import PackedExecutor
from lever_pipe.lvlms._planner import Beginning, Budget, TrieNode
from lever_pipe.lvlms._positions import SegmentLayout
from lever_pipe.lvlms._requests import Result, Segment, TokenPrompt, TokenRequest, merge_requests, share_of
from lever_pipe.lvlms._vision import VisionStore


class Engine:
    """Runs requests through a language model and leaves it as it was.

    A caller may ask in small runs that follow from each other's answers. Their prompts begin with the same
    demonstrations, so beginnings up to the first image stay from run to run; deeper ones hardly recur.

    Args:
        language: in evaluation mode.
        vision: its image features.
        executor: computes the waves of the plan.
        budget: bounds of the plan.
        counters: receives `prompt_tokens` and `trie_tokens_distinct`.
        backend: what the executor's attention is, for the keys under which answers are kept.
    """

    def __init__(
        self,
        language: LanguageModel,
        vision: VisionStore,
        *,
        executor: PackedExecutor,
        budget: Budget,
        counters: Counter[str],
        backend: str = "",
    ) -> None:
        self.backend = backend
        self._vision = vision
        self._executor = executor
        self._budget = budget
        self._counters = counters
        self._language = language
        self._layouts: dict[Segment, SegmentLayout] = {}
        self._resident: dict[Beginning, TrieNode] = {}  # the least recently used first, none before what continues it

    def run(
        self, requests: Sequence[TokenRequest], on_result: Callable[[TokenRequest, Result], None] | None = None
    ) -> list[Result]:
        """Return a result a request, in order; equal prompts are computed once.

        Args:
            requests: in any order; the results do not depend on it.
            on_result: called with every distinct prompt as soon as it is done, all asked answers in one request.

        Raises:
            ConfigError: a prompt exceeds the budget of stored tokens.
            PromptTooLongError: a prompt with its answer is longer than the model's context.
        """
        ordered = _planner.trie_order(merge_requests(requests))
        self._make_room(self._measure(ordered))
        done: dict[TokenPrompt, tuple[TokenRequest, Result]] = {}
        try:
            for request, result in self._run(ordered):
                done[request.prompt] = request, result
                if on_result is not None:
                    on_result(request, result)
        except BaseException:
            self._forget()
            raise
        return [share_of(request, *done[request.prompt]) for request in requests]

    def _run(self, ordered: Sequence[TokenRequest]) -> Iterator[tuple[TokenRequest, Result]]:
        budget = replace(self._budget, stored=self._budget.stored - self._taken())
        released: list[TrieNode] = []
        for chunk in _planner.plan_chunks(ordered, self._layout, budget, self._resident):
            self._executor.release(released)
            self._vision.prepare(chunk.images())
            for wave in chunk.waves:
                yield from self._executor.run(wave)
            released = chunk.released
        self._keep(ordered, released)

    def _keep(self, ordered: Sequence[TokenRequest], released: Sequence[TrieNode]) -> None:
        """Keep what may recur of the nodes that a run has left, in half of the room at most, and forget the others."""
        there = self._resident | {node.beginning: node for node in released if node.request is None}
        for request in ordered:
            beginning = _planner.first_shown(request.prompt)
            for length in range(len(beginning), 0, -1):
                node = there.get(beginning[:length])
                if node is not None:
                    node.resident = True
                    self._resident.pop(node.beginning, None)
                    self._resident[node.beginning] = node
        self._executor.release([node for node in released if not node.resident])
        taken = self._taken()
        while 2 * taken > self._budget.stored:
            node = self._resident.pop(next(iter(self._resident)))
            taken -= node.size
            self._executor.release([node])

    def _taken(self) -> int:
        return sum(node.size for node in self._resident.values())

    def _make_room(self, longest: int) -> None:
        """Forget what earlier runs have left if a prompt needs its room."""
        if self._taken() + longest > self._budget.stored:
            self._forget()

    def _forget(self) -> None:
        self._resident.clear()
        self._executor.clear()

    def _layout(self, segment: Segment) -> SegmentLayout:
        found = self._layouts.get(segment)
        if found is None:
            found = self._layouts[segment] = _positions.segment_layout(
                segment.ids,
                [self._vision.block(digest) for digest in segment.images],
                image_token=self._language.image_token,
            )
        return found

    def _measure(self, ordered: Sequence[TokenRequest]) -> int:
        """Count prompt tokens, refuse what is too long before anything is computed; return the most that one stores."""

        def size(segment: Segment) -> int:
            return self._layout(segment).ids.size

        longest = 0
        for request in ordered:
            length = sum(map(size, request.prompt.segments))
            longest = max(longest, _planner.require_fit(request, length, self._budget))
            self._counters["prompt_tokens"] += length
        self._counters["trie_tokens_distinct"] += _planner.distinct_tokens(ordered, size)
        return longest


def build_engine(
    language: LanguageModel,
    vision: VisionStore,
    *,
    options: DecodeOptions,
    wave_tokens: int,
    kv_tokens: int,
    counters: Counter[str],
) -> Engine:
    """Return an engine over a model.

    Args:
        language: in evaluation mode.
        vision: its image features.
        options: how answers are searched.
        wave_tokens: tokens of one forward.
        kv_tokens: tokens whose keys and values are kept at one time.
        counters: receives the language model's work.
    """
    budget = Budget(
        wave=wave_tokens,
        stored=kv_tokens,
        context=language.config.max_position_embeddings,
        new_tokens=options.max_new_tokens,
        beams=options.num_beams,
    )
    memory = SlotMemory(language, stored=budget.stored, spare=budget.spare)
    packed = PackedExecutor(language, vision, memory=memory, options=options, counters=counters)
    return Engine(language, vision, executor=packed, budget=budget, counters=counters, backend="packed, slots")
