"""Frozen models of all rows in files, and the two index types.

`ExampleId` counts a split's examples in question-id order; `PoolPosition` counts the K entries of one query's pool. The
type checker separates the two, because exchanging them still yields valid numbers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal, NewType, Self

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, PlainValidator, model_validator

from lever_pipe.base.errors import RecordError
from lever_pipe.base.policy_names import PolicyName

ExampleId = NewType("ExampleId", int)
PoolPosition = NewType("PoolPosition", int)

LogProb = Annotated[float, Field(le=1e-6)]
"""In nats; rounding may lift the log-probability of a certain text above 0."""

Split = Literal["train", "eval"]
AnswerText = Literal["stemmed", "raw"]
"""Text of an annotator: the field `answer` or `raw_answer`."""
KlForm = Literal["k3_loss", "k2_loss", "k1_reward"]
"""Form of KL(policy || reference) on samples of the policy: a loss with a gradient, or a part of the reward."""
Normalisation = Literal["when_they_disagree", "always", "punctuation_only"]
"""References that VQA accuracy normalizes; see `metrics.vqa_accuracy`."""


class Row(BaseModel):
    """A frozen row with exactly the declared keys and finite numbers: JSON would turn a NaN into null."""

    # Files are parsed strictly (`storage`); code may pass lists for tuples.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=False, allow_inf_nan=False)


class Example(Row):
    """One question about one image with its annotators' answers; a train example may be a demonstration."""

    example_id: ExampleId  # position in its split, sorted by question id
    question_id: int
    image_id: int
    image: str  # file name under the split's image folder
    image_digest: str  # sha256 of the file's bytes
    question: str
    question_type: str  # the data set's own category; the embedded world writes relation:key
    answers: tuple[str, ...]  # raw, one an annotator
    answer: str  # the answer that a demonstration shows


class Pool(Row):
    """The K train examples that are offered to one query, in an order that defines pool positions."""

    query_id: ExampleId
    candidates: tuple[ExampleId, ...]

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        if len(set(self.candidates)) != len(self.candidates):
            raise ValueError("a pool must not repeat a candidate")
        return self


class Proposal(Row):
    """One ordered selection for a query, before the LVLM answers with it."""

    query_id: ExampleId
    pointer: tuple[PoolPosition, ...]
    pointer_global: tuple[ExampleId, ...]
    gen_method: str
    beam_rank: int | None = None
    beam_score: float | None = None
    logprob_score: LogProb | None = None
    temperature: float | None = None
    similarity_score: float | None = None


class Trajectory(Proposal):
    """A proposal with the LVLM's answer and its scores; field names follow the published k64 v3 file."""

    vqa_raw_generation: str
    vqa_pred_answer: str
    vqa_correct: int = Field(ge=0, le=1)
    vqa_acc_score: float = Field(ge=0, le=1)
    vqa_gt_prob: float = Field(ge=0)  # expected VQA accuracy over the distinct reference answers
    vqa_gt_logprob: LogProb | None  # log-probability of the demonstration answer's tokens and end of turn
    vqa_rel_token_f1: float = Field(ge=0, le=1)
    vqa_rel_edit_sim: float = Field(ge=0, le=1)
    vqa_rel_score: float = Field(ge=0, le=1)
    vqa_eval_mode: str
    eval_split_used: str
    eval_failed: bool

    @model_validator(mode="after")
    def _correct_means_some_accuracy(self) -> Self:
        if self.vqa_correct != (self.vqa_acc_score > 0):
            found = f"vqa_correct is {self.vqa_correct} and vqa_acc_score {self.vqa_acc_score}"
            raise ValueError(f"{found}; it is 1 where that is above 0, else 0")
        return self


class RlQuery(Row):
    """The query block of the published RL data."""

    query_id: ExampleId
    question_id: int
    image_id: int
    question: str
    gt_answers_raw: tuple[str, ...]
    gt_answers_norm: tuple[str, ...]


class RlGroup(Row):
    """All scored selections of one query (a line of `rl_data_k64_v3.jsonl`)."""

    query: RlQuery
    candidate_pool_ids: tuple[ExampleId, ...]
    pointer_candidates: tuple[Trajectory, ...]

    @model_validator(mode="after")
    def _local_matches_global(self) -> Self:
        pool = self.candidate_pool_ids
        for rank, trajectory in enumerate(self.pointer_candidates):
            local = trajectory.pointer
            if any(not 0 <= position < len(pool) for position in local):
                raise ValueError(f"pointer_candidates[{rank}].pointer must lie in 0..{len(pool) - 1}, is {list(local)}")
            if tuple(pool[position] for position in local) != trajectory.pointer_global:
                raise ValueError(
                    f"pointer_candidates[{rank}]: pool[pointer] differs from pointer_global; "
                    "pointer holds pool positions, pointer_global train positions"
                )
        return self


class Beam(Row):
    """Demonstrations that a search chose one by one, to maximize the probability of the query's true answer."""

    demonstrations: tuple[ExampleId, ...]  # in the order of choice
    gains: tuple[float, ...]  # gain in probability of each choice
    probability: float = Field(ge=0, le=1)  # of the answer's span with all of them


class QueryBeams(Row):
    """All search results for one query, the best beam first."""

    query_id: ExampleId
    empty: float = Field(ge=0, le=1)  # probability of the answer's span without demonstrations
    beams: tuple[Beam, ...]


class Selection(Row):
    """The ordered demonstrations of one policy for one query; k shots are the first k."""

    query_id: ExampleId
    demonstrations: tuple[ExampleId, ...]


class AnswerRow(Row):
    """The LVLM's answer to one query with one ordered list of demonstrations."""

    query_id: ExampleId
    demonstrations: tuple[ExampleId, ...]
    raw: str
    answer: str


class QuestionScore(Row):
    """VQA accuracy of one query at one shot count, in [0, 1]."""

    query_id: ExampleId
    shots: int
    accuracy: float = Field(ge=0, le=1)


class PolicyScores(Row):
    """The accuracies of one policy of a batch, question by question."""

    policy: str
    questions: tuple[QuestionScore, ...]


def _fields_of(policy: PolicyName) -> dict[str, Any]:
    return {
        "name": str(policy),
        "stage": policy.phase,
        "mode": policy.mode,
        "preset": policy.preset,
        "base_rce_epoch": policy.base,
        "kl_beta": policy.beta,
        "seed": policy.seed,
        "epoch": 0 if policy.kind == "init" else policy.epoch,
    }


def _policy_of(value: Any) -> PolicyName:
    if isinstance(value, PolicyName):
        return value
    try:
        if isinstance(value, str):
            return PolicyName.parse(value)
        # The name of an emulated run has no preset, so its row adds it.
        policy = replace(PolicyName.parse(value["name"]), preset=value.get("preset", ""))
        if value.items() <= _fields_of(policy).items():
            return policy
    except (AttributeError, KeyError, TypeError, RecordError):
        pass
    raise ValueError(f"must be a policy's name with its own parts, got {value!r}")


Policy = Annotated[PolicyName, PlainValidator(_policy_of), PlainSerializer(_fields_of)]
"""The policy that a number belongs to; files contain its name, and the name's parts for readers."""


class SubsetScore(Row):
    """Accuracy in percent over one subset of the queries."""

    subset: str  # `prefix`, or `random-<i>`
    accuracy: float = Field(ge=0, le=100)
    n_questions: int
    n_distinct_prompts: int


class Cell(Row):
    """One cell of a table: a policy at one sample count and one shot count."""

    policy: Policy
    samples: int
    shots: int
    subsets: tuple[SubsetScore, ...]

    @property
    def accuracy(self) -> float:
        """The accuracy in percent on the published subset, the prefix in question-id order."""
        return next(score.accuracy for score in self.subsets if score.subset == "prefix")


class EpochMetrics(Row):
    """The metrics of one training epoch."""

    policy: Policy
    values: dict[str, float]


class StepMetrics(Row):
    """The metrics of one step of on-policy training, for the policy that sampled its batch."""

    policy: Policy
    step: int = Field(ge=0)  # batches since the start of the epoch
    prompts: int = Field(ge=0)  # different prompts since the start of the epoch, this batch included
    values: dict[str, float]


class RewardTies(Row):
    """The share of queries whose selections differ under one reward; GRPO has a gradient for these only."""

    mode: str
    weights: dict[str, float | str]
    queries: int
    differ: float = Field(ge=0, le=1)  # share of queries with any difference in reward
    differ_clearly: float = Field(ge=0, le=1)  # by more than 0.1: a dense reward nearly always differs, often by little
    best_differ: dict[str, float]  # number of top selections -> share of queries with a gradient


class Manifest(Row):
    """The origin of an artifact; written last, so that its presence proves that the artifact is complete."""

    stage: str
    config: dict[str, Any]
    inputs: dict[str, str]  # name -> digest of the content (`contents.digest`)
    code: str
    commit: str
    dirty: bool
    versions: dict[str, str]
    device: str
    threads: int
    seconds: float
    outputs: dict[str, str] = {}  # name -> digest of the content
    replaced: dict[str, str] = {}  # name of an output -> digest of a file that has replaced it since
    tensors: dict[str, dict[str, str]] = {}  # name of an input -> tensor -> dtype, shape and digest
    paths: dict[str, str] = {}  # name -> path of the file at the time of the job
