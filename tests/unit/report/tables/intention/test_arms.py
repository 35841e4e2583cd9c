from __future__ import annotations

import math
from dataclasses import replace

import pytest
from agent_runs import ARMS, Study
from agent_tables import Tabulate, Tabulated

from lever_pipe.experiment.agent_config import Environment
from lever_pipe.report.tables.comparisons.estimates import SIGN_FLIP, STUDENT
from lever_pipe.report.tables.intention import arms
from lever_pipe.report.tables.intention.arm_checks import identities, reward_unit
from lever_pipe.report.tables.intention.arm_comparisons import ArmComparisonRow
from lever_pipe.report.tables.intention.arms import answer
from lever_pipe.report.tables.intention.curve_shapes import STATISTICS
from lever_pipe.report.tables.intention.endpoint_cells import endpoint_title
from lever_pipe.report.tables.intention.shown import steps_listed

PRIMARY = "test_normalised_reward_sampled_last"
IDS = [
    *("arms-factors", "arms-mechanism", "arms-sampled", "arms-greedy"),
    *("arms-secondary-sampled", "arms-secondary-greedy"),
    *("arms-statistics-sampled", "arms-compared-sampled", "arms-statistics-greedy", "arms-compared-greedy"),
    *("arms-noise", "arms-checkpoints", "arms-runs", "arms-audit"),
]


def row(arm: str, p_holm: float, n_seeds: int = 1, difference: float = -0.05) -> ArmComparisonRow:
    numbers = (difference, -0.1, 0.0, p_holm, p_holm, 0.03, STUDENT if n_seeds > 1 else SIGN_FLIP, n_seeds, 200, 4)
    return ArmComparisonRow(PRIMARY, "primary", arm, "baseline", *numbers, PRIMARY, 0.9, 0.95)


def test_the_tables_of_the_section(default: Tabulated) -> None:
    assert [name for name, table in default.tables.items() if table.document == "arms"] == IDS
    for name in IDS:
        assert not default.tables[name].frame.empty, name


def test_the_answer_is_computed(default: Tabulated) -> None:
    shown = default.shown
    ends = [[default.shown.found.by_seed(arm, PRIMARY, [s])[0] for s in range(3)] for arm in ("bundle", "baseline")]
    lower = [left < right for left, right in zip(*ends, strict=True)]
    three = " `bundle` is lower in all 3 seeds." if all(lower) else ""
    nothing = answer([row("kl_only", 0.4), row("bundle", 0.25, 3)], shown)
    assert (
        nothing == f"No arm is separated from `baseline` at the primary endpoint: the smallest Holm p is 0.250.{three}"
    )
    single = answer([row("kl_strong", 0.0004), row("bundle", 0.25, 3)], shown)
    assert single == (
        "Separated from `baseline` over tasks, with one seed each: `kl_strong` (-5.0, Holm p <0.001). "
        f"One seed says nothing about other seeds.{three}"
    )
    seeds = answer([row("bundle", 0.031, 6), row("kl_only", 0.6)], shown)
    assert seeds == "Separated from `baseline` over seeds: `bundle` (-5.0, Holm p 0.031)."
    assert answer([], shown) == "No arm can be compared with `baseline` at the primary endpoint."
    assert answer([row("x", math.nan)], shown) == answer([], shown)


def test_the_single_factor_table(default: Tabulated) -> None:
    rows = {of["Arm"]: of for of in default.rows("arms-factors")}
    assert list(rows) == [arm.name for arm in ARMS]
    assert [(of["KL"], of["Entropy"]) for of in rows.values()] == [
        *(("0", "0"), ("0.01", "0"), ("0", "0.01"), ("0", "0"), ("0.01", "0.01"), ("0.5", "0"))
    ]
    assert rows["bundle"]["Schedule"] == "warm-up of 5 steps, then cosine"
    assert rows["baseline"]["Difference"] == "reference"
    assert (rows["bundle"]["Test"], rows["kl_only"]["Test"]) == ("Student's t, 3 seeds", "sign flip, 1 seed")
    caption = default.tables["arms-factors"].caption
    assert "fixed before the runs." in caption
    assert "held-out tasks 7 repeat" not in caption  # nothing is known of the tasks
    known = arms.tables(replace(default.shown, held_out=(12, 7)))[0].caption
    assert "No held-out task repeats a training request; 7 of 12 share" in known
    assert "there is no inference about training variance." in caption
    mean = default.shown.found.mean("kl_only", PRIMARY)
    assert rows["kl_only"]["Primary endpoint"].startswith(f"{100 * mean.value:.1f} [")
    assert "Learning rate" not in rows["baseline"]  # all arms share it


def test_other_factors_get_a_column(tabulated: Tabulate) -> None:
    other = ARMS[4].model_copy(update={"learning_rate": 5e-4, "trajectory_score": "mean"})
    found = tabulated(Study(arms=(ARMS[0], other), steps=5))
    rows = found.rows("arms-factors")
    assert [(of["Learning rate"], of["Trajectory score"]) for of in rows] == [("0.0002", "sum"), ("0.0005", "mean")]


def test_what_the_factors_do(default: Tabulated) -> None:
    rows = {of["Arm"]: of for of in default.rows("arms-mechanism")}
    assert (rows["baseline"]["Cumulative learning rate"], rows["baseline"]["Of the reference (%)"]) == (
        *("0.00900", "100.0"),
    )
    assert rows["schedule_only"]["Of the reference (%)"] == "50.0"  # 22.5 of 45 peaks
    assert (rows["bundle"]["Test"], rows["kl_only"]["Test"]) == ("Student's t, 3 seeds", "sign flip, 1 seed")
    caption = default.tables["arms-mechanism"].caption
    for defined in ("Difference: to the reference arm", "In brackets: 95 %", "p: Student's t", "Holm p: adjusted"):
        assert defined in caption
    assert "sign flips over tasks: it infers to further tasks" in caption
    assert "Detectable" not in caption
    # 0.001 x 0.2 x 43
    assert rows["kl_strong"]["KL at the end"] == "0.00860"
    for of in rows.values():
        shares = [float(of[f"{term} in the loss (%)"]) for term in ("Policy", "KL", "Entropy")]
        assert sum(shares) == pytest.approx(100, abs=0.15)  # three roundings of 0.05


def test_curves_by_step_and_by_arm(default: Tabulated) -> None:
    for mode in ("greedy", "sampled"):
        table = default.tables[f"arms-{mode}"]
        assert list(table.frame.columns) == ["Step", *(f"`{arm.name}`" for arm in ARMS)]
        assert list(table.frame["Step"]) == [*map(str, range(0, 50, 5))]
        value = default.shown.runs.validation("kl_only", 0, mode)[20]
        assert float(table.frame["`kl_only`"][4]) == pytest.approx(value, abs=5.01e-4)


def test_steps_of_the_seeds() -> None:
    assert steps_listed([5, 5, 5], 45) == "5"
    assert steps_listed([10, math.inf, 45], 45) == "10 / >45 / 45"
    assert steps_listed([math.nan, math.nan], 45) == ""


def test_statistics_stand_run_by_run_in_the_published_shape(default: Tabulated) -> None:
    table = default.tables["arms-statistics-greedy"]
    assert list(table.frame.columns) == [
        *("Statistic", "`baseline` 0", "`baseline` 1", "`baseline` 2", "`bundle` 0", "`bundle` 1", "`bundle` 2")
    ]
    shares = ["Mean in percent of the ceiling", "Largest in percent of the ceiling"]
    assert list(table.frame["Statistic"]) == [*STATISTICS, *shares]
    by_name = {of["Statistic"]: of for of in default.rows("arms-statistics-greedy")}
    curve = list(default.shown.runs.validation("bundle", 2, "greedy").values())[1:]
    assert float(by_name["Mean"]["`bundle` 2"]) == pytest.approx(sum(curve) / 9, abs=5.01e-5)
    compared = default.tables["arms-compared-greedy"].frame
    assert list(compared.columns) == ["Statistic", "Seed 0", "Seed 1", "Seed 2"]


def test_noise_and_what_it_leaves(default: Tabulated) -> None:
    of = default.row("arms-noise", Run="`baseline`", Curve="sampled")
    error, noise = float(of["Error, same tasks"]), float(of["sd of change by noise"])
    assert noise == pytest.approx(math.sqrt(2) * error, abs=1.3e-3)  # both with three decimals
    assert of["Episodes"] == "32"
    curves = [row["Curve"] for row in default.rows("arms-noise", Run="`baseline`")]
    assert curves == ["sampled", "greedy"]
    caption = default.tables["arms-noise"].caption
    assert "Evaluations of ours share random numbers, so this is an upper bound. A greedy policy" in caption
    published = default.row("arms-noise", Run="no KL")
    # sqrt(2) x 0.101; sqrt(0.2027^2 - 2 x 0.101^2)
    names = ("Error, same tasks", "Error, other tasks", "sd of change by noise", "sd of change", "Excess sd")
    assert [published[name] for name in names] == ["0.101", "0.130", "0.143", "0.203", "0.144"]
    assert published["Source"].startswith("published (Qwen3-8B")


def test_the_selected_checkpoint_beside_its_held_out_value(default: Tabulated) -> None:
    rows = default.rows("arms-checkpoints")
    assert [(of["Arm"], of["Seed"]) for of in rows] == [(run.arm, str(run.seed)) for run in Study().runs]
    for of in rows:
        fact = default.shown.runs.fact(of["Arm"], int(of["Seed"]))
        assert of["Selected step"] == str(fact.best_step)
        gap = float(of["Held-out"]) - float(of["Validation"])
        last = default.shown.found.by_seed(of["Arm"], "val_normalised_reward_sampled_last", [int(of["Seed"])])
        assert float(of["Validation, last step"]) == pytest.approx(100 * last[0], abs=0.051)
        assert float(of["Held-out minus validation"]) == pytest.approx(gap, abs=0.11)  # two roundings of 0.05


def test_planned_and_executed_steps(default: Tabulated, tabulated: Tabulate) -> None:
    rows = default.rows("arms-runs")
    assert {(of["Planned steps"], of["Executed steps"], of["End"]) for of in rows} == {("45", "45", "finished")}
    assert "Every run executed its planned steps." in default.tables["arms-runs"].caption
    assert "with their evaluations and checkpoints" in default.tables["arms-runs"].caption
    study = Study(
        arms=(ARMS[0].model_copy(update={"seeds": (0,)}), ARMS[5]),
        engine="verl",
        steps=465,
        executed=45,
        has_test=False,
        modes=("greedy",),
    )
    found = tabulated(study, document_arm="kl_strong", is_world=False, scale="Qwen3-8B on IntentionGym")
    (first, _) = found.rows("arms-runs")
    assert (first["Planned steps"], first["Executed steps"], first["End"]) == ("465", "45", "log ended")
    caption = found.tables["arms-runs"].caption
    assert "sum over training steps, their evaluations included." in caption
    assert "share random numbers" not in found.tables["arms-noise"].caption  # a server draws as it likes
    assert "Ended before the planned steps: `baseline` seed 0 and `kl_strong` seed 0." in caption
    assert "Metric definitions of `UserRL cf55a30 (verl 0.4.0.dev)`." in caption
    assert found.tables["arms-factors"].lead.startswith("No arm can be compared")
    settings = found.row("003-configuration", Setting="Executed steps", Source="ours")
    assert settings["no KL"] == "45"


def test_minutes_hold_evaluations_and_checkpoints(tabulated: Tabulate) -> None:
    timed = {"seconds_step": 4.0, "seconds_validation": 6.0, "seconds_checkpoint": 2.0}
    failing = {"simulator_failures": 2.0, "environment_timeouts": 1.0, "end_malformed": 0.125}
    study = Study(arms=(ARMS[0], ARMS[4]), steps=10, metrics=timed | failing)
    of = tabulated(study).rows("arms-runs")[0]
    assert of["Minutes"] == "2.0"  # 10 x 12 s
    assert (of["Simulator failures"], of["Time-outs"], of["Malformed ends (%)"]) == ("20", "10", "12.5")


def test_a_converted_log_has_them_within_its_steps(tabulated: Tabulate) -> None:
    timed = {"seconds_step": 6.0, "seconds_validation": 6.0}
    study = Study(arms=(ARMS[0], ARMS[4]), steps=10, metrics=timed, engine="verl", has_test=False, modes=("greedy",))
    assert tabulated(study).rows("arms-runs")[0]["Minutes"] == "1.0"  # 10 x 6 s


def test_identities_hold(default: Tabulated) -> None:
    assert default.tables["arms-audit"].lead == "All 6 identities hold at every step and evaluation."
    checked = {of["Identity"]: (of["Checked"], of["Held"]) for of in default.rows("arms-audit")}
    assert set(checked.values()) == {("450", "450"), ("200", "200")}  # 10 runs: 45 steps, 10 evaluations of two kinds
    with_limit = replace(default.shown, config=default.shown.config.model_copy(update={"max_context": 91}))
    (context,) = [of for of in identities(with_limit) if "context" in of.name]
    # 90 + sin(step + seed) never exceeds 91
    assert (len(context.deviations), context.held) == (450, 450)
    narrow = replace(default.shown, config=default.shown.config.model_copy(update={"max_context": 90}))
    assert 0 < next(of for of in identities(narrow) if "context" in of.name).held < 450


@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        ({"tokens_total": 59_839.0}, {"tokens of a step", "tokens a second x"}),
        ({"prompt_length": 31.0}, {"prompt + response"}),
        ({"tokens_per_second_per_device": 100.0}, {"tokens a second and device"}),
        ({"end_closed": 0.8}, {"the shares of all ends"}),
    ],
)
def test_a_broken_identity_is_told(tabulated: Tabulate, changes: dict[str, float], broken: set[str]) -> None:
    found = tabulated(Study(arms=(ARMS[0], ARMS[4]), steps=5, metrics=changes))
    rows = found.rows("arms-audit")
    failed = {of["Identity"] for of in rows if of["Held"] != of["Checked"]}
    assert all(any(name.startswith(start) for start in broken) for name in failed)
    assert len(failed) == len(broken)
    lead = found.tables["arms-audit"].lead
    assert lead == f"Broken: {len(broken)} of 6 identities."


def test_the_unit_of_a_reward() -> None:
    # 0.4, 0.7, 1.0 and 0.2 are multiples of 0.1
    assert reward_unit(Environment()) == pytest.approx(0.1, rel=1e-12)
    assert reward_unit(Environment(step_penalty=0.01)) == pytest.approx(0.01, rel=1e-12)
    rewards = {"low": 0.5, "medium": 1.0, "high": 1.5}
    free = Environment(importance_reward=rewards, multi_detail_penalty=0.5, normalise_rewards=False)
    assert reward_unit(free) == pytest.approx(0.5, rel=1e-12)
    assert reward_unit(free.model_copy(update={"reward_scale": 2.0})) == pytest.approx(1.0, rel=1e-12)


def test_endpoints_in_words() -> None:
    assert endpoint_title(PRIMARY) == (
        "normalised reward in percent of the ceiling, sampled, held-out tasks, last checkpoint"
    )
    assert endpoint_title("val_reward_greedy_best") == "reward, greedy, validation tasks, selected checkpoint"
