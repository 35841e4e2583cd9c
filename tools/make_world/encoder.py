"""Contrastive training of the tiny CLIP on captions, without any questions."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from itertools import product

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import CLIPModel

from lever_pipe.base.seeding import generator
from lever_pipe.world.lexicon import COLORS, COUNTS, KINDS
from tools.make_world.architectures import build_clip, clip_tokenizer
from tools.make_world.training import ImageBank, draw_bank, make_optimizer, set_rate, take_step
from tools.make_world.vocabulary import CAPTIONS

log = logging.getLogger(__name__)

N_STEPS, BATCH, RATE = 1000, 128, 1.5e-3
N_WARMUP = 50
DECAY = 0.1
MAX_LOGIT_SCALE = 100.0  # as in CLIP
N_IMAGES = 250  # of every one-shape scene
N_HELD_OUT = 6
TOKENIZER = clip_tokenizer()


def pixels_of(images: np.ndarray) -> Tensor:
    """Return float pixels [N, 3, 56, 56] in [-1, 1] of uint8 images [N, 56, 56, 3]."""
    ordered = np.ascontiguousarray(images.transpose(0, 3, 1, 2))
    return torch.from_numpy(ordered).float() / 127.5 - 1.0


def image_vectors(model: CLIPModel, images: np.ndarray) -> Tensor:
    """Return unit vectors [N, 64] of uint8 images [N, 56, 56, 3]."""
    return F.normalize(model.get_image_features(pixel_values=pixels_of(images)).pooler_output, dim=-1)


def text_vectors(model: CLIPModel, texts: Sequence[str]) -> Tensor:
    """Return unit vectors [N, 64] of texts."""
    tokens = TOKENIZER(list(texts), padding=True, return_tensors="pt")
    output = model.get_text_features(input_ids=tokens.input_ids, attention_mask=tokens.attention_mask)
    return F.normalize(output.pooler_output, dim=-1)


def caption(scene: Sequence[int], template: str) -> str:
    """Return the caption of a scene; `scene` contains its indices of kind, color and count."""
    kind, color, count = scene
    return template.format(kind=KINDS[kind], color=COLORS[color], count=COUNTS[count])


def contrastive_loss(logits: Tensor, scene_ids: Tensor) -> Tensor:
    """Return the symmetric cross-entropy of logits [B, B]; the targets of a row are all equal scenes.

    A batch can contain a scene several times. A pair of equal scenes as a negative would only add noise.
    """
    is_same = (scene_ids[:, None] == scene_ids[None, :]).float()
    targets = is_same / is_same.sum(1, keepdim=True)
    by_image = -(targets * logits.log_softmax(1)).sum(1).mean()
    by_text = -(targets * logits.T.log_softmax(1)).sum(1).mean()
    return 0.5 * (by_image + by_text)


def _train_step(model: CLIPModel, bank: ImageBank, rng: np.random.Generator) -> Tensor:
    rows = rng.integers(len(bank.pixels), size=BATCH)
    scenes = bank.scenes[rows]
    templates = [CAPTIONS[i] for i in rng.integers(len(CAPTIONS), size=BATCH)]
    texts = [caption(scene, text) for scene, text in zip(scenes, templates, strict=True)]
    similarity = image_vectors(model, bank.pixels[rows]) @ text_vectors(model, texts).T
    scale = model.logit_scale.exp().clamp(max=MAX_LOGIT_SCALE)
    scene_ids = torch.from_numpy(scenes @ np.array([100, 10, 1]))  # unique, because every index is below 10
    return contrastive_loss(scale * similarity, scene_ids)


def train_clip(seed: int) -> tuple[CLIPModel, float]:
    """Return the trained CLIP and the CPU seconds of its training."""
    start = time.process_time()
    model = build_clip(seed).train()
    bank = draw_bank(N_IMAGES, seed, "clip")
    rng = generator(seed, "clip batches")
    optimizer = make_optimizer(model.parameters(), decay=DECAY)
    for step in range(N_STEPS):
        set_rate(optimizer, step, N_STEPS, RATE, 0.02 * RATE, N_WARMUP)
        loss = _train_step(model, bank, rng)
        take_step(optimizer, loss, model.parameters())
        if (step + 1) % 100 == 0:
            log.info("CLIP step %d loss %.4f", step + 1, loss.item())
    return model.eval(), round(time.process_time() - start, 1)


@torch.no_grad()
def zero_shot_accuracies(model: CLIPModel, seed: int) -> dict[str, float]:
    """Return the percentages of new images whose nearest caption has the correct attribute."""
    bank = draw_bank(N_HELD_OUT, seed, "clip held out")
    scenes = list(product(range(len(KINDS)), range(len(COLORS)), range(len(COUNTS))))
    texts = [caption(scene, CAPTIONS[0]) for scene in scenes]
    nearest = (image_vectors(model, bank.pixels) @ text_vectors(model, texts).T).argmax(1)
    hits = np.array(scenes)[nearest.numpy()] == bank.scenes
    shares = {name: 100 * float(hits[:, i].mean()) for i, name in enumerate(("kind", "color", "count"))}
    return {**shares, "all_three": 100 * float(hits.all(1).mean())}
