"""Training of the vision tower alone: shapes are learned in a minute by direct supervision only."""

from __future__ import annotations

import logging

import torch
import torch.nn.functional as F
from torch import nn

from lever_pipe.base.seeding import torch_generator
from lever_pipe.world.data.lexicon import ATTRIBUTES
from lever_pipe.world.models.bank import ImageBank
from lever_pipe.world.models.forward import image_features, patches_of
from lever_pipe.world.models.models import WIDTH, Reader, seeded
from lever_pipe.world.models.optimisation import make_optimizer, set_rate

log = logging.getLogger(__name__)

FEATURE_STD = 0.5
VISION_STEPS, VISION_BATCH, VISION_RATE = 2000, 96, 2e-3


def train_vision(model: Reader, bank: ImageBank, seed: int) -> None:
    """Teach the vision tower kind, colour and count through three linear heads, then drop those.

    Afterwards its output has standard deviation FEATURE_STD, the scale of the word embeddings.
    """
    visual = model.model.visual
    with seeded(seed, "vision heads"):
        heads = nn.ModuleList([nn.Linear(WIDTH, len(values)) for values in ATTRIBUTES.values()])
    optimizer = make_optimizer([*visual.parameters(), *heads.parameters()])
    rng = torch_generator(seed, "vision batches")
    patches, labels = patches_of(bank.pixels), torch.from_numpy(bank.scenes)
    order = torch.randperm(len(patches), generator=rng)
    for step in range(VISION_STEPS):
        set_rate(optimizer, step, VISION_STEPS, VISION_RATE, 0.02 * VISION_RATE, warmup=50)
        if len(order) < VISION_BATCH:
            order = torch.randperm(len(patches), generator=rng)
        chosen, order = order[:VISION_BATCH], order[VISION_BATCH:]
        pooled = image_features(visual, patches[chosen]).mean(1)
        losses = [F.cross_entropy(head(pooled), labels[chosen, i]) for i, head in enumerate(heads)]
        loss = torch.stack(losses).sum()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(visual.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % 500 == 0:
            log.info("V step %d loss %.4f", step + 1, loss.item())
    with torch.no_grad():
        sample = image_features(visual, patches[torch.randperm(len(patches), generator=rng)[:4096]])
        scale = FEATURE_STD / sample.std()
        visual.merger.mlp[2].weight.mul_(scale)
        visual.merger.mlp[2].bias.mul_(scale)
