"""Document 002: KL_BETA 0.18 against 0.15 and 0.12: set-up, training, accuracy by samples and shots, differences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lever_pipe.report.tables.documents import differences
from lever_pipe.report.tables.documents import grpo_tables as parts
from lever_pipe.report.tables.lineage import published_key
from lever_pipe.report.tables.published import ACCURACY_012, ACCURACY_015, BETAS, Key, Lineage, Published
from lever_pipe.report.tables.results import Results, keep
from lever_pipe.report.tables.table import Table, beside, frame_of, groups_of
from lever_pipe.report.tables.text import beta_text, number, sentences

DOCUMENT_BETAS = (0.18, 0.15, 0.12)
EPOCHS = (1, 2, 3)
COLUMNS = (
    parts.TRAIN_LOSS,
    parts.VAL_LOSS,
    parts.PPO_LOSS,
    parts.KL,
    parts.ADV_STD,
    parts.ADV_MAX,
)
RL_FILE = "rl_data_k64_v3.json"
STATED_SETUP = {
    0.18: ("RCE epoch 5", "rl_data_RandSampler_Qwen2_5-VL-3B-Instruct.json"),
    0.15: ("RCE epoch 2", RL_FILE),
    0.12: ("RCE epoch 5", "rl_data_RandSampler_Qwen2_5-VL-3B-Instruct.json"),
}
"""Base checkpoint and RL data that document 002 names for each beta; text, so no row of the reference holds it."""


@dataclass(frozen=True, slots=True)
class Setup:
    """Our training configuration as the document's table lists it."""

    learning_rate: float
    freeze_projections: bool
    reward_mode: str
    rl_data: Mapping[str, str]  # metric -> value of rl_data.csv


def tables(results: Results, published: Published, setup: Setup) -> list[Table]:
    """Return the document's tables in its order: set-up, training, accuracies, differences, summaries."""
    sources = parts.Sources(results, published, (ACCURACY_015, ACCURACY_012, BETAS))
    betas, without = keep(DOCUMENT_BETAS, results.betas, "KL_BETA")
    epochs, missing = keep(EPOCHS, results.epochs, "epoch")
    gaps = sentences(without, missing)
    found = [_configuration(sources, beta, setup, without) for beta in betas]
    found += [_training(sources, beta, epochs, gaps) for beta in betas]
    for epoch in epochs:
        found += [_accuracy(sources, beta, epoch, gaps) for beta in betas]
        found.append(differences.by_shots(sources, betas, epoch, gaps))
    found.append(differences.summary(sources, betas, epochs, gaps))
    found += [differences.trend(sources, betas, epoch, gaps) for epoch in epochs]
    return [table for table in found if not table.frame.empty]


def _configuration(sources: parts.Sources, beta: float, setup: Setup, without: str) -> Table:
    ours, theirs = _our_setup(sources, beta, setup), _stated_setup(sources, beta)
    rows = [{"Parameter": name, "Ours": value, "Document": theirs.get(name, "")} for name, value in ours.items()]
    known = beta in STATED_SETUP
    return Table(
        id=f"002-configuration-beta~{beta_text(beta)}",
        document="002",
        title=f"Training configuration, KL_BETA={beta_text(beta)}",
        caption=sentences(
            "Our betas share one base checkpoint and one RL data file; the document's three betas do not."
            if known
            else "The document has no such beta.",
            without,
        ),
        frame=frame_of(rows, ["Parameter", "Ours", "Document"]),
        notes=_checkpoint_note(sources, beta),
        # What is known of the run's RL data stands beside what the document says of them.
        groups=tuple(published_key(beta, 1) if known and name == "RL data" else "" for name in ours),
    )


def _our_setup(sources: parts.Sources, beta: float, setup: Setup) -> dict[str, str]:
    results = sources.results
    base_loss = results.rce_metric(results.base, "val_loss")
    base = f"RCE epoch {results.base}" + (f" (val_loss={number(base_loss, 4)})" if base_loss is not None else "")
    share = results.metric(beta, 1, "trained_share")
    trained = f"; {number(100 * share, 1)}% of the parameters train" if share is not None else ""
    frozen = "attention and layer norm train" if setup.freeze_projections else "all parameters train"
    data = [f"{_short(setup.rl_data[key])}{unit}" for key, unit in _RL_FACTS.items() if key in setup.rl_data]
    return {
        "Base checkpoint": base,
        "GRPO epochs": str(max(results.epochs, default=0)),
        "GRPO LR": f"{setup.learning_rate:g}",
        "KL beta": beta_text(beta),
        "Backbone frozen": f"{'yes' if setup.freeze_projections else 'no'} ({frozen}{trained})",
        "Reward mode": setup.reward_mode,
        "RL data": "rl_data_k64_v3.jsonl" + (f" ({', '.join(data)})" if data else ""),
    }


def _short(fact: str) -> str:
    return number(float(fact), 1) if "." in fact else fact


_RL_FACTS = {"queries": " queries", "positive_pct": "% positive"}


def _stated_setup(sources: parts.Sources, beta: float) -> dict[str, str]:
    if beta not in STATED_SETUP:
        return {}
    base, data = STATED_SETUP[beta]
    if data == RL_FILE:
        loss = sources.published.find(Key("rce_scratch", None, "2", "val_loss"), sources.files)
        facts = [sources.published.of_rl_data(key, RL_FILE) for key in _RL_FACTS]
        described = [f"{f.text}{unit}" for f, unit in zip(facts, _RL_FACTS.values(), strict=True) if f]
        base = f"{base} (val_loss={loss.text})" if loss else base
        data = f"{data} ({', '.join(described)})"
    return {
        "Base checkpoint": base,
        "GRPO epochs": "3",
        "GRPO LR": "5e-06",
        "KL beta": beta_text(beta),
        "Backbone frozen": "yes (50.1% of the parameters train)",
        "Reward mode": "hard_plus_soft",
        "RL data": data,
    }


def _checkpoint_note(sources: parts.Sources, beta: float) -> tuple[str, ...]:
    lineage = Lineage()
    for samples in (100, 200):
        key = Key("grpo_frozen", beta, "1", "vqa_acc_pct", samples, 1)
        lineage.add(key, sources.published.find(key, sources.files))
    return lineage.notes()


def _training(sources: parts.Sources, beta: float, epochs: list[int], gaps: str) -> Table:
    lineage = Lineage()
    rows: list[dict[str, str]] = []
    for epoch in epochs:
        theirs = sources.published_metrics(COLUMNS, beta, epoch, lineage)
        rows += beside(
            {"Epoch": str(epoch)},
            ours={
                **sources.our_metrics(COLUMNS, beta, epoch),
                "Beta": number(sources.results.metric(beta, epoch, "kl_beta"), 3),
            },
            published={**theirs, "Beta": number(beta, 3)} if any(theirs.values()) else {},
            groups=sources.groups(beta, epoch),
        )
    return Table(
        id=f"002-training-beta~{beta_text(beta)}",
        document="002",
        title=f"Training metrics, KL_BETA={beta_text(beta)}",
        caption=sentences(sources.results.seeds_sentence(), "" if lineage.notes() else "Nothing published.", gaps),
        frame=frame_of(rows, ["Epoch", "Source", *(c.heading for c in COLUMNS), "Beta"]),
        notes=lineage.notes(),
        factor="epoch",
        groups=groups_of(rows),
    )


def _accuracy(sources: parts.Sources, beta: float, epoch: int, gaps: str) -> Table:
    lineage = Lineage()
    rows: list[dict[str, str]] = []
    for samples in sources.results.samples:
        rows += beside(
            {"Samples": str(samples)},
            ours=sources.our_cells(beta, epoch, samples),
            published=parts.accuracy_cells(sources.published_accuracies(beta, epoch, samples, lineage)),
            groups=sources.groups(beta, epoch),
        )
    shots = [f"Shot {k}" for k in sources.results.shots]
    return Table(
        id=f"002-accuracy-epoch~{epoch}-beta~{beta_text(beta)}",
        document="002",
        title=f"Accuracy after GRPO epoch {epoch}, KL_BETA={beta_text(beta)}",
        caption=sentences(
            "VQA accuracy in percent on the first questions in question-id order.",
            sources.results.seeds_sentence(),
            parts.INTERVALS,
            parts.training_variance(sources.results),
            "" if lineage.notes() else "Nothing published.",
            gaps,
        ),
        frame=frame_of(rows, ["Samples", "Source", *shots]),
        notes=lineage.notes(),
        factor="samples",
        groups=groups_of(rows),
    )
