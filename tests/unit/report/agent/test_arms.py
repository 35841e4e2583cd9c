from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from agent_runs import ARMS, Study
from agent_tables import TRANSLATORS, Tabulate, Tabulated, evidence_of, tabulate
from sentences import sentence

from lever_pipe.experiment.agent_evaluation import PrimaryEndpoint
from lever_pipe.experiment.agent_training import Schedule, Stop
from lever_pipe.report.agent.tables import facts
from lever_pipe.report.evidence import EvidenceRow
from lever_pipe.report.table import as_csv

AT: dict[str, Any] = {"at": "last", "subset": "test"}


def compared(arm: str, mode: str, value: float, p_holm: float, runs: int) -> EvidenceRow:
    ends = {"low": value - 0.01, "high": value + 0.01, "p": p_holm, "p_holm": p_holm}
    at = {**AT, "mode": mode, "against": "arm~baseline", "family": f"{mode} {arm}"}
    how = "Student's t" if runs > 1 else "sign flip"
    return EvidenceRow("intention", f"arm~{arm}", "normalised_reward", value, **at, **ends, runs=runs, how=how)


def evaluated(evidence: Sequence[EvidenceRow], *rows: EvidenceRow, **changes: object) -> Tabulated:
    """Return the tables of evidence whose comparisons at the endpoint are these."""
    return tabulate([*(row for row in evidence if not (row.against and row.at == "last")), *rows], Study(), **changes)


def test_every_arm_stands_with_both_decodings(default: Tabulated) -> None:
    rows = default.rows("agent-arms")
    assert [row["Arm"] for row in rows] == [
        *("baseline", "baseline, same seeds", "kl_only (these runs)", "entropy_only (these runs)"),
        *("schedule_only (these runs)", "bundle", "kl_strong (these runs)", "start policy"),
    ]
    for mode in ("sampled", "greedy"):
        for arm, row in zip(ARMS, [rows[0], *rows[2:-1]], strict=True):
            mean = default.view.find(f"arm~{arm.name}", "normalised_reward", **AT, mode=mode)
            assert mean is not None
            assert float(row[f"Held-out, {mode}"]) == pytest.approx(100 * mean.value, abs=0.051)
    assert [(row["KL"], row["Entropy"], row["Schedule"]) for row in rows[5:7]] == [
        *(("0.01", "0.01", "5 steps of warm-up, then cosine"), ("0.5", "0", "fixed"))
    ]
    assert "Learning rate" not in rows[0]  # all arms share it
    assert rows[-1]["Held-out, greedy"]


def test_a_printed_difference_is_that_of_the_lines_of_the_same_seeds(default: Tabulated) -> None:
    """One seed against three: subtract levels of the same seed only."""
    rows = {row["Arm"]: row for row in default.rows("agent-arms")}
    for mode in ("sampled", "greedy"):
        same, own = (rows[arm] for arm in ("baseline, same seeds", "kl_strong (these runs)"))
        gap = float(own[f"Held-out, {mode}"]) - float(same[f"Held-out, {mode}"])
        assert float(own[f"Difference, {mode}"]) == pytest.approx(gap, abs=0.11)  # two roundings of 0.05


def test_arms_over_seeds_lead_and_single_runs_stand_apart(evidence: list[EvidenceRow]) -> None:
    rows = [
        compared("bundle", "sampled", -0.02, 0.01, 3),
        compared("kl_strong", "sampled", -0.13, 0.0001, 1),
        compared("bundle", "greedy", 0.01, 0.6, 3),
        compared("kl_strong", "greedy", 0.08, 0.3, 1),
    ]
    text = evaluated(evidence, *rows).messages("agent-arms")
    assert text.startswith(
        "Over seeds, greedy: no arm is separated from baseline. "
        "Over seeds, sampled: separated from baseline are bundle (-2.0 [-3.0, -1.0], Holm p 0.010). "
        "One seed each, without evidence about other seeds: kl_strong."
    )


def test_the_start_policy_is_a_row_and_what_arms_gain_on(default: Tabulated) -> None:
    rows = {row["Arm"]: row for row in default.rows("agent-arms")}
    for mode in ("sampled", "greedy"):
        gain = float(rows["baseline"][f"Held-out, {mode}"]) - float(rows["start policy"][f"Held-out, {mode}"])
        assert float(rows["baseline"][f"Gain, {mode}"]) == pytest.approx(gain, abs=0.11)  # two roundings of 0.05


def test_a_served_agent_is_a_row_with_what_it_cost(tabulated: Tabulate, default: Tabulated) -> None:
    found = tabulated(Study(served=("gpt",)))
    row, others = found.row("agent-arms", Arm="gpt"), default.rows("agent-arms")
    assert found.rows("agent-arms")[-1] == row
    assert [{head: of[head] for head in others[0]} for of in found.rows("agent-arms")[:-1]] == others
    costs = [row[name] for name in ("Requests", "Prompt tokens", "Completion tokens", "Failed requests")]
    assert costs == ["80", "18000", "1400", "2"]  # of both decodings
    assert [row[name] for name in ("Refusals", "Filtered replies", "Empty replies")] == ["6", "4", "2"]
    for mode in ("sampled", "greedy"):
        mean = found.view.find("arm~gpt", "normalised_reward", **AT, mode=mode)
        assert mean is not None
        assert float(row[f"Held-out, {mode}"]) == pytest.approx(100 * mean.value, abs=0.051)
        assert row[f"Difference, {mode}"]
        assert row[f"Holm p, {mode}"]
    assert "Served: an agent behind a server" in found.messages("agent-arms")
    assert "Served" not in default.messages("agent-arms")
    assert {name for name, of in found.tables.items() if "gpt" in as_csv(of, TRANSLATORS["en"])} == {"agent-arms"}


def test_a_policy_that_nothing_trains_is_its_last_and_its_best(tmp_path: Path) -> None:
    stopping = ARMS[1].model_copy(update={"stop": Stop()})
    study, found = Study(arms=(ARMS[0], stopping), steps=10, served=("gpt",)), {}
    for checkpoint in ("last", "best"):
        primary = PrimaryEndpoint(checkpoint=checkpoint)
        changes = {"evaluation": study.evaluation.model_copy(update={"primary": primary})}
        found[checkpoint] = tabulate(evidence_of(tmp_path / checkpoint, study, **changes), study, **changes)
        text = found[checkpoint].messages("agent-arms")
        assert [f"compared by their {name} policies" in text for name in ("last", "best")] == [
            checkpoint == "last",
            checkpoint == "best",
        ]
    for arm in ("start policy", "gpt"):
        last, best = (of.row("agent-arms", Arm=arm) for of in found.values())
        for mode in ("sampled", "greedy"):
            assert best[f"Held-out, {mode}"] == last[f"Held-out, {mode}"] != ""
            assert all(best[f"{head}, {mode}"] for head in ("Difference", "Holm p", "Gain")) is (arm == "gpt")


def test_arms_that_adapt_rise_and_stop_stand_next_to_the_others(tmp_path: Path, default: Tabulated) -> None:
    """Of three seeds of the arm that stops one ends at step 25 and two at step 20, all others at step 45."""
    stopping = {"name": "early", "stop": Stop(patience=2, least_change=0.01)}
    early = ARMS[4].model_copy(update=stopping | {"kl_schedule": Schedule(kind="adaptive", target=0.02, horizon=640)})
    staged = ARMS[1].model_copy(update={"name": "staged", "kl_schedule": Schedule(kind="rising")})
    ends = {("early", seed): 20 + 5 * (seed == 1) for seed in range(3)}
    study = Study(arms=(ARMS[0], ARMS[4], early, staged), lengths=ends)
    at = {"subset": "test", "mode": "sampled", "runs": 1}
    malformed = [
        EvidenceRow(
            "intention", f"arm~early/seed~{seed}", "end_malformed", 0.2 if end == 20 else 0.5, at=str(end), **at
        )
        for (_, seed), end in ends.items()
    ]
    found = tabulate([*evidence_of(tmp_path, study), *malformed], study)
    rows = {row["Arm"].partition(" ")[0]: row for row in found.rows("agent-arms")}
    assert [rows[name]["KL"] for name in ("bundle", "early", "staged")] == [
        "0.01", "0.01, adapted to 0.02 nats a token", "0.01, linear rise"
    ]  # fmt: skip
    assert rows["early"]["Difference, sampled"]
    text = "early stops once its validation curve (reward, sampled) has risen by no more than 0.01 in 2 evaluations"
    assert f"{text}, and selects by it: its runs ended behind step 20, 25 and 20 of 45" in found.messages("agent-arms")
    curve = found.view.curve("arm~early", "sampled")
    assert [step in curve for step in (20, 25, 30)] == [True, False, False]  # no mean of the remaining seeds only
    assert rows["early"]["Malformed (%)"] == "30.0"  # of 20, 50 and 20 %, each at its own last step
    (row,) = found.rows("advice", **{"The document": "A small KL coefficient early"})
    assert "staged" in row["Ours"]
    assert "early" not in row["Ours"]
    assert "stops once" not in default.messages("agent-arms")


def test_failures_in_training_are_counted_over_all_runs(tabulated: Tabulate) -> None:
    lost = {"simulator_failures": 2.0, "environment_timeouts": 0.0}
    found = tabulated(Study(arms=(ARMS[0], ARMS[4]), steps=5, metrics=lost))
    runs = len(ARMS[0].seeds) + len(ARMS[4].seeds)
    text = f"Simulator failures in training: {2 * 5 * runs}; time-outs: 0."
    assert text in sentence("section_004", facts(found.context))
