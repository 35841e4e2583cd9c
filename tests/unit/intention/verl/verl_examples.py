"""What the original trainer writes, made for tests: its console log, and configurations that it can run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lever_pipe.experiment.agent_evaluation import AgentEvaluation
from lever_pipe.experiment.agent_model import AgentModel
from lever_pipe.experiment.agent_training import AgentArm, AgentGrpo, Schedule
from lever_pipe.experiment.environment import Environment, Simulator
from lever_pipe.experiment.intention import ConvertVerlConfig, RenderVerlConfig

RECORDED = Path(__file__).parent / "console.log"
"""Six planned steps on three GPUs: killed after step 4, resumed from the checkpoint of step 3, killed after step 5."""
REWARD = "val-core/interact_intention/reward/mean@1"
VERSION = "UserRL cf55a30 (verl 0.4.0.dev)"

Steps = Iterable[tuple[int, Mapping[str, float]]]


def console(steps: Steps, *, rounded: bool = True, mark: str = "") -> str:
    """Return console lines: three decimals as the fork prints them, or in full as later versions of verl do."""

    def written(value: float) -> str:
        return f"{value:.3f}" if rounded else f"np.float64({value!r})"

    return "".join(
        f"{mark}step:{step} - " + " - ".join(f"{k}:{written(v)}" for k, v in values.items()) + "\n"
        for step, values in steps
    )


def convert_config(**changed: Any) -> ConvertVerlConfig:
    values = {"arm": "bundle", "seed": 0, "planned_steps": 6, "n_gpus": 3, "n_tasks": 40, "version": VERSION}
    return ConvertVerlConfig.model_validate(values | changed)


def arm(name: str = "baseline", seed: int = 0, **changed: Any) -> AgentArm:
    values = {"name": name, "seeds": (seed,), "trajectory_score": "mean", "learning_rate": 1e-6}
    return AgentArm.model_validate(values | changed)


def bundle(seed: int = 0) -> AgentArm:
    return arm("bundle", seed, kl=0.01, entropy=0.01, schedule=Schedule(kind="cosine", warmup_steps=5))


def render_config(**changed: Any) -> RenderVerlConfig:
    """Return the production configuration of one arm; sections are changed by name, as `grpo={"prompts": 3}`."""
    sections = {
        "grpo": AgentGrpo,
        "model": AgentModel,
        "environment": Environment,
        "simulator": Simulator,
        "evaluation": AgentEvaluation,
    }
    parts = {name: section.model_validate(changed.pop(name, {})) for name, section in sections.items()}
    values = {"arm": arm(), "n_gpus": 3, "version": VERSION, **parts}
    return RenderVerlConfig.model_validate(values | changed)
