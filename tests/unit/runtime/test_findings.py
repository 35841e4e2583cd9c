"""`config/findings.yaml`: what its cells share and differ in."""

from __future__ import annotations

from pathlib import Path

import yaml
from builders import shipped
from snakemake.utils import update_config

from lever_pipe.experiment.studies import parse_experiment

FINDINGS = Path(__file__).parents[3] / "config/findings.yaml"


def test_forms_and_proxies_differ_from_the_baseline_in_these_and_their_kl_alone() -> None:
    """X4 and X6; the proxy is the rules of evaluation but for what they pay for several details."""
    values = shipped()
    update_config(values, yaml.safe_load(FINDINGS.read_text()))
    given = parse_experiment(values).intention
    baseline, gamed = (next(arm for arm in given.arms if arm.name == name) for name in ("baseline", "gamed"))
    cells = {
        sweep.name: [arm for arm in given.arms if arm.name in {c.arm for c in sweep.cells}] for sweep in given.sweeps
    }
    assert {(arm.kl_form, arm.kl) for arm in cells["kl_forms"]} == {
        ("k3_loss", 0),
        *((form, kl) for form in ("k2_loss", "k1_reward") for kl in (0.03, 0.1, 0.3)),
    }
    assert sorted(arm.kl for arm in cells["gamed"]) == [0, 0.1, 0.3, 0.5, 1.0]
    for name, of, keys in (("kl_forms", baseline, ("name", "kl", "kl_form")), ("gamed", gamed, ("name", "kl"))):
        filled = [given.filled(arm).model_dump(exclude={*keys}) for arm in (of, *cells[name])]
        assert all(other == filled[0] for other in filled)
    paid = {"multi_detail_penalty": -0.7, "normalise_rewards": False}
    assert gamed.proxy == given.environment.model_copy(update=paid)
    assert gamed.model_dump(exclude={"name", "proxy"}) == baseline.model_dump(exclude={"name"})
