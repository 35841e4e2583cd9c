import json
from os.path import join

from lever_pipe.base.policy_names import PolicyName
from lever_pipe.experiment.plans import agents, data, grid, models, policies, training
from lever_pipe.runtime import plan, snakemake_adapter

# Path patterns of artifacts: OF_DATA for those of a data set, OF_POOLS for its pools, SETTING for an LVLM's answers. In
# the documents' study all three are `LEVER`; the grid has a folder for each value of each axis.
RESULTS = EXPERIMENT.results.rstrip("/")
LEVER = f"{RESULTS}/lever"
OF_DATA = join(RESULTS, "{data}")
OF_POOLS = join(RESULTS, "{data}{sampler}")
SETTING = join(RESULTS, "{data}{sampler}{lvlm}")
INIT = join(SETTING, "preset~{preset}/init/seed~{seed}")
SFT = join(SETTING, "preset~{preset}/sft/seed~{seed}/epoch~{epoch}")
RCE = join(SETTING, "preset~{preset}/rce/seed~{seed}/epoch~{epoch}")
# The RCE epoch from which other runs start, and which is their reference.
BASE = join(SETTING, "preset~{preset}/rce/seed~{seed}/epoch~{base}")
GRPO = join(SETTING, "preset~{preset}/grpo/base~{base}/beta~{beta}/seed~{seed}/epoch~{epoch}")
ON_POLICY = join(SETTING, "preset~{preset}/{objective}/base~{base}/beta~{beta}/seed~{seed}/epoch~{epoch}")
DISTIL = join(SETTING, "preset~{preset}/distil/base~{base}/seed~{seed}/epoch~{epoch}")
CONTINUED = join(SETTING, "preset~{preset}/continued/base~{base}/seed~{seed}/epoch~{epoch}")
BATCH = join(SETTING, "answers/{batch}")
EMULATION = f"{LEVER}/emulation"
TABLES = f"{LEVER}/tables"
EVIDENCE = f"{RESULTS}/evidence.csv"
PAGE = f"{RESULTS}/report.html"
APPENDIX = f"{RESULTS}/report"

TRAINED = (
    "preset~[^/]+/(sft|rce|(grpo|on_policy|reinforce)/base~[^/]+/beta~[^/]+|(distil|continued)/base~[^/]+)/"
    "seed~[0-9]+/epoch~[0-9]+"
)


wildcard_constraints:
    data="lever|grid/data~[A-Za-z0-9_]+",
    sampler="(/sampler~[A-Za-z0-9_]+)?",
    lvlm="(/lvlm~[A-Za-z0-9_]+)?",
    preset="[A-Za-z0-9_]+",
    seed="0|[1-9][0-9]*",
    epoch="[1-9][0-9]*",
    base="[1-9][0-9]*",
    beta="[0-9]+([.][0-9]+)?(e-[0-9]+)?",
    shard="0|[1-9][0-9]*",
    baseline="[a-z_0-9]+(-[0-9]+)?",
    objective="on_policy|reinforce",
    rewarded="groups|grpo_groups",
    trained=TRAINED,
    selected=f"(from~[A-Za-z0-9_]+/)?{TRAINED}",
    offered="[1-9][0-9]*",
    policy=f"(baseline|own)/[^/]+|(from~[A-Za-z0-9_]+/|items~[0-9]+/)?{TRAINED}",
    arm="[a-z][a-z0-9_]*",
    own="[A-Za-z0-9_]+",
    raw="world|grid/data~[A-Za-z0-9_]+/world",
    embedded="(pool_)?embeddings",
    split="train|eval|val",
    batch="baseline|own|transfer|first_items|emulation|preset~[^/]+/seed~[0-9]+",


# Job priorities, to shorten the whole run: first jobs of the longest chain, then runs that are one long job each. The
# other jobs fill the gaps.
CHAIN, SHORT_CHAIN, LONG_JOB = 100, 60, 50
LVLM_ENVIRONMENT = "../../envs/vllm.yaml" if models.asks_vllm(EXPERIMENT) else "../../envs/gpu.yaml"
EMULATE = EXPERIMENT.emulate if "lever" in EXPERIMENT.studies else None


# Arguments of commands: each rule's `params`.


def identity(stage):
    """Return a function for a job's identity: configuration and code of its stage, as canonical JSON.

    Of all params, only the identity makes a job run again. The other params are paths and execution options.
    """
    return lambda wildcards: plan.spec_of(EXPERIMENT, stage, dict(wildcards.items()))


def files(**folders):
    """Return a function for a job's files as arguments NAME=PATH: inputs, outputs and these folders.

    Folders of models and images, given as patterns or functions of the wildcards, are not declared as inputs, so that
    Snakemake ignores their times. The identity contains a model's digest, and a listing that of each image.
    """

    def words(wildcards, input, output):
        folders_by_name = {n: f(wildcards) if callable(f) else f.format(**wildcards) for n, f in folders.items()}
        pairs = [*input.items(), *output.items(), *folders_by_name.items()]
        return [f"{name}={path}" for name, given in pairs for path in ([given] if isinstance(given, str) else given)]

    return words


def asking(wildcards, input):
    """Return the options for the ledger's folder and the LVLM's execution, which change no result."""
    execution = grid.at(EXPERIMENT, wildcards).lvlm.execution()
    ledger = ["--ledger", plan.ledger_folder(EXPERIMENT)]
    return ledger if execution == "{}" else [*ledger, "--lvlm", execution]


def lvlm_folder(wildcards):
    """Return the folder of a job's LVLM, or the name of a served model."""
    return grid.at(EXPERIMENT, wildcards).lvlm.model


# Paths.


def shipped(path):
    """Return the path of a file that is shipped with this workflow."""
    return path if OWN == Path.cwd() else str(OWN / path)


def setting_of(wildcards):
    """Return the folder of a job's setting."""
    return SETTING.format(**wildcards)


resources_of = RUN.resources_of


def of_study(study, *paths):
    """Return these files, or none if the study does not run."""
    return list(paths) if study in EXPERIMENT.studies else []
