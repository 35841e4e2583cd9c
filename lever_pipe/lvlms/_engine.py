"""Answers to many prompts at once: each image is encoded once, each common beginning of prompts is computed once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lever_pipe.lvlms import _planner
from lever_pipe.lvlms._planner import Beginning, Budget, TrieNode
from lever_pipe.lvlms._requests import Layout, Results, Segment, TokenRequest, segment_layout
from lever_pipe.lvlms._vision import VisionStore
from lever_pipe.lvlms._waves import Waves
from lever_pipe.lvlms.protocol import DecodeOptions


class PackedEngine:
    """Runs requests through a Qwen2.5-VL without changing the model (`protocol.Engine`).

    A caller may send small runs that depend on each other's answers. Their prompts begin with the same demonstrations,
    so beginnings up to the first image are kept from run to run; longer ones rarely recur.
    """

    backend = "packed, slots"

    def __init__(
        self, model: Any, vision: VisionStore, options: DecodeOptions, wave_tokens: int, kv_tokens: int
    ) -> None:
        self._budget = Budget(
            wave=wave_tokens,
            stored=kv_tokens,
            context=model.config.text_config.max_position_embeddings,
            new_tokens=options.max_new_tokens,
            beams=options.num_beams,
        )
        self._vision = vision
        self._waves = Waves(model, vision, self._budget, options)
        self._pool = self._waves.pool
        self._counted = Counter[str]()
        self._image_token = model.config.image_token_id
        self._layouts: dict[Segment, Layout] = {}
        self._resident: dict[Beginning, TrieNode] = {}  # least recently used first, and every node after its children

    @property
    def counters(self) -> Counter[str]:
        """Work so far, by names in `protocol.COUNTERS`."""
        return self._counted + self._waves.counters + Counter(images_encoded=self._vision.encoded)

    def run(self, requests: Sequence[TokenRequest]) -> Results:
        """Yield each request with its result as soon as it is done; the results do not depend on the order.

        Args:
            requests: with distinct prompts.

        Raises:
            ConfigError: a prompt exceeds the budget of stored tokens.
            PromptTooLongError: a prompt with its answer is longer than the model's context.
        """
        ordered = _planner.trie_order(requests)
        if self._taken() + self._measure(ordered) > self._budget.stored:
            self._forget()  # a prompt needs the space of nodes from earlier runs
        try:
            yield from self._run(ordered)
        except BaseException:
            # Also when the caller closes the generator: an abandoned run must not occupy slots.
            self._forget()
            raise

    def _run(self, ordered: Sequence[TokenRequest]) -> Results:
        budget = replace(self._budget, stored=self._budget.stored - self._taken())
        released: list[TrieNode] = []
        for chunk in _planner.plan_chunks(ordered, self._layout, budget, self._resident):
            self._pool.release(released)
            self._vision.prepare(chunk.images())
            for wave in chunk.waves:
                yield from self._waves.run(wave)
            # Released before the next chunk; after the last one, `_keep` first selects nodes for later runs.
            released = chunk.released
        self._keep(ordered, released)

    def _keep(self, ordered: Sequence[TokenRequest], released: Sequence[TrieNode]) -> None:
        """Keep the nodes of a run that may recur, in at most half of the budget, and release the others."""
        nodes = self._resident | {node.beginning: node for node in released if node.request is None}
        for request in ordered:
            beginning = _planner.up_to_image(request.prompt)
            # Longest first: the dictionary keeps this order, so a node is evicted before its parent.
            for length in range(len(beginning), 0, -1):
                node = nodes.get(beginning[:length])
                if node is not None:
                    node.resident = True
                    self._resident.pop(node.beginning, None)
                    self._resident[node.beginning] = node
        self._pool.release([node for node in released if not node.resident])
        stored = self._taken()
        while 2 * stored > self._budget.stored:
            node = self._resident.pop(next(iter(self._resident)))
            stored -= node.size
            self._pool.release([node])

    def _taken(self) -> int:
        return sum(node.size for node in self._resident.values())

    def _forget(self) -> None:
        self._resident.clear()
        self._pool.release(list(self._pool.paths))

    def _layout(self, segment: Segment) -> Layout:
        if segment not in self._layouts:
            images = [self._vision.layout(digest) for digest in segment.images]
            self._layouts[segment] = segment_layout(segment.ids, images, image_token=self._image_token)
        return self._layouts[segment]

    def _measure(self, ordered: Sequence[TokenRequest]) -> int:
        """Count prompt tokens and refuse long prompts before computing any; return the largest storage of a prompt."""

        def size(segment: Segment) -> int:
            return self._layout(segment).ids.size

        longest = 0
        for request in ordered:
            length = sum(map(size, request.prompt.segments))
            longest = max(longest, _planner.require_fit(request, length, self._budget))
            self._counted["prompt_tokens"] += length
        self._counted["trie_tokens_distinct"] += _planner.distinct_tokens(ordered, size)
        return longest
