"""The dialogue format of a model folder: its tokenizer, its chat template, and tool calls in Qwen's format.

The agent's sampled tokens are never rendered or tokenized again. The chat template renders only the text before the
first turn and the text between two turns.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from lever_pipe.base.errors import CheckpointError
from lever_pipe.base.model_folders import end_tokens, readable, written
from lever_pipe.base.storage import is_unicode
from lever_pipe.intention.codecs.protocol import CALL_END, CALL_START, AgentTurn, ToolCall
from lever_pipe.intention.records import MissingDetail, Task

TOOL_NAME = "interact_with_env"
CHOICES = ("action", "answer", "search")

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": TOOL_NAME,
        "description": "Talk to the environment: put one question to the user.",
        "parameters": {
            "type": "object",
            "properties": {
                "choice": {
                    "type": "string",
                    "enum": list(CHOICES),
                    "description": "What kind of move this is; a question is an action.",
                },
                "content": {"type": "string", "description": "The question, in plain words."},
            },
            "required": ["choice", "content"],
        },
    },
}

SYSTEM = f"""You work with an environment that plays a user.

The environment is called IntentionGym. A user has posted a request that leaves out much of what matters to them. \
Your task is not to solve the request but to find out what the user really wants: each thing that they left unsaid, \
the most important first.

You have one tool, {TOOL_NAME}. Call it with the choice "action" and put a clarifying question into its content. The \
environment answers as the user would.

How to go about it:
- Before each call, think about what is still open, between <think> and </think>.
- Ask about one thing at a time. A question that mixes several things earns less than separate ones.
- Ask for something definite that bears on this request; vague and repeated questions earn nothing.
- The number of rounds is limited, so do not waste any.
- When nothing more needs to be asked, say so without calling the tool."""


def opening(task: Task) -> list[dict[str, str]]:
    """Return the messages before the agent's first turn."""
    request = (
        f"Category: {task.category}\n"
        f"Request: {task.task}\n\n"
        "This request leaves things open. Begin by asking the user what you need to know most."
    )
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": request}]


def tool_message(text: str, reward: float | None) -> str:
    """Return the tool message: the environment's text, and the turn's reward unless it is None."""
    return text if reward is None else f"{text}\nReward: {reward:g}"


THOUGHT_END = "</think>"
_CALL = re.compile(f"{CALL_START}(.*?){CALL_END}", re.DOTALL)
_FILES = ("tokenizer.json", "vocab.json", "tokenizer.model")
_STAND_IN = "The agent speaks here."
_DETAIL = MissingDetail(description="dates", importance=3)
EXAMPLE = Task(id="stand-in", category="Travel", task="Plan a trip for me.", missing_details=(_DETAIL,))
_ANSWER = "In the spring."
_QUESTION = ToolCall("action", 'When do you "travel"?')
USE = "Use an instruction-tuned model whose chat template shows and calls tools as Qwen3's does."


class HfCodec:
    """A codec for a Hugging Face tokenizer with a chat template.

    A turn ends with the template's end token, the tokenizer's end-of-sequence token or one of `end_ids`.

    Raises:
        CheckpointError: the template does not support system messages, tools or Qwen's tool calls.
    """

    def __init__(self, tokenizer: Any, source: str, end_ids: Iterable[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._source = source
        self._controls = [word for word in tokenizer.get_added_vocab() if word.strip()]
        # Test the template with an example: an unsuitable one often drops tools or messages without an error.
        if not tokenizer.chat_template:
            raise self._problem("tools", "no chat template")
        # Without the system message, whose text contains the tool's name.
        if TOOL_NAME not in self._render(opening(EXAMPLE)[1:], goes_on=True):
            raise self._problem("tools", "a template that omits them")
        if SYSTEM not in self._render(opening(EXAMPLE), goes_on=True, expected="a system message"):
            raise self._problem("the system message", "a template that omits it")
        after = self._after_agent(_ANSWER)
        if _ANSWER not in after:
            raise self._problem("tool messages", "a template that omits them")
        end = self._ids(after)[:1]
        self._turn_end = tokenizer.decode(end, skip_special_tokens=False)
        if self._turn_end not in self._controls:
            raise self._problem("a token that ends the agent's turn", f"{self._turn_end!r} after it")
        eos = [] if tokenizer.eos_token_id is None else [int(tokenizer.eos_token_id)]
        self.end_ids = frozenset({*end, *eos, *end_ids})
        self.pad_id = end[0] if tokenizer.pad_token_id is None else int(tokenizer.pad_token_id)
        # The template must write calls in the format that `parse` reads.
        if self.parse(self.call(_QUESTION)) != AgentTurn((_QUESTION,), "call"):
            raise self._problem(f"tool calls as {CALL_START}{{json}}{CALL_END}", "others")

    def prompt(self, task: Task) -> list[int]:
        """Return system message, tool schema, the user's request and the generation prefix."""
        fields = {"category": self._plain(task.category), "task": self._plain(task.task)}
        return self._ids(self._render(opening(task.model_copy(update=fields)), goes_on=True))

    def parse(self, tokens: Sequence[int]) -> AgentTurn:
        """Return the calls of one turn, ignoring its thoughts."""
        if not tokens or tokens[-1] not in self.end_ids:
            return AgentTurn((), "length")
        return turn_in(self._tokenizer.decode(list(tokens[:-1]), skip_special_tokens=False))

    def aside(self, tokens: Sequence[int]) -> str:
        """Return the text of a turn without its calls and end token; for a malformed turn, the whole text."""
        spoken = [token for token in tokens if token not in self.end_ids]
        text = str(self._tokenizer.decode(spoken, skip_special_tokens=False))
        return aside_of(text, is_read=self.parse(tokens).kind == "call")

    def feedback(self, text: str, reward: float | None) -> list[int]:
        """Return the tool message and the generation prefix, as the template renders them after the end token."""
        # The agent has already sampled its end token.
        return self._ids(self._after_agent(tool_message(self._plain(text), reward)).removeprefix(self._turn_end))

    def call(self, call: ToolCall) -> list[int]:
        """Return the turn with this call as the template renders it, including the end token."""
        function = {"name": TOOL_NAME, "arguments": call._asdict()}
        return self._agent_turn({"content": "", "tool_calls": [{"type": "function", "function": function}]})

    def closing(self) -> list[int]:
        """Return a turn without a call, including the end token."""
        return self._agent_turn({"content": "That is all I need to know."})

    def save(self, folder: Path) -> None:
        """Write the tokenizer's files into a folder."""
        self._tokenizer.save_pretrained(folder)

    def _agent_turn(self, message: dict[str, Any]) -> list[int]:
        before = self._render(opening(EXAMPLE), goes_on=True)
        text = self._render([*opening(EXAMPLE), {"role": "assistant", **message}], goes_on=False)
        content, end, _ = text.removeprefix(before).rpartition(self._turn_end)
        if not text.startswith(before) or not end:
            raise self._problem("agent turns that begin with the generation prefix and have an end", repr(text[-200:]))
        return self._ids(content + end)

    def _after_agent(self, message: str) -> str:
        """Return the template's text after an agent's turn, up to the next turn, with this tool message."""
        turns = [{"role": "assistant", "content": _STAND_IN}, {"role": "tool", "name": TOOL_NAME, "content": message}]
        _, stand_in, after = self._render([*opening(EXAMPLE), *turns], goes_on=True).partition(_STAND_IN)
        if not stand_in:
            raise self._problem("the agent's turns", "a template that omits them")
        return after

    def _render(
        self, messages: Sequence[dict[str, Any]], *, goes_on: bool, expected: str = "tools and their messages"
    ) -> str:
        try:
            return written(self._tokenizer, messages, tools=[TOOL], add_generation_prompt=goes_on)
        except Exception as error:  # noqa: BLE001 - a template can raise whatever Python can
            raise self._problem(expected, f"{type(error).__name__}: {error}".rstrip(".")) from None

    def _ids(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def _plain(self, text: str) -> str:
        """Return a text with all control tokens broken up, so that it cannot imitate a turn or a call."""
        for word in self._controls:
            text = text.replace(word, f"{word[0]} {word[1:]}")
        return text

    def _problem(self, expected: str, found: str) -> CheckpointError:
        return CheckpointError(f"{self._source}: expected a chat template with {expected}", found=found, do=USE)


def load(folder: Path) -> HfCodec:
    """Return the codec of a model folder."""
    from transformers import AutoTokenizer

    if not any((folder / name).is_file() for name in _FILES):
        raise CheckpointError(
            f"{folder}: expected a tokenizer", found=f"none of {', '.join(_FILES)}", do="Download the folder whole."
        )
    with readable(folder, "tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    return HfCodec(tokenizer, str(folder), end_tokens(folder))


def turn_in(text: str) -> AgentTurn:
    """Return the turn of a text; a call marker without its counterpart makes it malformed."""
    text = text.rpartition(THOUGHT_END)[2]  # calls that are only considered in thoughts do not count
    rest = _CALL.sub("", text)
    if CALL_START in rest or CALL_END in rest:
        return AgentTurn((), "malformed")
    return turn_of([json_in(match) for match in _CALL.findall(text)])


def aside_of(text: str, *, is_read: bool) -> str:
    """Return a turn's text, without its calls if `turn_in` could read them."""
    thought, end, rest = text.rpartition(THOUGHT_END)
    return (thought + end + (_CALL.sub("", rest) if is_read else rest)).strip()


def turn_of(calls: Sequence[object]) -> AgentTurn:
    """Return the turn with these calls; each must be an object with the tool's name, a choice and a text."""
    valid = [call for call in map(_call_of, calls) if call is not None]
    if len(valid) < len(calls):
        return AgentTurn((), "malformed")
    return AgentTurn(tuple(valid), "call" if calls else "closed")


def json_in(text: str) -> object:
    """Return the value of a JSON text, or None if it is invalid."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # a model can write deeply nested lists
        return None


def _call_of(value: object) -> ToolCall | None:
    arguments = value.get("arguments") if isinstance(value, dict) and value.get("name") == TOOL_NAME else None
    if not isinstance(arguments, dict) or arguments.get("choice") not in CHOICES:
        return None
    content = arguments.get("content")
    return ToolCall(arguments["choice"], content) if isinstance(content, str) and is_unicode(content) else None
