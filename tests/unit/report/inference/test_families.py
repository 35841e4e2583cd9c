from __future__ import annotations

import pytest

from lever_pipe.experiment.evaluation import PrimaryCells
from lever_pipe.report.inference.families import ComparisonFamily, arms_of, families_of, reference_of

BASELINES = ["baseline/random", "baseline/oracle"]


def grpo(beta: str, epoch: int, base: int = 5, preset: str = "main") -> str:
    return f"preset~{preset}/grpo/base~{base}/beta~{beta}/epoch~{epoch}"


def rce(epoch: int, preset: str = "main") -> str:
    return f"preset~{preset}/rce/epoch~{epoch}"


def sampled(beta: str, epoch: int, base: int = 5) -> str:
    return f"preset~main/on_policy/base~{base}/beta~{beta}/epoch~{epoch}"


def lower(epoch: int, base: int = 5) -> str:
    return f"preset~main/reinforce/base~{base}/beta~0/epoch~{epoch}"


def upper(epoch: int, base: int = 5) -> str:
    return f"preset~main/distil/base~{base}/epoch~{epoch}"


def families(
    groups: list[str], *, is_main: bool = True, primary: PrimaryCells = PrimaryCells()
) -> dict[str, ComparisonFamily]:
    found = families_of(
        arms_of(groups, "main")[0 if is_main else 1],
        primary,
        together=(),
        is_main=is_main,
        baselines=BASELINES,
        columns=("1", "2", "mean"),
        samples=(100, 400),
    )
    return {family.name: family for family in found}


def test_arms_sort_groups_by_preset_and_pass_over_others() -> None:
    groups = [rce(1, "other"), grpo("0.15", 1), rce(5), "baseline/oracle", "preset~main/init", "emulated/x/epoch~1"]
    main, other = arms_of(groups, "main")
    assert (main.preset, dict(main.rce), dict(main.grpo)) == ("main", {5: rce(5)}, {(5, 0.15, 1): grpo("0.15", 1)})
    assert (other.preset, dict(other.rce), dict(other.grpo)) == ("other", {1: rce(1, "other")}, {})
    assert arms_of([], "main")[0].last_grpo == {}


def test_the_last_epoch_is_one_that_every_beta_has() -> None:
    arm = arms_of([grpo("0", 1), grpo("0", 2), grpo("0.15", 1)], "main")[0]
    assert arm.last == 1
    assert arm.last_grpo == {0.0: grpo("0", 1), 0.15: grpo("0.15", 1)}
    assert arm.epochs == [1, 2]
    assert arm.betas(2) == [0.0]


def test_another_preset_writes_its_name() -> None:
    groups = [rce(5), *(grpo(beta, 1, preset="other") for beta in ("0", "0.15")), rce(5, "other")]
    found = families(groups, is_main=False)
    assert set(found) == {
        f"preset~other/{name}"
        for name in (
            *("grpo-over-betas", "grpo-against-rce", "grpo-betas"),
            *("document-001/epoch~1", "learning", "grpo-against-rce-by-shots"),
        )
    }
    assert all(family.adjusted_with == name for name, family in found.items())


def test_without_rce_or_betas_families_are_left_out() -> None:
    assert set(families([rce(3)])) == {"learning"}
    assert set(families([grpo("0.15", 1)])) == set()


OFFLINE = [rce(2), rce(5), *(grpo(beta, e) for beta in ("0", "0.15", "0.18") for e in (1, 2))]
ON_POLICY = [sampled(beta, e) for beta in ("0", "0.15", "1") for e in (1, 2, 3)]
EXTRA_OBJECTIVES = [*(lower(e) for e in (1, 2, 3)), *(upper(e) for e in (1, 2, 3))]


SFT, TWO = "preset~main/sft/epoch~3", [rce(2), rce(5), *(grpo(b, 1, base) for base in (2, 5) for b in ("0.12", "0.15"))]
EVERY = [*OFFLINE, *ON_POLICY, *EXTRA_OBJECTIVES]
BOTH = [rce(2), rce(5), *(of("0.15", 1, base) for of in (grpo, sampled) for base in (2, 5)), upper(1, 2), upper(1, 5)]
OF_BOTH = [(sampled(b, 3), grpo(b, 2)) for b in ("0", "0.15")]
"""Each mode after its own last common epoch, and only if both have the beta."""


@pytest.mark.parametrize(
    ("groups", "name", "expected"),
    [
        ([SFT], "supervised", [(SFT, name) for name in BASELINES]),
        ([SFT, rce(4)], "supervised", [*((SFT, name) for name in BASELINES), (rce(4), SFT)]),
        ([rce(4)], "supervised", []),
        ([SFT, rce(3), rce(4)], "learning", [(rce(4), name) for name in BASELINES]),
        # the latest base fills the documents, and every base meets its own
        (TWO, "document-001/epoch~1", [(grpo("0.12", 1), grpo("0.15", 1))]),
        (TWO, "grpo-against-rce", [(grpo(b, 1, base), rce(base)) for base in (2, 5) for b in ("0.12", "0.15")]),
        (BOTH, "on-policy-against-rce", [(sampled("0.15", 1, base), rce(base)) for base in (2, 5)]),
        (BOTH, "on-policy-against-offline", [(sampled("0.15", 1, base), grpo("0.15", 1, base)) for base in (2, 5)]),
        (BOTH, "on-policy-betas", []),
        (BOTH, "extra_objectives", [(upper(1), of) for of in (rce(5), sampled("0.15", 1), "baseline/oracle")]),
        (EVERY, "on-policy-against-offline", OF_BOTH),
        ([*EVERY, grpo("0.15", 3)], "on-policy-against-offline", OF_BOTH),  # one longer run moves no common epoch
        (
            EVERY,
            "extra_objectives",
            [
                (lower(3), rce(5)),
                (sampled("0", 3), lower(3)),
                (upper(3), rce(5)),
                (upper(3), sampled("0", 3)),
                (upper(3), "baseline/oracle"),
            ],
        ),
    ],
)
def test_a_family_holds_its_pairs(groups: list[str], name: str, expected: list[tuple[str, str]]) -> None:
    found = families(groups)
    assert (list(found[name].pairs) if name in found else []) == expected


def test_families_of_the_offline_objective_do_not_know_on_policy_runs() -> None:
    without, others = families(OFFLINE), families([*ON_POLICY, *OFFLINE, *EXTRA_OBJECTIVES])
    assert without == {name: family for name, family in others.items() if name in without}
    assert set(others) - set(without) == {
        *(f"on-policy-{name}" for name in ("over-betas", "against-rce", "against-offline", "betas")),
        *(f"on-policy-{name}-by-shots" for name in ("against-rce", "against-offline", "betas")),
        "extra_objectives",
    }


@pytest.mark.parametrize(
    ("betas", "expected"), [([0.0, 0.15], 0.15), ([0.1, 0.2, 0.3], 0.2), ([0.1, 0.2], 0.2), ([], None)]
)
def test_the_reference_is_015_or_the_middle(betas: list[float], expected: float | None) -> None:
    assert reference_of(betas) == expected


def test_documents_are_read_near_200_and_the_rest_at_the_largest_count() -> None:
    found = families([rce(5), grpo("0.12", 1), grpo("0.15", 1)])
    samples = {name: family.samples for name, family in found.items()}
    assert {name for name, n in samples.items() if n == 100} == {"document-001/epoch~1", "document-002/epoch~1"}
    assert {n for name, n in samples.items() if not name.startswith("document")} == {400}


OVER, SAMPLED_OVER = grpo("all", 2), sampled("all", 3)


def test_the_primary_families_hold_the_primary_endpoint_only_and_come_first() -> None:
    found = families([*OFFLINE, *ON_POLICY])
    roles = [family.role for family in found.values()]
    assert roles == sorted(roles)  # primary, then secondary
    primary = {name: family.pairs for name, family in found.items() if family.role == "primary"}
    assert primary == {
        "grpo-over-betas": ((OVER, rce(5)),),
        "grpo-against-rce": tuple((grpo(b, 2), rce(5)) for b in ("0", "0.15", "0.18")),
        "grpo-betas": tuple((grpo(b, 2), grpo("0", 2)) for b in ("0.15", "0.18")),
        "on-policy-over-betas": ((SAMPLED_OVER, rce(5)),),
        "on-policy-against-rce": tuple((sampled(b, 3), rce(5)) for b in ("0", "0.15", "1")),
        "on-policy-betas": tuple((sampled(b, 3), sampled("0", 3)) for b in ("0.15", "1")),
        "on-policy-against-offline": tuple((sampled(b, 3), grpo(b, 2)) for b in ("0", "0.15")),
    }
    for name in primary:
        assert (found[name].shots, found[name].samples, found[name].adjusted_with) == (("mean",), 400, name)
    shots = found["grpo-against-rce-by-shots"]
    assert (shots.shots, shots.pairs, shots.role) == (("1", "2"), primary["grpo-against-rce"], "secondary")


def test_another_primary_endpoint_leaves_the_rest_to_the_secondary_families() -> None:
    found = families(OFFLINE, primary=PrimaryCells(shots=2, samples=100))
    assert (found["grpo-against-rce"].shots, found["grpo-against-rce"].samples) == (("2",), 100)
    shots = found["grpo-against-rce-by-shots"]
    assert (shots.shots, shots.samples) == (("1", "2", "mean"), 400)


def test_the_mean_over_betas_is_of_each_base_and_of_several_betas() -> None:
    arm = arms_of([grpo("0", 1), grpo("0.15", 1), grpo("0", 1, base=2), grpo("0.15", 1, base=2)], "main")[0]
    assert arm.over_betas("grpo") == {
        grpo("all", 1, base=2): (grpo("0", 1, base=2), grpo("0.15", 1, base=2)),
        grpo("all", 1): (grpo("0", 1), grpo("0.15", 1)),
    }
    assert arm.over_betas("on_policy") == arms_of([grpo("0", 1)], "main")[0].over_betas("grpo") == {}
