"""Generate the files of the embedded world."""

from __future__ import annotations

from lever_pipe.base import storage
from lever_pipe.experiment.data import GenerateWorldConfig
from lever_pipe.experiment.stage_files import Output
from lever_pipe.world.files import write_raw_files


def generate_world(
    *,
    questions: Output,
    annotations: Output,
    images: Output,
    image_listing: Output,
    config: GenerateWorldConfig,
) -> None:
    """Write one split of the configured world, and the digest of every image; the same config gives the same bytes."""
    write_raw_files(config.world, config.split, questions=questions, annotations=annotations, images=images)
    storage.write_listing(image_listing, {f"{images.name}/{p.name}": storage.digest(p) for p in images.iterdir()})
