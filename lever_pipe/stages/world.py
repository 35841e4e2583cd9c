"""The embedded world: its files, and whether the embedded LVLM reads its demonstrations."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from lever_pipe.base import storage
from lever_pipe.base.errors import WorldError
from lever_pipe.experiment import execution
from lever_pipe.experiment.stage_configs import CheckWorldConfig, GenerateWorldConfig, Runtime
from lever_pipe.experiment.stage_files import External, Input, Output
from lever_pipe.lvlms.asking.answering import load_lvlm
from lever_pipe.lvlms.asking.prompts import Wording
from lever_pipe.lvlms.protocol import LvlmRequest
from lever_pipe.metrics.vqa_accuracy import cut_answer
from lever_pipe.world.files import write_raw_files
from lever_pipe.world.probes import build_probes, check_bounds, summarise


def generate_world(
    *,
    questions: Output,
    annotations: Output,
    images: Output,
    image_listing: Output,
    config: GenerateWorldConfig,
) -> None:
    """Write one split of the world that the config names, and the digest of every image; same config, same bytes."""
    write_raw_files(config.world, config.split, questions=questions, annotations=annotations, images=images)
    lines = (f"{storage.digest(path)}  {images.name}/{path.name}\n" for path in sorted(images.iterdir()))
    storage.write_text(image_listing, "".join(lines))


def check_world(
    *,
    train_examples: Input,
    eval_examples: Input,
    train_images: External,
    eval_images: External,
    lvlm: External,
    check: Output,
    counters: Output,
    config: CheckWorldConfig,
    runtime: Runtime = Runtime(),
) -> dict[str, Any]:
    """Write and return the mechanism probes, the bounds they miss, and the agreement with the stock classes."""
    execution.prepare(runtime)
    train, queries = storage.read_examples(train_examples), storage.read_examples(eval_examples)
    splits = [(train, train_images), (queries, eval_images)]
    model = load_lvlm(config.lvlm, lvlm, splits, runtime)
    # Without a ledger: what was answered before would be no check.
    by_library = runtime.model_copy(update={"ledger": ""})
    stock = load_lvlm(config.lvlm.model_copy(update={"member": "hf"}), lvlm, splits, by_library)
    probes = build_probes(queries, train, seed=config.seed)
    wording = Wording(config.lvlm.prompt)
    requests = {
        name: [LvlmRequest(wording.prompt(of.query, of.demonstrations)) for of in rows] for name, rows in probes.items()
    }
    answers = {name: [cut_answer(reply.text) for reply in model.run(asked)] for name, asked in requests.items()}
    summary = summarise(probes, answers)
    missed = check_bounds(summary)
    each = max(1, config.n_stock_prompts // len(requests))  # evenly from all probes
    tried = [request for asked in requests.values() for request in asked[:each]]
    ours, theirs = ([reply.text.strip() for reply in one.run(tried)] for one in (model, stock))
    agreement = {"prompts": len(tried), "equal": sum(a == b for a, b in zip(ours, theirs, strict=True))}
    n_queries = max(score.n_queries for score in summary.values())
    result = {
        "probes": {name: asdict(score) for name, score in summary.items()},
        "bounds": missed,
        "judged": n_queries >= config.n_judged and not config.is_harder,
        "stock_agreement": agreement,
    }
    storage.write_json(check, result)
    storage.write_json(counters, model.counters)
    if agreement["equal"] < agreement["prompts"] or (missed and result["judged"]):
        raise WorldError(
            "an LVLM that reads its demonstrations, and an engine that answers as the stock classes do",
            found=f"bounds missed: {missed or 'none'}; {agreement['equal']} of {agreement['prompts']} answers equal",
            do="Restore resources/world, or make the models again with: make world",
        )
    return result
