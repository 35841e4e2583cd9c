"""Any vision-language model behind a server that speaks OpenAI's chat interface, known by its name there.

The server's tokens are not known here: a prompt is kept as the bytes of its messages, an answer as the bytes of its
text. Probabilities of given answers come from servers that return `prompt_logprobs` (vLLM does): the answer is sent as
the assistant's turn, and its tokens are those behind the prompt's own.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import Lock
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from lever_pipe.base.chat import Chat, UnreadableError, at_once, find_access
from lever_pipe.base.errors import ConfigError, ServerError
from lever_pipe.lvlms._requests import Answer, Result, Results, Scores, TokenPrompt, TokenRequest
from lever_pipe.lvlms.asking.prompts import Prompt, TextSegment
from lever_pipe.lvlms.protocol import DecodeOptions, ImageSource, LvlmFamily

if TYPE_CHECKING:
    from lever_pipe.base.chat import Connection
    from lever_pipe.experiment.lvlm_config import AnswerSettings, LvlmExecution

IMAGE, END = 0, 256
"""What stands for an image in a prompt, which JSON never holds as such, and for the end of an answer."""
SHOWN = json.dumps({"type": "image"})
Messages = list[dict[str, Any]]
log = logging.getLogger(__name__)


class Utf8:
    """Texts as the numbers of their bytes, in place of a tokenizer."""

    def __init__(self) -> None:
        self.added_tokens_decoder: dict[int, Any] = {}

    def __call__(self, texts: Sequence[str], **_: Any) -> SimpleNamespace:
        """Return the numbers of each text as `input_ids`."""
        return SimpleNamespace(input_ids=[tuple(text.encode()) for text in texts])

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        """Return the text of an answer."""
        return bytes(byte for byte in ids if byte != END).decode()


@dataclass(frozen=True)
class Served(LvlmFamily):
    """A model by its name, which stands as `folder`."""

    def identity(self) -> dict[str, str]:
        """Return the name; what stands behind it is the server's affair."""
        return {"weights": f"served {self.folder}"}

    def render(self, prompt: Prompt) -> tuple[TextSegment, ...]:
        """Return a prompt as the JSON of its messages."""
        text = json.dumps(prompt.messages(), ensure_ascii=False)
        return (TextSegment(text.replace(SHOWN, chr(IMAGE)), prompt.images),)

    def engine(
        self, images: ImageSource, settings: AnswerSettings, decode: DecodeOptions, execution: LvlmExecution
    ) -> ServedEngine:
        """Return an engine that asks the configured server."""
        del settings
        return ServedEngine(str(self.folder), images, decode, execution.server)


def load(folder: Path, *, dtype: str, device: str) -> Served:
    """Return the model that a server knows by the name `folder`."""
    del dtype, device
    return Served(folder, Utf8(), eos=END, image_token=IMAGE, context=0, before_answer="")


class Completion(NamedTuple):
    """What a completion holds; a refusal is an answer without words."""

    text: str
    has_ended: bool
    is_refused: bool
    prompt_tokens: int
    log_probs: Scores
    """Of each prompt token but the first; empty from a server that gives none."""


class ServedEngine:
    """Answers requests by a server (`protocol.Engine`); as `forwards` it counts what it asked."""

    backend = "served"

    def __init__(self, model: str, images: ImageSource, options: DecodeOptions, connection: Connection) -> None:
        self.counters = Counter[str]()
        self._model, self._images, self._options = model, images, options
        self._connection, self._lock = connection, Lock()
        self._n_refused = 0
        self._n_behind = 0  # tokens that the server's template writes behind an answer; the first ends its turn

    @cached_property
    def _chat(self) -> Chat:
        return Chat(find_access(self._connection), self._connection)

    def run(self, requests: Sequence[TokenRequest]) -> Results:
        """Yield each request with its result, in the order of their texts.

        Raises:
            ConfigError: answers are given to a server that tells no probabilities.
            ServerError: it refuses the key or the model, a limit is reached, or some prompt had no answer.
        """
        ordered = sorted(requests, key=lambda request: request.prompt.text)  # servers keep common beginnings
        if not self._n_behind and (scored := [request for request in ordered if request.answers]):
            self._learn_to_score(scored[0])
        n_lost, n_refused = 0, self._n_refused
        for request, result in zip(ordered, at_once(self._chat.concurrency, self._answer, ordered), strict=True):
            n_lost += result is None
            if result is not None:
                yield request, result
        if self._n_refused > n_refused:
            log.warning("%s refused %d of %d prompts", self._model, self._n_refused - n_refused, len(ordered))
        if n_lost:
            raise ServerError(
                f"{self._chat.url}: expected an answer of {self._model} to each of {len(ordered)} prompts",
                found=f"none to {n_lost} of them; the last fault: {self._chat.counts.last_fault}",
                do="Run again: the ledger has the others. Raise timeout_seconds or retries of lvlm.server; where the"
                " server calls a prompt too large, show fewer demonstrations or smaller images.",
            )

    def _answer(self, request: TokenRequest) -> Result | None:
        """Return the result of a request; None where the server gave none."""
        messages, options = self._messages(request.prompt), self._options
        beyond = {} if options.repetition_penalty == 1 else {"repetition_penalty": options.repetition_penalty}
        reply = self._ask(messages, room=options.max_new_tokens if request.generate else 1, **beyond)
        whole = [self._with_answer(messages, answer) for answer in request.answers] if reply else []
        if reply is None or not all(0 < reply.prompt_tokens < len(log_probs) for log_probs in whole):
            return None
        words = (*reply.text.encode(), *([END] if reply.has_ended else [])) if request.generate else ()
        begin, tail = reply.prompt_tokens - 1, self._n_behind - 1  # the first token has no probability
        return Result(words, scores=tuple(log_probs[begin : len(log_probs) - tail] for log_probs in whole))

    def _learn_to_score(self, request: TokenRequest) -> None:
        messages, answer = self._messages(request.prompt), request.answers[0]
        whole, begun = (self._with_answer(messages, answer, ends=ends) for ends in (True, False))
        self._n_behind = len(whole) - len(begun)
        if not begun or self._n_behind < 1:
            raise ConfigError(
                f"{self._chat.url}: expected the probabilities of given answers (prompt_logprobs), of which RL data,"
                " beams and on-policy rewards are made",
                found=f"none {self._chat.counts.last_fault}".strip(),
                do="Ask `vllm serve`, or set lvlm.member to vllm or hf; the evaluation alone needs none.",
            )

    def _with_answer(self, messages: Messages, answer: Answer, *, ends: bool = True) -> Scores:
        """Return the log-probabilities of a prompt's tokens and, behind them, of an answer's; empty for none."""
        dialogue = [*messages, {"role": "assistant", "content": Utf8().decode(answer)}]
        options = {"add_generation_prompt": False, "continue_final_message": not ends, "prompt_logprobs": 0}
        return reply.log_probs if (reply := self._ask(dialogue, room=1, **options)) else ()

    def _ask(self, messages: Messages, *, room: int, **beyond: Any) -> Completion | None:
        """Return what the server says; `beyond` is what OpenAI's own interface does not have."""
        request = {"model": self._model, "messages": messages, "temperature": 0.0, "max_tokens": room}
        reply = self._chat.answer({**request, "extra_body": beyond}, read)
        if reply is not None:
            with self._lock:
                self._n_refused += reply.is_refused
                self.counters.update(forwards=1, prompt_tokens=reply.prompt_tokens)
        return reply

    def _messages(self, prompt: TokenPrompt) -> Messages:
        messages: Messages = json.loads(prompt.text.replace(chr(IMAGE), SHOWN))
        parts = [part for message in messages for part in message["content"] if part["type"] == "image"]
        for part, digest in zip(parts, prompt.images, strict=True):
            part.update(type="image_url", image_url={"url": self._images.data_url(digest)})
        return messages


def read(completion: dict[str, Any]) -> Completion:
    """Return what a chat completion says."""
    choice = completion["choices"][0]
    message, reason = choice["message"], choice.get("finish_reason")
    is_refused = bool(message.get("refusal")) or reason == "content_filter"
    try:
        # Some servers keep the blank before a first word, which the same model's tokenizer drops.
        text = "" if is_refused else (message.get("content") or "").encode().decode().strip()
        steps = [next(iter(step.values()))["logprob"] for step in (completion.get("prompt_logprobs") or [None])[1:]]
        tokens = int((completion.get("usage") or {}).get("prompt_tokens", 0))
        return Completion(text, reason == "stop", is_refused, tokens, tuple(map(float, steps)))
    except (AttributeError, LookupError, StopIteration, TypeError, ValueError):
        raise UnreadableError("an answer whose content, usage or prompt_logprobs is no text and numbers") from None
