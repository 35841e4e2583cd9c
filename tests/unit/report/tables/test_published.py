from __future__ import annotations

from pathlib import Path

import pytest

from lever_pipe.report.tables import published as module
from lever_pipe.report.tables.frames import read_text_columns
from lever_pipe.report.tables.published import Key, Lineage, Published

REFERENCE = Path(__file__).parents[4] / "resources" / "reference" / "lever-plus-published.csv"


@pytest.fixture(scope="module")
def published() -> Published:
    return Published(read_text_columns(REFERENCE))


def accuracy(beta: float, epoch: str, samples: int, shots: int) -> Key:
    return Key("grpo_frozen", beta, epoch, "vqa_acc_pct", samples, shots)


def test_a_number_is_found_under_its_label(published: Published) -> None:
    found = published.find(accuracy(0.15, "1", 200, 1), (module.ACCURACY_015,))
    assert found is not None
    assert (found.value, found.text) == (58.8, "58.8")
    assert "stores kl_beta=0.1" in found.note  # the file's own label is 0.15


def test_the_first_named_file_wins(published: Published) -> None:
    key = accuracy(0.12, "1", 200, 1)
    for first, second in ((module.ACCURACY_012, module.BETAS), (module.BETAS, module.ACCURACY_012)):
        found = published.find(key, (first, second))
        assert found is not None
        assert found.source == first


def test_the_files_agree_where_they_repeat_an_accuracy(published: Published) -> None:
    for beta, file in ((0.12, module.ACCURACY_012), (0.15, module.ACCURACY_015)):
        for shots in (1, 2, 3, 4):
            pair = [published.find(accuracy(beta, "1", 200, shots), (name,)) for name in (file, module.BETAS)]
            assert pair[0] is not None
            assert pair[1] is not None
            assert pair[0].value == pair[1].value


def test_what_was_never_published_is_none(published: Published) -> None:
    assert published.find(accuracy(0.18, "3", 800, 1), (module.BETAS,)) is None
    assert published.find(accuracy(0.1, "1", 200, 1), (module.ACCURACY_015,)) is None


def test_statistics_of_a_run(published: Published) -> None:
    least = published.find(Key("grpo_balanced", 0.12, "minimum", "val_loss"), (module.CURVES,))
    assert least is not None
    assert (least.value, least.epoch) == (7.972695, "47")


def test_rl_data_of_one_file(published: Published) -> None:
    groups = [
        published.of_rl_data(name, "rl_data_k64_v3.json")
        for name in ("all_negative_queries", "all_positive_queries", "mixed_queries")
    ]
    assert [found and found.value for found in groups] == [136, 44, 620]


def test_lineage_draws_together_what_shares_a_note(published: Published) -> None:
    lineage = Lineage()
    for beta, epoch in ((0.12, "1"), (0.12, "2"), (0.18, "1"), (0.18, "2"), (0.145, "1")):
        key = accuracy(beta, epoch, 200, 1)
        assert lineage.add(key, published.find(key, (module.BETAS,))).startswith("57")
    assert lineage.add(accuracy(0.15, "1", 200, 1), None) == ""
    (note,) = lineage.notes()
    covered, lineage_and_file = note.split(": ")
    assert covered == "Published 0.12 and 0.18, epoch 1-2; 0.145, epoch 1"
    assert lineage_and_file == "all identical across KL_BETA; base kl012/rce_epoch5 (KL_BETA_0145_0155对比.md)"
