"""Study `lever`: the embedded world, or files of a user."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, get_args

from pydantic import Field

from lever_pipe.base.sections import Distinct, FilePath, Problem, Section, Seed, Share, at_most, has_fields, rule
from lever_pipe.experiment.examples import ExampleSettings

KnowledgeName = Literal["material", "place", "team", "country"]
PerceptualName = Literal["object", "color", "count"]


class WorldData(Section):
    """The generator of the embedded world (`lever_pipe/world`).

    Numbers in brackets are the shipped LVLM's accuracy in percent.
    """

    layout: Literal["okvqa", "vqav2"] = "okvqa"
    """Layout of the world's files, as the official ones; `vqav2` includes the answer to show
    (`multiple_choice_answer`)."""

    n_train: int = Field(2000, ge=64, le=100_000)
    """Train questions: demonstrations and RL queries."""
    n_eval: int = Field(800, ge=8, le=100_000)
    """Evaluation questions."""
    seed: Seed = 0
    """Seed of the rendered items."""
    mapping_seed: Seed = 7
    """Seed of the mapping from keys to answers; the shipped models were trained without mapping 7."""
    n_active_answers: int = Field(4, ge=1, le=8)
    """Number of a relation's eight answers in the mapping."""
    perceptual_share: Share = 0.25
    """Share of questions that the image alone answers."""
    relations: Distinct[KnowledgeName | PerceptualName] = (*get_args(KnowledgeName), *get_args(PerceptualName))
    """Relations of the questions. Only demonstrations answer the first four, only the image the others."""
    questions_per_image: int = Field(1, ge=1, le=7)
    """Questions of an image, each of another relation; with 1, a tenth of the questions share an image in pairs, as in
    OK-VQA."""
    skew: float = Field(0.0, ge=0, le=4)
    """Unevenness of relations, kinds and colors, and so of answers and their types: rank r has the weight r to the
    power of -skew."""
    dissent: float = Field(1.0, gt=0, le=8)
    """Noise of the annotators: with 2 they disagree about twice as often."""
    flipped_share: Share = 0.05
    """Share of knowledge questions with a wrong majority answer. Correct demonstrations outvote a wrong one: one
    against one (46), two against one (75), three against one (88)."""
    blur: float = Field(0.0, ge=0, le=4)
    """Radius in pixels of the blur over every image. With 2 all images are readable; with 4 the LVLM still finds the
    matching demonstration of two (95), while the encoder distinguishes 72 of 100 kinds."""
    near_duplicates: Share = 0.0
    """Share of train images that copy an earlier image and its questions, with a new id and different bytes. With 0.9
    the two most similar candidates are copies of one item for 28 of 100 queries."""
    composite_share: Share = 0.0
    """Share of knowledge questions about two different things with the same answer. One demonstration (72) gains little
    from a second about the same thing (75) and much from one about the other thing (93), with the relations team and
    country and two active answers; half as much where the kind decides."""
    guessable_share: Share = 0.0
    """Share of the facts that the LVLM guesses (71 of their questions without a demonstration, 50 with one of another
    key and another answer): without a matching demonstration, none is better than any."""

    @rule
    def _families_are_asked_for(self) -> Iterator[Problem]:
        for names, share in ((get_args(KnowledgeName), 1), (get_args(PerceptualName), 0)):
            if not set(names) & set(self.relations) and self.perceptual_share != share:
                problem = f"must be {share} where data.world.relations has none of {', '.join(names)}"
                yield ("perceptual_share",), f"{problem}, got {self.perceptual_share}. Set it to {share}, or name one."

    @rule
    def _questions_of_an_image_differ(self) -> list[Problem]:
        unasked = {0.0: get_args(PerceptualName), 1.0: get_args(KnowledgeName)}.get(self.perceptual_share, ())
        number, do = len(set(self.relations) - set(unasked)), "Ask less of an image, or for more relations."
        needed = max(2, self.questions_per_image)  # 1 makes pairs too
        return at_most(("questions_per_image",), needed, "the number of relations asked for", number, do)

    @rule
    def _composites_are_alone(self) -> Iterator[Problem]:
        if self.composite_share and self.questions_per_image > 1:
            do = "Set one of them back: other questions about two things have no one answer."
            yield ("composite_share",), f"must be 0 with questions_per_image above 1, got {self.composite_share}. {do}"


class GenerateWorldConfig(Section):
    """Identity of one split's files; the other split's size has its default, so that it cannot rerun this one."""

    split: Literal["train", "val"]
    world: WorldData


class VqaFiles(Section):
    """Official OK-VQA or VQAv2 files and COCO image folders."""

    train_questions: FilePath = "data/okvqa/OpenEnded_mscoco_train2014_questions.json"
    train_annotations: FilePath = "data/okvqa/mscoco_train2014_annotations.json"
    train_images: FilePath = "data/coco/train2014"
    eval_questions: FilePath = "data/okvqa/OpenEnded_mscoco_val2014_questions.json"
    eval_annotations: FilePath = "data/okvqa/mscoco_val2014_annotations.json"
    eval_images: FilePath = "data/coco/val2014"


class Data(ExampleSettings):
    """Sources of questions, answers and images."""

    source: Literal["world", "files"] = "files"
    """`world` generates the embedded world; `files` reads the files named below."""
    world: WorldData = WorldData()
    files: VqaFiles = VqaFiles()

    @rule
    def _image_names_tell_images_apart(self) -> Iterator[Problem]:
        for key, example in (("train_image_name", "COCO_train2014_"), ("eval_image_name", "COCO_val2014_")):
            template = getattr(self, key)
            if not has_fields(template, image_id=1) or template.format(image_id=1) == template.format(image_id=2):
                remedy = f"Write for example {example}{{image_id:012d}}.jpg."
                yield (key,), f"must be a file name with the one field image_id, got {template!r}. {remedy}"

    @rule
    def _world_is_large_enough(self) -> list[Problem]:
        is_world = self.source == "world"
        return at_most(("n_eval",), self.n_eval, "data.world.n_eval", self.world.n_eval) if is_world else []

    @rule
    def _world_has_the_answers_to_show(self) -> Iterator[Problem]:
        if self.source == "world" and self.reader == "vqav2" != self.world.layout:
            bound = "must be vqav2 with data.reader: vqav2, which shows multiple_choice_answer"
            yield ("world", "layout"), f"{bound}, got {self.world.layout!r}. Change one of them."

    @rule
    def _accuracy_reaches_one(self) -> Iterator[Problem]:
        if self.n_answers in (2, 3):
            yield ("n_answers",), f"must be 1 or at least 4, got {self.n_answers}. Keep one answer a question."
