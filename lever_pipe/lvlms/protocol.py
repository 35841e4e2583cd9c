"""Interface of a plugin of `lvlms`.

A plugin is a module of this package without a leading underscore: a family of models, or a way to run any of them. It
has one function,

    load(folder, *, dtype, device) -> LvlmFamily

which reads a local model folder strictly (a folder that lacks a file or whose tensors differ from the architecture is a
`CheckpointError`) and never uses the network. `doctor` calls `described(folder)` to write a prompt: it is the same
without weights. For `served` a folder is the name of a model on a server: only this plugin connects, to the configured
server, and it has no `described`. Ledger, merging and counters are the same for all families (`asking.answering`).
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from lever_pipe.base import images
from lever_pipe.base.errors import ImageError
from lever_pipe.base.records import Example
from lever_pipe.lvlms.asking.prompts import Wording

if TYPE_CHECKING:
    from PIL.Image import Image

    from lever_pipe.experiment.job_runtime import LvlmExecution
    from lever_pipe.experiment.lvlm import AnswerSettings
    from lever_pipe.lvlms._requests import Results, TokenRequest
    from lever_pipe.lvlms.asking.prompts import Prompt, TextSegment

COUNTERS = (
    "images_shown",  # images in all requested prompts
    "images_distinct",  # different ones among them
    "images_encoded",  # passes of one image through the vision tower
    "prompts_asked",
    "prompts_distinct",  # different prompts, per call of `run`
    "prompts_from_ledger",  # distinct prompts with all answers in the ledger
    "prompts_refused",  # prompts that a server refused, kept as answers without words (`lvlm.server.accept_refusals`)
    "prompt_tokens",  # tokens of the distinct prompts that were computed, images expanded
    "trie_tokens_distinct",  # the same tokens, a prefix of segments shared by several prompts counted once
    "tokens_prefilled",  # prompt tokens that the language model processed
    "tokens_padded",  # padding that it processed with them
    "forwards",  # passes of the language model, decoding included
    "products_tiled",  # tiles of matrix products, used if a whole product would round a row depending on the others
    "seconds",  # wall time inside `run`
)


@dataclass(frozen=True)
class LvlmRequest:
    """One prompt to answer, and given answers to score as its continuation."""

    prompt: Prompt
    answers: tuple[str, ...] = ()


@dataclass(frozen=True)
class LvlmReply:
    """The answer to one request.

    Attributes:
        text: the generated answer without special tokens.
        n_tokens: generated tokens, the end of the turn included.
        token_log_probs: natural log-probability of each token of each given answer, the end of the turn last.
    """

    text: str
    n_tokens: int
    token_log_probs: tuple[tuple[float, ...], ...]

    @property
    def answer_log_probs(self) -> tuple[float, ...]:
        """The log-probability of each given answer, summed over its tokens and the end of the turn."""
        return tuple(map(sum, self.token_log_probs))


@dataclass(frozen=True)
class DecodeOptions:
    """Ends of an answer, tokens that it never contains, and search options; one beam is greedy.

    With a temperature of None the server chooses.
    """

    eos: tuple[int, ...]
    max_new_tokens: int
    num_beams: int = 1
    length_penalty: float = 0.0
    repetition_penalty: float = 1.0
    never: tuple[int, ...] = ()
    temperature: float | None = 0.0


@dataclass(frozen=True)
class LvlmFamily(ABC):
    """A loaded model: its tokens, its prompt format, and its engine.

    Attributes:
        folder: its model folder.
        tokenizer: of transformers.
        eos: the token that ends a turn.
        image_token: the placeholder of an image.
        context: maximum number of tokens of a prompt with its answer.
        before_answer: text between the beginning of a turn and an answer.
    """

    folder: Path
    tokenizer: Any
    eos: int
    image_token: int
    context: int
    before_answer: str

    @abstractmethod
    def identity(self) -> dict[str, str]:
        """Return digests of the parts of its folder that an answer depends on; `weights` identifies the model."""

    @abstractmethod
    def render(self, prompt: Prompt) -> tuple[TextSegment, ...]:
        """Return a prompt in the model's format, up to the answer, in segments that may be tokenized separately."""

    @abstractmethod
    def engine(
        self, images: ImageSource, settings: AnswerSettings, decode: DecodeOptions, execution: LvlmExecution
    ) -> Engine:
        """Return the engine that answers requests."""


class Engine(Protocol):
    """Computes answers with a loaded model.

    Attributes:
        backend: name of the method, part of the keys of answers in the ledger.
    """

    backend: str

    @property
    def counters(self) -> Counter[str]:
        """Work so far, by names in `COUNTERS`."""
        ...

    def run(self, requests: Sequence[TokenRequest]) -> Results:
        """Yield each request with its result as soon as it is done, in any order.

        Args:
            requests: with distinct prompts.

        Raises:
            PromptTooLongError: a prompt with its answer is longer than the model's context.
        """
        ...


class Lvlm(Protocol):
    """A loaded model; replies have the order of the requests and do not depend on it."""

    @property
    def counters(self) -> dict[str, float]:
        """Work done since loading, by the names in `COUNTERS`."""
        ...

    def run(self, requests: Sequence[LvlmRequest]) -> list[LvlmReply]:
        """Return one reply a request."""
        ...


def settings_of(processor: Any) -> str:
    """Return an image processor's settings as canonical text; the class names the resizing backend."""
    return json.dumps({"class": type(processor).__name__, **processor.to_dict()}, sort_keys=True, default=str)


class ImageSource:
    """Image files by digest.

    Attributes:
        opened: number of decoded images so far.
    """

    def __init__(self, paths: Mapping[str, Path]) -> None:
        self._paths = dict(paths)
        self.opened = 0

    def open(self, digest: str) -> Image:
        """Return the decoded image in RGB.

        Raises:
            ImageError: no file has this digest, the file cannot be decoded, or its bytes have changed.
        """
        self.opened += 1
        return images.rgb(*self._read(digest))

    def data_url(self, digest: str) -> str:
        """Return an image as a data URL for servers.

        Raises:
            ImageError: as `open`.
        """
        return images.data_url(*self._read(digest))

    def size(self, digest: str) -> tuple[int, int]:
        """Return width and height of an image without decoding it.

        Raises:
            ImageError: as `open`, as far as the beginning of the file shows.
        """
        return images.size_of(*self._read(digest))

    def _read(self, digest: str) -> tuple[Path, bytes]:
        path = self._paths.get(digest)
        if path is None:
            raise ImageError(
                f"image {digest}: expected a file with this digest",
                found="none",
                do="Pass the image folder from which the examples were prepared.",
            )
        try:
            content = path.read_bytes()
        except OSError as error:
            reason = error.strerror or str(error)
            raise ImageError(f"{path}: expected a readable image", found=reason, do="Restore the file.") from None
        # Otherwise answers to other bytes would be stored under this digest.
        if hashlib.sha256(content).hexdigest() != digest:
            raise ImageError(
                f"{path}: expected the image that the examples were prepared with",
                found="other bytes",
                do="Restore the image, or rerun the rule prepare_examples: snakemake --forcerun prepare_examples",
            )
        return path, content


def references_of(query: Example) -> tuple[str, ...]:
    """Return the distinct answers to score: the displayed one first, then in order of first mention."""
    return tuple(dict.fromkeys([query.answer, *query.answers]))


def request_of(query: Example, demonstrations: Iterable[Example], wording: Wording) -> LvlmRequest:
    """Return the request of a prompt: generate an answer and score all references.

    All purposes make the same request. The last bits of a score depend on the other answers of its batch, and the
    ledger keeps the first score. With different requests, values would depend on the order of jobs.
    """
    return LvlmRequest(wording.prompt(query, demonstrations), references_of(query))
