"""Plan of the least work for distinct prompts: a tree of common beginnings, cut into waves within a memory budget.

Prompts that begin with the same segments share their keys and values, because a token's state depends only on earlier
tokens. Sorting the prompts by their segments gives the tree in depth-first order, so it is never built as a whole: a
chunk of it fits into the budget, and the path that the next chunk continues is kept. Nodes kept from an earlier plan
(`resident`) are not computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, takewhile

from lever_pipe.base.errors import ConfigError
from lever_pipe.lvlms._requests import Layout, PromptTooLongError, Segment, TokenPrompt, TokenRequest


@dataclass(frozen=True)
class Budget:
    """Bounds of a plan, in tokens.

    Attributes:
        wave: tokens of one forward; a longer node has a wave to itself.
        stored: tokens whose keys and values are stored at one time.
        context: the longest prompt with its answer for which the model has positions.
        new_tokens: the longest generated answer.
        beams: hypotheses of an answer.
    """

    wave: int
    stored: int
    context: int
    new_tokens: int
    beams: int

    @property
    def n_generated(self) -> int:
        """Generated tokens that a prompt stores; the last one of an answer is not fed back."""
        return (self.new_tokens - 1) * self.beams


Beginning = tuple[Segment, ...]


class TrieNode:
    """A segment after a certain beginning: tokens that a forward computes once for all prompts with that beginning.

    Attributes:
        beginning: the segments up to and including its own.
        layout: its tokens with images expanded.
        parent: the node before it.
        request: the request whose prompt ends here.
        is_kept: whether a node follows it, even if only one prompt contains it; its keys and values stay stored.
        resident: whether an earlier plan has computed it.
        size: prompt tokens.
        past: tokens before it.
        length: tokens up to its end.
        start: rotary position of its first token.
        end: rotary position after its last token.
        branches: number of tokens to feed for each given answer: all but the last, which is only predicted.
        n_branches: the sum of `branches`, in tokens.
    """

    __slots__ = (
        *("beginning", "branches", "end", "is_kept", "layout", "length"),
        *("n_branches", "parent", "past", "request", "resident", "size", "start"),
    )

    def __init__(
        self,
        segment: Segment,
        layout: Layout,
        *,
        parent: TrieNode | None,
        request: TokenRequest | None,
        is_kept: bool,
    ) -> None:
        self.beginning: Beginning = (*(parent.beginning if parent else ()), segment)
        self.layout = layout
        self.parent = parent
        self.request = request
        self.is_kept = is_kept
        self.resident = False
        self.size: int = layout.ids.size
        self.past: int = parent.length if parent else 0
        self.length: int = self.past + self.size
        self.start: int = parent.end if parent else 0
        self.end: int = self.start + layout.advance
        self.branches = tuple(len(answer) - 1 for answer in request.answers) if request else ()
        self.n_branches = sum(self.branches)

    @property
    def images(self) -> tuple[str, ...]:
        """Digests of its images in order."""
        return self.beginning[-1].images

    @property
    def generates(self) -> bool:
        """Whether an answer is generated after it."""
        return self.request is not None and self.request.generate

    @property
    def shape(self) -> tuple[int, int, tuple[int, ...]]:
        """Key of the attention mask: nodes of one shape share it."""
        return self.length, self.past, self.branches

    def path(self) -> list[TrieNode]:
        """Return the nodes from the first one to this one."""
        nodes: list[TrieNode] = []
        node: TrieNode | None = self
        while node is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]


@dataclass
class Chunk:
    """A part of the tree.

    Attributes:
        waves: its nodes, in an order in which every node follows its parent.
        released: kept nodes that no later chunk continues.
    """

    waves: list[list[TrieNode]]
    released: list[TrieNode]

    def images(self) -> set[str]:
        """Return the digests of its images."""
        return {digest for wave in self.waves for node in wave for digest in node.images}


def trie_order(requests: Iterable[TokenRequest]) -> list[TokenRequest]:
    """Return requests with distinct prompts in depth-first order of their tree, independent of their given order."""
    unsorted = list(requests)
    # Ranks are faster to compare than the segments' token ids.
    segments = {segment for request in unsorted for segment in request.prompt.segments}
    ranks = {s: i for i, s in enumerate(sorted(segments, key=lambda s: (s.ids, s.images)))}
    return sorted(unsorted, key=lambda request: [ranks[segment] for segment in request.prompt.segments])


def up_to_image(prompt: TokenPrompt) -> Beginning:
    """Return the beginning up to the first segment with an image; the whole prompt if none has one."""
    lengths = (length for length, segment in enumerate(prompt.segments, start=1) if segment.images)
    return prompt.segments[: next(lengths, len(prompt.segments))]


def distinct_tokens(ordered: Sequence[TokenRequest], size_of: Callable[[Segment], int]) -> int:
    """Return the number of tokens in the tree of requests in its order, the minimum that any plan must compute."""
    shared = [0, *(_shared(former.prompt, latter.prompt) for former, latter in pairwise(ordered))]
    pairs = zip(ordered, shared, strict=False)  # `shared` has one number even if there are no requests
    return sum(size_of(segment) for request, n in pairs for segment in request.prompt.segments[n:])


def require_fit(request: TokenRequest, length: int, budget: Budget) -> int:
    """Return the tokens that a request stores at one time, and refuse a request that fits no plan.

    Args:
        request: the request.
        length: tokens of its prompt.
        budget: bounds of the plan.

    Raises:
        ConfigError: it exceeds the budget of stored tokens.
        PromptTooLongError: the prompt with its answer is longer than the model's context.
    """
    longest = length + max(map(len, request.answers), default=0)
    longest = max(longest, length + budget.new_tokens) if request.generate else longest
    if longest > budget.context:
        raise PromptTooLongError(request.prompt, longest, budget.context)
    branches = sum(len(answer) - 1 for answer in request.answers)
    stored = length + branches + (budget.n_generated if request.generate else 0)
    if stored > budget.stored:
        raise ConfigError(
            "lvlm.kv_tokens: expected space for every prompt",
            found=f"{budget.stored}, and a prompt that needs {stored}",
            do=f"Raise lvlm.kv_tokens to {2 * stored} or more.",
        )
    return stored


def plan_chunks(
    ordered: Sequence[TokenRequest],
    layout_of: Callable[[Segment], Layout],
    budget: Budget,
    resident: Mapping[Beginning, TrieNode],
) -> Iterator[Chunk]:
    """Yield the chunks of the tree of requests in its order (`trie_order`), each of which fits (`require_fit`).

    At most half of the stored tokens belong to nodes that others continue, so that waves stay wide; a longer beginning
    has a chunk to itself.

    Args:
        ordered: distinct prompts.
        layout_of: returns a segment's layout.
        budget: bounds of the plan, without the resident tokens.
        resident: nodes that are already stored, each with its parent.
    """
    draft, path = _Draft(budget), list[TrieNode]()
    following = [*(_shared(former.prompt, latter.prompt) for former, latter in pairwise(ordered)), 0]
    shared = 0
    for request, continued in zip(ordered, following, strict=False):  # `following` has one number without requests too
        path = path[:shared] + _grow(path[:shared], request, continued, layout_of, resident)
        if not draft.takes(path[shared:]):
            yield draft.close(path[:shared])
            draft = _Draft(budget, carried=[node for node in path[:shared] if not node.resident])
        draft.add(path[shared:], depth=shared)
        shared = continued
    if draft.nodes:
        yield draft.close([])


def _shared(former: TokenPrompt, latter: TokenPrompt) -> int:
    pairs = zip(former.segments, latter.segments, strict=False)  # either may be longer
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _grow(
    path: Sequence[TrieNode],
    request: TokenRequest,
    continued: int,
    layout_of: Callable[[Segment], Layout],
    resident: Mapping[Beginning, TrieNode],
) -> list[TrieNode]:
    """Return the nodes that a prompt adds to the path of the preceding prompt."""
    segments = request.prompt.segments
    parent = path[-1] if path else None
    grown = []
    for depth in range(len(path), len(segments)):
        last = depth + 1 == len(segments)
        segment = segments[depth]
        # The last node has the request, so a resident node cannot replace it.
        present = None if last else resident.get(segments[: depth + 1])
        parent = present or TrieNode(
            segment,
            layout_of(segment),
            parent=parent,
            request=request if last else None,
            is_kept=not last or continued == len(segments),
        )
        grown.append(parent)
    return grown


def _temporary(node: TrieNode, budget: Budget) -> int:
    """Return the tokens that a node stores only during its wave."""
    return (0 if node.is_kept else node.size) + node.n_branches + (budget.n_generated if node.generates else 0)


@dataclass
class _Draft:
    """A chunk under construction."""

    budget: Budget
    carried: Sequence[TrieNode] = ()
    nodes: list[tuple[int, TrieNode]] = field(default_factory=list)  # depth and node
    stored: int = 0  # tokens of kept nodes
    widest: int = 0  # the most that one node stores during its wave

    def __post_init__(self) -> None:
        self.stored = sum(node.size for node in self.carried)

    def takes(self, nodes: Sequence[TrieNode]) -> bool:
        """Return whether the nodes of a further prompt fit; those of the first prompt always do."""
        stored = self.stored + sum(node.size for node in nodes if node.is_kept and not node.resident)
        widest = max(self.widest, *(_temporary(node, self.budget) for node in nodes))
        return not self.nodes or (2 * stored <= self.budget.stored and stored + widest <= self.budget.stored)

    def add(self, nodes: Sequence[TrieNode], depth: int) -> None:
        """Add the nodes of one prompt, the first one at `depth`."""
        self.nodes += ((level, node) for level, node in enumerate(nodes, start=depth) if not node.resident)
        self.stored += sum(node.size for node in nodes if node.is_kept and not node.resident)
        self.widest = max(self.widest, *(_temporary(node, self.budget) for node in nodes))

    def close(self, continued: Sequence[TrieNode]) -> Chunk:
        """Return the chunk; `continued` is the path with which the next one begins."""
        going_on = set(map(id, continued))
        held = [*self.carried, *(node for _, node in self.nodes if node.is_kept)]
        return Chunk(list(self._waves()), [node for node in held if id(node) not in going_on])

    def _waves(self) -> Iterator[list[TrieNode]]:
        """Yield inner nodes depth by depth, then all leaves of any depth; nodes of one shape are adjacent."""
        levels: dict[int, list[TrieNode]] = {}
        leaves: list[TrieNode] = []
        for depth, node in self.nodes:
            (levels.setdefault(depth, []) if node.is_kept else leaves).append(node)
        for nodes in [*(levels[depth] for depth in sorted(levels)), leaves]:
            yield from self._cut(sorted(nodes, key=lambda node: node.shape))

    def _cut(self, nodes: list[TrieNode]) -> Iterator[list[TrieNode]]:
        wave: list[TrieNode] = []
        tokens = stored = 0
        for node in nodes:
            new, more = node.size + node.n_branches, _temporary(node, self.budget)
            full = tokens + new > self.budget.wave or self.stored + stored + more > self.budget.stored
            if wave and full:
                yield wave
                wave, tokens, stored = [], 0, 0
            wave.append(node)
            tokens, stored = tokens + new, stored + more
        if wave:
            yield wave
