"""An LVLM with a ledger: converts texts to tokens, and stores and reuses answers."""

from __future__ import annotations

import hashlib
import math
import re
import time
from array import array
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from lever_pipe.base import numerics, plugins, rowwise
from lever_pipe.base.errors import CheckpointError, DataError, shortened
from lever_pipe.base.model_folders import end_tokens
from lever_pipe.base.progress import Progress
from lever_pipe.base.provenance import canonical_json, fingerprint, installed_versions, with_imports
from lever_pipe.base.records import Example
from lever_pipe.experiment.job_runtime import Runtime
from lever_pipe.experiment.lvlm import AnswerSettings
from lever_pipe.lvlms._requests import (
    Answer,
    PromptTooLongError,
    Result,
    Segment,
    TokenPrompt,
    TokenRequest,
    merge_requests,
)
from lever_pipe.lvlms.asking.ledger import ENGINE_DIGITS, Ledger, register, require_confirmation
from lever_pipe.lvlms.asking.prompts import TextSegment
from lever_pipe.lvlms.protocol import COUNTERS, DecodeOptions, ImageSource, LvlmFamily, LvlmReply, LvlmRequest

OF_EVERY_ENGINE = ("images", "rowwise")
"""Decoding of images, and matrix products."""
NOT_ENGINE = ("ledger", "prompts")
"""Modules that compute nothing; prompts are part of an answer's key."""


def load_lvlm(
    settings: AnswerSettings, folder: Path, splits: Sequence[tuple[Sequence[Example], Path]], runtime: Runtime
) -> LedgerLvlm:
    """Return the configured LVLM (`open_lvlm`) with access to the images of `(examples, image folder)` splits."""
    paths = {e.image_digest: root / e.image for examples, root in splits for e in examples}
    return open_lvlm(settings, folder, ImageSource(paths), runtime)


def open_lvlm(settings: AnswerSettings, folder: Path, images: ImageSource, runtime: Runtime = Runtime()) -> LedgerLvlm:
    """Return the model of a local folder; without a ledger it stores answers in this process only.

    Raises:
        CheckpointError: a file is missing, or tensors differ from the architecture.
    """
    torch.set_num_threads(runtime.threads)
    engine = plugins.plugin("lvlms", settings.engine)
    family: LvlmFamily = engine.load(folder, dtype=settings.dtype, device=runtime.device)
    return LedgerLvlm(family, settings, images, runtime)


class LedgerLvlm:
    """A family's model that computes no answer twice (`protocol.Lvlm`).

    `runtime` names the ledger, and sets whether a GPU may answer if the ledger has many answers of another engine.
    """

    def __init__(self, family: LvlmFamily, settings: AnswerSettings, images: ImageSource, runtime: Runtime) -> None:
        self.family = family
        self.ledger = Ledger(Path(runtime.ledger) if runtime.ledger else None)
        self._ask_again = runtime.lvlm.ask_again
        self._requested: Counter[str] = Counter()
        self._seconds = 0.0
        self._seen_images: set[str] = set()
        self._segments: dict[TextSegment, Segment] = {}
        self._ids: dict[str, Answer] = {}
        self._texts: dict[Answer, str] = {}
        special = {str(token) for token in family.tokenizer.added_tokens_decoder.values() if token.special}
        # Longest first, because one token may be the beginning of another.
        self._control = re.compile("|".join(map(re.escape, sorted(special, key=len, reverse=True))) or r"(?!)")
        search = settings.decode
        decode = DecodeOptions(
            eos=_ends_of(family, search.ends),
            never=(family.image_token,),  # in an answer it would be the placeholder of a missing image
            **search.model_dump(exclude={"ends"}),
        )
        self._engine = family.engine(images, settings, decode, runtime.lvlm)
        self._identity = _identity_of(family, settings, runtime.device, decode) | {"backend": self._engine.backend}
        self._engine_digest = hashlib.sha256(canonical_json(self._identity).encode()).hexdigest()[:ENGINE_DIGITS]
        self._has_begun = False

    @property
    def counters(self) -> dict[str, float]:
        """Work done since loading, by the names in `protocol.COUNTERS`."""
        counts = self._requested + self._engine.counters
        return {name: counts[name] for name in COUNTERS} | {"seconds": self._seconds}

    def run(self, requests: Sequence[LvlmRequest]) -> list[LvlmReply]:
        """Return one reply a request; answers in the ledger are not computed again.

        Finished prompts reach the ledger chunk by chunk, so a killed run continues where it stopped.

        Raises:
            ConfigError: a prompt exceeds `kv_tokens`, or a GPU would compute again many answers that the ledger has
                from another engine of the model.
            DataError: a prompt with its answer exceeds the model's context, or contains a control token.
            ImageError: an image cannot be read.
            CheckpointError: the model gives numbers that are not finite.
        """
        begin = time.perf_counter()
        tokenized = self.tokenize(requests)
        merged = merge_requests(tokenized)
        keys = {request.prompt: self.key(request.prompt) for request in merged}
        missing = [gap for request in merged if (gap := self._gap(request, keys[request.prompt])) is not None]
        self._count(tokenized, merged, len(missing))
        if missing and not self._has_begun:
            require_confirmation(
                self.ledger, self._engine_digest, self._identity, len(missing), ask_again=self._ask_again
            )
            if self.ledger.folder is not None:
                register(self.ledger.folder, self._engine_digest, self._identity)
            self._has_begun = True
        self._answer(missing, keys)
        replies = [self._to_reply(request, keys[request.prompt]) for request in tokenized]
        self._seconds += time.perf_counter() - begin
        return replies

    def _answer(self, missing: list[TokenRequest], keys: dict[TokenPrompt, str]) -> None:
        """Run the engine, and store each answer as soon as it is available."""
        tiles = rowwise.WORK["tiles"]
        try:
            # `closing` ends the engine's generator after an error too, so that it frees its stored tokens.
            with Progress(len(missing), "answer prompts") as progress, closing(self._engine.run(missing)) as results:
                for request, result in results:
                    self.ledger.put(keys[request.prompt], self._to_row(request, result))
                    progress.update()
        except PromptTooLongError as error:
            raise self._too_long(error) from None
        finally:
            self.ledger.flush()
        self._requested["products_tiled"] += rowwise.WORK["tiles"] - tiles

    def key(self, prompt: TokenPrompt) -> str:
        """Return the ledger key: a digest of exactly the inputs that an answer depends on."""
        digest = hashlib.sha256()
        # Lengths precede contents, so that different prompts never have the same bytes.
        for segment in prompt.segments:
            digest.update(f"\0{len(segment.ids)}\0{' '.join(segment.images)}\0".encode())
            digest.update(array("q", segment.ids).tobytes())
        return self._engine_digest + digest.hexdigest()[ENGINE_DIGITS:]

    def _gap(self, request: TokenRequest, key: str) -> TokenRequest | None:
        """Return the part of a request that the ledger lacks."""
        row = self.ledger.get(key) or {}
        scores = row.get("scores", {})
        answers = tuple(answer for answer in request.answers if _name(answer) not in scores)
        generate = "tokens" not in row
        return TokenRequest(request.prompt, answers, generate) if answers or generate else None

    def _too_long(self, problem: PromptTooLongError) -> DataError:
        return DataError(
            f"prompt of {len(problem.prompt.images)} images that ends with {problem.prompt.text[-120:]!r}: "
            f"expected at most {problem.limit} tokens with its answer, the context",
            found=str(problem.tokens),
            do="Show fewer demonstrations (evaluation.shots, rl_data.shots), or lower max_pixels in the model folder.",
        )

    def _to_row(self, request: TokenRequest, result: Result) -> dict[str, Any]:
        log_probs = [*result.token_log_probs, *chain.from_iterable(result.scores)]
        if not all(map(math.isfinite, log_probs)):
            raise CheckpointError(
                f"{self.family.folder}: expected a model that gives finite log-probabilities",
                found=f"{', '.join(map(str, log_probs[:5]))} for the prompt of {len(request.prompt.images)} images",
                do="Fix its config.json or weights, or set lvlm.dtype to float32.",
            )
        row: dict[str, Any] = {}
        if request.generate:
            row["tokens"] = list(result.tokens)
            row["text"] = self._text(result.tokens)
            row["token_log_probs"] = list(result.token_log_probs)
        if request.generate and result.beam_score is not None:
            row["beam_score"] = result.beam_score
        if request.answers:
            pairs = zip(request.answers, result.scores, strict=True)
            row["scores"] = {_name(answer): list(scores) for answer, scores in pairs}
        return row

    def _to_reply(self, request: TokenRequest, key: str) -> LvlmReply:
        row = self.ledger.get(key) or {}
        scores = row.get("scores", {})
        of_answers = tuple(tuple(scores[_name(answer)]) for answer in request.answers)
        return LvlmReply(row["text"], len(row["tokens"]), of_answers)

    def tokenize(self, requests: Sequence[LvlmRequest]) -> list[TokenRequest]:
        """Return requests in tokens; new texts are tokenized in one call."""
        rendered = [self.family.render(request.prompt) for request in requests]
        answers = {answer for group in {request.answers for request in requests} for answer in group}
        texts = {segment.text for segments in rendered for segment in segments}
        texts.update(self.family.before_answer + answer for answer in answers)
        if unmet := sorted(texts - self._ids.keys()):
            # Needed for new texts only: the others were checked before.
            self._require_plain({text for r in requests for text in (*r.prompt.texts, *r.answers)})
            encoded = self.family.tokenizer(unmet, add_special_tokens=False).input_ids
            self._ids.update(zip(unmet, map(tuple, encoded), strict=True))
        prompts = [TokenPrompt(tuple(map(self._to_segment, segments))) for segments in rendered]
        pairs = zip(prompts, requests, strict=True)
        return [TokenRequest(prompt, tuple(map(self._to_answer, request.answers))) for prompt, request in pairs]

    def _to_answer(self, text: str) -> Answer:
        return *self._ids[self.family.before_answer + text], self.family.eos

    def _to_segment(self, segment: TextSegment) -> Segment:
        if segment not in self._segments:
            ids = self._ids[segment.text]
            n_images = ids.count(self.family.image_token)
            if n_images != len(segment.images):
                raise DataError(
                    f"prompt segment {segment.text[:80]!r}: expected {len(segment.images)} image placeholders",
                    found=f"{n_images} after tokenizing",
                    do="Remove control tokens from the data, or use this model's own tokenizer.",
                )
            self._segments[segment] = Segment(ids, segment.images, segment.text)
        return self._segments[segment]

    def _require_plain(self, texts: set[str]) -> None:
        """Refuse texts that the tokenizer would read as the end of a turn or as an image."""
        for text in texts:
            if token := self._control.search(text):
                raise DataError(
                    f"{shortened(text)!r}: expected a question or an answer of plain text",
                    found=f"the control token {token.group()}",
                    do="Remove it from the data; it would cut the prompt.",
                )

    def _text(self, tokens: Answer) -> str:
        if tokens not in self._texts:
            self._texts[tokens] = str(self.family.tokenizer.decode(list(tokens), skip_special_tokens=True))
        return self._texts[tokens]

    def _count(self, tokenized: list[TokenRequest], merged: list[TokenRequest], n_missing: int) -> None:
        self._seen_images.update(digest for request in merged for digest in request.prompt.images)
        self._requested["images_shown"] += sum(len(request.prompt.images) for request in tokenized)
        self._requested["images_distinct"] = len(self._seen_images)
        self._requested["prompts_asked"] += len(tokenized)
        self._requested["prompts_distinct"] += len(merged)
        self._requested["prompts_from_ledger"] += len(merged) - n_missing


def _ends_of(family: LvlmFamily, wanted: Sequence[str]) -> tuple[int, ...]:
    """Return the tokens that end an answer, ascending: the end of a turn, and the wanted ones or else the folder's."""
    ends = [_token(family, text) for text in wanted] or end_tokens(family.folder)
    return tuple(sorted({family.eos, *ends}))


def _token(family: LvlmFamily, text: str) -> int:
    ids = family.tokenizer(text, add_special_tokens=False).input_ids
    if len(ids) != 1:
        raise CheckpointError(
            f"lvlm.decode.ends: expected single tokens of {family.folder}",
            found=f"{text!r}, which is {len(ids)} tokens",
            do="Name a special token of the tokenizer, as <|endoftext|>.",
        )
    return int(ids[0])


def _identity_of(family: LvlmFamily, settings: AnswerSettings, device: str, decode: DecodeOptions) -> dict[str, Any]:
    """Return all inputs of an answer except its prompt and the engine's backend."""
    kind, versions = torch.device(device).type, installed_versions()
    return {
        **family.identity(),
        "code": engine_code(f"lever_pipe.lvlms.{settings.engine}"),
        "libraries": {name: versions[name] for name in ("torch", "transformers", "tokenizers")},
        "dtype": settings.dtype,
        "device": kind,
        "numerics": numerics.path() if kind == "cpu" else "",
        **asdict(decode),
    }


def engine_code(plugin: str) -> str:
    """Return the fingerprint of an LVLM's computation: the modules of `lvlms` that it and this module use.

    `NOT_ENGINE` is left out, and `OF_EVERY_ENGINE` added. Answers of other code do not count as answers of this code.
    """
    code, package = with_imports([plugin, __name__]), plugin.rpartition(".")[0]
    last = {name: name.rpartition(".")[2] for name in code}
    own = {name for name in code if name.startswith(package) and last[name] not in NOT_ENGINE}
    return fingerprint({name: code[name] for name in code if name in own or last[name] in OF_EVERY_ENGINE})


@lru_cache(maxsize=65_536)
def _name(answer: Answer) -> str:
    return " ".join(map(str, answer))
