"""Rule `collect_dialogues`: what the agents said on held-out tasks, all of it and six tasks side by side."""

from __future__ import annotations

from lever_pipe.base import storage
from lever_pipe.base.errors import RecordError
from lever_pipe.experiment.agent_stage_configs import CollectDialoguesConfig
from lever_pipe.experiment.stage_files import Inputs, Output
from lever_pipe.intention.dialogues import dialogues, samples_of
from lever_pipe.intention.records import DialogueRow


def collect_dialogues(
    *, transcripts: Inputs, samples: Output, side_by_side: Output, config: CollectDialoguesConfig
) -> None:
    """Write an `AgentSample` for each greedy episode of the primary endpoint's checkpoint, and the JSON of `dialogues`.

    `transcripts` belong to `config.runs`, in their order; there are none where another engine evaluates.

    Raises:
        RecordError: a malformed row, or a number of files that is not that of the runs.
    """
    if transcripts and len(transcripts) != len(config.runs):
        raise RecordError(
            f"transcripts: expected a file of each of {len(config.runs)} runs",
            found=str(len(transcripts)),
            do="Name one file a run.",
        )
    runs = {
        (run.arm, run.seed): [r for r in storage.read_rows(path, DialogueRow) if r.checkpoint == config.checkpoint]
        for run, path in zip(config.runs[: len(transcripts)], transcripts, strict=True)
    }
    storage.write_rows(samples, samples_of(runs))
    storage.write_json(side_by_side, dialogues(runs, config.arms, config.reference_arm))
