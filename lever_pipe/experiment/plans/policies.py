"""The policies of an experiment: which are trained, evaluated, sampled and compared, by name."""

from __future__ import annotations

from dataclasses import replace

from lever_pipe.base.policy_names import EMULATION, OWN, PolicyName
from lever_pipe.experiment.arms import ArmSettings
from lever_pipe.experiment.grid import GridArm, GridBaselines
from lever_pipe.experiment.selections import BASELINES
from lever_pipe.experiment.studies import Experiment

EXTRA_OBJECTIVE_BETAS = {"reinforce": 0.0, "distil": None, "continued": None}
"""Kinds of on-policy runs with another objective than GRPO -> KL_BETA in their names."""
RANDOM_BASELINES = ("random", "random_all")
"""Baselines with several random draws."""


def baselines(experiment: Experiment) -> list[str]:
    """Return the names of all baselines."""
    draws = range(experiment.baselines.n_random_draws)
    kinds = experiment.baselines.names if isinstance(experiment.baselines, GridBaselines) else BASELINES
    return [
        full
        for name in kinds
        for full in ([f"{name}-{draw}" for draw in draws] if name in RANDOM_BASELINES else [name])
    ]


def sft_policies(arm: ArmSettings, seed: int, *, first: int = 1) -> list[str]:
    """Return the SFT epochs of one seed from `first` on."""
    run = PolicyName(kind="sft", preset=arm.preset, seed=seed)
    return [str(run.at(epoch)) for epoch in range(max(1, first), arm.sft_epochs + 1)]


def started_from(experiment: Experiment, preset: str) -> list[str]:
    """Return the file with a preset's initial selector; an empty list if it is the untrained one."""
    start = experiment.presets[preset].start_from
    if not start:
        return []
    return [start if start.endswith(".safetensors") else f"{start}/selector.safetensors"]


def _evaluated_epochs(arm: ArmSettings, last: int) -> range:
    """Return all epochs up to the last; in the grid, only the last."""
    return range(last if isinstance(arm, GridArm) else 1, last + 1)


def grpo_policies(arm: ArmSettings, seed: int) -> list[str]:
    """Return the evaluated GRPO epochs of one seed, for every base epoch and beta, those of long runs last."""
    short = [(beta, epoch) for beta in arm.kl_betas for epoch in _evaluated_epochs(arm, arm.grpo_epochs)]
    is_long = seed in arm.long_seeds
    long = [(beta, epoch) for beta in arm.long_kl_betas for epoch in arm.long_evaluated if is_long]
    return [
        str(PolicyName(kind="grpo", preset=arm.preset, base=base, beta=beta, seed=seed, epoch=epoch))
        for base in arm.base_rce_epochs
        for beta, epoch in dict.fromkeys([*short, *long])  # a long run's epoch may be in both lists
    ]


def on_policy_policies(arm: ArmSettings, seed: int) -> list[str]:
    """Return the evaluated on-policy epochs of one seed, and those of extra objectives."""
    runs = arm.on_policy
    if runs is None or seed not in runs.seeds:
        return []
    on_policy = [("on_policy", beta) for beta in runs.kl_betas]
    extra_objectives = [(objective, EXTRA_OBJECTIVE_BETAS[objective]) for objective in runs.extra_objectives]
    return [
        str(PolicyName(kind=kind, preset=arm.preset, base=base, beta=beta, seed=seed, epoch=epoch))
        for base in arm.base_rce_epochs
        for kind, beta in [*on_policy, *extra_objectives]
        for epoch in runs.evaluated or _evaluated_epochs(arm, runs.epochs)
    ]


def long_runs(arm: ArmSettings) -> list[str]:
    """Return every epoch of the training-curve runs, evaluated or not."""
    return [
        str(PolicyName(kind="grpo", preset=arm.preset, base=base, beta=beta, seed=seed, epoch=epoch))
        for base in arm.base_rce_epochs
        for beta in arm.long_kl_betas
        for seed in arm.long_seeds
        for epoch in range(1, arm.long_epochs + 1)
    ]


def batches(experiment: Experiment) -> list[str]:
    """Return the answer batches: one for the baselines, one for each arm and seed."""
    return ["baseline", *_trained_batches(experiment)]


def _trained_batches(experiment: Experiment) -> dict[str, tuple[ArmSettings, int]]:
    return {
        PolicyName(kind="init", preset=arm.preset, seed=seed).batch: (arm, seed)
        for arm in experiment.arms
        for seed in arm.seeds
    }


def policies_of(experiment: Experiment, batch: str) -> list[str]:
    """Return the policies of one answer batch."""
    if batch == "baseline":
        return [f"baseline/{name}" for name in baselines(experiment)]
    if batch == EMULATION:
        return emulated(experiment)
    if batch == OWN:
        return [f"{OWN}/{name}" for name in experiment.grid.policies]
    arm, seed = _trained_batches(experiment)[batch]
    last_sft, run = sft_policies(arm, seed, first=arm.sft_epochs), PolicyName(kind="rce", preset=arm.preset, seed=seed)
    rce = [str(run.at(epoch)) for epoch in _evaluated_epochs(arm, arm.rce_epochs)]
    return [*last_sft, *rce, *grpo_policies(arm, seed), *on_policy_policies(arm, seed)]


def evaluated(experiment: Experiment) -> list[str]:
    """Return every evaluated policy once."""
    return [policy for batch in batches(experiment) for policy in policies_of(experiment, batch)]


def sampled(experiment: Experiment) -> list[str]:
    """Return the policies whose samples `collect_samples` collects.

    These are the baselines, trained policies after the last epoch that all evaluated runs of their preset and kind
    share, and policies from which an evaluated run starts.
    """
    names = {name: PolicyName.parse(name) for name in evaluated(experiment)}
    latest = {replace(name, epoch=None): name.epoch or 0 for name in names.values()}  # a run's epochs rise
    common: dict[tuple[str, str], int] = {}
    for run, epoch in latest.items():
        common[run.preset, run.kind] = min(epoch, common.get((run.preset, run.kind), epoch))
    starts = {name.start for name in names.values() if name.base is not None}
    return [
        text for text, name in names.items() if name in starts or (name.epoch or 0) == common[name.preset, name.kind]
    ]


def controlled(experiment: Experiment) -> list[str]:
    """Return one draw of each baseline with demonstrations, and one run of each kind of the main preset.

    A run has the arm's first seed and the smallest KL_BETA of its kind.
    """
    main = experiment.arms[0]
    names = [n for n in map(PolicyName.parse, sampled(experiment)) if n.preset in ("", main.preset)]
    least = {kind: min(n.beta or 0.0 for n in names if n.kind == kind) for kind in {n.kind for n in names}}
    return [
        str(name)
        for name in names
        if name.variant != "zero_shot" and name.draw in (None, 0)
        if name.seed in (None, main.seeds[0]) and (name.beta or 0.0) == least[name.kind]
    ]


def trained(experiment: Experiment) -> list[str]:
    """Return every training epoch of every run once, evaluated or not."""
    names = [policy for policy in evaluated(experiment) if not policy.startswith("baseline/")]
    for arm in experiment.arms:
        names += [policy for seed in arm.seeds for policy in sft_policies(arm, seed)] + long_runs(arm)
    return list(dict.fromkeys(names))


def stepped(experiment: Experiment) -> list[str]:
    """Return every training epoch that logs its steps: those of on-policy runs."""
    return [policy for policy in trained(experiment) if PolicyName.parse(policy).mode == "on_policy"]


def emulated(experiment: Experiment, *arms: str) -> list[str]:
    """Return the emulated policies of these arms, by default of all; `evaluated` does not contain them."""
    if experiment.emulate is None:
        return []
    return [policy.name for policy in experiment.emulate.policies(*arms)]


def starts(experiment: Experiment) -> list[str]:
    """Return the selectors that evaluated policies start from and that are not evaluated themselves."""
    names = [name for name in evaluated(experiment) if not name.startswith("baseline/")]
    begun = dict.fromkeys(str(PolicyName.parse(name).start) for name in names)
    return [name for name in begun if name not in names]
