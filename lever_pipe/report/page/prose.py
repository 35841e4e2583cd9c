"""The page's own words: its sections in reading order, and what stands below each figure."""

from __future__ import annotations

from dataclasses import dataclass, field

HIGHEST_BETA = "highest-kl-beta"
ARMS_ANSWER = "arms-factors"

LEVER, INTENTION = "lever", "intention"
LEDES = {
    LEVER: (
        "A pointer network chooses demonstrations for a visual question; a frozen vision-language model answers with "
        "them in its prompt. The network is trained by reward-weighted cross-entropy (RCE), then by GRPO with a KL "
        "penalty of weight KL_BETA. This page has every table of three documents on KL_BETA again, filled from this "
        "run, beside the published numbers."
    ),
    INTENTION: (
        "A language model with one tool asks its user what a vague request leaves out; a question that uncovers "
        "something earns a reward. The model is trained by GRPO with and without a KL loss. This page has every table "
        "of two documents on that loss again, filled from this run, beside the published numbers."
    ),
}
"""What each study is."""
WORLDS = {
    LEVER: (
        "Data and models are the small embedded ones (reader: {model}): a real network answers real questions, but "
        "about a generated microworld. Published numbers come from OK-VQA with Qwen2.5-VL-3B-Instruct, so compare the "
        "pattern of a table with the published one, not its level."
    ),
    INTENTION: (
        "Tasks, user and agent are the small embedded ones (agent: {model}): a real language model learns in real "
        "dialogues, but about generated requests. Published numbers come from IntentionGym with Qwen3-8B, so compare "
        "the pattern of a table with the published one, not its level."
    ),
}
PRODUCTIONS = {
    LEVER: (
        "The data are read from files and {model} answers. Published numbers come from OK-VQA with "
        "Qwen2.5-VL-3B-Instruct."
    ),
    INTENTION: "The agent is {model}. Published numbers come from IntentionGym with Qwen3-8B.",
}
PRESET = "The documents' tables show preset `{preset}`; the tables of other presets name theirs."
EMULATED = "emulated fault"
ON_PURPOSE = (
    "Each arm of this section switches a fault of the published study on, to see which published pattern it "
    "reproduces; the arm `none` is their control. No other section holds a number of these arms."
)

ON_POLICY = (
    "The documents' GRPO is offline: it learns from selections that were drawn and answered once, before training, and "
    "only from the best few of each query. On-policy GRPO starts from the same RCE base and is anchored to it, but "
    "draws its groups from the policy as it is, asks the LVLM about them, and keeps good and bad ones. The two modes "
    "are two recipes: they may also differ in reward, learning rate, shots and batch, and KL_BETA weighs another "
    "quantity in each, k3 over stored selections or the exact divergence of whole ones. REINFORCE is meant as a lower "
    "mark; oracle distillation, which sees the annotations, as an upper one."
)


@dataclass(frozen=True, slots=True)
class Point:
    """A remark on how to read the page; one with a study stands on the page of a run of that study only."""

    text: str
    study: str = ""


HOW_TO_READ = (
    Point(
        "A row marked *ours* comes from this run. A row marked *published* is copied from the reference data of the "
        "repository, with its lineage below the table. Numbers under an *emulated fault* repeat a fault of the "
        "published study on purpose; they stand in a section of their own and in no other table."
    ),
    Point(
        "A preset is a set of hyper-parameters of this run. Preset `published` holds those that the documents name; "
        "its numbers are ours all the same, not published ones.",
        LEVER,
    ),
    Point("A dash means that nothing exists, or that nothing was published."),
    Point(
        "Accuracies are VQA accuracies in percent, as the official evaluation tool computes them: answers are "
        "normalised where the annotators disagree. (The study's own code normalises always.) The sample counts are "
        "prefixes: the first questions in question-id order, as published.",
        LEVER,
    ),
    Point(
        "Rewards are means over tasks of the sum of an episode's turn rewards; the largest possible mean is the "
        "ceiling. Greedy evaluation has one episode a task, as published; sampled evaluation has several a task at the "
        "training temperature, which is far less noisy.",
        INTENTION,
    ),
    Point(
        "In square brackets stands a 95 % interval: where the number may lie with other questions and, with several "
        "runs, other seeds. Nothing of the kind was published."
    ),
    Point(
        "Two settings are called separated only where a test says so: Holm p below 0.05 within the family of "
        "comparisons that the table names. Anything else may be noise of questions and seeds."
    ),
    Point(
        "A small letter at a row leads to a footnote: what else differs between that row and its neighbours, apart "
        "from what the table compares.",
        LEVER,
    ),
)


@dataclass(frozen=True, slots=True)
class PageSection:
    """A part of the page; `name` is the `document` of its tables, `placed` are ids of tables of other documents."""

    name: str
    title: str
    paragraphs: tuple[str, ...] = ()
    points: tuple[Point, ...] = ()
    placed: tuple[str, ...] = field(default=())
    has_words_only: bool = False  # stands on the page without a table, too
    is_emulated: bool = False
    shows_figures_first: bool = False


@dataclass(frozen=True, slots=True)
class Caption:
    """Where a figure stands, what it is called, and the sentences below it."""

    section: str
    title: str
    text: str


SECTIONS = (
    PageSection("answer", "The answer", placed=("overview", HIGHEST_BETA, ARMS_ANSWER)),
    PageSection(
        "how",
        "How to read",
        points=HOW_TO_READ,
        has_words_only=True,
    ),
    PageSection("000", "Document 000: training curves of KL_BETA 0.12 and 0.15", shows_figures_first=True),
    PageSection("001", "Document 001: KL_BETA 0.12, 0.145, 0.15, 0.155 and 0.18"),
    PageSection("002", "Document 002: KL_BETA 0.18 against 0.15 and 0.12"),
    PageSection("003", "Document 003: GRPO with and without a KL loss", shows_figures_first=True),
    PageSection("004", "Document 004: what the KL loss does to training"),
    PageSection("arms", "One factor at a time: KL loss, entropy bonus and schedule", shows_figures_first=True),
    PageSection("statistics", "Statistics of the KL_BETA study", shows_figures_first=True),
    PageSection("on_policy", "On-policy GRPO", paragraphs=(ON_POLICY,), shows_figures_first=True),
    PageSection("agreement", "Do the policies choose the same demonstrations?"),
    PageSection(
        "why",
        "Why the published tables look as they do",
        paragraphs=(ON_PURPOSE,),
        is_emulated=True,
    ),
    PageSection("claims", "Claims of the documents, recomputed"),
    PageSection("extra", "Further results"),
    PageSection("world", "Does the embedded world show the mechanism?"),
    PageSection("data", "Data"),
    PageSection("rl_data", "RL data"),
    PageSection("work", "Work done"),
)

CAPTIONS = {
    "accuracy_by_shots": Caption(
        "answer",
        "Accuracy by shots",
        "Accuracy against the number of demonstrations: all policies, and RCE with the GRPO settings enlarged.",
    ),
    "training_curves": Caption(
        "000",
        "Training curves of the long GRPO runs",
        "Six training metrics of the long runs by GRPO epoch, one line a KL_BETA.",
    ),
    "published_rewards": Caption(
        "003",
        "Published validation rewards",
        "Rewards of documents 003 and 004; hollow points are estimates of document 003 and enter no statistic.",
    ),
    "agent_validation": Caption(
        "003",
        "Validation reward of our two runs by step",
        "Mean over tasks of the sum of turn rewards. Bands are 95 % intervals over tasks and, with several runs, "
        "seeds. Every evaluation draws the same random numbers, so neighbouring points share noise.",
    ),
    "agent_validation_arms": Caption(
        "arms",
        "Validation reward of our arms by step",
        "Mean over tasks of the sum of turn rewards. Bands are 95 % intervals over tasks and, with several runs, "
        "seeds. Every evaluation draws the same random numbers, so neighbouring points share noise.",
    ),
    "agent_training": Caption(
        "arms",
        "Training of our arms by step",
        "Training metrics, mean over seeds and five neighbouring steps. The PG loss is no measure of progress and need "
        "not fall.",
    ),
    "agent_arms": Caption(
        "arms",
        "Primary endpoint of every arm",
        "What the arms are compared by, fixed before any run. The bars are not adjusted for the number of comparisons; "
        "Holm p in the tables below is.",
    ),
    "kl_beta_differences": Caption(
        "statistics",
        "Differences between KL_BETA settings",
        "Differences of each KL_BETA to the RCE checkpoint that it starts from and to the highest KL_BETA. The bars "
        "are not adjusted for the number of comparisons; Holm p in the tables below is.",
    ),
    "on_policy_prompts": Caption(
        "on_policy",
        "Accuracy against prompts",
        "What learning costs after RCE: the prompts that the LVLM answered, epoch by epoch. Levels ask nothing while "
        "they learn, and are those of the same seeds; the prompts of the RL data, from which RCE and offline GRPO "
        "learn, are not counted.",
    ),
    "on_policy_steps": Caption(
        "on_policy",
        "Divergence and entropy by step",
        "Of the policy that drew each batch, smoothed over five steps. Bands, where several seeds ran, reach from the "
        "lowest to the highest.",
    ),
    "on_policy_betas": Caption(
        "on_policy",
        "Accuracy against KL_BETA",
        "On-policy and offline GRPO after their last common epochs. Where their seeds differ, only the gains compare: "
        "each is paired with the RCE base of its own seeds.",
    ),
    "accuracy_by_epoch": Caption(
        "extra", "Accuracy by epoch", "Learning curves: RCE by epoch, then GRPO by epoch from the last RCE epoch."
    ),
    "accuracy_by_kind": Caption(
        "statistics", "Accuracy by kind of question", "Where the selector loses against the pool oracle."
    ),
    "accuracy_by_samples": Caption(
        "extra",
        "Accuracy by number of evaluated questions",
        "The first questions, as published, and the mean of random subsets of the same size.",
    ),
    "rce_curve": Caption("extra", "RCE losses and accuracy by epoch", "What the base of every GRPO run learns."),
    "accuracy_by_preset": Caption(
        "extra", "Accuracy by preset", "RCE and GRPO accuracy by shots, one panel a preset on a common scale."
    ),
}
"""Figures by file name; one without an entry stands in the further results under its name."""

LABELS = {
    "contents": "Contents",
    "theme": "Light or dark",
    "csv": "CSV",
    "svg": "SVG",
    "png": "PNG",
    "lineage": "Lineage of the published numbers",
    "footnotes": "Footnotes",
    "sort": "A click on a column head sorts by it; a second turns the order round, a third restores it.",
    "fold": "All rows of this table",
    "world": "Embedded world.",
    "production": "Production.",
    "emulated": EMULATED,
    "skip": "To the content",
}
"""Words of the page's controls."""
STAMP = "Built on {time}."


def caption_of(name: str) -> Caption:
    """Return the caption of a figure by its file name; one that is not known is called after its file."""
    return CAPTIONS.get(name) or Caption("extra", name.replace("_", " ").capitalize(), "")


def section_title(name: str) -> str:
    """Return the title of the section whose tables have this `document`, or the name itself."""
    return next((section.title for section in SECTIONS if section.name == name), name)
