"""Names of policies: written names parse back, and invalid names are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from lever_pipe.base.errors import RecordError
from lever_pipe.base.policy_names import EMULATION, TRAINED, PolicyName, group_of
from lever_pipe.base.records import EpochMetrics

counts = st.integers(0, 10**6)
seeds = st.none() | counts
betas = st.floats(0, 1e6, allow_nan=False)
words = st.from_regex(r"[a-z][a-z0-9_.-]{0,12}", fullmatch=True)

EXAMPLES = {  # name -> its label, base, batch and mode
    "baseline/oracle": ("baseline oracle", None, "baseline", ""),
    "baseline/random-3": ("baseline random-3", None, "baseline", ""),
    "preset~p/init/seed~3": ("initialisation of seed 3 (p)", None, "preset~p/seed~3", ""),
    "preset~grpo/rce/seed~3/epoch~4": (
        "RCE epoch 4 of seed 3 (grpo)", "preset~grpo/init/seed~3", "preset~grpo/seed~3", "",
    ),
    "preset~p/grpo/base~2/beta~0.12/seed~3/epoch~4": (
        "GRPO beta 0.12 epoch 4 of seed 3 (p, base 2)", "preset~p/rce/seed~3/epoch~2", "preset~p/seed~3", "offline",
    ),
    "preset~p/on_policy/base~2/beta~1e-05/seed~3/epoch~4": (
        "on-policy GRPO beta 1e-05 epoch 4 of seed 3 (p, base 2)",
        "preset~p/rce/seed~3/epoch~2", "preset~p/seed~3", "on_policy",
    ),
    "preset~p/on_policy/base~2/beta~all/seed~3/epoch~4": (
        "on-policy GRPO over all betas epoch 4 of seed 3 (p, base 2)",
        "preset~p/rce/seed~3/epoch~2", "preset~p/seed~3", "on_policy",
    ),
    "preset~p/reinforce/base~2/beta~0/seed~3/epoch~4": (
        "REINFORCE beta 0 epoch 4 of seed 3 (p, base 2)", "preset~p/rce/seed~3/epoch~2", "preset~p/seed~3", "on_policy",
    ),
    "preset~p/distil/base~2/seed~3/epoch~4": (
        "oracle distillation epoch 4 of seed 3 (p, base 2)", "preset~p/rce/seed~3/epoch~2", "preset~p/seed~3", "",
    ),
    "emulation/head/beta~0.1/epoch~2": ("GRPO with head beta 0.1 epoch 2", None, "emulation", ""),
    "emulation/none/base~2/seed~0/untouched~1": ("GRPO with none epoch 1 of seed 0 (base 2)", None, "emulation", ""),
    "published/grpo/beta~0.15/epoch~3/document~001": ("published GRPO beta 0.15 epoch 3", None, "published", ""),
    "arm~b/seed~1": ("arm b of seed 1", None, "arm~b/seed~1", ""),
}  # fmt: skip


@st.composite
def policy_names(draw: st.DrawFn) -> PolicyName:
    kind = draw(st.sampled_from(["baseline", "agent", EMULATION, "published", *TRAINED]))
    match kind:
        case "baseline":  # a word that ends like a draw is one
            return PolicyName(kind=kind, variant=draw(words.filter(lambda word: "-" not in word)), draw=draw(seeds))
        case "agent":
            return PolicyName(kind=kind, variant=draw(words), seed=draw(seeds))
        case "published":
            beta, document = draw(betas), draw(st.just("") | words)
            return PolicyName(kind=kind, variant=draw(words), beta=beta, epoch=draw(counts), document=document)
        case "emulation":
            variant, epoch = draw(words), draw(counts)
            if draw(st.booleans()):
                return PolicyName(kind=kind, variant=variant, base=1, seed=draw(counts), epoch=epoch, is_untouched=True)
            return PolicyName(kind=kind, variant=variant, base=draw(seeds), beta=draw(betas), epoch=epoch)
    numbers = {"base": draw(counts), "beta": draw(betas), "epoch": draw(counts)}
    stated = {name: number for name, number in numbers.items() if name in TRAINED[kind].numbers}
    return PolicyName(kind=kind, preset=draw(words), seed=draw(seeds), **stated)  # type: ignore[arg-type]


@given(policy_names())
def test_what_is_written_is_read_back(name: PolicyName) -> None:
    assert PolicyName.parse(str(name)) == name
    group = PolicyName.parse(group_of(str(name)))
    assert (group.seed, group.draw) == (None, None)
    assert group_of(str(group)) == str(group)


@given(policy_names().filter(lambda name: name.seed is not None or name.kind == "baseline"), words)
def test_a_path_tells_whose_folder_it_lies_in(name: PolicyName, folder: str) -> None:
    for path in (f"{name}", f"/{folder}/results/lever/{name}/selections.jsonl", f"{name}/run.json"):
        assert PolicyName.in_path(path) == name
        assert group_of(path) == path.replace(str(name), group_of(str(name)))


@pytest.mark.parametrize("text", EXAMPLES)
def test_each_kind(text: str) -> None:
    label, start, batch, mode = EXAMPLES[text]
    name = PolicyName.parse(text)
    assert (str(name), name.label, name.batch, name.mode) == (text, label, batch, mode)
    if start is not None:
        assert str(name.start) == start
    assert name.at(7).epoch == 7


@pytest.mark.parametrize(
    "text",
    [
        "", "x", "baseline", "baseline/", "baseline/a/b", "preset~p", "preset~p/rce/seed~0", "preset~p/none/epoch~1",
        "preset~p/rce/epoch~x", "preset~p/rce/epoch~01", "preset~p/rce/epoch~1/seed~0", "preset~p/rce/epoch~1/",
        "preset~p/rce/base~1/epoch~1", "preset~p/grpo/base~1/beta~0.10/seed~0/epoch~1", "arm~b/epoch~1",
        "preset~p/grpo/base~1/seed~0/epoch~1", "preset~p/rce/epoch~1/document~1", "emulation/none", "seed~0",
        "preset~p/rce/beta~all/epoch~1", "preset~p/grpo/beta~all/epoch~1", "preset~p/reinforce/base~1/beta~all/epoch~1",
        "published/grpo/beta~all/epoch~1", "preset~p/grpo/base~1/beta~All/epoch~1",
    ],
)  # fmt: skip
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(RecordError):
        PolicyName.parse(text)


def test_a_row_has_the_parts_of_its_name_and_refuses_others() -> None:
    row = EpochMetrics(policy="preset~p/on_policy/base~5/beta~0.1/seed~0/epoch~1", values={})
    assert row.model_dump()["policy"] == {
        "name": "preset~p/on_policy/base~5/beta~0.1/seed~0/epoch~1", "stage": "grpo", "mode": "on_policy",
        "preset": "p", "base_rce_epoch": 5, "kl_beta": 0.1, "seed": 0, "epoch": 1,
    }  # fmt: skip
    emulated = PolicyName(kind="emulation", preset="p", variant="none", base=2, seed=0, epoch=1, is_untouched=True)
    for policy in (row.policy, PolicyName(kind="init", preset="p", seed=3), emulated):
        written = EpochMetrics(policy=policy, values={})
        assert EpochMetrics.model_validate_json(written.model_dump_json()).policy == policy
    with pytest.raises(ValidationError):
        EpochMetrics(policy=row.model_dump()["policy"] | {"seed": 1}, values={})
