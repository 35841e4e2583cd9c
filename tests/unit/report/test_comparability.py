from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lineage_cards import answers, distil, grpo, on_policy, rce, reward, scores, selection

from lever_pipe.base.errors import ComparisonError
from lever_pipe.report import comparability, lineage
from lever_pipe.report.catalogue import Voice
from lever_pipe.report.comparability import FACTORS, deviations, guard, named
from lever_pipe.report.lineage import published_key
from lever_pipe.report.table import Column, Table, TableLine

FILE = Path(__file__).parents[3] / "resources" / "reference" / "lineage.yaml"
VOICE = Voice("en")
BETAS = ("0.12", "0.145", "0.15", "0.18")
Lineages = dict[str, dict[str, str]]


def group(beta: str, epoch: int = 1) -> str:
    return f"preset~p/grpo/base~5/beta~{beta}/epoch~{epoch}"


def evaluated(policy: str) -> dict[str, str]:
    found = {**lineage.of_selection(selection(policy), policy), **lineage.of_answers(answers())}
    found |= {**lineage.of_scores(scores()), "scale": "embedded world, 0.7 M parameters"}
    return found | lineage.of_environment(answers())


def ours() -> Lineages:
    """Return GRPO of four betas, its RCE base and two baselines, alike in all but what they are."""
    found: Lineages = {}
    for beta in BETAS:
        values = {**lineage.of_training(grpo(beta=float(beta))), **lineage.of_reward(reward()), "seeds": "0, 1"}
        found[group(beta)] = {**values, **evaluated("preset~p/grpo")}
    values = {**lineage.of_training(rce()), **lineage.of_reward(reward()), "seeds": "0, 1"}
    found["preset~p/rce/epoch~5"] = {**values, **evaluated("preset~p/rce")}
    found["baseline/oracle"] = evaluated("baseline/oracle")
    found["baseline/random"] = {**evaluated("baseline/random-0"), "draws": "0, 1, 2"}
    return found


def table(groups: Sequence[str], factor: str = "kl_beta", section: str = "001") -> Table:
    """Return a table with one line for each text of groups, separated by blanks."""
    lines = tuple(TableLine((f"line {i}",), groups=tuple(names.split())) for i, names in enumerate(groups))
    return Table("t", section, "t", (Column("KL_BETA"),), lines, factor=factor)


def guarded(
    of: Table, lineages: Mapping[str, Mapping[str, str]], mode: Any = "footnote"
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the marks of each line, and the footnotes as text."""
    (found,) = guard([of], lineages, mode)
    return tuple(line.marks for line in found.lines), tuple(VOICE.text(note) for note in found.footnotes)


def label(field: str) -> str:
    return VOICE.text(named(field))


BY_BETA = [group(beta) for beta in BETAS]
EVERYONE = [*BY_BETA, "preset~p/rce/epoch~5", "baseline/oracle", "baseline/random"]


def mutated(changes: Mapping[str, str], of: str = group("0.15")) -> Lineages:
    found = ours()
    assert changes.keys() <= found[of].keys()
    found[of] = {**found[of], **changes}
    return found


@pytest.mark.parametrize("factor", ["kl_beta", "policy", "samples"])
def test_rows_that_differ_in_the_factor_only_are_left_alone(factor: str) -> None:
    groups = {"kl_beta": BY_BETA, "policy": EVERYONE, "samples": [group("0.12")] * 3}[factor]
    marks, notes = guarded(table(groups, factor), ours(), "strict")
    assert notes == ()
    assert marks == ("",) * len(groups)


FIELDS = [field for field in ours()[group("0.15")] if field not in ("kl_beta", "method")]


@pytest.mark.parametrize("field", FIELDS)
def test_each_difference_alone_is_found_named_and_refused(field: str) -> None:
    lineages, norm = mutated({field: "other"}), ours()[group("0.15")][field]
    marks, notes = guarded(table(BY_BETA), lineages)
    assert notes == (f"{label(field)}: other; other lines: {norm}.",)
    assert marks == ("", "", "a", "")
    with pytest.raises(ComparisonError) as caught:
        guard([table(BY_BETA)], lineages, "strict")
    assert caught.value.expected == "report.guard is strict: expected lines that differ in their table's factor only"
    line = f"table t, line 3 ({group('0.15')})"
    assert caught.value.found == f"{line}: {field} is other, in most lines {norm}"
    assert "report.guard" in caught.value.do
    if field not in ("epoch", "base_rce_epoch", "base_checkpoint"):
        # training compares within one method, so that baselines and the RCE base raise no false alarm
        assert guarded(table(EVERYONE, "policy"), lineages)[0] == ("", "", "a", "", "", "", "")


def test_equal_footnotes_share_a_letter_and_a_row_may_have_several() -> None:
    found = ours()
    found[group("0.2")] = {**found[group("0.12")], "pool": "x"}
    found[group("0.15")] |= {"base_rce_epoch": "2", "pool": "x"}
    marks, notes = guarded(table([group(beta) for beta in ("0.15", "0.12", "0.2", "0.145", "0.18")]), found, "footnote")
    assert marks == ("ab", "", "b", "", "")
    assert notes == (
        "Base RCE epoch: 2; other lines: 5.",
        "Test pool: x; other lines: eval_poo0000.",
    )


@pytest.mark.parametrize("pools", [("x", "y"), ("x", "x", "y", "y"), ("x", "y", "z")])
def test_without_a_majority_every_row_is_named(pools: Sequence[str]) -> None:
    found = ours()
    groups = BY_BETA[: len(pools)]
    for name, pool in zip(groups, pools, strict=True):
        found[name]["pool"] = pool
    marks, notes = guarded(table(groups), found, "footnote")
    assert marks == ("a",) * len(pools)
    assert len(notes) == 1
    assert all(f"{pool} (" in notes[0] for pool in pools)
    who = "Offline GRPO, KL_BETA"
    if len(pools) == 2:
        assert notes == (f"Test pool: x ({who} 0.12, epoch 1); y ({who} 0.145, epoch 1).",)
    others = {2: "y", 4: "y", 3: "y or z"}[len(pools)]
    with pytest.raises(ComparisonError, match=f"pool is x, in other lines {others};"):
        guard([table(groups)], found, "strict")


def test_a_row_with_several_policies_is_marked_for_each_and_names_them() -> None:
    """A table with betas as columns: every row holds all of them, so the footnote says which column it is about."""
    one_row = " ".join(BY_BETA)
    marks, notes = guarded(table([one_row, one_row], "kl_beta statistic"), mutated({"base_rce_epoch": "2"}), "footnote")
    assert marks == ("a", "a")
    assert notes == ("Base RCE epoch of Offline GRPO, KL_BETA 0.15, epoch 1: 2; others: 5.",)
    with pytest.raises(ComparisonError, match="base_rce_epoch is 2, in most lines 5"):
        guard([table([one_row])], mutated({"base_rce_epoch": "2"}), "strict")


def test_what_is_not_compared_is_left_alone() -> None:
    for untouched in (table(BY_BETA, ""), table(["", ""])):
        assert guard([untouched], mutated({"pool": "x"}), "strict") == [untouched]
    marks, _notes = guarded(table(["", *BY_BETA]), mutated({"pool": "x"}), "footnote")
    assert marks == ("", "", "", "a", "")


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
        assert marks == (("", "", "") if free else ("", "", "a")), field


def test_presets_may_differ_in_training_but_not_in_data_or_evaluation() -> None:
    other = {"learning_rate": "1", "grpo.top_k": "9", "selector.width": "9", "reward.hard": "2", "preset": "q"}
    lineages = mutated(other)
    assert guard([table(BY_BETA, "kl_beta preset")], lineages, "strict")[0].footnotes == ()
    for field in ("rl_data", "seeds", "pool", "decode", "version.torch"):
        lineages = mutated({**other, field: "x"})
        assert guarded(table(BY_BETA, "kl_beta preset"), lineages)[0][2] == "a"


def test_absent_fields_do_not_apply_and_are_not_compared() -> None:
    found = ours()
    del found[group("0.12")]["pool"]  # trained only
    assert guard([table(BY_BETA)], found, "strict")[0].footnotes == ()


def test_unknown_factors_and_groups_are_refused() -> None:
    with pytest.raises(ComparisonError, match="expected a factor out of kl_beta") as caught:
        guard([table(BY_BETA, "kl_beta colour")], ours(), "footnote")
    assert caught.value.found == "colour"
    with pytest.raises(ComparisonError, match="none of preset~p/grpo/base~5/beta~9/epoch~1"):
        guard([table([group("9")])], ours(), "footnote")


PUBLISHED = [published_key(float(beta), 1) for beta in BETAS]


def both() -> Lineages:
    return {**ours(), **lineage.read_published_lineage(FILE, remarks=True)}


def test_published_lines_are_compared_with_published_lines_and_never_refused() -> None:
    groups = [name for pair in zip(BY_BETA, PUBLISHED, strict=True) for name in pair]
    marks, notes = guarded(table(groups), both(), "strict")
    assert [mark for mark, name in zip(marks, groups, strict=True) if name in BY_BETA] == [""] * 4
    assert [mark for mark, name in zip(marks, groups, strict=True) if name in PUBLISHED] == ["", "", "a", ""]
    (note,) = notes
    assert note.startswith("Published 0.15 differs: Base checkpoint, Base RCE epoch, ")
    assert "KL_BETA as applied" in note


def test_remarks_are_no_fields() -> None:
    lineages = both()
    assert lineages[published_key(0.18, 1)]["remark.rl_data"] == "published.rl_data_of_018"
    groups = [published_key(0.12, 1), published_key(0.18, 1)]
    assert guard([table(groups)], lineages, "footnote")[0].footnotes == ()
    assert "remark.rl_data" not in lineage.read_published_lineage(FILE)[published_key(0.18, 1)]


def test_a_document_that_quotes_other_files_has_their_lineage() -> None:
    """Document 002 quotes 0.12 as trained on the older RL data; document 001 as trained on k64 v3."""
    groups = [published_key(beta, 1) for beta in (0.18, 0.15, 0.12)]
    marks, notes = zip(*(guarded(table(groups, section=section), both()) for section in ("001", "002")), strict=True)
    assert marks == (("", "a", ""), ("", "a", "b"))
    assert notes[1][1] == "Published 0.12 differs: RL data."


def test_two_unknowns_are_no_difference_and_one_is_named() -> None:
    lineages = {name: {"method": "grpo", "device": lineage.UNKNOWN} for name in PUBLISHED}
    assert guard([table(PUBLISHED)], lineages, "footnote")[0].footnotes == ()
    lineages[PUBLISHED[0]]["device"] = "cuda"
    _, (note,) = guarded(table(PUBLISHED), lineages)
    assert note == "Published 0.12 differs: Device."


VALUES = st.lists(st.sampled_from("abc"), min_size=1, max_size=9)


@given(VALUES)
def test_deviations_are_those_of_a_plain_count(values: list[str]) -> None:
    """Oracle: a value held by more than half is the norm and the rest deviates; without one, all do unless equal."""
    lineages = {group(str(i)): {"method": "grpo", "pool": value} for i, value in enumerate(values)}
    norms = [value for value in set(values) if values.count(value) > len(values) / 2]
    expected = {name for name, fields in lineages.items() if len(set(values)) > 1 and fields["pool"] not in norms}
    found = deviations(lineages, FACTORS["kl_beta"])
    assert {name for deviation in found for name in deviation.holders} == expected
    assert {deviation.norm for deviation in found} <= {norms[0] if norms else ""}
    marks, _ = guarded(table(list(lineages)), lineages)
    assert {name for name, mark in zip(lineages, marks, strict=True) if mark} == expected


DRAWN, LOWER = "preset~p/on_policy/base~5/beta~{}/epoch~1", "preset~p/reinforce/base~5/beta~0/epoch~1"
UPPER = "preset~p/distil/base~5/epoch~1"


def with_on_policy() -> Lineages:
    """Return `ours` with on-policy GRPO of two betas and the marks, all of one of the seeds."""
    found = ours()
    cards = {DRAWN.format(beta): on_policy(beta=beta) for beta in (0.1, 0.2)}
    cards |= {LOWER: on_policy(beta=0.0, objective="reinforce"), UPPER: distil()}
    stored = lineage.of_reward(reward())
    return found | {name: {**stored, **lineage.of_training(card), **evaluated(name)} for name, card in cards.items()}


def test_objectives_are_compared_by_what_they_share() -> None:
    found = with_on_policy()
    names = [*BY_BETA, "preset~p/rce/epoch~5", "baseline/oracle", *(name for name in found if name not in ours())]
    marks, _notes = guarded(table(names, "policy base seed"), found, "strict")
    assert not any(marks)
    marks, _notes = guarded(table(names, "policy base"), found, "footnote")
    fewer = [name for name, mark in zip(names, marks, strict=True) if mark]
    assert fewer == [DRAWN.format(0.1), DRAWN.format(0.2), LOWER, UPPER]  # one seed of the two


def test_rewards_of_another_lvlm_are_told_over_objectives() -> None:
    found = with_on_policy()
    found[LOWER]["judge.lvlm"] = "other"
    names = [*(DRAWN.format(beta) for beta in (0.1, 0.2)), LOWER, UPPER]
    marks, notes = guarded(table(names, "policy base seed"), found, "footnote")
    assert [bool(mark) for mark in marks] == [False, False, True, False]
    assert "LVLM that rewards draws: other" in notes[0]


@pytest.mark.parametrize(
    ("field", "value"),
    [("judge.lvlm", "other"), ("on_policy.group", "4"), ("reward", "hard_only"), ("learning_rate", "1")],
)
def test_on_policy_runs_of_one_method_must_be_made_alike(field: str, value: str) -> None:
    found = with_on_policy()
    found[DRAWN.format(0.1)][field] = value
    names = [DRAWN.format(beta) for beta in (0.1, 0.2)]
    marks, _notes = guarded(table([*names, *BY_BETA], "policy base seed"), found, "footnote")
    assert [bool(mark) for mark in marks] == [True, True] + [False] * len(BY_BETA)
    with pytest.raises(ComparisonError, match="strict"):
        guard([table(names, "kl_beta")], found, "strict")


def test_every_label_is_of_a_field_that_exists() -> None:
    fields = {field for found in both().values() for field in found}
    fields |= lineage.of_training(on_policy()).keys() | lineage.of_training(distil()).keys() | lineage.UNTRAINED.keys()
    assert fields | {"draws"} >= comparability.FIELDS.keys()
    assert all(label(field) for field in comparability.FIELDS)
    assert fields >= comparability.TRAINING
