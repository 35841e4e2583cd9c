"""Rule `search_beams`: beam data, the demonstrations that make the true answers of some RL queries most probable."""

from __future__ import annotations

from collections.abc import Sequence

from lever_pipe.base import storage
from lever_pipe.base.errors import DataError
from lever_pipe.base.records import Pool
from lever_pipe.base.seeding import generator
from lever_pipe.experiment import execution
from lever_pipe.experiment.rl_data_config import Beams
from lever_pipe.experiment.stage_configs import Runtime, SearchBeamsConfig
from lever_pipe.experiment.stage_files import External, Input, Output
from lever_pipe.lever import beams as of_beams
from lever_pipe.lever.training.groups import groups_of_beams, save_groups
from lever_pipe.lvlms.asking.answering import load_lvlm
from lever_pipe.lvlms.asking.prompts import Prompter, Wording


def search_beams(
    *,
    train_pools: Input,
    train_examples: Input,
    train_images: External,
    lvlm: External,
    beams: Output,
    groups: Output,
    counters: Output,
    config: SearchBeamsConfig,
    runtime: Runtime = Runtime(),
) -> int:
    """Write the beams of all anchors, as rows and as the tensors that training reads; return how many anchors.

    Selections of `groups` stand in the order in which a prompt shows them; their rewards are total probabilities.

    Raises:
        CheckpointError: the model folder is missing or incomplete.
        DataError: fewer queries have a pool than anchors are wanted.
        ImageError: an image cannot be read.
    """
    execution.prepare(runtime)
    train = storage.read_examples(train_examples)
    pools = anchors_of(storage.read_rows(train_pools, Pool), config)
    model = load_lvlm(config.lvlm, lvlm, [(train, train_images)], runtime)
    score = of_beams.scorer(train, model, Prompter(Wording(config.lvlm.prompt), train), config)
    found = of_beams.search_beams(pools, score, config)
    if not model.leads:
        return len(found)
    storage.write_rows(beams, found)
    save_groups(groups, groups_of_beams(found, pools, lambda chosen: of_beams.shown(chosen, config)))
    storage.write_json(counters, model.counters)
    return len(found)


def anchors_of(pools: Sequence[Pool], settings: Beams) -> list[Pool]:
    """Return the pools of the queries that are searched for, in the order of `pools`.

    Raises:
        DataError: there are not enough.
    """
    if settings.anchors > len(pools):
        raise DataError(
            f"beams.anchors: expected at most the {len(pools)} RL queries that have a pool",
            found=str(settings.anchors),
            do="Lower beams.anchors, or raise rl_data.n_queries.",
        )
    drawn = generator(settings.seed, "beam anchors").permutation(len(pools))[: settings.anchors]
    return [pools[place] for place in sorted(drawn.tolist())]
