"""Configurations of the stages that prepare data: examples, embeddings, pools, RL data and beams."""

from __future__ import annotations

from lever_pipe.experiment.beams import SearchBeamsConfig
from lever_pipe.experiment.data import GenerateWorldConfig
from lever_pipe.experiment.examples import EmbedExamplesConfig, EncoderSettings, ExampleSettings, PrepareExamplesConfig
from lever_pipe.experiment.plans.grid import Wildcards
from lever_pipe.experiment.plans.models import identity_of_model, lvlm_config
from lever_pipe.experiment.pools import MeasurePoolsConfig, SamplePoolsConfig
from lever_pipe.experiment.rl_data import (
    GenerateRlDataConfig,
    ImportRlDataConfig,
    MergeRlDataConfig,
    ProposeTrajectoriesConfig,
)
from lever_pipe.experiment.studies import Experiment


def generate_world(experiment: Experiment, wildcards: Wildcards) -> GenerateWorldConfig:
    unread = ("n_eval",) if wildcards["split"] == "train" else ("n_train", "near_duplicates")
    return GenerateWorldConfig(split=wildcards["split"], world=experiment.data.world.at_defaults(*unread))


def prepare_examples(experiment: Experiment, wildcards: Wildcards) -> PrepareExamplesConfig:
    of_queries = ("n_eval", "eval_subset", "eval_seed", "eval_image_name", "on_split_overlap")
    unread = of_queries if wildcards["split"] == "train" else ("train_image_name",)
    settings = ExampleSettings.of(experiment.data).at_defaults(*unread)
    return PrepareExamplesConfig.of(settings, split=wildcards["split"])


def encoder_of(experiment: Experiment, wildcards: Wildcards) -> EncoderSettings:
    """Return the encoder of a file of embeddings: for pool embeddings, the pools' encoder if configured."""
    encoder = experiment.pools.encoder if wildcards.get("embedded") == "pool_embeddings" else None
    return encoder or experiment.encoder


def embed_examples(experiment: Experiment, wildcards: Wildcards) -> EmbedExamplesConfig:
    encoder = encoder_of(experiment, wildcards)
    return EmbedExamplesConfig.of(encoder, model_identity=identity_of_model(encoder.model))


def sample_pools(experiment: Experiment, wildcards: Wildcards) -> SamplePoolsConfig:
    return SamplePoolsConfig(
        split=wildcards["split"],
        pools=experiment.pools,
        n_rl_queries=experiment.rl_data.n_queries,
        rl_seed=experiment.rl_data.seed,
    )


def measure_pools(experiment: Experiment, _: Wildcards) -> MeasurePoolsConfig:
    return MeasurePoolsConfig(normalise_references=experiment.evaluation.normalise_references)


def propose_trajectories(experiment: Experiment, _: Wildcards) -> ProposeTrajectoriesConfig:
    return ProposeTrajectoriesConfig.of(experiment.rl_data)


def generate_rl_data(experiment: Experiment, wildcards: Wildcards) -> GenerateRlDataConfig:
    return GenerateRlDataConfig.of(
        experiment.rl_data,
        normalise_references=experiment.evaluation.normalise_references,
        lvlm=lvlm_config(experiment.lvlm),
        shard=wildcards["shard"],
    )


def merge_rl_data(experiment: Experiment, _: Wildcards) -> MergeRlDataConfig:
    return MergeRlDataConfig(balance=experiment.rl_data.balance)


def import_rl_data(experiment: Experiment, _: Wildcards) -> ImportRlDataConfig:
    rl_data, pools = experiment.rl_data, experiment.pools
    return ImportRlDataConfig(
        balance=None if rl_data.rescore else rl_data.balance,
        import_format=rl_data.import_format,
        pool_size=pools.size,
        pool_seed=pools.seed,
        exclude_same_image=pools.exclude_same_image,
    )


def search_beams(experiment: Experiment, _: Wildcards) -> SearchBeamsConfig:
    return SearchBeamsConfig.of(experiment.beams, lvlm=lvlm_config(experiment.lvlm))
