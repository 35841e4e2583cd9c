"""The Chinese texts of the claims: every sentence has one, with the same numbers and no English left in it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path

import pandas as pd
import pytest
from claim_files import NOISE, REFERENCE_INTENTION, RESOURCES, Ours, book, judge, our_sides, published

from lever_pipe.commands.glossary_tool import untranslated
from lever_pipe.report.claims.claim_tables import claim_tables
from lever_pipe.report.claims.curve_tables import published_curve_tables
from lever_pipe.report.claims.reward_runs import RewardRuns
from lever_pipe.report.page.glossary import Glossary, read_glossary
from lever_pipe.report.page.numbers import numbers_in
from lever_pipe.report.tables.frames import read_text_columns
from lever_pipe.report.tables.origin import Origin
from lever_pipe.report.tables.table import Table

NAMES = re.compile(r"`[^`]*`|\S*[\w.]+/[\w.]+|[\w-]+\.json|Qwen[\w.-]*|OK-VQA|IntentionGym|\d+e-\d+")
"""Names of files, models and data sets, and powers of ten."""
KEPT = re.compile(
    "KL|KL_BETA|PPO|GRPO|RCE|PG|Loss|Train|Validation|Mean|Ratio|Advantage|Adv|Std|Max|Entropy|Reward|MFU|WandB|"
    "[Ee]poch|[Ss]hot|Step|by|beta|checkpoint|backbone|token|[Ww]armup|Cosine|layer|norm|"
    "Holm|Levene|Wilcoxon|Von|Neumann|[FNptx]"
)
"""Words that Chinese papers of the field leave in English."""
SMALL = Ours(betas=(0.15, 0.18), epochs=1, seeds=(0,), long_betas=())


@cache
def chinese() -> Glossary:
    return read_glossary(sorted((RESOURCES / "glossary" / "zh").glob("*.yaml")))


def words_left_in(translated: str) -> list[str]:
    return [word for word in re.findall(r"[A-Za-z_]+", NAMES.sub(" ", translated)) if not KEPT.fullmatch(word)]


def tables(folder: Path, of: Ours, lvlm: str) -> list[Table]:
    judged = judge(published(), our_sides(folder, of)).values()
    origin = Origin("main", "files" if lvlm else "world", lvlm)
    runs = RewardRuns(read_text_columns(REFERENCE_INTENTION), "004", NOISE)
    return [*claim_tables(list(judged), origin), *published_curve_tables(runs, book().reward_curves)]


def texts(of: Table) -> Iterator[str]:
    cells = (cell for row in of.frame.itertuples(index=False) for cell in row)
    yield from filter(None, (of.title, of.caption, *map(str, of.frame.columns), *map(str, cells)))


def require_chinese(found: Collection[str]) -> None:
    assert not untranslated(chinese(), found)
    for text in found:
        translated, _ = chinese().translate(text)
        assert Counter(numbers_in(translated)) == Counter(numbers_in(text)), text
        assert not words_left_in(translated), text
        # an English full stop or comma in front of a Chinese word is a text that passed by mistake
        assert not re.search(r"\d\. ?[\u4e00-\u9fff]|, ?[\u4e00-\u9fff]", translated), translated


def test_every_claim_and_section_has_an_entry() -> None:
    for claim in book().claims:
        for text in (claim.claim, claim.section):
            translated, missing = chinese().translate(text)
            assert not missing, claim.id
            assert Counter(numbers_in(translated)) == Counter(numbers_in(text)), claim.id
            assert not words_left_in(translated), claim.id


def test_different_claims_read_differently() -> None:
    spoken = {claim.claim: chinese().translate(claim.claim)[0] for claim in book().claims}
    assert len(set(spoken.values())) == len(spoken)


@pytest.mark.parametrize(
    ("of", "lvlm"), [(Ours(), ""), (SMALL, "Qwen2.5-VL-3B-Instruct"), (Ours(epochs=2, shots=(1, 2), samples=(50,)), "")]
)
def test_every_text_of_the_tables_is_chinese(tmp_path: Path, of: Ours, lvlm: str) -> None:
    found = [text for table in tables(tmp_path, of, lvlm) for text in texts(table)]
    assert len(found) > 7 * len(book().claims)  # seven cells a claim
    require_chinese(found)


def test_so_is_every_reason_why_a_claim_cannot_be_tested(tmp_path: Path) -> None:
    def less(rows: pd.DataFrame) -> None:
        gone = {"val_reward_estimated", "val_reward_diff", "val_reward_change_pct", "wandb_run", "entropy", "mfu_min"}
        rows.loc[rows["metric"].isin([*gone, "max_abs_change_pct", "lr_displayed", "kl_loss"]), "metric"] = "removed"

    def fewer(rows: pd.DataFrame) -> None:
        rows.loc[rows["kl_beta"] == "0.12", "metric"] = "removed"

    none = our_sides(tmp_path, Ours(epochs=0, long_betas=()))
    judged = [*judge(published(lever=fewer, intention=less), none).values()]
    judged += judge(published(lineage=lambda known: known.clear())).values()
    found = {side.numbers for of in judged for side in (of.published, of.ours) if side.verdict == "not testable"}
    assert len(found) > 40
    require_chinese(found)


@pytest.mark.parametrize(
    ("english", "translated"),
    [
        # other betas, epochs and orders than those of the default configuration
        ("0.2 minus 0.1: -0.28 (50 samples, shot 2), noise 9.7", "0.2 减 0.1：-0.28（50 样本，shot 2），噪声 9.7"),
        ("0.2: sd over 7 seeds 0.001; 0.1: sd over 7 seeds 0.002; F test p <0.001",
         "0.2：7 个种子间的标准差 0.001；0.1：7 个种子间的标准差 0.002；F 检验 p <0.001"),
        ("KL_BETA 0.2, epoch 9 is not part of this configuration.", "本配置不含 KL_BETA 0.2 的 epoch 9。"),
        ("no KL minus KL bundle, mean over steps 5 and 10: +0.1, noise 0.2. Also different: step (10 against 5).",
         "无 KL 减 KL 组合，第 5 和 10 步的平均：+0.1，噪声 0.2。其他不同：步（10 对 5）。"),
        ("Different: RL data (0.3 and 0.4: none) (0.2: x.json) and own_field (0.2: a; b) (0.3: c, d) (0.4: e)",
         "不同之处：强化学习数据（0.3 和 0.4：无）（0.2：x.json）和 own_field（0.2：a；b）（0.3：c, d）（0.4：e）"),
        ("65.00 % of selections agree (first demonstration, shot 1, mean over 1 seed after epoch 9)",
         "65.00 % 的选择一致（第一个范例，shot 1，epoch 9，1 个种子的平均）"),
        ("first step that reaches each reward, KL bundle against no KL: 2: 40 against 10; 2.2: never against 45",
         "首次达到各 Reward 的步（KL 组合，对方为无 KL）：2：40，对方 10；2.2：从未达到，对方 45"),
    ],
)  # fmt: skip
def test_patterns_follow_other_numbers(english: str, translated: str) -> None:
    assert chinese().translate(english) == (translated, [])
