"""Study `lever`: every value that bears identity, with its bounds, its unit and its source.

The models below are the only home of a default. `workflow/schemas/config.schema.json` is generated from them
(`make schema`) and a test compares the two. Defaults are the published production values; the embedded
world overrides them in `config.yaml`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from string import Formatter
from typing import Annotated, Literal, get_args

from pydantic import Field

from lever_pipe.base.members import available
from lever_pipe.base.sections import (
    Distinct,
    Fault,
    FilePath,
    Rising,
    Section,
    at_most,
    did_you_mean,
    dividing,
    one_of,
    rule,
    some_of,
)

Seed = Annotated[int, Field(ge=0, le=2**31 - 1)]
Share = Annotated[float, Field(ge=0, le=1)]
KlBeta = Annotated[float, Field(ge=0, le=1000, description="Betas are penalties; drop the sign.")]
Epoch = Annotated[int, Field(ge=1, le=400, description="Epochs count from 1.")]
RewardModeName = Literal[
    "hard_plus_soft",
    "hard_plus_soft_v2",
    "hard_only",
    "soft_only",
    "separated",
    "hard01_plus_gtprob",
    "hard01_plus_gtprob_separated",
    "hard_plus_gtprob_plus_rel",
    "expected_only",
    "accuracy_plus_expected",
    "legacy",
    "hybrid",
]
KnowledgeName = Literal["material", "place", "team", "country"]
PerceptualName = Literal["object", "color", "count"]
AdvantageName = Literal["standardised", "centred", "leave_one_out", "batch"]
Mark = Literal["reinforce", "distil", "continued"]
BASELINES = ("zero_shot", "random", "similar_image", "similar_question", "similar_both", "oracle")
"""Policies without training that every report shows."""
ImportFormat = Literal["a", "c", "e", "f", "g", "j", "k"]
AUTO = "auto"
VISION_BYTES = 16 * 2**30


class WorldData(Section):
    """The generator of the embedded world (`lever_pipe/world/data`).

    Numbers in brackets are what the shipped LVLM answers, in percent.
    """

    layout: Literal["okvqa", "vqav2"] = "okvqa"
    """Whose official files the world's are like; those of `vqav2` say the answer to show (`multiple_choice_answer`)."""

    n_train: int = Field(2000, ge=64, le=100_000)
    """Train questions: demonstrations and RL queries."""
    n_eval: int = Field(800, ge=8, le=100_000)
    """Evaluation questions."""
    seed: Seed = 0
    """Stream of the rendered items."""
    mapping_seed: Seed = 7
    """Which answer belongs to which key; the shipped models never saw mapping 7."""
    n_active_answers: int = Field(4, ge=1, le=8)
    """How many of a relation's eight answers the mapping uses."""
    perceptual_share: Share = 0.25
    """Share of questions that the image alone answers."""
    relations: Distinct[KnowledgeName | PerceptualName] = (*get_args(KnowledgeName), *get_args(PerceptualName))
    """What is asked for. Demonstrations alone answer the first four, the image alone the others."""
    questions_per_image: int = Field(1, ge=1, le=7)
    """Each of another relation; 1 lets a tenth of the questions sit in pairs on one image, as in OK-VQA."""
    skew: float = Field(0.0, ge=0, le=4)
    """How uneven relations, kinds and colours are, and so answers and their types: the weight of the one at place r is
    r to the power of -skew."""
    dissent: float = Field(1.0, gt=0, le=8)
    """Noise of the annotators: with 2 they disagree about twice as often."""
    flipped_share: Share = 0.05
    """Share of knowledge questions whose majority is wrong. Demonstrations outvote such an answer: one right beside one
    wrong (46), two beside one (75), three beside one (88)."""
    blur: float = Field(0.0, ge=0, le=4)
    """Radius in pixels of the blur over every image: 2 leaves all readable; with 4 the LVLM still finds the matching
    demonstration of two (95), while the encoder tells 72 of 100 kinds."""
    near_duplicates: Share = 0.0
    """Share of train images that copy an earlier one and its questions, with an id and bytes of their own. With 0.9 the
    two most similar candidates are copies of one item for 28 of 100 queries."""
    composite_share: Share = 0.0
    """Share of knowledge questions about two different things that share the answer. A demonstration of one of them
    (72) gains little from a second of the same (75) and much from one of the other (93), with the relations team and
    country and two active answers; half as much where the kind decides."""
    guessable_share: Share = 0.0
    """Share of the facts that the LVLM guesses (71 of their questions without a demonstration, 50 with one of another
    key and another answer): where no demonstration matches, none is better."""

    @property
    def is_harder(self) -> bool:
        """Whether the best demonstrations answer less than in the released world."""
        names, released = ("dissent", "flipped_share", "blur", "composite_share"), type(self).model_fields
        return any(getattr(self, name) > released[name].default for name in names)

    @rule
    def _families_are_asked_for(self) -> Iterator[Fault]:
        for names, share in ((get_args(KnowledgeName), 1), (get_args(PerceptualName), 0)):
            if not set(names) & set(self.relations) and self.perceptual_share != share:
                said = f"must be {share} where data.world.relations has none of {', '.join(names)}"
                yield ("perceptual_share",), f"{said}, got {self.perceptual_share}. Set it to {share}, or name one."

    @rule
    def _questions_of_an_image_differ(self) -> list[Fault]:
        unasked = {0.0: get_args(PerceptualName), 1.0: get_args(KnowledgeName)}.get(self.perceptual_share, ())
        number, do = len(set(self.relations) - set(unasked)), "Ask less of an image, or for more relations."
        needed = max(2, self.questions_per_image)  # 1 makes pairs too
        return at_most(("questions_per_image",), needed, "the number of relations asked for", number, do)

    @rule
    def _composites_are_alone(self) -> Iterator[Fault]:
        if self.composite_share and self.questions_per_image > 1:
            do = "Set one of them back: other questions about two things have no one answer."
            yield ("composite_share",), f"must be 0 with questions_per_image above 1, got {self.composite_share}. {do}"


class VqaFiles(Section):
    """Official OK-VQA or VQAv2 files and COCO image folders."""

    train_questions: FilePath = "data/okvqa/OpenEnded_mscoco_train2014_questions.json"
    train_annotations: FilePath = "data/okvqa/mscoco_train2014_annotations.json"
    train_images: FilePath = "data/coco/train2014"
    eval_questions: FilePath = "data/okvqa/OpenEnded_mscoco_val2014_questions.json"
    eval_annotations: FilePath = "data/okvqa/mscoco_val2014_annotations.json"
    eval_images: FilePath = "data/coco/val2014"


class ExampleSettings(Section):
    """How questions, answers and images become examples."""

    reader: str = "okvqa"
    """A member of `lever_pipe/lever/datasets`."""
    train_image_name: str = "COCO_train2014_{image_id:012d}.jpg"
    eval_image_name: str = "COCO_val2014_{image_id:012d}.jpg"
    n_eval: int = Field(800, ge=1)
    """Evaluated queries."""
    eval_subset: Literal["prefix", "random"] = "prefix"
    """Which of them: the first in question-id order, as published, or drawn ones; fewer drawn are some of more."""
    eval_seed: Seed = 0
    """Of the drawn ones."""
    n_answers: int = Field(10, ge=1, le=100)
    """Annotators a question; another count is a fault of the data. With 2 or 3 VQA accuracy could not reach 1."""
    on_bad_image: Literal["stop", "skip"] = "stop"
    """`skip` drops and counts the questions of unreadable images."""
    on_split_overlap: Literal["stop", "count"] = "stop"
    """What happens where evaluation questions are train questions too, on the same image: `count` evaluates them
    nevertheless, and the report says how many there are."""


class Data(ExampleSettings):
    """Where questions, answers and images come from."""

    source: Literal["world", "files"] = "files"
    """`world` generates the embedded world; `files` reads the files named below."""
    world: WorldData = WorldData()
    files: VqaFiles = VqaFiles()

    @rule
    def _image_names_tell_images_apart(self) -> Iterator[Fault]:
        for key, example in (("train_image_name", "COCO_train2014_"), ("eval_image_name", "COCO_val2014_")):
            template = getattr(self, key, None)
            if template is not None and _filled(template, image_id=1) in (None, _filled(template, image_id=2)):
                remedy = f"Write for example {example}{{image_id:012d}}.jpg."
                yield (key,), f"must be a file name with the one field image_id, got {template!r}. {remedy}"

    @rule
    def _world_is_large_enough(self) -> list[Fault]:
        is_world = self.source == "world"
        return at_most(("n_eval",), self.n_eval, "data.world.n_eval", self.world.n_eval) if is_world else []

    @rule
    def _world_has_the_answers_to_show(self) -> Iterator[Fault]:
        if self.source == "world" and self.reader == "vqav2" != self.world.layout:
            bound = "must be vqav2 with data.reader: vqav2, which shows multiple_choice_answer"
            yield ("world", "layout"), f"{bound}, got {self.world.layout!r}. Change one of them."

    @rule
    def _accuracy_reaches_one(self) -> Iterator[Fault]:
        if self.n_answers in (2, 3):
            yield ("n_answers",), f"must be 1 or at least 4, got {self.n_answers}. Keep one answer a question."


def _filled(template: str, **values: object) -> str | None:
    """Return the template with its fields filled, or None when it cannot be filled with them."""
    if re.search(r"\{[^}]*\d{4}", template):  # a width that may not fit into memory
        return None
    try:
        return template.format(**values)
    except (LookupError, ValueError, AttributeError, TypeError):
        return None


class EncoderSettings(Section):
    """The frozen image and text encoder behind the selector's inputs."""

    member: str = "clip"
    """A member of `lever_pipe/lever/encoders`."""
    model: FilePath = "models/clip-vit-base-patch32"
    batch_size: int = Field(256, ge=1)


class Pools(Section):
    """The K train examples offered to each query."""

    encoder: EncoderSettings | None = None
    """What similarity is measured with; null for the selector's encoder. The published pools have ViT-L/14."""

    sampler: str = "uniform"
    """A member of `lever_pipe/lever/samplers`; `uniform` is the published RandSampler."""
    size: int = Field(64, ge=2, le=4096)
    seed: Seed = 42
    exclude_same_image: bool = True
    """Never offer an example of the query's own image."""


class PromptSettings(Section):
    """How a question with demonstrations becomes text; see `tests/golden/prompts`."""

    layout: Literal["single_turn", "turns"] = "single_turn"
    """`single_turn`: all images and texts in one user turn (published); `turns`: a turn a demonstration."""
    system: str | None = (
        "In the following, you are given four earlier user and assistant dialogues, and then an image and a "
        "question. Act as the assistant: use these examples and your own knowledge to answer. Be as brief as "
        "the examples: one or two keywords where they use one or two, never more than three tokens where they "
        "stay within three."
    )
    """System turn; empty for none, null for that which the model's template writes where none is given."""
    demonstration: str = "Question:{question} Short answer:{answer}"
    query: str = "Question:{question} Short answer:"

    @rule
    def _templates_hold_their_fields(self) -> Iterator[Fault]:
        for key, fields in (("demonstration", ("question", "answer")), ("query", ("question",))):
            template = getattr(self, key, None)
            if template is not None and not _holds_exactly(template, fields):
                shown = " and ".join(f"{{{field}}}" for field in fields)
                yield (key,), f"must hold {shown} and no other field, got {template!r}. Double a brace that is text."


def _holds_exactly(template: str, fields: tuple[str, ...]) -> bool:
    if _filled(template, **dict.fromkeys(fields, "text")) is None:
        return False
    return {field for _, field, _, _ in Formatter().parse(template) if field is not None} == set(fields)


class Decode(Section):
    """Generation settings, all pinned so that a model folder's own defaults never leak in."""

    num_beams: int = Field(3, ge=1, le=16)
    """1 is greedy."""
    max_new_tokens: int = Field(5, ge=1, le=256)
    length_penalty: float = Field(0.0, ge=-5, le=5)
    repetition_penalty: float = Field(1.05, gt=0, le=10)
    """What makes tokens of prompt and answer less likely to be said again; 1 for none. Published: that of the model's
    `generation_config.json`."""
    ends: Distinct[str] = ()
    """Tokens that end an answer besides the end of a turn; empty for those of the model's `generation_config.json`."""


class AnswerSettings(Section):
    """How a vision-language model answers."""

    member: str = AUTO
    """A member of `lever_pipe/lvlms`; `auto` for that of the folder's `model_type`, or `hf` where none is."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    executor: Literal["packed", "padded"] = "packed"
    """How prompts share a forward: side by side without padding, or as the rows of a padded batch."""
    wave_tokens: int = Field(32_768, ge=64)
    """Tokens of one forward; identity, because batch composition moves the last bits."""
    kv_tokens: int = Field(400_000, ge=256)
    """Tokens whose keys and values are stored at one time (36 kB each for Qwen2.5-VL-3B in bfloat16); where a GPU keeps
    them in pages, the partly filled ones come on top."""
    prompt: PromptSettings = PromptSettings()
    decode: Decode = Decode()


class LvlmSettings(AnswerSettings):
    """The frozen vision-language model that answers."""

    vision_bytes: int = Field(VISION_BYTES, ge=0)
    """Bytes of image features that are kept at one time, on a GPU a quarter of its free memory at most; the least
    recently used go first and are encoded again. Execution, not identity."""
    model: FilePath = "models/Qwen2.5-VL-3B-Instruct"
    ask_again: bool = False
    """Whether a GPU may ask although the ledger holds many answers that other code, another library or another numeric
    path gave for this model; execution, not identity."""


class ProposalSettings(Section):
    """How trajectories are proposed."""

    seed: Seed = 42
    shots: int = Field(2, ge=1, le=8)
    n_beams: int = Field(5, ge=0, le=64)
    temperatures: Distinct[Annotated[float, Field(gt=0, le=100)]] = (1.0, 1.3)
    n_samples_per_temperature: int = Field(2, ge=0, le=64)
    disjoint_samples: bool = False
    """True: the samples of one temperature cut one drawn ranking, so that they cover the pool without overlap."""
    n_retrieval: int = Field(5, ge=0, le=64)
    n_random: int = Field(1, ge=0, le=64)
    similarity_scale: float = Field(1.5, gt=0, le=1000)
    """Logit per standard deviation of similarity within the pool, of the policy that proposes beams and samples."""

    @property
    def per_query(self) -> int:
        """How many trajectories a query has at most, before a diversity budget adds some."""
        drawn = len(self.temperatures) * self.n_samples_per_temperature
        return self.n_beams + drawn + self.n_retrieval + self.n_random


class Balance(Section):
    """Shares of positive trajectories between which a query is kept, both inclusive (source: Lever-Plus, VQAv2)."""

    low: Share = 0.4
    high: Share = 0.6

    @rule
    def _bounds_are_in_order(self) -> list[Fault]:
        return at_most(("low",), self.low, "high", self.high, "Exchange or change them.")


class RlData(ProposalSettings):
    """How the stored trajectories are proposed and scored."""

    import_from: FilePath = ""
    """An existing file of the original to use instead of generating; empty to generate."""
    import_format: ImportFormat = "g"
    """What that file is, never guessed (`lever_pipe/lever/rl_data_formats.py`): `a` a generator's first one, `c` with
    mined positives, `e` strictly evaluated, `f` filled for diversity, `g` k64 v3, `j` balanced VQAv2, `k` beam data."""
    allow_mixed: bool = False
    """Whether rows that were scored in several ways may stand together; `g` mixes them by its making."""
    rescore: bool = False
    """Whether the LVLM answers anew with each imported selection; the old scores stay in `rl_data/imported.jsonl`."""
    n_queries: int = Field(800, ge=2)
    """Train examples that serve as RL queries."""
    n_shards: int = Field(4, ge=1, le=512)
    diversity_budget: int = Field(0, ge=0, le=256)
    """Extra uniformly drawn selections for every query whose group shows one accuracy only (0: none)."""
    balance: Balance | None = None
    """Which queries are kept, by how many of their trajectories are positive; null keeps all, `{}` has the published
    bounds."""

    @rule
    def _something_is_proposed(self) -> Iterator[Fault]:
        n_samples = len(self.temperatures) * self.n_samples_per_temperature
        if not (self.import_from or self.n_beams or n_samples or self.n_retrieval or self.n_random):
            seen = "n_beams=0, n_retrieval=0, n_random=0 and no sample of any temperature"
            yield (), f"must propose some selection, got {seen}. Raise one of them."

    @rule
    def _what_is_rescored_was_imported(self) -> Iterator[Fault]:
        if self.rescore and not self.import_from:
            yield ("rescore",), "must be false without import_from, got True. Name the file, or drop it."
        if self.rescore and self.diversity_budget:
            yield ("diversity_budget",), f"must be 0 with rescore, got {self.diversity_budget}. Drop one of them."

    @property
    def is_answered(self) -> bool:
        """Whether the LVLM answers with its selections."""
        return self.rescore or not self.import_from

    @rule
    def _no_shard_is_empty(self) -> list[Fault]:
        n_most = self.n_shards if self.import_from else self.n_queries
        return at_most(("n_shards",), self.n_shards, "rl_data.n_queries", n_most)


class Beams(Section):
    """Beam data: demonstrations searched step by step for how probable they make the true answer.

    Source: Lever-Plus v3, published code, with the answer's span found in the real token ids.
    """

    anchors: int = Field(800, ge=2)
    """RL queries that are searched for; drawn among those that have a pool."""
    size: int = Field(5, ge=1, le=64)
    """Beams that each step keeps."""
    shots: int = Field(2, ge=1, le=8)
    rank: Literal["total", "last_gain"] = "total"
    """What beams are kept by: the probability of the answer with all their demonstrations, or what the last of them
    added (published), which prefers a bad first choice with a large second step."""
    newest: Literal["last", "first"] = "last"
    """Where a prompt shows what was chosen last: nearest to the question, so that fewer shots are the first choices
    alone, or in front of all others (published `left`)."""
    seed: Seed = 42

    def prompts(self, pool: int) -> Iterator[tuple[int, int]]:
        """Yield numbers of shots and how many prompts of so many there are, for pools of `pool` candidates."""
        width = 1
        for step in range(self.shots):
            yield step, self.anchors * width
            yield step + 1, self.anchors * width * (pool - step)
            width = min(self.size, width * (pool - step))


TRAIN_IDS = "train_ids"
"""The network that chooses among all train examples by their ids."""
OPTIONS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "network": {
        "cross_attention": ("feed_forward", "layers", "heads", "attention_dropout"),
        "bi_encoder": (),
        TRAIN_IDS: ("layers", "heads", "candidates"),
    },
    "head": {
        "static": (),
        "gated": (),
        "blend": (),
        "gru": ("steps",),
        "gru_mmr": ("steps", "penalty"),
        "additive": ("steps",),
        "bilinear": ("steps",),
        "stop": ("steps",),
    },
}
"""Which keys of `selector` a member of the package reads beside those that all read; a member beside the package may
read any."""
STOPPING = ("stop",)
"""Heads of the package that may end a selection before its last shot."""


class Selector(Section):
    """The pointer network (source: Lever-Plus v3, published code)."""

    candidates: Literal["pool", "all"] = "pool"
    """Whether `train_ids` chooses out of a query's pool, as a pointer does, or of all train examples (published)."""
    inputs: Literal["fused", "parts"] = "fused"
    """What it sees of an example: one vector fused from image and question (published), or the two side by side."""
    width: int = Field(256, ge=8, le=4096)
    feed_forward: int = Field(0, ge=0, le=16384)
    """Hidden width of a residual block behind the input projection; 0 for none (published). Without one only
    the attention over the pool lets a question decide which attribute of two images has to match."""
    layers: int = Field(1, ge=1, le=8)
    heads: int = Field(1, ge=1, le=64)
    dropout: float = Field(0.5, ge=0, lt=1)
    attention_dropout: float = Field(0.1, ge=0, lt=1)
    temperature: float = Field(0.1, gt=0, le=10)
    network: str = "cross_attention"
    """A member of `lever_pipe/lever/networks`: `cross_attention` lets the query look at its pool (published v2 to v4);
    `bi_encoder` maps query and candidates apart (published v1, with head `blend`); `train_ids` is a language model over
    the ids of all train examples (published v0: width 512, 2 layers, 8 heads, dropout 0.1), as wide as the encoder,
    which supervised learning alone trains."""
    head: str = "static"
    """A member of `lever_pipe/lever/heads`. `static`: one ranking, whatever was chosen before (published v3); with all
    others each pick moves what later ones are scored against, so that they may complement it."""
    steps: int = Field(0, ge=0, le=16)
    """Rows of step embeddings, one a shot; 0 for none. Read by `gru` and the heads that are made from it."""
    penalty: float = Field(0.744, gt=0, le=1000)
    """Logits that `gru_mmr` takes off a candidate like an earlier pick before it is trained (published: 0.744)."""

    @rule
    def _heads_divide_width(self) -> list[Fault]:
        return dividing(("heads",), self.heads, "width", self.width)

    @rule
    def _members_read_their_options(self) -> Iterator[Fault]:
        for key, read in OPTIONS.items():
            name = getattr(self, key)
            for option in sorted({each for options in read.values() for each in options} - {*read.get(name, ())}):
                default, value = type(self).model_fields[option].default, getattr(self, option)
                if name in read and value != default:
                    readers = [each for each, options in read.items() if option in options]
                    bound = f"must stay {default} with {key}: {name}, which does not read it"
                    yield (option,), f"{bound}, got {value}. Drop it, or name one of {', '.join(readers)}."

    @rule
    def _penalty_is_in_range(self) -> list[Fault]:
        do = "Lower it, or lower the temperature."
        is_read = "penalty" in OPTIONS["head"].get(self.head, ())
        return at_most(("penalty",), self.penalty, "2 / temperature", 2 / self.temperature, do) if is_read else []


class Reward(Section):
    """How the stored scores of a trajectory become one reward (`lever_pipe/lever/rewards.py`)."""

    mode: str = Field("hard_plus_soft", examples=list(get_args(RewardModeName)))
    """A function of `lever_pipe/lever/rewards.py`, or a module `lever/rewards/NAME.py` beside the package."""
    hard: float = Field(1.0, ge=0, le=100)
    soft: float = Field(1.0, ge=0, le=100)
    relevance: float = Field(0.1, ge=0, le=100)
    alpha: float = Field(0.0, ge=0, le=100)
    """Weight of the proposal's own score, in mode `legacy` only."""
    beta: float = Field(0.0, ge=0, le=100)
    """Weight of correctness, in mode `legacy` only."""
    correctness: Literal["01", "-11"] = "01"
    """Whether a wrong answer counts 0 or -1, in mode `legacy` only."""

    @rule
    def _mode_exists(self) -> Iterator[Fault]:
        known = [*get_args(RewardModeName), *available("lever/rewards")]
        if self.mode not in known:
            remedy = did_you_mean(self.mode, known, "Name one of them.")
            yield ("mode",), f"must be one of {', '.join(known)}, got {self.mode!r}. {remedy}"


class Rce(Section):
    """Reward-weighted cross-entropy; one epoch is `passes` over the train queries."""

    learning_rate: float = Field(1e-4, gt=0, le=1)
    batch_queries: int = Field(1, ge=1)
    passes: int = Field(1, ge=1, le=64)
    temperature_start: float = Field(2.0, gt=0, le=100)
    temperature_end: float = Field(0.5, gt=0, le=100)
    horizon_epochs: int = Field(5, ge=1)
    """Epochs over which the schedules run; its own number, so that more epochs change no earlier one."""
    final_learning_rate_share: Share = 1.0
    """Learning rate at the horizon as a share of the first, on a cosine; 1 keeps it constant."""
    weight_decay: float = Field(0.01, ge=0, le=1)
    raw_reward: bool = True
    """False: weights from rewards normalised within the group."""
    z_clamp: float = Field(3.0, gt=0, le=100)
    """Bound on a reward so normalised."""
    weight_by_spread: bool = False
    """True: a query counts by its reward range, so uniform groups are not imitated."""


class AdaptiveKl(Section):
    """KL_BETA follows the penalty after every batch (source: Lever-Plus, published code)."""

    low: float = Field(0.01, ge=0)
    """Penalty in nats below which beta is divided by `factor`."""
    high: float = Field(0.1, gt=0)
    """Penalty in nats above which beta is multiplied by `factor`."""
    factor: float = Field(1.5, gt=1)
    minimum: float = Field(0.001, ge=0)
    maximum: float = Field(10.0, gt=0)

    @rule
    def _window_is_in_order(self) -> list[Fault]:
        return at_most(("low",), self.low, "high", self.high, "Exchange or change them.")

    @rule
    def _bounds_are_in_order(self) -> list[Fault]:
        return at_most(("minimum",), self.minimum, "maximum", self.maximum, "Exchange or change them.")


class Grpo(Section):
    """Offline GRPO on stored trajectories from a named RCE epoch."""

    learning_rate: float = Field(5e-6, gt=0, le=1)
    batch_queries: int = Field(1, ge=1)
    weight_decay: float = Field(0.01, ge=0, le=1)
    clip_epsilon: float = Field(0.2, gt=0, lt=1)
    top_k_first_epoch: int = Field(3, ge=2)
    top_k: int = Field(5, ge=2)
    """Trajectories kept by reward, in the first epoch and later."""
    reward: Reward | None = None
    """Of the stored trajectories; null takes the preset's, which RCE learns from."""
    freeze_projections: bool = True
    """Train attention and layer norm only (50.1 % of the parameters at D = 512)."""
    z_clamp: float = Field(3.0, gt=0, le=100)
    """Bound on the standardised rewards of a group."""
    advantage_std_floor: float = Field(0.1, gt=0, le=10)
    """Lower bound on the spread of the kept rewards, by which advantages are divided."""
    advantage_clamp: float = Field(5.0, gt=0, le=100)
    """Bound on an advantage."""
    adaptive_kl: AdaptiveKl | None = None
    """None keeps KL_BETA fixed; `{}` adapts it with the published window."""


class OnPolicy(Section):
    """GRPO on groups that the policy itself draws, from a named RCE epoch; an epoch shows each train query once."""

    learning_rate: float = Field(3e-4, gt=0, le=1)
    horizon_epochs: int = Field(3, ge=1)
    """Epochs over which the learning rate falls; its own number, so that more epochs change no earlier one."""
    final_learning_rate_share: Share = 1.0
    """Learning rate at the horizon as a share of the first, on a cosine; 1 keeps it constant."""
    batch_queries: int = Field(32, ge=1)
    group: int = Field(8, ge=1, le=256)
    """Selections drawn for a query at one time."""
    shots: Rising[Annotated[int, Field(ge=1, le=16)]] = Field((1, 2, 3, 4), min_length=1)
    """Lengths of selections; a query's group has one of them, drawn evenly."""
    updates: int = Field(2, ge=1, le=16)
    """Optimiser steps on a batch; from the second one on the policy has moved away from the one that drew."""
    clip_epsilon: float = Field(0.2, gt=0, lt=1)
    advantages: AdvantageName = "standardised"
    """How a reward is held against its group (`lever_pipe/losses/advantages.py`)."""
    advantage_std_floor: float = Field(0.1, gt=0, le=10)
    """Lower bound on the spread of a group's rewards; `standardised` only, and so is the next."""
    advantage_clamp: float = Field(5.0, gt=0, le=100)
    reward: Reward = Reward(mode="accuracy_plus_expected", hard=0.5, soft=0.5)
    """Of the selections drawn; it may differ from that of the stored ones."""
    stop_price: float = Field(0.0, ge=0, le=1)
    """What the reward loses with each demonstration, where `selector.head` may stop before the last shot."""
    weight_decay: float = Field(0.01, ge=0, le=1)
    freeze_projections: bool = False
    """As in `grpo`."""

    @rule
    def _group_is_one(self) -> Iterator[Fault]:
        if self.group < 2 and self.advantages != "batch":
            bound = f"must be at least 2 with advantages={self.advantages!r}"
            yield ("group",), f"{bound}, got {self.group}. Raise it, or write advantages: batch."


class Sft(Section):
    """Supervised learning of beam data; one epoch is `passes` over the anchors that train."""

    learning_rate: float = Field(1e-4, gt=0, le=1)
    batch_queries: int = Field(64, ge=1)
    passes: int = Field(1, ge=1, le=64)
    horizon_epochs: int = Field(20, ge=1)
    """Epochs over which the learning rate rises and falls; its own number, so that more epochs change no earlier
    one."""
    warmup_share: Share = 0.05
    """Share of the horizon's steps over which the learning rate rises."""
    final_learning_rate_share: Share = 0.0
    """Learning rate at the horizon as a share of the highest, on a cosine; 1 keeps it constant."""
    weight_decay: float = Field(1e-3, ge=0, le=1)
    targets: Literal["best", "beams"] = "best"
    """What is imitated: a query's best beam, or all of its beams, weighted by softmax(probability / temperature)."""
    temperature: float = Field(0.1, gt=0, le=100)
    """Of these weights; `beams` only."""


class Distil(Section):
    """Supervised learning of the candidates that the annotations rank first, as an upper mark (`baseline/oracle`)."""

    learning_rate: float = Field(1e-3, gt=0, le=1)
    batch_queries: int = Field(16, ge=1)
    passes: int = Field(4, ge=1, le=64)
    """Times that an epoch shows each train query."""
    weight_decay: float = Field(0.01, ge=0, le=1)


class Preset(Section):
    """One named set of training hyper-parameters; every table says which one it shows."""

    selector: Selector = Selector()
    start_from: FilePath = Field("", exclude_if=lambda path: not path)
    """A checkpoint that takes the untrained selector's place, of this selector: a `.safetensors` file of another run or
    preset, or a folder with `selector.safetensors`, as an epoch or `import_checkpoint` leaves it. Empty for none."""
    reward: Reward = Reward()
    sft: Sft = Sft()
    rce: Rce = Rce()
    rce_from_sft_epoch: int = Field(0, ge=0, le=400)
    """The SFT epoch whose selector RCE starts from; 0 for the untrained one."""
    grpo: Grpo = Grpo()
    on_policy: OnPolicy = OnPolicy()
    distil: Distil = Distil()
    train_share: float = Field(0.8, gt=0, lt=1)
    """Share of the RL queries, in id order, that trains; the rest gives the validation loss."""
    max_gradient_norm: float = Field(1.0, gt=0)

    @rule
    def _a_price_is_paid(self) -> Iterator[Fault]:
        price, head = self.on_policy.stop_price, self.selector.head
        if price and head in OPTIONS["head"] and head not in STOPPING:
            bound = f"must stay 0.0 with selector.head: {head}, which takes every shot"
            yield ("on_policy", "stop_price"), f"{bound}, got {price}. Drop it, or name {', '.join(STOPPING)}."

    @rule
    def _something_is_trained(self) -> Iterator[Fault]:
        for objective in ("grpo", "on_policy"):
            if self.selector.network == "bi_encoder" and getattr(self, objective).freeze_projections:
                said = "must be false with selector.network: bi_encoder, which has projections only, got true"
                yield (objective, "freeze_projections"), f"{said}. Write {objective}: {{freeze_projections: false}}."


class OnPolicyRuns(Section):
    """Which on-policy runs an arm has, from its base RCE epochs, beside its offline ones."""

    seeds: Distinct[Seed] = Field((0,), min_length=1)
    """Some of the arm's seeds."""
    epochs: Epoch = 3
    kl_betas: Distinct[KlBeta] = (0.0, 0.12, 0.145, 0.15, 0.155, 0.18)
    marks: Distinct[Mark] = ("reinforce", "distil")
    """Runs of other objectives from the same bases: REINFORCE, meant as a lower mark, with as many optimiser steps as
    GRPO beside it; oracle distillation, meant as an upper one; it teaches the first pick, so it says little of a gated
    head; and `continued`, RCE on the rewards and with the batch, learning rate and number of steps of offline GRPO."""
    mark_seeds: Distinct[Seed] | None = None
    """Some of `seeds`; null for all of them."""

    @rule
    def _marks_have_runs_beside_them(self) -> list[Fault]:
        return some_of(("mark_seeds",), self.mark_seeds or (), self.seeds, "seeds", "Drop these or add them to seeds.")


class ArmSettings(Section):
    """One factorial run: which seeds, epochs and betas are trained and evaluated with a preset."""

    preset: str
    seeds: Distinct[Seed] = Field((0, 1, 2), min_length=1)
    sft_epochs: int = Field(0, ge=0, le=400)
    """Epochs of supervised learning of beam data, of which the last is evaluated; 0 for none."""
    rce_epochs: Epoch = 5
    base_rce_epochs: Distinct[Epoch] = Field((5,), min_length=1)
    """RCE epochs from which GRPO starts; named, never the last."""
    grpo_epochs: Epoch = 3
    kl_betas: Distinct[KlBeta] = (0.0, 0.12, 0.145, 0.15, 0.155, 0.18)
    long_epochs: int = Field(0, ge=0, le=400)
    """Epochs of the training-curve runs; 0 for none. They are trained, and evaluated only at `long_evaluated`."""
    long_kl_betas: Distinct[KlBeta] = ()
    long_seeds: Distinct[Seed] = (0,)
    long_evaluated: Distinct[Epoch] = ()
    """Their epochs that are evaluated, for the arm's seeds among `long_seeds`. The last epoch that all betas have is
    what an arm is compared by, so an arm whose betas are all long is compared by the last of these."""
    on_policy: OnPolicyRuns | None = None
    """null for the published, offline objective alone."""
    only_last: bool = False
    """Evaluate the last epoch of each run alone."""

    @rule
    def _on_policy_seeds_exist(self) -> list[Fault]:
        seeds, do = self.on_policy.seeds if self.on_policy else (), "Drop these or add them to the arm."
        return some_of(("on_policy", "seeds"), seeds, self.seeds, "the arm's seeds", do)

    @rule
    def _long_runs_have_their_evaluated_epochs(self) -> Iterator[Fault]:
        late = [epoch for epoch in self.long_evaluated if epoch > self.long_epochs]
        if late:
            bound = f"must be at most long_epochs={self.long_epochs}"
            yield ("long_evaluated",), f"{bound}, got {late}. Drop these or train longer."

    @rule
    def _base_epochs_exist(self) -> Iterator[Fault]:
        late = [epoch for epoch in self.base_rce_epochs if epoch > self.rce_epochs]
        if late:
            bound = f"must be at most rce_epochs={self.rce_epochs}"
            yield ("base_rce_epochs",), f"{bound}, got {late}. Drop these or raise rce_epochs."


class Baselines(Section):
    """Policies without training, at the same counts."""

    n_random_draws: int = Field(3, ge=1, le=100)
    seed: Seed = 42

    @property
    def drawn_from(self) -> tuple[str, ...]:
        """Their names, a drawn one once."""
        return BASELINES


class PrimaryCells(Section):
    """The one cell that study `lever` is answered at, fixed before any run; the other cells are secondary."""

    shots: Literal["mean"] | Annotated[int, Field(ge=1, le=16)] = "mean"
    """A shot count out of `evaluation.shots`, or the mean over all of them."""
    samples: Literal["largest"] | Annotated[int, Field(ge=2)] = "largest"
    """A count out of `evaluation.samples`, or the largest of them."""
    epoch: Literal["last"] = "last"
    """The last GRPO epoch that all KL_BETA have."""


class EvaluatedCells(Section):
    """Which cells exist: samples x shots for every policy."""

    samples: Rising[Annotated[int, Field(ge=2)]] = Field((100, 200, 400, 800), min_length=1)
    """How many questions a cell holds; of one question there is no interval."""
    shots: Rising[Annotated[int, Field(ge=1, le=16)]] = Field((1, 2, 3, 4), min_length=1)
    n_random_subsets: int = Field(20, ge=0, le=1000)
    seed: Seed = 42


class EvaluationSettings(EvaluatedCells):
    """Which cells exist, and which one of them is looked at first."""

    primary: PrimaryCells = PrimaryCells()

    @rule
    def _primary_cells_exist(self) -> Iterator[Fault]:
        for name in ("shots", "samples"):
            value, do = getattr(self.primary, name), "Name one of them or add it."
            if not isinstance(value, str):
                yield from one_of(("primary", name), value, getattr(self, name), do, f"evaluation.{name}")


class Emulate(Section):
    """Faults of the published runs, each switched on alone and all together, to show what they explain."""

    preset: str = "published"
    """Preset whose checkpoints are emulated; its projections must be frozen in GRPO, as published."""
    seed: Seed = 0
    kl_betas: Distinct[KlBeta] = Field((0.12, 0.145, 0.15, 0.155, 0.18), min_length=2)
    grpo_epochs: Epoch = 3
    base_rce_epoch: Epoch = 5
    other_kl_beta: KlBeta = 0.15
    """The beta that starts from another base where bases are mixed."""
    other_base_rce_epoch: Epoch = 2
    head_seed: Seed = 42
    """Stream of the fresh attention and layer norm that take the place of the trained ones."""
    pool_items: int = Field(2, ge=2, le=64)
    """Train items, the first ones, that every evaluation query is offered."""

    @rule
    def _another_beta_is_trained(self) -> list[Fault]:
        do = "Name one of them or add it."
        return one_of(("other_kl_beta",), self.other_kl_beta, self.kl_betas, do, "kl_betas")

    @rule
    def _another_beta_starts_elsewhere(self) -> Iterator[Fault]:
        if self.other_base_rce_epoch == self.base_rce_epoch:
            bound = f"must differ from base_rce_epoch={self.base_rce_epoch}"
            yield ("other_base_rce_epoch",), f"{bound}, got {self.other_base_rce_epoch}. Change one of them."


class StoreSettings(Section):
    """Where finished work is kept beyond `results`, so that it comes back without being computed; changes no number."""

    folder: FilePath = Field(".lever_pipe/store", min_length=1)
    """Kept jobs and the ledger of LVLM answers; several working directories and users may share one. `~` works."""
    max_gb: float = Field(20.0, gt=0)
    """How much the kept jobs may take; beyond it those go that were not used for the longest time."""

    @rule
    def _home_is_known(self) -> Iterator[Fault]:
        try:
            Path(self.folder).expanduser()
        except RuntimeError:
            yield ("folder",), f"must begin with a known home, got {self.folder}. Write the whole path."


class Report(Section):
    """What the report is called and how it is written; changes no number of the study."""

    title: str = ""
    """Of the main page; empty for one that names the studies."""
    language: Literal["en", "zh"] = "en"
    guard: Literal["footnote", "strict"] = "footnote"
    """What happens to a row that differs from its neighbours in more than the compared factor."""
