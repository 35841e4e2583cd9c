"""The identity of every job, as the rules state it."""

from __future__ import annotations

from pathlib import Path

from lever_pipe.base.provenance import canonical_json
from lever_pipe.experiment.identities import config_of, plugins_of
from lever_pipe.experiment.plans.grid import Wildcards
from lever_pipe.experiment.studies import Experiment
from lever_pipe.runtime import snapshot


def spec_of(experiment: Experiment, stage: str, wildcards: Wildcards) -> str:
    """Return a rule's identity param: canonical JSON of config and code fingerprint."""
    config = config_of(experiment, stage, wildcards)
    code = snapshot.code_of(stage, plugins_of(config)).fingerprint
    return canonical_json({"code": code, "config": config.model_dump(mode="json")})


def ledger_folder(experiment: Experiment) -> str:
    """Return the folder of LVLM answers: in the store, so that it outlives `results`; without a store in `results`."""
    store = experiment.store
    return f"{experiment.results}/ledger" if store is None else str(Path(store.folder).expanduser() / "ledger")
