"""Curriculum episodes."""

from __future__ import annotations

import numpy as np
import pytest

from lever_pipe.world.episodes import KEY_ATTRIBUTE, N_BOUND_KEYS, EpisodeBatch, EpisodeOptions, draw_episodes
from lever_pipe.world.lexicon import RELATIONS, VOCABULARY
from lever_pipe.world.reader import PHASES
from lever_pipe.world.training import ImageBank, draw_bank

MIXED = EpisodeOptions((2, 8), (1, 4), 0.25, 0.4, repeat_share=0.35, flipped_share=0.1)


@pytest.fixture(scope="module")
def bank() -> ImageBank:
    return draw_bank(4, 0, "test")


def _draw(bank: ImageBank, options: EpisodeOptions, n: int = 200) -> EpisodeBatch:
    return draw_episodes(n, 5, options, bank, np.random.default_rng(0))


def test_the_image_shows_the_key(bank: ImageBank) -> None:
    episodes = _draw(bank, MIXED)
    attribute = np.array(KEY_ATTRIBUTE)[episodes.relation]
    displayed = np.take_along_axis(bank.scenes[episodes.image], attribute[..., None], axis=-1)[..., 0]
    assert np.array_equal(displayed, episodes.key)


def test_marks_agree_with_a_plain_rereading_of_the_turns(bank: ImageBank) -> None:
    # Without flips the earlier answers contain all information.
    options = EpisodeOptions((2, 4), (1, 2), 0.2, 0.5, repeat_share=0.4)
    episodes = _draw(bank, options)
    n_contested = 0
    for b in range(len(episodes.relation)):
        rows = list(zip(episodes.relation[b], episodes.key[b], episodes.answer[b], strict=True))
        for t, (relation, key, answer) in enumerate(rows):
            if not RELATIONS[relation].is_knowledge:
                assert answer == key
                continue
            same = [a for r, k, a in rows[:t] if (r, k) == (relation, key)]
            others = [a for r, _, a in rows[:t] if r == relation and a != answer]
            assert all(a == answer for a in same)
            assert episodes.is_exact[b, t] == bool(same)
            assert episodes.is_contested[b, t] == (bool(same) and bool(others))
            n_contested += bool(same) and bool(others)
    assert n_contested > 50


def test_keys_come_first_and_every_later_knowledge_turn_is_contested(bank: ImageBank) -> None:
    options = next(phase.episodes for phase in PHASES if phase.name == "S1")
    episodes = _draw(bank, options)
    # Two keys with two answers are shown in turns 0 and 1.
    assert episodes.is_knowledge[:, :2].all()
    assert not episodes.is_exact[:, :2].any()
    later = episodes.is_knowledge[:, 2:]
    assert episodes.is_contested[:, 2:][later].all()


def test_injective_facts_never_share_an_answer(bank: ImageBank) -> None:
    options = EpisodeOptions((8, 8), (4, 4), 0.0, 1.0)
    episodes = _draw(bank, options)
    for b in range(len(episodes.relation)):
        facts = set(zip(episodes.relation[b], episodes.key[b], episodes.answer[b], strict=True))
        assert len({(r, a) for r, _, a in facts}) == len(facts)


def test_flips_hit_knowledge_in_half_of_the_episodes(bank: ImageBank) -> None:
    episodes = _draw(bank, MIXED, n=1000)
    assert not episodes.is_flipped[~episodes.is_knowledge].any()
    share = episodes.is_flipped[episodes.is_knowledge].mean()
    # 0.5 * 0.1; 3750 knowledge turns in 1000 episodes give a standard deviation near 0.004.
    assert abs(share - 0.05) < 0.015
    assert (episodes.is_flipped.sum(1) > 0).mean() < 0.5


def test_targets_and_classes(bank: ImageBank) -> None:
    episodes = _draw(bank, MIXED, n=20)
    words = [turn[1] for prompt in episodes.prompts() for turn in prompt]
    assert episodes.targets().ravel().tolist() == [VOCABULARY[word or ""] for word in words]
    # 8 + 8 + 6 + 6 + 8 + 6 + 3 pairs of relation and key.
    assert N_BOUND_KEYS == 45
    assert 0 <= episodes.bound_key.min() <= episodes.bound_key.max() < N_BOUND_KEYS
    pairs = {
        (r, k): c
        for r, k, c in zip(*(x.flat for x in (episodes.relation, episodes.key, episodes.bound_key)), strict=True)
    }
    assert len(set(pairs.values())) == len(pairs)
