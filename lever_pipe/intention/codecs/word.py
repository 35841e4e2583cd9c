"""A codec with one token per word for dialogues of the embedded world, with markers similar to Qwen's.

An agent's turn is `<tool_call> action what about date and place </tool_call> <im_end>`; any turn without a call closes
the dialogue. The environment answers `<im_start> environment date is soon reward 0.7 <im_end> <im_start> assistant`.
Its role is not `tool`, because that word is a slot of the embedded world.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from lever_pipe.base import storage
from lever_pipe.base.errors import CheckpointError, DataError
from lever_pipe.intention import lexicon
from lever_pipe.intention.codecs.protocol import CALL_END, CALL_START, AgentTurn, ToolCall
from lever_pipe.intention.records import Task

FILE = "words.json"
PAD, TURN_START, TURN_END = "<pad>", "<im_start>", "<im_end>"
SPECIAL = (PAD, "<eos>", TURN_START, TURN_END, CALL_START, CALL_END, "<tool_response>", "</tool_response>")
ROLES = ("user", "assistant", "environment")
PUNCTUATION = (":", ",", ".")
FUNCTION_WORDS = ("task", "what", "about", "and", "is", "reward", "action", "no", "need", "asked", "all", "set")
REWARDS = tuple(f"{tenths / 10:.1f}" for tenths in range(11))
GRAMMAR = (*SPECIAL, *ROLES, *PUNCTUATION, *FUNCTION_WORDS, *REWARDS)
"""Words that every vocabulary must contain."""
CHOICES = ("action",)
_WORD = re.compile(r"\d+\.\d+|\w+|[^\w\s]")
_CALL = re.compile(f"{CALL_START}(.*?){CALL_END}")


class WordCodec:
    """A codec with a fixed list of words; the id of a word is its index."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = tuple(words)
        self._ids = {word: i for i, word in enumerate(self.words)}
        self.vocabulary_size = len(self.words)
        self.pad_id = self._ids[PAD]
        self.end_ids = frozenset({self._ids[TURN_END]})
        self._reply_prefix = self._special(TURN_START, "assistant")

    @classmethod
    def of_world(cls) -> WordCodec:
        """Return the codec of the embedded world: 63 words."""
        return cls((*GRAMMAR, *lexicon.CATEGORIES, *lexicon.SLOTS, *lexicon.VALUES))

    def prompt(self, task: Task) -> list[int]:
        """Return the request as a turn of the user, and the generation prefix."""
        request = self._text(task.task, f"task {task.id!r}")
        return [*self._special(TURN_START, "user"), *request, *self._special(TURN_END), *self._reply_prefix]

    def parse(self, tokens: Sequence[int]) -> AgentTurn:
        """Return the calls of one turn; unbalanced call markers and unknown choices make it malformed."""
        if not tokens or tokens[-1] not in self.end_ids:
            return AgentTurn((), "length")
        text = " ".join(self.words[token] for token in tokens[:-1])
        calls = [inside.split() for inside in _CALL.findall(text)]
        rest = _CALL.sub("", text).split()
        # A marker that remains within or between calls has no counterpart.
        is_read = not {CALL_START, CALL_END} & {*rest, *(word for call in calls for word in call)}
        if not is_read or any(not call or call[0] not in CHOICES for call in calls):
            return AgentTurn((), "malformed")
        return AgentTurn(tuple(ToolCall(call[0], " ".join(call[1:])) for call in calls), "call" if calls else "closed")

    def aside(self, tokens: Sequence[int]) -> str:
        """Return the words of a turn without its calls and end token; for a malformed turn, all words."""
        text = " ".join(self.words[token] for token in tokens if token not in self.end_ids)
        return _CALL.sub("", text).strip() if self.parse(tokens).kind == "call" else text

    def feedback(self, text: str, reward: float | None) -> list[int]:
        """Return the environment's turn and the generation prefix.

        The reward is clamped to 0.0-1.0 and rounded to one decimal, because the vocabulary has no other numbers.
        """
        words = self._text(text, "the simulator's feedback")
        number = [] if reward is None else self._special("reward", f"{min(1.0, max(0.0, reward)):.1f}")
        header = self._special(TURN_START, "environment")
        return [*header, *words, *number, *self._special(TURN_END), *self._reply_prefix]

    def call(self, call: ToolCall) -> list[int]:
        """Return the turn with this call, including the end token."""
        question = self._text(call.content, "a question")
        return [*self._special(CALL_START, call.choice), *question, *self._special(CALL_END, TURN_END)]

    def closing(self) -> list[int]:
        """Return the turn `all set`, including the end token."""
        return self._special("all", "set", TURN_END)

    def save(self, folder: Path) -> None:
        """Write the words into `words.json` of a folder."""
        storage.write_json(folder / FILE, list(self.words))

    def _special(self, *words: str) -> list[int]:
        return [self._ids[word] for word in words]

    def _text(self, text: str, source: str) -> list[int]:
        """Return ids of plain words; a marker in a text is split up, so that no text can imitate a turn."""
        words = _WORD.findall(text)
        unknown = sorted({word for word in words if word not in self._ids})
        if unknown:
            raise DataError(
                f"{source}: expected words of codec 'word'",
                found=", ".join(map(repr, unknown[:5])),
                do="Use synthetic tasks and simulator 'rule', or a model folder with codec 'hf'.",
            )
        return [self._ids[word] for word in words]


def load(folder: Path) -> WordCodec:
    """Return the codec of a policy folder."""
    words = storage.read_json(folder / FILE)
    is_list = isinstance(words, list) and all(isinstance(word, str) for word in words)
    if not is_list or len(set(words)) < len(words) or not set(GRAMMAR) <= set(words):
        expected = f"{folder / FILE}: expected a list of distinct words with every marker"
        raise CheckpointError(expected, found="another value", do="Rebuild the policy.")
    return WordCodec(words)
