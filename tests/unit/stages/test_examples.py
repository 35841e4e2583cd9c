"""The stages between raw files and embeddings, on a small generated world."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import yaml
from builders import prepared as prepare_both
from builders import shipped, world_files
from snakemake.utils import update_config

from lever_pipe.base import storage
from lever_pipe.base.errors import DataError, ImageError
from lever_pipe.base.records import Example, ExampleId, PolicyScores, Pool, QuestionScore
from lever_pipe.experiment.identities import config_of
from lever_pipe.experiment.pools import MeasurePoolsConfig
from lever_pipe.experiment.studies import Experiment, parse_experiment
from lever_pipe.lever.baselines import holds_exact_demonstration
from lever_pipe.lvlms.protocol import ImageSource
from lever_pipe.metrics.vqa_accuracy import vqa_accuracy
from lever_pipe.stages.examples import embed_examples
from lever_pipe.stages.pools import measure_pools

ROOT = Path(__file__).parents[3]
EXPERIMENT = parse_experiment(shipped())
N_TRAIN, N_EVAL = 80, 12


class World:
    """A generated world below a folder, and its preparation."""

    def __init__(self, folder: Path, experiment: Experiment = EXPERIMENT) -> None:
        self.experiment = experiment
        self.folder = folder
        self.rows = {f"{split}_examples": folder / f"{split}.jsonl" for split in ("train", "eval")}
        small = experiment.data.world.model_copy(update={"n_train": N_TRAIN, "n_eval": N_EVAL})
        self.raw = world_files(folder, small)

    def prepare(self, **changed: object) -> tuple[int, int]:
        sizes = prepare_both(self.folder, self.raw, self.experiment.data, **{"n_eval": N_EVAL} | changed)
        return sizes["train"], sizes["eval"]

    def examples(self, split: str) -> list[Example]:
        return storage.read_rows(self.rows[f"{split}_examples"], Example)

    def image(self, split: str) -> Path:
        """Return the first image that an example of a split shows."""
        return self.raw[split]["images"] / self.examples(split)[0].image


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_the_listing_names_every_image_by_its_digest(world: World) -> None:
    assert world.prepare() == (N_TRAIN, N_EVAL)
    for split in ("train", "eval"):
        folder, listing = world.raw[split]["images"], world.raw[split]["image_listing"]
        listed = dict(reversed(line.split("  ")) for line in listing.read_text().splitlines())
        for example in world.examples(split):
            assert listed[f"{folder.name}/{example.image}"] == example.image_digest


def test_an_image_that_changed_since_is_refused(world: World, tmp_path: Path) -> None:
    world.prepare()
    victim, digest = world.image("eval"), world.examples("eval")[0].image_digest
    assert ImageSource({digest: victim}).open(digest).size == (56, 56)
    victim.write_bytes(world.image("train").read_bytes())
    with pytest.raises(ImageError):
        ImageSource({digest: victim}).open(digest)
    with pytest.raises(ImageError, match=victim.name):
        embed_examples(
            examples=world.rows["eval_examples"], images=world.raw["eval"]["images"],
            encoder=ROOT / EXPERIMENT.encoder.model, embeddings=tmp_path / "embeddings",
            config=config_of(EXPERIMENT, "embed_examples", {}),
        )  # type: ignore[arg-type]  # fmt: skip


def test_examples_are_not_made_of_other_images_than_were_planned(world: World) -> None:
    world.prepare()
    listing = world.folder / "listing"
    listed = {example.image: example.image_digest for example in world.examples("train")}
    world.raw["train"]["image_listing"] = listing
    storage.write_listing(listing, listed)
    assert world.prepare() == (N_TRAIN, N_EVAL)
    victim, other = world.image("train"), world.image("eval")
    victim.write_bytes(other.read_bytes())
    with pytest.raises(ImageError, match=victim.name):
        world.prepare()


def test_pools_are_measured_query_by_query(world: World, tmp_path: Path) -> None:
    world.prepare()
    train, queries = world.examples("train"), world.examples("eval")
    pools = [Pool(query_id=ExampleId(q), candidates=tuple(map(ExampleId, range(q, q + 9)))) for q in range(N_EVAL)]
    scores = tuple(QuestionScore(query_id=ExampleId(q), shots=1, accuracy=float(q % 2)) for q in range(N_EVAL))
    scored = [PolicyScores(policy=f"baseline/{name}", questions=scores) for name in ("oracle", "zero_shot")]
    for name, rows in (("pools", pools), ("scores", scored)):
        storage.write_rows(tmp_path / name, rows)
    found = measure_pools(
        **world.rows, eval_pools=tmp_path / "pools", per_question=tmp_path / "scores", bound=tmp_path / "bound",
        config=MeasurePoolsConfig(),
    )  # fmt: skip
    copied = [max(vqa_accuracy(train[i].answer, queries[p.query_id].answers) for i in p.candidates) for p in pools]
    assert found["queries"] == N_EVAL
    assert found["best_answer"] == pytest.approx(100 * sum(copied) / N_EVAL, abs=1e-3)  # printed with four digits
    either = [max(best, q % 2) for q, best in enumerate(copied)]
    assert found["best_answer_or_zero_shot"] == pytest.approx(100 * sum(either) / N_EVAL, abs=1e-3)
    exact = [holds_exact_demonstration(queries[p.query_id], [train[i] for i in p.candidates]) for p in pools]
    assert found["exact_demonstration"] == pytest.approx(100 * sum(exact) / N_EVAL, abs=1e-3)


def second_world() -> Experiment:
    values = shipped()
    update_config(values, yaml.safe_load((ROOT / "config/world_b.yaml").read_text()))
    return parse_experiment(values)


def test_the_second_world_goes_through_the_reader_of_vqav2(tmp_path: Path) -> None:
    world = World(tmp_path, second_world())
    assert world.prepare() == (N_TRAIN, N_EVAL)
    train = world.examples("train")
    assert len({example.image for example in train}) == N_TRAIN // 5
    text = {row["question_id"]: row for row in storage.read_json(world.raw["train"]["annotations"])["annotations"]}
    for example in train:
        assert example.answer == text[example.question_id]["multiple_choice_answer"]
        assert example.answers.count(example.answer) == max(Counter(example.answers).values())
    # Annotators of this world disagree more, so that all levels of VQA accuracy occur.
    levels = {round(vqa_accuracy(answer, example.answers), 1) for example in train for answer in example.answers}
    assert levels == {0.3, 0.6, 0.9, 1.0}
    del text[train[0].question_id]["multiple_choice_answer"]
    storage.write_json(world.raw["train"]["annotations"], {"annotations": list(text.values())})
    with pytest.raises(DataError, match=rf"no multiple_choice_answer: 1 \(question {train[0].question_id}\)"):
        world.prepare()
