from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lever_pipe.lvlms import _positions

IMAGE = 7


def image(rows: int, columns: int) -> _positions.SegmentLayout:
    return _positions.grid_layout((1, rows, columns), 2, IMAGE)


def test_text_advances_by_one_and_an_image_by_its_longer_side() -> None:
    # Two text tokens at 0 and 1; a 2 x 3 image at 2: rows 2..3, columns 2..4; the next token at 2 + max(2, 3) = 5.
    layout = _positions.segment_layout((1, 2, IMAGE, 3), [image(4, 6)], image_token=IMAGE)
    assert layout.ids.tolist() == [1, 2, 7, 7, 7, 7, 7, 7, 3]
    assert layout.positions.tolist() == [
        [0, 1, 2, 2, 2, 2, 2, 2, 5],
        [0, 1, 2, 2, 2, 3, 3, 3, 5],
        [0, 1, 2, 3, 4, 2, 3, 4, 5],
    ]
    assert layout.advance == 6


def test_answers_and_generated_tokens_continue_behind_the_prompt() -> None:
    assert _positions.answer_positions(11, 3).tolist() == [11, 12, 13]
    assert _positions.decode_positions(torch.tensor([4, 9]), 2).tolist() == [6, 11]


@given(st.lists(st.one_of(st.integers(0, 6), st.tuples(st.integers(1, 4), st.integers(1, 4))), max_size=12))
def test_a_segment_may_be_cut_anywhere(items: list[int | tuple[int, int]]) -> None:
    def lay(part: list[int | tuple[int, int]]) -> _positions.SegmentLayout:
        ids = [item if isinstance(item, int) else IMAGE for item in part]
        images = [image(2 * item[0], 2 * item[1]) for item in part if isinstance(item, tuple)]
        return _positions.segment_layout(ids, images, image_token=IMAGE)

    whole = lay(items)
    for cut in range(len(items) + 1):
        left, right = lay(items[:cut]), lay(items[cut:])
        assert np.array_equal(np.concatenate([left.ids, right.ids]), whole.ids)
        moved = np.concatenate([left.positions, left.advance + right.positions], axis=1)
        assert np.array_equal(moved, whole.positions)
        assert left.advance + right.advance == whole.advance


@pytest.mark.parametrize("index", range(11))
def test_ids_and_positions_equal_the_stock_ones_bit_for_bit(bench, index: int) -> None:
    prompt = bench.prompts()[index]
    inputs = bench.parts.stock_inputs([prompt], bench.open)
    expected, delta = bench.parts.model.model.get_rope_index(
        inputs["input_ids"], inputs["mm_token_type_ids"], image_grid_thw=inputs["image_grid_thw"]
    )
    store, _ = bench.vision()
    store.prepare(prompt.images)
    start, ids, positions = 0, [], []
    for segment in prompt.segments:
        images = [store.block(digest) for digest in segment.images]
        token = bench.parts.model.config.image_token_id
        layout = _positions.segment_layout(segment.ids, images, image_token=token)
        ids += layout.ids.tolist()
        positions.append(start + layout.positions)
        start += layout.advance
    assert ids == inputs["input_ids"][0].tolist()
    assert np.array_equal(np.concatenate(positions, axis=1), expected[:, 0].numpy())
    assert start == int(expected.max()) + 1 == int(delta) + len(ids)


def test_segmentwise_tokens_equal_whole_string_tokens(bench) -> None:
    # Every cut lies at a special token, so tokenizing piece by piece changes nothing.
    tokenizer = bench.parts.tokenizer
    for prompt in bench.prompts():
        ids = [token for segment in prompt.segments for token in segment.ids]
        assert tokenizer(tokenizer.decode(ids), add_special_tokens=False).input_ids == ids
