"""The columns of the collected files of study `intention`, and the metrics that collecting adds."""

from __future__ import annotations

CURVES_COLUMNS = ("arm", "seed", "step", "split", "mode", "metric", "value")
EPISODES_COLUMNS = (
    "arm",
    "seed",
    "step",
    "split",
    "mode",
    "checkpoint",
    "task_id",
    "sample",
    "reward",
    "ceiling",
    "turns",
    "end",
    "n_agent_tokens",
)
RUNS_COLUMNS = (
    "arm",
    "seed",
    "engine",
    "planned_steps",
    "executed_steps",
    "reason",
    "best_step",
    "n_parameters",
    "version",
    "seconds",
    "device",
)
N_TASKS, N_SAMPLES = "n_tasks", "n_samples"
"""Of an evaluation, as metrics of `curves.csv`."""
TASKS_LOST = "tasks_lost"
"""Tasks of an evaluation without a sound episode; `n_tasks` leaves them out."""
SAME_TASKS_ERROR = "reward_error"
"""Standard error of a mean reward if the same tasks were rolled out again; `reward_se` draws other tasks, too."""
CEILING = "ceiling"
"""Mean over an evaluation's tasks of what one detail a question would give."""
