"""Training episodes: a few turns over a world that exists only for one episode.

Every episode draws new answers for its keys. The only way to infer an answer is therefore an earlier turn with the same
relation and key.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from lever_pipe.world.lexicon import ATTRIBUTES, COUNTS, KNOWLEDGE, RELATIONS
from tools.make_world.forward import Turn
from tools.make_world.training import ImageBank
from tools.make_world.vocabulary import VOCABULARY

N_ANSWERS = 8  # of every knowledge relation
ATTRIBUTE_INDEX = {name: i for i, name in enumerate(ATTRIBUTES)}
KEY_ATTRIBUTE = [ATTRIBUTE_INDEX[relation.key] for relation in RELATIONS]
FIRST_KEY = np.cumsum([0, *(len(relation.keys) for relation in RELATIONS)])
N_BOUND_KEYS = int(FIRST_KEY[-1])
SINGLE_SHARE = 0.7
SKEWED_SHARE = 0.7  # of the facts that are not injective

Fact = tuple[int, int]
"""Indices of relation and key."""


@dataclass(frozen=True)
class EpisodeOptions:
    """Settings of an episode's difficulty."""

    n_keys: tuple[int, int]  # smallest and largest number of kinds, and of colors, in an episode
    n_relations: tuple[int, int]  # the same for knowledge relations
    perceptual_share: float
    injective_share: float  # episodes in which all keys have different answers, so that a majority vote does not help
    repeat_share: float = 0.0  # knowledge turns that repeat an earlier relation and key
    flipped_share: float = 0.0  # wrong answers, in half of the episodes
    keys_first: bool = False  # show every key of one relation before anything else


@dataclass
class TurnDraw:
    """One turn, with indices for all values."""

    relation: int
    key: int
    image: int
    answer: int
    question: int
    is_exact: bool = False  # an earlier turn has the same relation and key
    is_contested: bool = False  # in addition, another earlier turn has the same relation with another answer
    is_flipped: bool = False


@dataclass(frozen=True)
class EpisodeBatch:
    """B episodes of T turns; every array is [B, T]."""

    relation: np.ndarray
    key: np.ndarray
    image: np.ndarray
    answer: np.ndarray
    question: np.ndarray
    is_exact: np.ndarray
    is_contested: np.ndarray
    is_flipped: np.ndarray

    @property
    def is_knowledge(self) -> np.ndarray:
        """Mask of the turns whose answer is not an attribute of the image."""
        mask: np.ndarray = self.relation < len(KNOWLEDGE)
        return mask

    @property
    def bound_key(self) -> np.ndarray:
        """Relation and key as one class index, less than N_BOUND_KEYS."""
        classes: np.ndarray = FIRST_KEY[self.relation] + self.key
        return classes

    def prompts(self) -> list[list[Turn]]:
        """Return the question and answer texts of all turns."""
        rows = zip(self.relation, self.question, self.answer, strict=True)
        return [
            [(RELATIONS[r].questions[q], RELATIONS[r].answers[a]) for r, q, a in zip(*row, strict=True)] for row in rows
        ]

    def targets(self) -> np.ndarray:
        """Return the answers' token ids [B, T]."""
        pairs = zip(self.relation.flat, self.answer.flat, strict=True)
        ids = [VOCABULARY[RELATIONS[r].answers[a]] for r, a in pairs]
        return np.array(ids).reshape(self.relation.shape)


@dataclass
class _Episode:
    """The state of an episode during its generation."""

    kinds: list[int]
    colors: list[int]
    facts: dict[int, np.ndarray]  # relation -> answer by key
    flipped_share: float
    displayed_facts: dict[Fact, int] = field(default_factory=dict)
    history: list[Fact] = field(default_factory=list)
    planned: list[Fact] = field(default_factory=list)


def _draw_facts(is_injective: bool, rng: np.random.Generator) -> np.ndarray:
    """Return an answer for each of up to eight keys."""
    if is_injective:
        return rng.permutation(N_ANSWERS)
    active = rng.permutation(N_ANSWERS)[: rng.integers(2, N_ANSWERS, endpoint=True)]
    if rng.random() < SKEWED_SHARE:
        return rng.choice(active, size=N_ANSWERS, p=rng.dirichlet(np.ones(len(active))))
    return active[rng.integers(len(active), size=N_ANSWERS)]


def _start(options: EpisodeOptions, rng: np.random.Generator) -> _Episode:
    n_keys = int(rng.integers(*options.n_keys, endpoint=True))
    kinds = rng.permutation(len(ATTRIBUTES["kind"]))[:n_keys].tolist()
    colors = rng.permutation(len(ATTRIBUTES["color"]))[:n_keys].tolist()
    n_relations = int(rng.integers(*options.n_relations, endpoint=True))
    relations = rng.permutation(len(KNOWLEDGE))[:n_relations].tolist()
    is_injective = bool(rng.random() < options.injective_share)
    flipped_share = options.flipped_share if rng.random() < 0.5 else 0.0
    facts = {relation: _draw_facts(is_injective, rng) for relation in relations}
    episode = _Episode(kinds, colors, facts, flipped_share)
    if options.keys_first:
        first = relations[rng.integers(n_relations)]
        keys = kinds if RELATIONS[first].key == "kind" else colors
        episode.planned = [(first, key) for key in keys]
    return episode


def _draw_perceptual(scene: list[int], rng: np.random.Generator) -> Fact:
    relation = len(KNOWLEDGE) + int(rng.integers(len(RELATIONS) - len(KNOWLEDGE)))
    attribute = KEY_ATTRIBUTE[relation]
    if RELATIONS[relation].key == "count":
        scene[attribute] = int(rng.integers(len(COUNTS)))
    return relation, scene[attribute]


def _draw_knowledge(episode: _Episode, scene: list[int], repeat_share: float, rng: np.random.Generator) -> Fact:
    relation = list(episode.facts)[rng.integers(len(episode.facts))]
    if episode.planned:
        relation, scene[KEY_ATTRIBUTE[relation]] = episode.planned.pop(0)
    elif episode.history and rng.random() < repeat_share:
        relation, key = episode.history[rng.integers(len(episode.history))]
        scene[KEY_ATTRIBUTE[relation]] = key
    return relation, scene[KEY_ATTRIBUTE[relation]]


def _reveal(episode: _Episode, turn: TurnDraw, rng: np.random.Generator) -> None:
    """Set a knowledge turn's flags from earlier turns, record its fact, and flip the answer at random."""
    fact = (turn.relation, turn.key)
    turn.is_exact = fact in episode.displayed_facts
    turn.is_contested = turn.is_exact and any(
        relation == turn.relation and answer != turn.answer for (relation, _), answer in episode.displayed_facts.items()
    )
    episode.displayed_facts[fact] = turn.answer
    episode.history.append(fact)
    # Later turns are compared with the true answer, so the flip comes after the record.
    if rng.random() < episode.flipped_share:
        turn.is_flipped, turn.answer = True, int(rng.integers(N_ANSWERS))


def _draw_turn(episode: _Episode, options: EpisodeOptions, bank: ImageBank, rng: np.random.Generator) -> TurnDraw:
    count = 0 if rng.random() < SINGLE_SHARE else int(rng.integers(1, len(COUNTS)))
    kind = episode.kinds[rng.integers(len(episode.kinds))]
    scene = [kind, episode.colors[rng.integers(len(episode.colors))], count]
    is_perceptual = not episode.planned and rng.random() < options.perceptual_share
    if is_perceptual:
        relation, key = _draw_perceptual(scene, rng)
        answer = key
    else:
        relation, key = _draw_knowledge(episode, scene, options.repeat_share, rng)
        answer = int(episode.facts[relation][key])
    image = bank.draw((scene[0], scene[1], scene[2]), rng)
    question = int(rng.integers(len(RELATIONS[relation].questions)))
    turn = TurnDraw(relation, key, image, answer, question)
    if not is_perceptual:
        _reveal(episode, turn, rng)
    return turn


def draw_episodes(
    n_episodes: int,
    n_turns: int,
    options: EpisodeOptions,
    bank: ImageBank,
    rng: np.random.Generator,
) -> EpisodeBatch:
    """Return random episodes with images from `bank`."""
    rows = []
    for _ in range(n_episodes):
        episode = _start(options, rng)
        rows.append([_draw_turn(episode, options, bank, rng) for _ in range(n_turns)])
    turns = np.array(rows, dtype=object)
    return EpisodeBatch(
        **{
            name: np.array([getattr(turn, name) for turn in turns.flat]).reshape(turns.shape)
            for name in EpisodeBatch.__dataclass_fields__
        }
    )
