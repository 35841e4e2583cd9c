"""Training of the tiny LVLM: sight first, then one turn, then finding answers in context."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lever_pipe.base.seeding import generator
from lever_pipe.world.data.items import WorldOptions
from lever_pipe.world.models.bank import draw_bank
from lever_pipe.world.models.curriculum import PHASES, Phase
from lever_pipe.world.models.episodes import N_BOUND_KEYS, EpisodeBatch, draw_episodes
from lever_pipe.world.models.evaluation import answer_probes, draw_examples
from lever_pipe.world.models.forward import image_features, pack, patches_of, read_turns
from lever_pipe.world.models.models import WIDTH, Reader, build_reader, seeded
from lever_pipe.world.models.optimisation import make_optimizer, set_rate
from lever_pipe.world.models.probes import build_probes
from lever_pipe.world.models.reader_losses import (
    answer_loss,
    answer_weights,
    attention_loss,
    bound_key_loss,
    end_of_turn_loss,
)
from lever_pipe.world.models.vision import VISION_STEPS, train_vision

log = logging.getLogger(__name__)

CHECK_EVERY = 50
PROBE_MAPPING_SEED = 11
N_VISION_IMAGES = 250  # of every one-shape scene
N_FRESH_IMAGES = 150


@dataclass
class TrainingLog:
    """What the card reports about a training."""

    seconds: dict[str, float] = field(default_factory=dict)  # CPU seconds by phase
    steps: dict[str, int] = field(default_factory=dict)
    curve: list[dict[str, Any]] = field(default_factory=list)


class _Window:
    """Hits and counts since the last report, by kind of turn."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self._hits: dict[str, int] = {}
        self._counts: dict[str, int] = {}

    def add(self, loss: float, hits: np.ndarray, episodes: EpisodeBatch) -> None:
        self.losses.append(loss)
        fair = ~episodes.is_flipped
        families = {
            "contested": episodes.is_contested & fair,
            "exact": episodes.is_exact & fair,
            "perceptual": ~episodes.is_knowledge,
        }
        for name, chosen in families.items():
            self._hits[name] = self._hits.get(name, 0) + int(hits[chosen].sum())
            self._counts[name] = self._counts.get(name, 0) + int(chosen.sum())

    def shares(self) -> dict[str, float]:
        return {name: round(self._hits[name] / max(1, count), 4) for name, count in self._counts.items()}


class _ProbeWorld:
    """Probes on a world of its own, so that nothing released decides when a phase ends."""

    def __init__(self, seed: int) -> None:
        options = WorldOptions(n_train=1500, n_eval=300, seed=seed + 1000, mapping_seed=PROBE_MAPPING_SEED)
        pool, queries = draw_examples(options, "train"), draw_examples(options, "val")
        probes = build_probes(queries.rows, pool.rows, seed=seed)
        watched = ("conflict", "exact_1", "exact_after")
        self._probes = {name: rows for name, rows in probes.items() if name.startswith(watched)}
        self._pixels = {**pool.pixels, **queries.pixels}

    def truth_shares(self, model: Reader) -> dict[str, float]:
        """Return the share of answers that equal the world's fact, by probe."""
        answers = answer_probes(model, self._probes, self._pixels)
        return {
            name: round(float(np.mean([a == p.truth for a, p in zip(answers[name], rows, strict=True)])), 4)
            for name, rows in self._probes.items()
        }


class ReaderTrainer:
    """The state that the phases hand on: model, training head, optimiser and images."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.model = build_reader(seed)
        self.record = TrainingLog()
        with seeded(seed, "bound key head"):
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
                self._thaw_vision()
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
            cached = torch.cat([image_features(visual, part) for part in parts])
        self._features = lambda index: cached[index]
        return VISION_STEPS

    def _thaw_vision(self) -> None:
        """Go on with images never seen, and train the vision tower with everything else."""
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
        window = _Window()
        for step in range(phase.n_steps):
            set_rate(self._optimizer, step, phase.n_steps, phase.rate, phase.final_rate, phase.n_warmup)
            episodes = draw_episodes(phase.batch, phase.n_turns, phase.episodes, self._bank, rng)
            loss, hits = self._losses(phase, episodes)
            self._optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(self._trained, 1.0)
            self._optimizer.step()
            window.add(loss.item(), hits, episodes)
            if (step + 1) % CHECK_EVERY == 0 or step + 1 == phase.n_steps:
                shares = self._report(phase, step + 1, window)
                if self._is_done(phase, shares):
                    return step + 1
                window = _Window()
        return phase.n_steps

    def _losses(self, phase: Phase, episodes: EpisodeBatch) -> tuple[Tensor, np.ndarray]:
        """Return the loss of one batch and where the answers were right [B, T]."""
        weights, n_turns = phase.weights, phase.n_turns
        packed = pack(episodes.prompts())
        ask, answer = packed.ask_slots, packed.ask_slots + 1
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

    def _report(self, phase: Phase, step: int, window: _Window) -> Mapping[str, float]:
        shares = window.shares()
        if phase.n_turns > 1:
            shares |= self._probe_world.truth_shares(self.model)
        self.record.curve.append({"phase": phase.name, "step": step, **shares})
        log.info("%s step %d loss %.4f %s", phase.name, step, np.mean(window.losses), shares)
        return shares

    @staticmethod
    def _is_done(phase: Phase, shares: Mapping[str, float]) -> bool:
        if phase.stop_contested is None:
            return False
        conflict = min(shares["conflict_right_first"], shares["conflict_right_last"])
        return shares["contested"] > phase.stop_contested and conflict > phase.stop_conflict
