"""Rule `generate_world`: the embedded world's images, questions and annotations in OK-VQA's format."""

from __future__ import annotations

from lever_pipe.base import storage
from lever_pipe.experiment.stage_configs import GenerateWorldConfig
from lever_pipe.experiment.stage_files import Output
from lever_pipe.world.data.files import write_raw_files


def generate_world(
    *,
    train_questions: Output,
    train_annotations: Output,
    train_images: Output,
    eval_questions: Output,
    eval_annotations: Output,
    eval_images: Output,
    image_listing: Output,
    config: GenerateWorldConfig,
) -> None:
    """Write both splits of the world that the config names, and the digest of every image; same config, same bytes."""
    write_raw_files(
        train_questions=train_questions,
        train_annotations=train_annotations,
        train_images=train_images,
        eval_questions=eval_questions,
        eval_annotations=eval_annotations,
        eval_images=eval_images,
        options=config.world,
    )
    images = sorted(path for folder in (train_images, eval_images) for path in folder.iterdir())
    lines = (f"{storage.digest(path)}  {path.parent.name}/{path.name}\n" for path in images)
    storage.write_text(image_listing, "".join(lines))
