"""Conversion of questions, answers and images to examples, and their vectors."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from lever_pipe.base.plugins import plugin_of
from lever_pipe.base.records import AnswerText, Split
from lever_pipe.base.sections import FilePath, Section, Seed


class ExampleSettings(Section):
    """Conversion of questions, answers and images to examples."""

    reader: Annotated[str, plugin_of("lever/datasets")] = "okvqa"
    """A plugin of `lever_pipe/lever/datasets`."""
    train_image_name: str = "COCO_train2014_{image_id:012d}.jpg"
    eval_image_name: str = "COCO_val2014_{image_id:012d}.jpg"
    n_eval: int = Field(800, ge=1)
    """Evaluated queries."""
    eval_subset: Literal["prefix", "random"] = "prefix"
    """Choice of the evaluated queries: the first by question id, as published, or a random subset. A smaller random
    subset is part of a larger one."""
    eval_seed: Seed = 0
    """Seed of the random subset."""
    n_answers: int = Field(10, ge=1, le=100)
    """Annotators per question; another count is an error in the data. With 2 or 3, VQA accuracy could not reach 1."""
    answers: AnswerText = "stemmed"
    """Text of an annotation, for demonstrations and accuracies: `stemmed` reads the field `answer`, which OK-VQA stems
    ("race"), `raw` the field `raw_answer` ("racing"). The LVLM's answers are never stemmed."""
    on_bad_image: Literal["stop", "skip"] = "stop"
    """`skip` drops and counts the questions of unreadable images."""
    on_split_overlap: Literal["stop", "count"] = "stop"
    """Handling of evaluation questions that are also train questions, on the same image: `count` evaluates them, and
    the report shows their number."""


class PrepareExamplesConfig(ExampleSettings):
    """Identity of one split's examples; keys of the other split have their defaults."""

    PLUGINS = ("lever.datasets.{reader}",)
    split: Split


class EmbedExamplesConfig(Section):
    PLUGINS = ("lever.encoders.{plugin}",)
    plugin: str
    model_identity: str
    batch_size: int


class EncoderSettings(Section):
    """The frozen image and text encoder that provides the selector's inputs."""

    plugin: Annotated[str, plugin_of("lever/encoders")] = "clip"
    """A plugin of `lever_pipe/lever/encoders`."""
    model: FilePath = "models/clip-vit-base-patch32"
    batch_size: int = Field(256, ge=1)
