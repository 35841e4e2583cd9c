"""What the checks find: each complaint's words, and the error that stops a run before its first job."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from lever_pipe.base.errors import PreflightError

ASK_ADMIN = "Ask the cluster's administrators, or start the run again when `scontrol ping` says UP."
ELSEWHERE = "Make room, or lay `results` or `store.folder` elsewhere."
TEXTS: dict[str, tuple[str, str]] = {
    # This machine.
    "CUDA": (
        "{devices}",
        "Run on such a machine or with profiles/slurm, or on the CPU: --set-resources RULE:device=cpu RULE:processes=1",
    ),
    "unwritable": (
        "a folder to write to",
        "Mend its permission or quota, or name another folder (`results`, `store.folder`).",
    ),
    "room": ("about {needed} free", ELSEWHERE),
    "room to keep": (
        "about {needed} free",
        "The run goes on and keeps nothing there. Make room, or lay `store.folder` elsewhere.",
    ),
    "inodes": ("{needed} free inodes", "Remove files, or lay `results` or `store.folder` elsewhere."),
    "no model": ("a model folder", "Bring it (docs/production.md): {command}\n    Or name another in {key}."),
    "bin weights": ("weights as safetensors", "Make them: python -m lever_pipe convert {folder}"),
    "model": ("a whole model folder", "Bring it again: {command}\n    Or name the right folder in {key}."),
    "no family": (
        "a family with an adapter of its own: {members}",
        "lvlm.member: hf answers for any family, slowly, by the model library's own `generate`.",
    ),
    "other family": (
        "model_type {member}, which lvlm.member names",
        "Set lvlm.member: auto, or hf, which answers for any family, slowly.",
    ),
    "raw files": (
        "raw files and folders with images",
        "Put them there (docs/production.md, docs/intention.md), or name their places in {key}.",
    ),
    "shares": (
        "a number that divides intention.grpo.prompts / minibatches = {prompts}",
        "Change it, or ask for {fitting}: --set-resources train_agent:processes={fitting} train_agent:gpu={fitting}",
    ),
    "shared CPU": (
        "one process on the CPU, where several that share a model only wait for each other",
        "--set-resources {rule}:device=cpu {rule}:processes=1",
    ),
    "chat template": ("a chat template that the agent's codec can use", "{do}"),
    "no questions": ("an official VQA question file", "Mend it."),
    "few questions": ("at least {wanted}", "Lower {keys}, or add train questions."),
    "unknown version": (
        "version {known}, for which lever_pipe/runtime/snakemake_adapter.py is written",
        "Run tests/unit/runtime/test_snakemake_adapter.py and tests/workflow with it.",
    ),
    # SLURM and its executor plugin.
    "no cluster": ("an answer to `scontrol show config` within 20 s", ASK_ADMIN),
    "no answer": ("an answer of {commands}", ASK_ADMIN),
    "short rounds": (
        "MinJobAge of at least {seconds}",
        "Set slurm-init-seconds-before-status-checks: {possible} in the profile.",
    ),
    "short memory": (
        "MinJobAge of at least {seconds}",
        "Ask the administrators for a MinJobAge of 300 s, SLURM's default.",
    ),
    "status command": ("slurm-status-command: squeue", "Set slurm-status-command: squeue in the profile."),
    "requeue": (
        "one of slurm-no-requeue and slurm-requeue",
        "Set slurm-no-requeue: true in the profile: Snakemake's retries then run a job again, and nobody else.",
    ),
    "array jobs": (
        "none: the plugin mistakes the states of an array's tasks and deletes finished outputs",
        "Drop slurm-array-jobs from the profile.",
    ),
    "whole number": ("a whole number", "Write it with digits alone: YAML reads 1e3 as text."),
    "doubled GPUs": (
        "GPUs asked for either with gpu or with gres",
        "Use one of them in set-resources: the one that gpu_request in default-resources of the profile names.",
    ),
    "other cluster": (
        (
            "jobs of this machine's own cluster: of another one squeue tells nothing here, so that a job which"
            " runs there would count as vanished and be started twice"
        ),
        "Drop it, and start the run on a machine of that cluster.",
    ),
    "no accounts": (
        "no slurm_account: SLURM keeps no accounts here, and the plugin fails at every submission",
        "Drop slurm_account from default-resources of the profile.",
    ),
    "unseen accounts": ("to see the accounts that you may charge", "Let it be if sbatch accepts the account."),
    "account": ("one that you may charge: {mine}", "Set slurm_account in default-resources of the profile.{hint}"),
    "partition": (
        "one of {known}",
        "Set slurm_partition in default-resources or set-resources of the profile.",
    ),
    "partition is up": ("a partition that is UP", "Wait for it, or name another one."),
    "runtime": (
        "runtime of at most {minutes} minutes",
        "Set a lower runtime under set-resources of the profile, or name another slurm_partition.",
    ),
    "node": (
        "a node with {words}",
        "Ask for less under set-resources or set-threads of the profile, or name another slurm_partition.",
    ),
    "later attempts": (
        (
            "room for every attempt: after a kill for want of memory or time a job asks for its first memory"
            " and time once more, {attempts} times at last"
        ),
        "Such a job may not run again; ask for enough at first, or name another slurm_partition.",
    ),
    "working node": ("a node that works", "Jobs wait until one comes back."),
    "preemption": (
        "a partition whose jobs stay until they end",
        "A killed job counts as failed: set retries in the profile, or name another slurm_partition.",
    ),
    # A node, asked by a job.
    "node answers": (
        "a node that starts `{python} -m lever_pipe` within {seconds} s",
        "Try again when a node is free; or put Python and package where all nodes see them.",
    ),
    "node differs": ("{here}", "Use one environment and one folder that all nodes share."),
    "node without GPU": (
        "a GPU that torch sees",
        "Install a torch that fits the node's driver, or name another partition.",
    ),
    # Jobs of an earlier run.
    "left jobs": (
        "no jobs of an earlier run of this folder in the queue: they write the files that this run would make",
        (
            "Let them end with {variable}=wait, or cancel them with {variable}=cancel"
            " (better before the run, so that it plans with what they made: python -m lever_pipe doctor --orphans"
            " wait|cancel). A run that was started here with --nolock may still own them.\n    {jobs}"
        ),
    ),
    "cancelled jobs": (
        "cancelled jobs to end within {seconds} s",
        "Their node may be down: `scontrol show job ID` tells; wait for it or ask the administrators.\n    {jobs}",
    ),
    "queue": (
        "an answer of squeue and scancel about jobs of an earlier run, which would write this run's files",
        "Make sure that none is left, or start the run again when `scontrol ping` says UP.",
    ),
}
"""What is expected and what to do, by the name of a complaint; braces hold what the check knows."""


class Level(StrEnum):
    """How grave an outcome is; a fault stops the run."""

    OK = "ok"
    WARNING = "warning"
    FAULT = "fault"


class Outcome(NamedTuple):
    """The outcome of one check.

    Attributes:
        check: what was looked at.
        expected: empty where all is well.
        do: empty where all is well.
    """

    level: Level
    check: str
    found: str
    expected: str = ""
    do: str = ""

    @property
    def text(self) -> str:
        """The outcome without its level, as every error of this package speaks."""
        if self.level is Level.OK:
            return f"{self.check}: {self.found}"
        return f"{self.check}: expected {self.expected}; found {self.found}. {self.do}"

    @property
    def line(self) -> str:
        """The outcome as `doctor` prints it."""
        return f"{self.level:<9}{self.text}"


def ok(check: str, found: str) -> Outcome:
    """Return an outcome without complaint."""
    return Outcome(Level.OK, check, found)


def warning(check: str, text: str, found: str, **known: object) -> Outcome:
    """Return an outcome that the run survives, in the words of `TEXTS`."""
    expected, do = TEXTS[text]
    return Outcome(Level.WARNING, check, found, expected.format(**known), do.format(**known))


def fault(check: str, text: str, found: str, **known: object) -> Outcome:
    """Return an outcome that stops the run, in the words of `TEXTS`."""
    return warning(check, text, found, **known)._replace(level=Level.FAULT)


def require_no_fault(outcomes: Iterable[Outcome]) -> None:
    """Raise one PreflightError that holds all faults, if there are any."""
    faults = [outcome for outcome in outcomes if outcome.level is Level.FAULT]
    if faults:
        count = f"{len(faults)} fault" + ("s" if len(faults) > 1 else "")
        texts = "\n  ".join(outcome.text for outcome in faults)
        raise PreflightError(
            "expected everything in place before the first job",
            found=count,
            do=f"Nothing was submitted. Mend this (python -m lever_pipe doctor looks again):\n  {texts}",
        )
