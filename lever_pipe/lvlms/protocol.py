"""What a member of `lvlms` must offer.

A member is a module of this package without a leading underscore: a family of models. It has one function,

    load(folder, *, dtype, device) -> LvlmFamily

which reads a local model folder strictly (a folder that lacks a file or whose tensors differ from the
architecture is a `CheckpointError`) and never reaches for the network. Ledger, merging, counters and the processes
of a job are the same for all families (`asking.answering`).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from lever_pipe.base import images
from lever_pipe.base.errors import ImageError
from lever_pipe.base.storage import read_bytes
from lever_pipe.experiment.lvlm_config import VISION_BYTES
from lever_pipe.lvlms.asking.prompts import ChatTemplate, Prompt, TextPrompt

if TYPE_CHECKING:
    from PIL.Image import Image

    from lever_pipe.lvlms._decoding import DecodeOptions
    from lever_pipe.lvlms._engine import Engine
    from lever_pipe.lvlms._requests import TokenPrompt

COUNTERS = (
    "images_shown",  # images in all prompts asked
    "images_distinct",  # different ones among them
    "images_encoded",  # passes of one image through the vision tower
    "prompts_asked",
    "prompts_distinct",  # different prompts, per call of `run`
    "prompts_from_ledger",  # distinct prompts whose every answer was already known
    "prompt_tokens",  # tokens of the distinct prompts that were computed, images expanded
    "trie_tokens_distinct",  # the same tokens, a prefix of segments shared by several prompts counted once
    "tokens_prefilled",  # prompt tokens that went through the language model
    "tokens_padded",  # padding that went along
    "forwards",  # passes of the language model, decoding included
    "products_tiled",  # tiles of matrix products, where a whole product would round a row by its company
    "flop",  # work on real tokens and images, padding excluded
    "seconds",  # wall time inside `run`
)


@dataclass(frozen=True)
class LvlmOptions:
    """What an answer depends on besides weights and prompt, and the size of a batch."""

    dtype: Literal["float32", "bfloat16"] = "float32"
    num_beams: int = 1  # 1 is greedy
    max_new_tokens: int = 5
    length_penalty: float = 0.0
    repetition_penalty: float = 1.0
    ends: tuple[str, ...] = ()  # tokens that end an answer beside the end of a turn; those of the folder if empty
    wave_tokens: int = 8192  # tokens of one forward
    kv_tokens: int = 65_536  # tokens whose keys and values are kept at one time
    vision_bytes: int = VISION_BYTES  # image features kept; the least recently used ones go first
    threads: int = 1  # that decode images ahead of a GPU


@dataclass(frozen=True)
class LvlmRequest:
    """One prompt: to be answered, and with given answers to be scored as its continuation."""

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


@runtime_checkable
class LvlmFamily(Protocol):
    """A loaded model of one architecture: its layers, its images, its tokens."""

    @property
    def member(self) -> str:
        """The module that loaded it."""
        ...

    @property
    def model(self) -> Any:
        """A torch module in evaluation mode."""
        ...

    @property
    def tokenizer(self) -> Any:
        """A tokenizer of transformers."""
        ...

    @property
    def folder(self) -> Path:
        """Where it was loaded from."""
        ...

    @property
    def template(self) -> ChatTemplate:
        """How it writes turns."""
        ...

    def render(self, prompt: Prompt) -> TextPrompt:
        """Return a prompt as it writes it."""
        ...

    @property
    def eos(self) -> int:
        """The token that ends a turn."""
        ...

    @property
    def image_token(self) -> int:
        """The placeholder that stands for an image."""
        ...

    @property
    def context(self) -> int:
        """The most tokens of a prompt with its answer."""
        ...

    def identity(self) -> dict[str, str]:
        """Return what of its folder an answer depends on; `weights` names the model."""
        ...

    def engine(
        self, images: ImageSource, *, options: LvlmOptions, decode: DecodeOptions, counters: Counter[str]
    ) -> Engine:
        """Return an engine over this model whose work is counted."""
        ...

    def stock_tokens(
        self, prompts: Sequence[TokenPrompt], *, open_image: Callable[[str], Image], options: DecodeOptions
    ) -> list[tuple[int, ...]]:
        """Return the tokens of each prompt by the model library's own, slow path, the end of the turn included."""
        ...


@runtime_checkable
class Lvlm(Protocol):
    """A loaded model; replies come in the order of the requests and do not depend on it."""

    @property
    def leads(self) -> bool:
        """Whether this process writes the results: the first of those that share a job."""
        ...

    @property
    def counters(self) -> dict[str, float]:
        """Work done since loading by all processes of the job, by the names in `COUNTERS`.

        On a GPU also `limit_seconds`, what the counted work would take at the rate of a large matrix product there,
        and `seconds_per_limit`.
        """
        ...

    def run(self, requests: Sequence[LvlmRequest]) -> list[LvlmReply]:
        """Return one reply a request."""
        ...

    def stock_answers(self, requests: Sequence[LvlmRequest]) -> list[str]:
        """Return generated texts by the model library's own, slow path, as a cross-check."""
        ...


class ImageSource:
    """Image files by digest.

    Attributes:
        opened: how many were decoded so far.
    """

    def __init__(self, paths: Mapping[str, Path]) -> None:
        self._paths = dict(paths)
        self.opened = 0

    def open(self, digest: str) -> Image:
        """Return the decoded image in RGB.

        Raises:
            ImageError: no file has this digest, its file cannot be decoded, or its bytes are others by now.
        """
        self.opened += 1
        return images.rgb(*self._read(digest))

    def size(self, digest: str) -> tuple[int, int]:
        """Return width and height of an image without decoding it.

        Raises:
            ImageError: as `open`, as far as the file's beginning tells.
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
            content = read_bytes(path)
        except OSError as fault:
            found = fault.strerror or str(fault)
            raise ImageError(f"{path}: expected a readable image", found=found, do="Restore the file.") from None
        _require_digest(path, content, digest)
        return path, content


def _require_digest(path: Path, content: bytes, digest: str) -> None:
    """Refuse other bytes: their answers would be kept under the wrong name."""
    if hashlib.sha256(content).hexdigest() != digest:
        raise ImageError(
            f"{path}: expected the image that the examples were prepared with",
            found="other bytes",
            do="Restore the image, or rerun the rule prepare_examples: snakemake --forcerun prepare_examples",
        )
