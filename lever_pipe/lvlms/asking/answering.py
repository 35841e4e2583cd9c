"""An LVLM that remembers: texts to tokens, the answer ledger, and the processes that share one job."""

from __future__ import annotations

import hashlib
import math
import os
import re
import time
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import timedelta
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import torch

from lever_pipe.base import members, numerics, rowwise
from lever_pipe.base.errors import CheckpointError, ConfigError, DataError
from lever_pipe.base.progress import Progress
from lever_pipe.base.provenance import canonical_json, engine_code, installed_versions
from lever_pipe.base.records import Example
from lever_pipe.base.storage import shortened
from lever_pipe.experiment.stage_configs import LvlmConfig, Runtime
from lever_pipe.lvlms._decoding import DecodeOptions
from lever_pipe.lvlms._flop import flop_per_second
from lever_pipe.lvlms._planner import PromptTooLongError, cut_shards
from lever_pipe.lvlms._requests import Result, Segment, TokenPrompt, TokenRequest, merge_requests
from lever_pipe.lvlms.asking.defaults import ends_of
from lever_pipe.lvlms.asking.ledger import ENGINE_DIGITS, Ledger, introduce, require_consent
from lever_pipe.lvlms.asking.prompts import TextPrompt, TextSegment
from lever_pipe.lvlms.protocol import COUNTERS, ImageSource, LvlmFamily, LvlmOptions, LvlmReply, LvlmRequest


def load_lvlm(
    config: LvlmConfig, folder: Path, splits: Sequence[tuple[Sequence[Example], Path]], runtime: Runtime
) -> LedgerLvlm:
    """Return the configured LVLM with access to the images of `(examples, image folder)` splits.

    Raises:
        CheckpointError: the model folder is missing or incomplete.
    """
    paths = {e.image_digest: root / e.image for examples, root in splits for e in examples}
    names = ("dtype", "wave_tokens", "kv_tokens")
    return open_lvlm(
        config.member,
        folder,
        options=LvlmOptions(
            **{name: getattr(config, name) for name in names},
            **config.decode.model_dump(),
            vision_bytes=runtime.vision_bytes,
            threads=runtime.threads,
        ),
        images=ImageSource(paths),
        device=runtime.device,
        threads=runtime.threads,
        ledger=Path(runtime.ledger) if runtime.ledger else None,
        ask_again=runtime.ask_again,
    )


def open_lvlm(
    member: str,
    folder: Path,
    *,
    options: LvlmOptions,
    images: ImageSource,
    device: str = "cpu",
    threads: int = 1,
    ledger: Path | None = None,
    ask_again: bool = False,
) -> LedgerLvlm:
    """Return the model of a local folder.

    Args:
        member: the family, a module of `lvlms`.
        folder: as the family reads it.
        options: what the answers depend on.
        images: files of the digests that prompts will name.
        device: a torch device.
        threads: CPU threads of torch.
        ledger: folder of the answer ledger; None to remember answers in this process only.
        ask_again: whether a GPU may answer although the ledger holds many answers of another engine of this model.

    Raises:
        CheckpointError: a file is missing, or tensors differ from the architecture.
    """
    torch.set_num_threads(threads)
    team = join_team(device)
    if team.size > 1 and ledger is None:
        raise ConfigError(
            "several processes: expected an answer ledger, through which they share their answers",
            found="none",
            do="Name a folder with --ledger.",
        )
    family: LvlmFamily = _family(member).load(folder, dtype=options.dtype, device=team.device)
    return LedgerLvlm(family, options=options, images=images, ledger=Ledger(ledger), team=team, ask_again=ask_again)


def _family(member: str) -> Any:
    return members.member("lvlms", member)


class LedgerLvlm:
    """A family's model that asks nothing twice and shares its work with a team (`protocol.Lvlm`).

    Args:
        family: the loaded model.
        options: what the answers depend on.
        images: files of the digests that prompts will name.
        ledger: what has been answered.
        team: the processes of the job.
        ask_again: whether a GPU may answer although the ledger holds many answers of another engine of this model.
    """

    def __init__(
        self,
        family: LvlmFamily,
        *,
        options: LvlmOptions,
        images: ImageSource,
        ledger: Ledger,
        team: Team,
        ask_again: bool = False,
    ) -> None:
        self.family = family
        self._images = images
        self._ledger = ledger
        self._team = team
        self._asked: Counter[str] = Counter()
        self._work: Counter[str] = Counter()  # of this process
        self._done: Counter[str] = Counter()  # of all of them
        self._seconds = 0.0
        self._seen_images: set[str] = set()
        self._segments: dict[TextSegment, Segment] = {}
        self._ids: dict[str, tuple[int, ...]] = {}
        self._texts: dict[tuple[int, ...], str] = {}
        self._decode = DecodeOptions(
            eos=ends_of(family.folder, family.tokenizer, family.eos, options.ends),
            max_new_tokens=options.max_new_tokens,
            num_beams=options.num_beams,
            length_penalty=options.length_penalty,
            repetition_penalty=options.repetition_penalty,
            never=(family.image_token,),  # behind a prompt it would stand for an image that nobody has shown
        )
        self._control = control_of(family.tokenizer)
        self._engine = family.engine(images, options=options, decode=self._decode, counters=self._work)
        self._identity = _identity_of(family, options, self._decode) | {"backend": self._engine.backend}
        self._engine_digest = hashlib.sha256(canonical_json(self._identity).encode()).hexdigest()[:ENGINE_DIGITS]
        self._ask_again = ask_again
        self._has_begun = False

    @property
    def leads(self) -> bool:
        """Whether this process writes the results of its job."""
        return self._team.rank == 0

    @property
    def counters(self) -> dict[str, float]:
        """Work done since loading, by the names in `protocol.COUNTERS`; on a GPU with its ratio to the limit."""
        counts = self._asked + self._done
        found: dict[str, float] = {name: counts[name] for name in COUNTERS} | {"seconds": self._seconds}
        model = self.family.model
        if model.device.type == "cuda" and counts["flop"]:
            reachable = self._team.size * flop_per_second(model.device, model.dtype)
            found["limit_seconds"] = counts["flop"] / reachable
            found["seconds_per_limit"] = self._seconds / found["limit_seconds"]
        return found

    def run(self, requests: Sequence[LvlmRequest]) -> list[LvlmReply]:
        """Return one reply a request; what the ledger knows is not computed again.

        Finished prompts reach the ledger chunk by chunk, so a killed run continues where it stopped. Of several
        processes each computes a shard; they call `run` with the same requests and get the same replies.

        Raises:
            ConfigError: `kv_tokens` has no room for a prompt, or a GPU would answer again what the ledger holds of
                another engine of the model.
            DataError: a prompt with its answer exceeds the model's context, or holds a control token.
            ImageError: an image cannot be read.
            CheckpointError: the model gives numbers that are not finite.
        """
        begin = time.perf_counter()
        self._team.wait()  # nobody writes to the ledger before everybody has read it
        written = self._tokenize(requests)
        asked = [self._to_request(request, text) for request, text in zip(requests, written, strict=True)]
        merged = merge_requests(asked)
        keys = {request.prompt: self.key(request.prompt) for request in merged}
        missing = [gap for request in merged if (gap := self._gap(request, keys[request.prompt])) is not None]
        self._count(asked, merged, len(missing))

        def keep(request: TokenRequest, result: Result) -> None:
            self._ledger.put(keys[request.prompt], self._to_row(request, result))
            progress.advance()

        if missing and not self._has_begun:
            self._begin(len(missing))
        share = self._share_of(merged, missing)
        tiles = rowwise.WORK["tiles"]
        try:
            with Progress(len(share), "answer prompts") as progress:
                self._engine.run(share, on_result=keep)
        except PromptTooLongError as fault:
            raise self._too_long(fault) from None
        finally:
            self._ledger.flush()
        self._work["products_tiled"] += rowwise.WORK["tiles"] - tiles
        self._gather()
        replies = [self._to_reply(request, keys[request.prompt]) for request in asked]
        self._seconds += time.perf_counter() - begin
        return replies

    def _begin(self, n_missing: int) -> None:
        """See to what comes before this engine's first answer."""
        require_consent(self._ledger, self._engine_digest, self._identity, n_missing, ask_again=self._ask_again)
        if self.leads and self._ledger.folder is not None:
            introduce(self._ledger.folder, {self._engine_digest: self._identity})
        self._has_begun = True

    def _share_of(self, merged: list[TokenRequest], missing: list[TokenRequest]) -> list[TokenRequest]:
        """Return what this process computes.

        The shards are cut from what is asked, which all processes know alike. What is missing they may see differently,
        where another job writes to the ledger while they read it.
        """
        if self._team.size == 1:
            return missing
        mine = {request.prompt for request in cut_shards(merged, self._team.size)[self._team.rank]}
        return [request for request in missing if request.prompt in mine]

    def _gather(self) -> None:
        """Take over the answers and the work of the other processes."""
        self._team.wait()
        if self._team.size > 1:
            self._ledger.reload()
        self._done = self._team.total(self._work, COUNTERS)

    def stock_answers(self, requests: Sequence[LvlmRequest]) -> list[str]:
        """Return generated texts by `model.generate` on pixels, without engine, ledger or shared images."""
        prompts = list(map(self._to_prompt, self._tokenize(requests)))
        tokens = self.family.stock_tokens(prompts, open_image=self._images.open, options=self._decode)
        return [self._text(answer) for answer in tokens]

    def key(self, prompt: TokenPrompt) -> str:
        """Return the ledger key: everything that an answer depends on, and nothing else."""
        digest = hashlib.sha256()
        for segment in prompt.segments:
            digest.update(f"\0{len(segment.ids)}\0{' '.join(segment.images)}\0".encode())
            digest.update(array("q", segment.ids).tobytes())
        return self._engine_digest + digest.hexdigest()[ENGINE_DIGITS:]

    def _gap(self, request: TokenRequest, key: str) -> TokenRequest | None:
        row = self._ledger.get(key) or {}
        known = row.get("scores", {})
        answers = tuple(answer for answer in request.answers if _name(answer) not in known)
        generate = "tokens" not in row
        return TokenRequest(request.prompt, answers, generate) if answers or generate else None

    def _too_long(self, fault: PromptTooLongError) -> DataError:
        text = self.family.tokenizer.decode(list(fault.prompt.segments[-1].ids), skip_special_tokens=True)
        return DataError(
            f"prompt of {len(fault.prompt.images)} images that ends with {text.strip()[-120:]!r}: "
            f"expected at most {self.family.context} tokens with its answer, the model's context",
            found=str(fault.tokens),
            do="Show fewer demonstrations (evaluation.shots, rl_data.shots), or lower max_pixels in the model folder.",
        )

    def _to_row(self, request: TokenRequest, result: Result) -> dict[str, Any]:
        log_probs = [*result.token_log_probs, *chain.from_iterable(result.scores)]
        if not all(map(math.isfinite, log_probs)):
            raise CheckpointError(
                f"{self.family.folder}: expected a model that gives finite log-probabilities",
                found=f"{', '.join(map(str, log_probs[:5]))} for the prompt of {len(request.prompt.images)} images",
                do="Mend its config.json or weights, or set lvlm.dtype to float32.",
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
        row = self._ledger.get(key) or {}
        scores = row.get("scores", {})
        told = tuple(tuple(scores[_name(answer)]) for answer in request.answers)
        return LvlmReply(row["text"], len(row["tokens"]), told)

    def _to_request(self, request: LvlmRequest, written: TextPrompt) -> TokenRequest:
        answers = tuple((*self._ids[self._answer(answer)], self.family.eos) for answer in request.answers)
        return TokenRequest(self._to_prompt(written), answers)

    def _to_prompt(self, written: TextPrompt) -> TokenPrompt:
        return TokenPrompt(tuple(map(self._to_segment, written.segments)))

    def _answer(self, text: str) -> str:
        return self.family.template.answer(text)

    def _to_segment(self, segment: TextSegment) -> Segment:
        found = self._segments.get(segment)
        if found is None:
            ids = self._ids[segment.text]
            shown = ids.count(self.family.image_token)
            if shown != len(segment.images):
                raise DataError(
                    f"prompt segment {segment.text[:80]!r}: expected {len(segment.images)} image placeholders",
                    found=f"{shown} after tokenizing",
                    do="Remove control tokens from the data, or use this model's own tokenizer.",
                )
            found = self._segments[segment] = Segment(ids, segment.images)
        return found

    def _tokenize(self, requests: Sequence[LvlmRequest]) -> list[TextPrompt]:
        """Tokenize all texts that were never met, in one call, and return the prompts as the family writes them."""
        written = [self.family.render(request.prompt) for request in requests]
        texts = {segment.text for prompt in written for segment in prompt.segments}
        asked = {request.answers for request in requests}  # of many prompts the same
        texts.update(self._answer(answer) for answers in asked for answer in answers)
        unmet = sorted(texts - self._ids.keys())
        if unmet:
            said = {text for request in requests for text in (*request.prompt.texts, *request.answers)}
            self._require_plain(said)
            encoded = self.family.tokenizer(unmet, add_special_tokens=False).input_ids
            self._ids.update(zip(unmet, map(tuple, encoded), strict=True))
        return written

    def _require_plain(self, texts: Iterable[str]) -> None:
        """Refuse texts that the tokenizer would read as the end of a turn or as an image."""
        for text in texts:
            if token := self._control.search(text):
                raise DataError(
                    f"{shortened(text)!r}: expected a question or an answer of plain text",
                    found=f"the control token {token.group()}",
                    do="Remove it from the data; it would cut the prompt.",
                )

    def _text(self, tokens: tuple[int, ...]) -> str:
        if tokens not in self._texts:
            self._texts[tokens] = str(self.family.tokenizer.decode(list(tokens), skip_special_tokens=True))
        return self._texts[tokens]

    def _count(self, asked: list[TokenRequest], merged: list[TokenRequest], n_missing: int) -> None:
        self._seen_images.update(digest for request in merged for digest in request.prompt.images)
        self._asked["images_shown"] += sum(len(request.prompt.images) for request in asked)
        self._asked["images_distinct"] = len(self._seen_images)
        self._asked["prompts_asked"] += len(asked)
        self._asked["prompts_distinct"] += len(merged)
        self._asked["prompts_from_ledger"] += len(merged) - n_missing


def control_of(tokenizer: Any) -> re.Pattern[str]:
    """Return the pattern of all texts that a tokenizer reads as special tokens."""
    special = {str(token) for token in tokenizer.added_tokens_decoder.values() if token.special}
    return re.compile("|".join(map(re.escape, sorted(special, key=len, reverse=True))) or r"(?!)")


def _identity_of(family: LvlmFamily, options: LvlmOptions, decode: DecodeOptions) -> dict[str, Any]:
    """Return all that an answer depends on besides its prompt and the engine's backend."""
    device, versions = family.model.device.type, installed_versions()
    return {
        **family.identity(),
        "code": engine_code(family.member, __name__),
        "libraries": {name: versions[name] for name in ("torch", "transformers", "tokenizers")},
        "dtype": options.dtype,
        "device": device,
        "numerics": numerics.path() if device == "cpu" else "",
        **asdict(decode),
    }


@lru_cache(maxsize=65_536)
def _name(answer: tuple[int, ...]) -> str:
    return " ".join(map(str, answer))


class Team(Protocol):
    """This process among those of its job."""

    rank: int
    size: int
    device: str

    def wait(self) -> None:
        """Return when all processes have come here."""
        ...

    def total(self, counts: Counter[str], names: Sequence[str]) -> Counter[str]:
        """Return the sum of the named counts over all processes."""
        ...


class SingleProcess:
    """A job of one process."""

    rank = 0
    size = 1

    def __init__(self, device: str) -> None:
        self.device = device

    def wait(self) -> None:
        """Return at once."""

    def total(self, counts: Counter[str], names: Sequence[str]) -> Counter[str]:
        """Return the named counts."""
        return Counter({name: counts[name] for name in names})


class AcceleratedTeam:
    """Processes that one launcher started, one a device."""

    def __init__(self, device: str) -> None:
        from accelerate import PartialState

        # Shards may end hours apart; the usual ten minutes would end the job of those who wait.
        self._state: Any = PartialState(cpu=device == "cpu", timeout=timedelta(days=7))
        self.rank = int(self._state.process_index)
        self.size = int(self._state.num_processes)
        self.device = str(self._state.device)

    def wait(self) -> None:
        """Return when all processes have come here."""
        self._state.wait_for_everyone()

    def total(self, counts: Counter[str], names: Sequence[str]) -> Counter[str]:
        """Return the sum of the named counts over all processes."""
        import torch
        from accelerate.utils import reduce

        # Double precision holds every integer up to 2**53, more than the work of a job.
        own = torch.tensor([counts[name] for name in names], dtype=torch.float64, device=self._state.device)
        return Counter(dict(zip(names, map(int, reduce(own, reduction="sum").tolist()), strict=True)))


def join_team(device: str) -> Team:
    """Return the team of this process: those of its launcher, a device each, or itself alone on `device`."""
    return AcceleratedTeam(device) if int(os.environ.get("WORLD_SIZE", "1")) > 1 else SingleProcess(device)
