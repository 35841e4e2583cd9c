from __future__ import annotations

from lever_pipe.report.tables.comparisons.inference import COMMON_SEEDS, family_tables, highest_table, verdict

from lever_pipe.report.inference import estimates
from lever_pipe.report.inference.estimates import SIGN_FLIP, STUDENT, ComparisonRow, IntervalRow
from lever_pipe.report.inference.families import Arm, ComparisonFamily

BETAS = {0.12: "preset~p/grpo/base~5/beta~0.12/epoch~2", 0.15: "preset~p/grpo/base~5/beta~0.15/epoch~2"}
ARM = Arm("p", {5: "preset~p/rce/epoch~5"}, {(5, beta, 2): name for beta, name in BETAS.items()})
HIGHEST = ComparisonFamily("highest-beta", 800, ((BETAS[0.12], BETAS[0.15]),), "highest-beta")


def interval(beta: float, accuracy: float, samples: int = 800, shots: str = "mean") -> IntervalRow:
    return IntervalRow(BETAS[beta], samples, shots, accuracy, accuracy - 3, accuracy + 3, 3, samples)


def comparison(p_holm: float, *, shots: str = "mean", family: str = "highest-beta", n_runs: int = 3) -> ComparisonRow:
    where = (family, BETAS[0.12], BETAS[0.15], 800, shots)
    test = SIGN_FLIP if n_runs == 1 else STUDENT
    return ComparisonRow(
        *where, -1.5, -2.25, -0.75, p_holm / 2, p_holm, 1.25, n_runs, 800, test, "secondary", 60.0, 61.5
    )


INTERVALS = [
    interval(0.12, 60.0),
    interval(0.15, 61.5),
    interval(0.12, 99.0, samples=100),
    interval(0.12, 99.0, shots="1"),
]


def test_the_highest_beta_stands_among_its_differences() -> None:
    found = highest_table(ARM, INTERVALS, [HIGHEST], [comparison(0.02), comparison(0.5, shots="1")], is_main=True)
    assert found.id == "highest-kl-beta"
    rows = [dict(zip(found.frame.columns, row, strict=True)) for row in found.frame.itertuples(index=False)]
    assert rows[0] == {
        "KL_BETA": "0.12",
        "Accuracy": "60.00 [57.0, 63.0]",
        "Difference": "-1.50",
        "Low": "-2.25",
        "High": "-0.75",
        "p": "0.010",
        "Holm p": "0.020",
        "Detectable": "1.25",
    }
    assert (rows[1]["KL_BETA"], rows[1]["Difference"], rows[1]["p"]) == ("0.15", "highest", "")
    assert found.groups == tuple(BETAS.values())
    assert found.factor == "kl_beta"
    assert "mean over shots, 800 samples" in found.caption
    assert "adjusted for all 2 comparisons" in found.caption


def test_the_verdict_reads_the_mean_over_shots_against_the_best() -> None:
    at = {row.group: row for row in INTERVALS[:2]}
    best = "Highest KL_BETA: 0.15, 61.50 [58.5, 64.5]."
    by_shots = comparison(0.001, shots="1")
    assert verdict(ARM, at, [comparison(0.049), by_shots]) == f"{best} Separated from the highest one: KL_BETA 0.12."
    least = "No KL_BETA is separated from the highest one: the smallest Holm p is 0.050."
    assert verdict(ARM, at, [comparison(0.05), by_shots]) == f"{best} {least}"
    assert verdict(ARM, at, []) == best
    assert verdict(Arm("p", {}, {}), {}, []) == ""


def test_what_is_inferred_depends_on_the_runs() -> None:
    for n_runs, text in ((3, "further seeds and questions"), (1, "No inference about training variance: one seed.")):
        rows = [comparison(0.5, n_runs=n_runs)]
        for found in (highest_table(ARM, INTERVALS, [HIGHEST], rows, is_main=True), *family_tables([HIGHEST], rows)):
            assert text in found.caption


def test_captions_name_the_tests_of_their_rows() -> None:
    one, several = comparison(0.5, n_runs=1), comparison(0.5)
    mixed = [one, several._replace(n_runs=1)]  # one run against several draws of a baseline
    for rows, how in (
        ([one, one], estimates.HOW_ONE_RUN),
        ([several], estimates.HOW_SEVERAL_RUNS),
        (mixed, estimates.HOW_MIXED),
    ):
        for found in (highest_table(ARM, INTERVALS, [HIGHEST], rows, is_main=True), *family_tables([HIGHEST], rows)):
            assert f"{how} {estimates.HOW_FEW_DIFFER}" in found.caption
            assert (estimates.UNADJUSTED in found.caption) == (len(rows) > 1)
    assert "p:" not in highest_table(ARM, INTERVALS, [], [], is_main=True).caption


def test_a_family_has_a_row_for_each_comparison() -> None:
    others = ComparisonFamily("other-betas", 800, (), "highest-beta")
    rows = [comparison(0.5), comparison(0.01, shots="1"), comparison(0.9, family="other-betas")]
    (found,) = family_tables([HIGHEST, others], rows)
    assert found.id == "family-highest-beta"
    assert list(found.frame["Shots"]) == ["mean", "1"]
    assert set(found.frame["Against"]) == {"GRPO, KL_BETA=0.15, epoch 2"}
    assert "Separated (Holm p below 0.05): 1 of 2 comparisons." in found.caption
    assert "adjusted for 3 comparisons" in found.caption
    assert found.groups == (f"{BETAS[0.12]} {BETAS[0.15]}",) * 2


def test_on_policy_families_say_which_seeds_they_compare() -> None:
    names = ("on-policy-against-rce", "on-policy-against-offline", "on-policy-betas", "marks")
    families = [ComparisonFamily(name, 800, HIGHEST.pairs, name) for name in (*names, "grpo-against-rce")]
    found = family_tables(families, [comparison(0.5, family=family.name) for family in families])
    assert [table.id for table in found[:4]] == [f"family-{name}" for name in names]
    assert len({table.title for table in found}) == 5
    factors = ["policy base seed", "policy base seed", "kl_beta", "policy base seed", "policy base"]
    assert [table.factor for table in found] == factors
    assert [COMMON_SEEDS in table.caption for table in found] == [True] * 4 + [False]


def test_families_of_other_presets_and_epochs_have_names_of_their_own() -> None:
    names = (
        "preset~q/document-001/epoch~2",
        "document-001/epoch~2",
        "learning",
        "grpo-against-rce",
        "document-002/epoch~1",
    )
    families = [ComparisonFamily(name, 200, HIGHEST.pairs, name) for name in names]
    found = family_tables(families, [comparison(0.5, family=name) for name in names])
    assert [table.id for table in found] == [
        "family-document-001-epoch~2-q",
        "family-document-001-epoch~2",
        "family-learning",
        "family-grpo-against-rce",
        "family-document-002-epoch~1",
    ]
    assert len({table.title for table in found}) == 5
    assert found[0].title == "Each KL_BETA against the reference, GRPO epoch 2, preset q, 200 samples"
    assert "Nothing is separated: the smallest Holm p is 0.500." in found[0].caption
    assert [table.factor for table in found] == ["kl_beta", "kl_beta", "policy base", "policy base", "kl_beta"]
