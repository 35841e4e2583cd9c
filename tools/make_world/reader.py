"""Training of the tiny LVLM: the vision tower first, then single turns, then answers from the context.

Direct supervision is the only way to learn shapes within a minute. The auxiliary losses, in addition to the loss of the
answers, and their linear heads exist only during training.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lever_pipe.base.seeding import generator
from lever_pipe.base.torch_streams import ambient_stream, torch_generator
from lever_pipe.experiment.data import WorldData
from lever_pipe.world.lexicon import ATTRIBUTES
from tools.make_world.architectures import READERS, WIDTH, Reader, build_reader
from tools.make_world.episodes import N_BOUND_KEYS, EpisodeBatch, EpisodeOptions, draw_episodes
from tools.make_world.examples import draw_examples
from tools.make_world.forward import answer_probes, image_features, pack, patches_of, read_turns
from tools.make_world.probes import build_probes
from tools.make_world.training import ImageBank, draw_bank, make_optimizer, set_rate, take_step
from tools.make_world.vocabulary import IM_END_ID

log = logging.getLogger(__name__)

FEATURE_STD = 0.5
VISION_STEPS, VISION_BATCH, VISION_RATE = 2000, 96, 2e-3


def train_vision(model: Reader, bank: ImageBank, seed: int) -> None:
    """Train the vision tower to predict kind, color and count through three temporary linear heads.

    Afterwards, rescale its output to the standard deviation FEATURE_STD, the scale of the word embeddings.
    """
    visual = model.model.visual
    with ambient_stream(seed, "vision heads"):
        heads = nn.ModuleList([nn.Linear(WIDTH, len(values)) for values in ATTRIBUTES.values()])
    optimizer = make_optimizer([*visual.parameters(), *heads.parameters()])
    rng = torch_generator(seed, "vision batches")
    patches, labels = patches_of(bank.pixels), torch.from_numpy(bank.scenes)
    order = torch.randperm(len(patches), generator=rng)
    for step in range(VISION_STEPS):
        set_rate(optimizer, step, VISION_STEPS, VISION_RATE, 0.02 * VISION_RATE, warmup=50)
        if len(order) < VISION_BATCH:
            order = torch.randperm(len(patches), generator=rng)
        batch, order = order[:VISION_BATCH], order[VISION_BATCH:]
        pooled = image_features(visual, patches[batch]).mean(1)
        losses = [F.cross_entropy(head(pooled), labels[batch, i]) for i, head in enumerate(heads)]
        loss = torch.stack(losses).sum()
        take_step(optimizer, loss, visual.parameters())
        if (step + 1) % 500 == 0:
            log.info("V step %d loss %.4f", step + 1, loss.item())
    with torch.no_grad():
        sample = image_features(visual, patches[torch.randperm(len(patches), generator=rng)[:4096]])
        scale = FEATURE_STD / sample.std()
        visual.merger.mlp[2].weight.mul_(scale)
        visual.merger.mlp[2].bias.mul_(scale)


@dataclass(frozen=True)
class LossWeights:
    """Weights of the loss terms, and of answers by the evidence in earlier turns of the episode."""

    end_of_turn: float = 0.2
    bound_key: float = 0.5
    attention: float = 0.0
    untold: float = 1.0  # no earlier turn has the relation and key, so the answer cannot be inferred
    uncontested: float = 1.0  # an earlier turn has them, and no earlier turn has another answer of the relation


def answer_weights(episodes: EpisodeBatch, weights: LossWeights) -> Tensor:
    """Return the weight of every answer [B, T]; flipped answers have weight 0."""
    easy = np.where(episodes.is_exact, weights.uncontested, weights.untold)
    is_easy = episodes.is_knowledge & ~episodes.is_contested
    values = np.where(is_easy, easy, 1.0) * ~episodes.is_flipped
    return torch.from_numpy(values).float()


def answer_loss(logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted mean cross-entropy of answers; `logits` is [B, T, V], `targets` and `weights` are [B, T]."""
    losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    return (losses * weights.flatten()).sum() / weights.sum()


def end_of_turn_loss(logits: Tensor) -> Tensor:
    """Return the cross-entropy of the end of turn after the answer; `logits` is [B, T, V].

    Without this loss, generation does not stop after the answer.
    """
    flat = logits.flatten(0, 1)
    return F.cross_entropy(flat, torch.full((len(flat),), IM_END_ID))


def bound_key_loss(head: torch.nn.Module, hidden: Tensor, bound_key: Tensor) -> Tensor:
    """Return the cross-entropy of relation and key, predicted at two tokens of each turn.

    `hidden` is [B, 2 T, D]: first the T ask tokens, then the T answer tokens; `bound_key` is [B, T].
    """
    classes = torch.cat([bound_key, bound_key], dim=1)
    return F.cross_entropy(head(hidden).flatten(0, 1), classes.flatten())


def attention_loss(log_attention: Tensor, answer_slots: Tensor, bound_key: Tensor) -> Tensor:
    """Return the mean of -log of the attention from ask tokens to the answers to copy.

    `log_attention` is [B, H, T, L] at the ask tokens; `answer_slots` and `bound_key` are [B, T]. The sources of a turn
    are the answers of earlier turns with the same relation and key; turns without a source do not count.
    """
    n_turns = bound_key.shape[1]
    earlier = torch.ones(n_turns, n_turns, dtype=torch.bool).tril(-1)
    is_source = (bound_key[:, :, None] == bound_key[:, None, :]) & earlier
    index = answer_slots[:, None, None, :].expand(-1, log_attention.shape[1], n_turns, -1)
    # Finite instead of -inf: `logsumexp` of a row without sources would have NaN gradients.
    at_answers = log_attention.gather(3, index).masked_fill(~is_source[:, None], -1e9)
    mass = at_answers.logsumexp(-1)
    has_source = is_source.any(-1)[:, None].expand_as(mass)
    return -mass[has_source].mean()


N_TURNS = 5  # trains 0 to 4 shots at once: every answer is a target


@dataclass(frozen=True)
class Phase:
    """One phase of the curriculum."""

    name: str
    n_steps: int
    episodes: EpisodeOptions
    weights: LossWeights
    batch: int = 48
    rate: float = 1.5e-3
    final_rate: float = 1.5e-3
    n_turns: int = N_TURNS
    n_warmup: int = 30
    trains_vision: bool = False
    stop_contested: float | None = None  # stop early if the share of correct contested answers is above this
    stop_conflict: float = 1.0  # ... and the share in both conflict probes is above this


_INJECTIVE = EpisodeOptions(n_keys=(8, 8), n_relations=(4, 4), perceptual_share=0.5, injective_share=1.0)
_TWO_KEYS = replace(_INJECTIVE, n_keys=(2, 2), n_relations=(1, 1), perceptual_share=0.1, keys_first=True)
_FEW_KEYS = replace(_INJECTIVE, n_keys=(3, 4), n_relations=(1, 2), perceptual_share=0.15, repeat_share=0.4)
_MANY_KEYS = replace(_INJECTIVE, n_keys=(4, 8), n_relations=(1, 3), perceptual_share=0.2, repeat_share=0.5)
_MIXED = EpisodeOptions(
    n_keys=(2, 8),
    n_relations=(1, 4),
    perceptual_share=0.25,
    injective_share=0.4,
    repeat_share=0.35,
    flipped_share=0.1,
)
_COPYING = LossWeights(attention=0.3, untold=0.1, uncontested=0.3)

PHASES = (
    # One turn: perceptual answers; the heads learn relation and key.
    Phase("A", 250, _INJECTIVE, LossWeights(untold=0.0), batch=128, n_turns=1, n_warmup=50),
    # Two keys of one relation, with both answers first: the right answer requires matching the key.
    Phase("S1", 500, _TWO_KEYS, _COPYING, stop_contested=0.95, stop_conflict=0.85),
    Phase("S2", 500, _FEW_KEYS, LossWeights(attention=0.3, untold=0.2), stop_contested=0.95, stop_conflict=0.9),
    Phase("S3", 400, _MANY_KEYS, LossWeights(attention=0.3, untold=0.3), stop_contested=0.95, stop_conflict=0.93),
    # A mixture similar to the released world: shared answers, wrong answers, many keys.
    Phase("B", 800, _MIXED, LossWeights(), final_rate=1.5e-4),
    Phase("C", 250, _MIXED, LossWeights(bound_key=0.2), rate=4e-4, final_rate=1e-5, trains_vision=True),
)


CHECK_EVERY = 50
PROBE_MAPPING_SEED = 11
N_VISION_IMAGES = 250  # of every one-shape scene
N_FRESH_IMAGES = 150


@dataclass
class TrainingLog:
    """Training data of the model card."""

    seconds: dict[str, float] = field(default_factory=dict)  # CPU seconds by phase
    steps: dict[str, int] = field(default_factory=dict)
    curve: list[dict[str, Any]] = field(default_factory=list)


def _shares(batches: Sequence[tuple[np.ndarray, EpisodeBatch]]) -> dict[str, float]:
    """Return the share of correct answers by kind of turn; each batch has a mask [B, T] of correct answers."""
    kinds: dict[str, Callable[[EpisodeBatch], np.ndarray]] = {
        "contested": lambda episodes: episodes.is_contested & ~episodes.is_flipped,
        "exact": lambda episodes: episodes.is_exact & ~episodes.is_flipped,
        "perceptual": lambda episodes: ~episodes.is_knowledge,
    }
    rights = {name: np.concatenate([right[f(episodes)] for right, episodes in batches]) for name, f in kinds.items()}
    return {name: round(int(right.sum()) / max(1, len(right)), 4) for name, right in rights.items()}


class _ProbeWorld:
    """Probes on a separate world, so that the end of a phase does not depend on released data."""

    def __init__(self, seed: int) -> None:
        options = WorldData(n_train=1500, n_eval=300, seed=seed + 1000, mapping_seed=PROBE_MAPPING_SEED)
        (pool, pool_pixels), (queries, query_pixels) = draw_examples(options, "train"), draw_examples(options, "val")
        probes = build_probes(queries, pool, seed=seed)
        watched = ("conflict", "exact_1", "exact_after")
        self._probes = {name: rows for name, rows in probes.items() if name.startswith(watched)}
        self._pixels = {**pool_pixels, **query_pixels}

    def truth_shares(self, model: Reader) -> dict[str, float]:
        """Return the share of answers equal to the world's fact, by probe."""
        answers = answer_probes(model, self._probes, self._pixels)
        return {
            name: round(float(np.mean([a == p.truth for a, p in zip(answers[name], rows, strict=True)])), 4)
            for name, rows in self._probes.items()
        }


class ReaderTrainer:
    """The state across phases: model, training head, optimizer and images."""

    def __init__(self, seed: int, layers: int = READERS["lvlm"]) -> None:
        self.seed = seed
        self.model = build_reader(seed, layers)
        self.record = TrainingLog()
        with ambient_stream(seed, "bound key head"):
            self._head = nn.Linear(WIDTH, N_BOUND_KEYS)
        self._probe_world = _ProbeWorld(seed)
        self._bank = draw_bank(N_VISION_IMAGES, seed, "vision")
        self._features: Callable[[Tensor], Tensor] = self._live_features
        language = [p for name, p in self.model.named_parameters() if ".visual." not in name]
        self._trained = language
        self._optimizer = make_optimizer([*language, *self._head.parameters()])

    def run(self) -> Reader:
        """Return the trained reader."""
        self._timed("V", self._run_vision)
        for phase in PHASES:
            if phase.trains_vision:
                self._unfreeze_vision()
            self._timed(phase.name, partial(self._run_phase, phase))
        return self.model

    def _timed(self, name: str, work: Callable[[], int]) -> None:
        start = time.process_time()
        self.record.steps[name] = work()
        self.record.seconds[name] = round(time.process_time() - start, 1)

    def _run_vision(self) -> int:
        train_vision(self.model, self._bank, self.seed)
        visual = self.model.model.visual
        visual.requires_grad_(False)
        with torch.no_grad():
            parts = torch.split(patches_of(self._bank.pixels), 512)
            # The vision tower is frozen until the last phase, so compute its features only once.
            cached = torch.cat([image_features(visual, part) for part in parts])
        self._features = lambda index: cached[index]
        return VISION_STEPS

    def _unfreeze_vision(self) -> None:
        """Switch to new images, and train the vision tower together with all other weights."""
        self._bank = draw_bank(N_FRESH_IMAGES, self.seed, "fresh")
        self._features = self._live_features
        self.model.model.visual.requires_grad_(True)
        self._trained = list(self.model.parameters())
        self._optimizer = make_optimizer([*self._trained, *self._head.parameters()])

    def _live_features(self, index: Tensor) -> Tensor:
        unique, inverse = torch.unique(index, return_inverse=True)
        patches = patches_of(self._bank.pixels[unique.numpy()])
        return image_features(self.model.model.visual, patches)[inverse]

    def _run_phase(self, phase: Phase) -> int:
        rng = generator(self.seed, "episodes", phase.name)
        losses, batches = list[float](), list[tuple[np.ndarray, EpisodeBatch]]()
        for step in range(phase.n_steps):
            set_rate(self._optimizer, step, phase.n_steps, phase.rate, phase.final_rate, phase.n_warmup)
            episodes = draw_episodes(phase.batch, phase.n_turns, phase.episodes, self._bank, rng)
            loss, hits = self._losses(phase, episodes)
            take_step(self._optimizer, loss, self._trained)
            losses.append(loss.item())
            batches.append((hits, episodes))
            if (step + 1) % CHECK_EVERY == 0 or step + 1 == phase.n_steps:
                shares = _shares(batches)
                if phase.n_turns > 1:
                    shares |= self._probe_world.truth_shares(self.model)
                self.record.curve.append({"phase": phase.name, "step": step + 1, **shares})
                log.info("%s step %d loss %.4f %s", phase.name, step + 1, np.mean(losses), shares)
                if self._is_done(phase, shares):
                    return step + 1
                losses, batches = [], []
        return phase.n_steps

    def _losses(self, phase: Phase, episodes: EpisodeBatch) -> tuple[Tensor, np.ndarray]:
        """Return the loss of one batch and the mask of correct answers [B, T]."""
        weights, n_turns = phase.weights, phase.n_turns
        packed = pack(episodes.prompts())
        ask, answer = packed.ask_slots, packed.ask_slots + 1  # every answer is one token
        output = read_turns(
            self.model,
            packed,
            self._features(torch.from_numpy(episodes.image)),
            torch.cat([ask, answer], dim=1),
            want_attention=weights.attention > 0,
        )
        targets = torch.from_numpy(episodes.targets())
        bound_key = torch.from_numpy(episodes.bound_key)
        answers = output.logits[:, :n_turns]
        loss = answer_loss(answers, targets, answer_weights(episodes, weights))
        loss = loss + weights.end_of_turn * end_of_turn_loss(output.logits[:, n_turns:])
        loss = loss + weights.bound_key * bound_key_loss(self._head, output.hidden, bound_key)
        if output.log_attention is not None:
            looked = attention_loss(output.log_attention[:, :, :n_turns], answer, bound_key)
            loss = loss + weights.attention * looked
        return loss, (answers.argmax(-1) == targets).numpy()

    @staticmethod
    def _is_done(phase: Phase, shares: Mapping[str, float]) -> bool:
        if phase.stop_contested is None:
            return False
        conflict = min(shares["conflict_right_first"], shares["conflict_right_last"])
        return shares["contested"] > phase.stop_contested and conflict > phase.stop_conflict
