"""The phases of the reader's training, from one turn to the mixture that it is meant for."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from lever_pipe.world.models.episodes import EpisodeOptions
from lever_pipe.world.models.reader_losses import LossWeights

N_TURNS = 5  # trains 0 to 4 shots at once: every answer is a target


@dataclass(frozen=True)
class Phase:
    """One stretch of the curriculum."""

    name: str
    n_steps: int
    batch: int
    episodes: EpisodeOptions
    weights: LossWeights
    rate: float
    final_rate: float
    n_turns: int = N_TURNS
    n_warmup: int = 30
    trains_vision: bool = False
    stop_contested: float | None = None  # ends early above this share of contested answers ...
    stop_conflict: float = 1.0  # ... and this share in both conflict probes


_INJECTIVE = EpisodeOptions(n_keys=(8, 8), n_relations=(4, 4), perceptual_share=0.5, injective_share=1.0)
_MIXED = EpisodeOptions(
    n_keys=(2, 8),
    n_relations=(1, 4),
    perceptual_share=0.25,
    injective_share=0.4,
    repeat_share=0.35,
    flipped_share=0.1,
)

PHASES = (
    # One turn: perceptual answers; the heads learn relation and key.
    Phase("A", 250, 128, _INJECTIVE, LossWeights(untold=0.0), 1.5e-3, 1.5e-3, n_turns=1, n_warmup=50),
    # Two keys of one relation, both shown first: only matching the key finds the answer.
    Phase(
        "S1",
        500,
        48,
        replace(_INJECTIVE, n_keys=(2, 2), n_relations=(1, 1), perceptual_share=0.1, keys_first=True),
        LossWeights(attention=0.3, untold=0.1, uncontested=0.3),
        1.5e-3,
        1.5e-3,
        stop_contested=0.95,
        stop_conflict=0.85,
    ),
    Phase(
        "S2",
        500,
        48,
        replace(_INJECTIVE, n_keys=(3, 4), n_relations=(1, 2), perceptual_share=0.15, repeat_share=0.4),
        LossWeights(attention=0.3, untold=0.2),
        1.5e-3,
        1.5e-3,
        stop_contested=0.95,
        stop_conflict=0.9,
    ),
    Phase(
        "S3",
        400,
        48,
        replace(_INJECTIVE, n_keys=(4, 8), n_relations=(1, 3), perceptual_share=0.2, repeat_share=0.5),
        LossWeights(attention=0.3, untold=0.3),
        1.5e-3,
        1.5e-3,
        stop_contested=0.95,
        stop_conflict=0.93,
    ),
    # The mixture that resembles the released world: shared answers, wrong answers, many keys.
    Phase("B", 800, 48, _MIXED, LossWeights(), 1.5e-3, 1.5e-4),
    Phase("C", 250, 48, _MIXED, LossWeights(bound_key=0.2), 4e-4, 1e-5, trains_vision=True),
)


def describe_phases() -> list[dict[str, Any]]:
    """Return the curriculum as plain values for the card."""
    return [asdict(phase) for phase in PHASES]
