from __future__ import annotations

from pathlib import Path

import pytest
import torch
from builders import evaluation_files, ids, random_pools

from lever_pipe.base import storage
from lever_pipe.base.errors import UnknownNameError
from lever_pipe.base.records import ExampleId, Selection
from lever_pipe.base.torch_streams import torch_generator
from lever_pipe.experiment.selections import SelectBaselineConfig, SelectDemonstrationsConfig
from lever_pipe.experiment.selector import Selector
from lever_pipe.lever import baselines
from lever_pipe.lever.selector.embeddings import fuse, read_table
from lever_pipe.lever.selector.network import (
    PointerSelector,
    architecture_of,
    build_selector,
    initialise,
    save_selector,
)
from lever_pipe.stages.answers import distinct_prompts
from lever_pipe.stages.selections import select_baseline, select_demonstrations

N_TRAIN, N_EVAL = 40, 300  # more queries than one part of the stage
SMALL = Selector(width=8)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    return evaluation_files(tmp_path, N_TRAIN, N_EVAL) | {name: tmp_path / name for name in ("selections", "selector")}


def module_of(files: dict[str, Path]) -> PointerSelector:
    architecture = architecture_of(SMALL, read_table(files["train_embeddings"], torch.device("cpu")).width)
    return initialise(build_selector(architecture), torch_generator(0)).eval()


def chosen(files: dict[str, Path]) -> list[tuple[int, ...]]:
    return [row.demonstrations for row in storage.read_rows(files["selections"], Selection)]


def run_selector(files: dict[str, Path], shots: int, selector: Selector = SMALL) -> list[tuple[int, ...]]:
    names = ("selector", "eval_pools", "train_embeddings", "eval_embeddings", "selections")
    config = SelectDemonstrationsConfig(selector=selector, shots=shots)
    assert select_demonstrations(**{name: files[name] for name in names}, config=config) == N_EVAL
    return chosen(files)


def run_baseline(files: dict[str, Path], baseline: str, *, shots: int = 4, seed: int = 42) -> list[tuple[int, ...]]:
    paths = {name: path for name, path in files.items() if name != "selector"}
    config = SelectBaselineConfig(baseline=baseline, shots=shots, seed=seed)
    assert select_baseline(**paths, config=config) == N_EVAL
    return chosen(files)


def test_selections_are_the_best_scores_query_by_query(files: dict[str, Path]) -> None:
    module = module_of(files)
    save_selector(files["selector"], module, stage="rce", epoch=1)
    rows = run_selector(files, 4)
    train, queries = (
        fuse(*(storage.read_arrays(files[f"{split}_embeddings"])[part] for part in ("image", "question")))
        for split in ("train", "eval")
    )
    for of, row in zip(random_pools(N_EVAL, N_TRAIN), rows, strict=True):
        with torch.inference_mode():
            candidates = torch.from_numpy(train[list(of.candidates)])[None]
            scores = module(torch.from_numpy(queries[of.query_id])[None], candidates)[0]
        best = sorted(range(8), key=lambda k: -float(scores[k]))[:4]
        gaps = scores.sort(descending=True).values.diff().abs()[:4]
        if float(gaps.min()) > 1e-4:  # kernels differ by batch size in the last bits
            assert row == tuple(of.candidates[k] for k in best)


def test_chance_differs_by_draw_query_and_seed(files: dict[str, Path]) -> None:
    first = run_baseline(files, "random-0")
    assert run_baseline(files, "random-0") == first
    assert run_baseline(files, "random-0", shots=2) == [row[:2] for row in first]
    others = [run_baseline(files, "random-1"), run_baseline(files, "random-0", seed=43)]
    assert first not in others
    assert others[0] != others[1]
    pools = [set(of.candidates) for of in random_pools(N_EVAL, N_TRAIN)]
    assert all(set(row) <= of and len(set(row)) == 4 for row, of in zip(first, pools, strict=True))
    positions = [of.candidates.index(row[0]) for row, of in zip(first, random_pools(N_EVAL, N_TRAIN), strict=True)]
    assert len(set(positions)) == 8


def test_similar_selections_are_an_argsort_of_cosines(files: dict[str, Path]) -> None:
    train, queries = (storage.read_arrays(files[f"{split}_embeddings"]) for split in ("train", "eval"))
    for baseline, parts in (("similar_image", ["image"]), ("similar_both", ["image", "question"])):
        rows = run_baseline(files, baseline)
        for of, row in zip(random_pools(N_EVAL, N_TRAIN), rows, strict=True):
            cosine = {
                k: sum(float(train[part][k] @ queries[part][of.query_id]) for part in parts) for k in of.candidates
            }
            assert row == tuple(sorted(of.candidates, key=lambda k: -cosine[k])[:4])


def test_mmices_takes_the_nearest_questions_among_the_nearest_images(
    files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(baselines, "FILTERED", 3)  # of pools of eight
    train, queries = (storage.read_arrays(files[f"{split}_embeddings"]) for split in ("train", "eval"))
    for of, row in zip(random_pools(N_EVAL, N_TRAIN), run_baseline(files, "mmices"), strict=True):
        by_image, by_question = (
            {k: float(train[part][k] @ queries[part][of.query_id]) for k in of.candidates}
            for part in ("image", "question")
        )
        nearest = sorted(of.candidates, key=lambda k: -by_image[k])
        assert row == (*sorted(nearest[:3], key=lambda k: -by_question[k]), nearest[3])


def test_the_oracle_puts_right_answers_first(files: dict[str, Path]) -> None:
    # the shown answers are answer0 .. answer3 by number modulo 4, and types by number modulo 3
    for of, row in zip(random_pools(N_EVAL, N_TRAIN), run_baseline(files, "oracle"), strict=True):
        rank = [(k % 4 != of.query_id % 4, k % 3 != of.query_id % 3) for k in row]
        assert rank == sorted((k % 4 != of.query_id % 4, k % 3 != of.query_id % 3) for k in of.candidates)[:4]


def test_zero_shot_selects_nothing_and_an_unknown_baseline_is_told(files: dict[str, Path]) -> None:
    assert run_baseline(files, "zero_shot") == [()] * N_EVAL
    with pytest.raises(UnknownNameError, match="found 'similar_answer'"):
        run_baseline(files, "similar_answer")


def test_prompts_are_asked_once(tmp_path: Path) -> None:
    def write(name: str, rows: dict[int, list[int]]) -> Path:
        selections = [Selection(query_id=ExampleId(q), demonstrations=ids(chosen)) for q, chosen in rows.items()]
        storage.write_rows(tmp_path / name, selections)
        return tmp_path / name

    paths = (write("a", {1: [5, 6], 0: [7, 8]}), write("b", {1: [5, 9], 0: [7, 8]}), write("zero", {1: []}))
    assert distinct_prompts(paths, (1, 2)) == [
        (0, (7,)), (0, (7, 8)), (1, ()), (1, (5,)), (1, (5, 6)), (1, (5, 9)),
    ]  # fmt: skip
    assert distinct_prompts(paths[::-1], (2, 1)) == distinct_prompts(paths, (1, 2))
    assert distinct_prompts((), (1, 2)) == []


def test_a_policy_that_stops_is_asked_with_what_it_chose(files: dict[str, Path]) -> None:
    selector = Selector(width=8, head="stop")
    architecture = architecture_of(selector, read_table(files["train_embeddings"], torch.device("cpu")).width)
    module = initialise(build_selector(architecture), torch_generator(0))
    with torch.no_grad():
        module.stop_token.normal_(std=0.5, generator=torch_generator(1))
    save_selector(files["selector"], module, stage="rce", epoch=1)
    rows = run_selector(files, 4, selector)
    lengths = {len(row) for row in rows}
    assert {1, 4} <= lengths | {1}
    assert len(lengths) > 1
    assert min(lengths) >= 1
    assert run_selector(files, 2, selector) == [row[:2] for row in rows]
    run_selector(files, 4, selector)
    prompts = distinct_prompts((files["selections"],), (1, 2, 3, 4))
    assert prompts == sorted({(query, row[:k]) for query, row in enumerate(rows) for k in range(1, len(row) + 1)})


def test_random_all_chooses_among_all_train_examples_that_show_another_image(files: dict[str, Path]) -> None:
    train, queries = (storage.read_examples(files[name]) for name in ("train_examples", "eval_examples"))
    same = train[3].model_copy(update={"image_digest": queries[0].image_digest})
    storage.write_rows(files["train_examples"], [same if one.example_id == 3 else one for one in train])
    draws = [run_baseline(files, f"random_all-{draw}", shots=N_TRAIN - 1) for draw in range(2)]
    assert draws[0] != draws[1]
    displayed = queries[0].image_digest
    others = {one.example_id for one in storage.read_examples(files["train_examples"]) if one.image_digest != displayed}
    assert set(draws[0][0]) == others
    assert 3 not in others
    assert draws[0] == run_baseline(files, "random_all-0", shots=N_TRAIN - 1)
    assert len({row[0] for row in draws[0]}) > N_TRAIN - 4  # of 300 queries, 40 (39/40)^300 = 0.02 are expected to miss
