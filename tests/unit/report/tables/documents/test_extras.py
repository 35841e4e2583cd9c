from __future__ import annotations

from lever_pipe.report.tables.documents.extras import separations
from lever_pipe.report.tables.evidence import MEAN, Evidence, Pair, Paired

RCE = "preset~world/rce/epoch~{}"
GRPO = "preset~world/grpo/base~{}/beta~0.15/epoch~3"


def evidence(p_values: dict[int, float]) -> Evidence:
    """Return one beta from several bases, with the adjusted p of its difference to each."""
    pairs = {
        Pair("grpo-against-rce", GRPO.format(base), RCE.format(base), 800, MEAN): Paired(1.0, 0.5, 1.5, p, 1.0)
        for base, p in p_values.items()
    }
    return Evidence({}, pairs)


def test_a_separated_setting_is_not_hidden_by_one_from_another_base() -> None:
    said = list(separations(evidence({2: 0.01, 5: 0.8})))
    assert said == ["Separated from its RCE base: GRPO, KL_BETA=0.15, epoch 3."]


def test_without_separation_the_smallest_adjusted_p_is_told() -> None:
    said = list(separations(evidence({2: 0.4, 5: 0.06})))
    assert said == ["No GRPO setting is separated from its RCE base: the smallest Holm p is 0.060."]


def test_nothing_is_said_without_comparisons() -> None:
    assert list(separations(Evidence({}, {}))) == []
