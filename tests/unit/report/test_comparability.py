from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lineage_manifests import answers, distil, grpo, on_policy, rce, reward, scores, selection

from lever_pipe.base.errors import DataError
from lever_pipe.report import comparability, lineage
from lever_pipe.report.catalogue import Translator
from lever_pipe.report.comparability import FACTORS, differences, guard
from lever_pipe.report.lineage import published_key
from lever_pipe.report.table import SUBJECTS, Table, framed

FILE = Path(__file__).parents[3] / "resources" / "reference" / "lineage.yaml"
BETAS = ("0.12", "0.145", "0.15", "0.18")
Lineages = dict[str, dict[str, str]]


def group(beta: str, epoch: int = 1) -> str:
    return f"preset~p/grpo/base~5/beta~{beta}/epoch~{epoch}"


def evaluated(policy: str) -> dict[str, str]:
    found = {**lineage.of_selection(selection(policy), policy), **lineage.of_answers(answers())}
    found |= {**lineage.of_scores(scores()), "scale": "embedded world, 0.7 M parameters"}
    return found | lineage.of_environment(answers())


ON_POLICY, LOWER = "preset~p/on_policy/base~5/beta~{}/epoch~1", "preset~p/reinforce/base~5/beta~0/epoch~1"
UPPER = "preset~p/distil/base~5/epoch~1"
BY_BETA = [group(beta) for beta in BETAS]
SAMPLED_BY_BETA = [ON_POLICY.format(beta) for beta in (0.1, 0.2)]
EVERYONE = [*BY_BETA, "preset~p/rce/epoch~5", "baseline/oracle", "baseline/random"]
PUBLISHED = [published_key(float(beta), 1) for beta in BETAS]


def ours() -> Lineages:
    """Return GRPO of four betas, its RCE base, two baselines, on-policy GRPO of two betas and extra objectives."""
    manifests = {group(beta): grpo(beta=float(beta)) for beta in BETAS} | {"preset~p/rce/epoch~5": rce()}
    manifests |= {ON_POLICY.format(beta): on_policy(beta=beta) for beta in (0.1, 0.2)}
    manifests |= {LOWER: on_policy(beta=0.0, objective="reinforce"), UPPER: distil()}
    stored = lineage.of_reward(reward()) | {"seeds": "0, 1"}
    found = {
        name: {**lineage.of_training(manifest), **stored, **evaluated(name)} for name, manifest in manifests.items()
    }
    found["baseline/oracle"] = evaluated("baseline/oracle")
    found["baseline/random"] = {**evaluated("baseline/random-0"), "draws": "0, 1, 2"}
    return found


def table(groups: Sequence[str], factor: str = "kl_beta", section: str = "001") -> Table:
    """Return a table with one row for each text of groups, separated by blanks."""
    rows = [{"KL_BETA": f"row {i}", SUBJECTS: tuple(names.split())} for i, names in enumerate(groups)]
    return Table("t", section, "t", framed(rows), factor=factor)


def guarded(
    of: Table, lineages: Mapping[str, Mapping[str, str]], mode: Any = "footnote"
) -> tuple[list[str], list[str]]:
    """Return the marks of each line, and the footnotes as text."""
    (found,) = guard([of], lineages, mode)
    return list(found.marks), [Translator("en").text(note[0]) for _, note in found.footnotes]


def changed(changes: Mapping[str, str], of: str = group("0.15")) -> Lineages:
    found = ours()
    assert changes.keys() <= found[of].keys()
    found[of] = {**found[of], **changes}
    return found


@pytest.mark.parametrize(
    ("factor", "groups"),
    [("kl_beta", BY_BETA), ("policy", EVERYONE), ("policy base", [*ours()]), ("samples", BY_BETA[:1] * 3)],
)
def test_lines_that_differ_in_the_factor_only_are_left_alone(factor: str, groups: list[str]) -> None:
    assert guarded(table(groups, factor), ours(), "strict") == ([""] * len(groups), [])


@pytest.mark.parametrize("field", [field for field in ours()[group("0.15")] if field not in ("kl_beta", "method")])
def test_each_difference_alone_is_found_named_and_refused(field: str) -> None:
    lineages, norm = changed({field: "other"}), ours()[group("0.15")][field]
    marks, (note,) = guarded(table(BY_BETA), lineages)
    assert marks == ["", "", "a", ""]
    assert note == f"Offline GRPO, KL_BETA 0.15, epoch 1 differs: {field} other, of others {norm}."
    with pytest.raises(DataError) as caught:
        guard([table(BY_BETA)], lineages, "strict")
    assert caught.value.found == f"table t, {group('0.15')}: {field} is other, of others {norm}"


def test_what_is_not_compared_is_left_alone() -> None:
    for untouched in (table(BY_BETA, ""), table(["", ""])):
        assert not any(guarded(untouched, changed({"pool": "x"}), "strict")[0])
    lineages = ours()
    del lineages[group("0.12")]["pool"]  # trained only: the field does not apply
    assert guarded(table(BY_BETA), lineages, "strict")[1] == []


@pytest.mark.parametrize("factor", FACTORS)
def test_a_factor_lets_its_fields_differ_and_no_other(factor: str) -> None:
    """Of every field of a GRPO row: another value is marked unless the factor is about it."""
    names = {name for name in FACTORS[factor] if not name.endswith(".")}
    sections = tuple(name for name in FACTORS[factor] if name.endswith("."))
    lineages = {group("0.12"): ours()[group("0.12")], group("0.2"): ours()[group("0.12")]}
    for field in lineages[group("0.12")]:
        found = {**lineages, group("0.3"): {**lineages[group("0.2")], field: "other"}}
        marks, _ = guarded(table([*lineages, group("0.3")], factor), found)
        free = field in names or (bool(sections) and field.startswith(sections))
        if field == "method":  # of a method alone, training is compared with nothing
            free = factor == "policy"
        assert marks == (["", "", ""] if free else ["", "", "a"]), field


def test_unknown_factors_and_groups_are_refused() -> None:
    with pytest.raises(DataError, match="expected a factor out of kl_beta"):
        guard([table(BY_BETA, "kl_beta colour")], ours(), "footnote")
    with pytest.raises(DataError, match="none of preset~p/grpo/base~5/beta~9/epoch~1"):
        guard([table([group("9")])], ours(), "footnote")


def test_published_lines_are_compared_with_those_of_their_document_and_never_refused() -> None:
    """Document 002 quotes 0.12 as trained on the older RL data; document 001 as trained on k64 v3."""
    lineages = {**ours(), **lineage.read_published_lineage(FILE)}
    groups = [name for pair in zip(BY_BETA, PUBLISHED, strict=True) for name in pair]
    marks, (note,) = guarded(table(groups), lineages, "strict")
    assert marks == ["", "", "", "", "", "a", "", ""]
    assert note.startswith("Published 0.15 differs: base_checkpoint, base_rce_epoch, ")
    quoted = [published_key(beta, 1) for beta in (0.18, 0.15, 0.12)]
    marks, notes = guarded(table(quoted, section="002"), lineages, "strict")
    assert (marks, notes[1]) == (["", "a", "b"], "Published 0.12 differs: rl_data.")


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=9))
def test_what_differs_is_all_but_the_most_frequent_value(values: list[str]) -> None:
    lineages = {group(str(i)): {"method": "grpo", "pool": value} for i, value in enumerate(values)}
    typical = {fields["pool"] for name, fields in lineages.items() if name not in differences(lineages, frozenset())}
    assert len(typical) == 1
    assert values.count(*typical) == max(map(values.count, values))


@pytest.mark.parametrize("field", ["scorer.lvlm", "on_policy.group", "reward", "learning_rate"])
def test_on_policy_runs_of_one_method_must_be_made_alike(field: str) -> None:
    lineages = changed({field: "other"}, SAMPLED_BY_BETA[1])
    marks, _ = guarded(table([*SAMPLED_BY_BETA, *BY_BETA], "policy base"), lineages)
    assert marks == ["", "a", *[""] * len(BY_BETA)]


def test_a_policy_of_another_reward_model_is_told_over_objectives() -> None:
    lineages = changed({"scorer.lvlm": "other"}, LOWER)
    assert guarded(table([*SAMPLED_BY_BETA, LOWER, UPPER], "policy base"), lineages)[0] == ["", "", "a", ""]


def test_the_fields_of_training_exist() -> None:
    manifests = (on_policy(), distil(), grpo(), rce())
    assert {field for manifest in manifests for field in lineage.of_training(manifest)} | {
        field for of in ours().values() for field in of
    } >= comparability.TRAINING - {"rce_from_sft_epoch"}
