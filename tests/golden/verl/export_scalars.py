"""Write TensorBoard scalars as CSV: python3 export_scalars.py EVENTS_FOLDER scalars.csv"""

import csv
import sys
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def main(folder: str, target: str) -> None:
    events = EventAccumulator(folder, size_guidance={"scalars": 0})  # 0: all of them
    events.Reload()
    with Path(target).open("w", newline="", encoding="utf-8") as handle:
        writer = csv.writer(handle, lineterminator="\n")
        writer.writerow(["step", "key", "value"])
        for key in sorted(events.Tags()["scalars"]):
            # Scalars are stored as float32, which holds seven digits.
            writer.writerows([event.step, key, f"{event.value:.7g}"] for event in events.Scalars(key))


main(*sys.argv[1:])
