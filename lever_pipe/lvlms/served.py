"""Any vision-language model on a server with OpenAI's chat interface, identified by its name there.

The server's tokens are unknown here: a prompt is stored as the bytes of its messages, an answer as the bytes of its
text. An invalid reply (`base.replies`) is not stored: the job ends with an error, and the next one sends that prompt
again. A short text cut by the token limit is an answer, as in the engines of this process. Probabilities of given
answers require a server that returns `prompt_logprobs`, such as vLLM: the answer is sent as the assistant's turn, and
its tokens are those after the prompt's own.
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
from lever_pipe.base.errors import ConfigError, ServerError, shortened
from lever_pipe.base.replies import REFUSALS, WORDS, Problem, Reply, problem_of, reply_of
from lever_pipe.lvlms._requests import Answer, Result, Results, Scores, TokenPrompt, TokenRequest
from lever_pipe.lvlms.asking.prompts import Prompt, TextSegment
from lever_pipe.lvlms.protocol import DecodeOptions, ImageSource, LvlmFamily

if TYPE_CHECKING:
    from lever_pipe.experiment.job_runtime import LvlmExecution, LvlmServer
    from lever_pipe.experiment.lvlm import AnswerSettings

IMAGE, END = 0, 256
"""Codes for an image in a prompt, a character that JSON never contains unescaped, and for the end of an answer."""
IMAGE_PART = json.dumps({"type": "image"})
Messages = list[dict[str, Any]]
log = logging.getLogger(__name__)


class Utf8:
    """Maps texts to the numbers of their bytes, instead of a tokenizer."""

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
    """A model identified by its name, which is stored as `folder`."""

    def identity(self) -> dict[str, str]:
        """Return the name; the weights behind the name are the server's responsibility."""
        return {"weights": f"served {self.folder}"}

    def render(self, prompt: Prompt) -> tuple[TextSegment, ...]:
        """Return a prompt as the JSON of its messages."""
        text = json.dumps(prompt.messages(), ensure_ascii=False)
        return (TextSegment(text.replace(IMAGE_PART, chr(IMAGE)), prompt.images),)

    def engine(
        self, images: ImageSource, settings: AnswerSettings, decode: DecodeOptions, execution: LvlmExecution
    ) -> ServedEngine:
        """Return an engine that sends requests to the configured server."""
        del settings
        return ServedEngine(str(self.folder), images, decode, execution.server)


def load(folder: Path, *, dtype: str, device: str) -> Served:
    """Return the model with the name `folder` on a server."""
    del dtype, device
    return Served(folder, Utf8(), eos=END, image_token=IMAGE, context=0, before_answer="")


class Completion(NamedTuple):
    """Contents of a completion."""

    reply: Reply
    has_ended: bool
    prompt_tokens: int
    log_probs: Scores
    """Of each prompt token but the first; empty if the server gives none."""


class ServedEngine:
    """Answers requests by a server (`protocol.Engine`); `forwards` counts its calls."""

    backend = "served"

    def __init__(self, model: str, images: ImageSource, options: DecodeOptions, server: LvlmServer) -> None:
        self.counters = Counter[str]()
        self._model, self._images, self._options = model, images, options
        self._server, self._lock = server, Lock()
        self._n_trailing = 0  # tokens that the server's template writes after an answer; the first ends its turn

    @cached_property
    def _chat(self) -> Chat:
        return Chat(find_access(self._server), self._server)

    def run(self, requests: Sequence[TokenRequest]) -> Results:
        """Yield each request with its result, in the order of their texts.

        Raises:
            ConfigError: answers are given, and the server returns no probabilities.
            ServerError: it refuses the key, the model or a setting, a limit is reached, or a prompt has no answer.
        """
        ordered = sorted(requests, key=lambda request: request.prompt.text)  # servers cache common beginnings
        if not self._n_trailing and (scored := [request for request in ordered if request.answers]):
            self._learn_to_score(scored[0])
        n_refused = self.counters["prompts_refused"]
        lost: list[tuple[TokenRequest, Problem | None]] = []
        for request, result in zip(ordered, at_once(self._chat.concurrency, self._answer, ordered), strict=True):
            if isinstance(result, Result):
                yield request, result
            else:
                lost.append((request, result))
        if n_refused := self.counters["prompts_refused"] - n_refused:
            log.warning("%s refused %d of %d prompts: answers without words", self._model, n_refused, len(ordered))
        if lost:
            raise self._unanswered(lost, len(ordered))

    def _unanswered(self, lost: Sequence[tuple[TokenRequest, Problem | None]], n_asked: int) -> ServerError:
        """Return the error that counts the prompts without an answer by their problems, and quotes the first one."""
        counts = Counter(WORDS[problem] if problem else "no reply" for _, problem in lost)
        listed = "; ".join(f"{words}: {count}" for words, count in counts.most_common())
        last_problem = f"; the last problem: {self._chat.counts.last_error}" if "no reply" in counts else ""
        problems, remedies = {problem for _, problem in lost}, []
        if None in problems:
            remedies.append(
                "Raise timeout_seconds, retries or patience_seconds of lvlm.server; where the server calls a prompt too"
                " large, show fewer demonstrations or smaller images."
            )
        if problems & {"thinking", "thought", "empty"}:
            remedies.append(
                "Serve the model without thoughts (enable_thinking: false in its chat template), or raise"
                " lvlm.decode.max_new_tokens and set lvlm.server.strip_thoughts: true."
            )
        if problems & {*REFUSALS}:
            remedies.append("To count refusals as wrong answers, set lvlm.server.accept_refusals: true.")
        question = _messages_of(lost[0][0].prompt)[-1]["content"][-1]["text"]
        return ServerError(
            f"{self._chat.url}: expected an answer of {self._model} to each of {n_asked} prompts",
            found=f"none to {len(lost)} of them ({listed}){last_problem}; the first of these prompts ends with"
            f" {shortened(question)!r}",
            do=f"Run again: the ledger has the others. {' '.join(remedies)}".strip(),
        )

    def _answer(self, request: TokenRequest) -> Result | Problem | None:
        """Return the result of a request, the problem of the reply, or None if the server gave no reply."""
        messages, options = self._messages(request.prompt), self._options
        beyond = {} if options.repetition_penalty == 1 else {"repetition_penalty": options.repetition_penalty}
        completion = self._ask(messages, reserved=options.max_new_tokens if request.generate else 1, **beyond)
        if completion is None:
            return None
        text, problem = self._text_in(completion.reply) if request.generate else ("", None)
        if problem:
            return problem
        whole = [self._with_answer(messages, answer) for answer in request.answers]
        # Scores need the log-probabilities of more tokens than the prompt has.
        if not all(0 < completion.prompt_tokens < len(log_probs) for log_probs in whole):
            return None
        words = (*text.encode(), *([END] if completion.has_ended else [])) if request.generate else ()
        begin, tail = completion.prompt_tokens - 1, self._n_trailing - 1  # the first token has no probability
        return Result(words, scores=tuple(log_probs[begin : len(log_probs) - tail] for log_probs in whole))

    def _text_in(self, reply: Reply) -> tuple[str, Problem | None]:
        """Return the text of a reply and its problem; an accepted refusal is an empty text."""
        problem = problem_of(reply, strips_thoughts=self._server.strip_thoughts, may_be_cut=True)
        if problem in REFUSALS and self._server.accept_refusals:
            # Requests run in several threads.
            with self._lock:
                self.counters["prompts_refused"] += 1
            return "", None
        return reply.text, problem

    def _learn_to_score(self, request: TokenRequest) -> None:
        messages, answer = self._messages(request.prompt), request.answers[0]
        # With and without the end of its turn: the difference is the number of the template's trailing tokens.
        whole, begun = (self._with_answer(messages, answer, ends=ends) for ends in (True, False))
        self._n_trailing = len(whole) - len(begun)
        if not begun or self._n_trailing < 1:
            raise ConfigError(
                f"{self._chat.url}: expected the probabilities of given answers (prompt_logprobs), which RL data,"
                " beams and on-policy rewards require",
                found=f"none {self._chat.counts.last_error}".strip(),
                do="Ask `vllm serve`, or set lvlm.engine to vllm or hf; the evaluation alone needs none.",
            )

    def _with_answer(self, messages: Messages, answer: Answer, *, ends: bool = True) -> Scores:
        """Return the log-probabilities of the tokens of a prompt, then of an answer; empty if there are none."""
        dialogue = [*messages, {"role": "assistant", "content": Utf8().decode(answer)}]
        options = {"add_generation_prompt": False, "continue_final_message": not ends, "prompt_logprobs": 0}
        return completion.log_probs if (completion := self._ask(dialogue, reserved=1, **options)) else ()

    def _ask(self, messages: Messages, *, reserved: int, **beyond: Any) -> Completion | None:
        """Return the server's completion; `beyond` are parameters that OpenAI's own interface lacks."""
        temperature = self._options.temperature
        request = {"model": self._model, "messages": messages, "temperature": temperature, "max_tokens": reserved}
        completion = self._chat.answer({**request, "extra_body": beyond}, read)
        if completion is not None:
            with self._lock:
                self.counters.update(forwards=1, prompt_tokens=completion.prompt_tokens)
        return completion

    def _messages(self, prompt: TokenPrompt) -> Messages:
        messages = _messages_of(prompt)
        parts = [part for message in messages for part in message["content"] if part["type"] == "image"]
        for part, digest in zip(parts, prompt.images, strict=True):
            part.update(type="image_url", image_url={"url": self._images.data_url(digest)})
        return messages


def _messages_of(prompt: TokenPrompt) -> Messages:
    """Return the messages of a prompt, an image as its placeholder."""
    messages: Messages = json.loads(prompt.text.replace(chr(IMAGE), IMAGE_PART))
    return messages


def read(completion: dict[str, Any]) -> Completion:
    """Parse a chat completion.

    Raises:
        UnreadableError: the server interrupted it, or a part has the wrong type; another attempt may succeed.
    """
    reply, reason = reply_of(completion), completion["choices"][0].get("finish_reason")
    if reply.finish == "broken off":
        raise UnreadableError(WORDS["broken off"])
    try:
        steps = [next(iter(step.values()))["logprob"] for step in (completion.get("prompt_logprobs") or [None])[1:]]
        tokens = int((completion.get("usage") or {}).get("prompt_tokens", 0))
        return Completion(reply, reason == "stop", tokens, tuple(map(float, steps)))
    except (AttributeError, LookupError, StopIteration, TypeError, ValueError):
        raise UnreadableError("an answer whose usage or prompt_logprobs is no numbers") from None
