# The raw files of the documents' study, or those of a data set of the grid, if they are generated. Each split has files
# and jobs of its own: what trains reads nothing of the evaluation's questions.
RAW = RESULTS + "/{raw}"
SPLITS = {"train": "train", "eval": "val"}  # what COCO, whose files the world's are like, calls them
GENERATED = {
    "questions": RAW + "/OpenEnded_mscoco_{split}2014_questions.json",
    "annotations": RAW + "/mscoco_{split}2014_annotations.json",
    "images": RAW + "/{split}2014",
    "listing": RAW + "/{split}.sha256",
}
TRAIN_EXAMPLES, EVAL_EXAMPLES = OF_DATA + "/examples/train.jsonl", OF_DATA + "/examples/eval.jsonl"
TRAIN_EMBEDDINGS, EVAL_EMBEDDINGS = OF_DATA + "/embeddings/train.safetensors", OF_DATA + "/embeddings/eval.safetensors"
# What similarity within pools is measured with.
POOL_EMBEDDINGS = OF_DATA + ("/pool_embeddings" if EXPERIMENT.pools.encoder else "/embeddings")
TRAIN_POOLS, EVAL_POOLS = OF_POOLS + "/pools/train.jsonl", OF_POOLS + "/pools/eval.jsonl"


def raw_file(kind, split=None):
    """Return the function that names a raw file, or a folder of images, of a job's data set: of its split or this."""

    def of(wildcards):
        data, own = grid_plan.at(EXPERIMENT, wildcards).data, split or wildcards.split
        if data.source == "files":
            return getattr(data.files, f"{own}_{kind}")
        return GENERATED[kind].format(raw=grid_plan.raw_of(wildcards), split=SPLITS[own])

    return of


def listing_of_images(wildcards):
    """Return the digests of generated images: a trigger that image folders themselves cannot be."""
    is_generated = grid_plan.at(EXPERIMENT, wildcards).data.source == "world"
    return [raw_file("listing")(wildcards)] if is_generated else []


def train_examples_beside(wildcards):
    """Return the examples that evaluation questions are held against; none for the train split."""
    return [] if wildcards.split == "train" else [TRAIN_EXAMPLES.format(**wildcards)]


def encoder_folder(wildcards):
    """Return the model that makes a file of embeddings: the selector's, or that of the pools."""
    return plan.encoder_of(EXPERIMENT, wildcards).model


rule generate_world:
    output:
        questions=GENERATED["questions"],
        annotations=GENERATED["annotations"],
        images=directory(GENERATED["images"]),
        image_listing=GENERATED["listing"],
        card=RAW + "/{split}.run.json",
    log:
        RAW + "/{split}.log.txt",
    priority: CHAIN
    conda:
        "../../envs/cpu.yaml"
    params:
        spec=identity("generate_world"),
        files=files(),
    message:
        "Generate the world: {wildcards.split} questions, annotations, images"
    shell:
        "python -m lever_pipe generate_world {params.files:q} --threads {threads} > {log:q} 2>&1"


rule prepare_examples:
    input:
        questions=raw_file("questions"),
        annotations=raw_file("annotations"),
        image_listing=listing_of_images,
        train_examples=train_examples_beside,
    output:
        examples=OF_DATA + "/examples/{split}.jsonl",
        summary=OF_DATA + "/examples/{split}.summary.json",
        card=OF_DATA + "/examples/{split}.run.json",
    log:
        OF_DATA + "/examples/{split}.log.txt",
    priority: CHAIN
    conda:
        "../../envs/cpu.yaml"
    resources:
        **needs("prepare_examples").resources,
    params:
        spec=identity("prepare_examples"),
        files=files(images=raw_file("images")),
    message:
        "Read the {wildcards.split} questions and check every annotation and image"
    shell:
        "python -m lever_pipe prepare_examples {params.files:q} --threads {threads} > {log:q} 2>&1"


rule embed_examples:
    input:
        examples=OF_DATA + "/examples/{split}.jsonl",
    output:
        embeddings=OF_DATA + "/{embedded}/{split}.safetensors",
        card=OF_DATA + "/{embedded}/{split}.run.json",
    log:
        OF_DATA + "/{embedded}/{split}.log.txt",
    priority: CHAIN
    conda:
        "../../envs/gpu.yaml"
    threads: needs("embed_examples").threads
    resources:
        **needs("embed_examples").resources,
    params:
        spec=identity("embed_examples"),
        files=files(images=raw_file("images"), encoder=encoder_folder),
    message:
        "Embed images and questions: {wildcards.split}"
    shell:
        "python -m lever_pipe embed_examples {params.files:q}"
        " --device {resources.device} --threads {threads} > {log:q} 2>&1"


rule sample_pools:
    input:
        train_examples=TRAIN_EXAMPLES,
        train_embeddings=POOL_EMBEDDINGS + "/train.safetensors",
        query_examples=OF_DATA + "/examples/{split}.jsonl",
        query_embeddings=POOL_EMBEDDINGS + "/{split}.safetensors",
    output:
        pools=OF_POOLS + "/pools/{split}.jsonl",
        card=OF_POOLS + "/pools/{split}.run.json",
    log:
        OF_POOLS + "/pools/{split}.log.txt",
    priority: CHAIN
    conda:
        "../../envs/cpu.yaml"
    resources:
        **needs("sample_pools").resources,
    params:
        spec=identity("sample_pools"),
        files=files(),
    message:
        "Sample a pool of candidates for each query: {wildcards.split}"
    shell:
        "python -m lever_pipe sample_pools {params.files:q} --threads {threads} > {log:q} 2>&1"
