# Generated raw files of the documents' study, or of a data set of the grid. Each split has its own files and jobs, so
# that training never depends on the evaluation's questions.
RAW = join(RESULTS, "{raw}")
SPLITS = {"train": "train", "eval": "val"}  # COCO's names of the splits, whose format the world uses
GENERATED = {
    "questions": join(RAW, "OpenEnded_mscoco_{split}2014_questions.json"),
    "annotations": join(RAW, "mscoco_{split}2014_annotations.json"),
    "images": join(RAW, "{split}2014"),
    "listing": join(RAW, "{split}.sha256"),
}
# Digests of a user's own images. Each split has a folder, because Snakemake caches a folder's content.
OWN_LISTING = join(OF_DATA, "images/{split}/sha256.txt")
TRAIN_EXAMPLES, EVAL_EXAMPLES = f"{OF_DATA}/examples/train.jsonl", f"{OF_DATA}/examples/eval.jsonl"
TRAIN_EMBEDDINGS, EVAL_EMBEDDINGS = f"{OF_DATA}/embeddings/train.safetensors", f"{OF_DATA}/embeddings/eval.safetensors"
# Embeddings for the similarity within pools.
POOL_EMBEDDINGS = f"{OF_DATA}/{'pool_embeddings' if EXPERIMENT.pools.encoder else 'embeddings'}"
TRAIN_POOLS, EVAL_POOLS = f"{OF_POOLS}/pools/train.jsonl", f"{OF_POOLS}/pools/eval.jsonl"


rule generate_world:
    output:
        questions=GENERATED["questions"],
        annotations=GENERATED["annotations"],
        images=directory(GENERATED["images"]),
        image_listing=GENERATED["listing"],
        manifest=join(RAW, "{split}.run.json"),
    log:
        join(RAW, "{split}.log.txt"),
    priority: CHAIN
    conda:
        "../../envs/cpu.yaml"
    params:
        spec=identity("generate_world"),
        files=files(),
    message:
        "Generate the world: {wildcards.split} questions, annotations, images"
    shell:
        "python -m lever_pipe stage generate_world {params.files:q} --threads {threads} > {log:q} 2>&1"


rule prepare_examples:
    input:
        questions=raw_input("questions"),
        annotations=raw_input("annotations"),
        image_listing=listing_of_images,
        train_examples=train_examples_for_eval,
    output:
        examples=join(OF_DATA, "examples/{split}.jsonl"),
        summary=join(OF_DATA, "examples/{split}.summary.json"),
        manifest=join(OF_DATA, "examples/{split}.run.json"),
    log:
        join(OF_DATA, "examples/{split}.log.txt"),
    priority: CHAIN
    conda:
        "../../envs/cpu.yaml"
    params:
        spec=identity("prepare_examples"),
        files=files(images=raw_file("images")),
    message:
        "Read the {wildcards.split} questions and check every annotation and image"
    shell:
        "python -m lever_pipe stage prepare_examples {params.files:q} --threads {threads} > {log:q} 2>&1"


rule embed_examples:
    input:
        examples=join(OF_DATA, "examples/{split}.jsonl"),
    output:
        embeddings=join(OF_DATA, "{embedded}/{split}.safetensors"),
        manifest=join(OF_DATA, "{embedded}/{split}.run.json"),
    log:
        join(OF_DATA, "{embedded}/{split}.log.txt"),
    priority: CHAIN
    conda:
        "../../envs/gpu.yaml"
    threads: resources_of("embed_examples").threads
    resources:
        **resources_of("embed_examples").resources,
    params:
        spec=identity("embed_examples"),
        files=files(images=raw_file("images"), encoder=encoder_folder),
    message:
        "Embed images and questions: {wildcards.split}"
    shell:
        "python -m lever_pipe stage embed_examples {params.files:q}"
        " --device {resources.device} --threads {threads} > {log:q} 2>&1"


rule sample_pools:
    input:
        train_examples=TRAIN_EXAMPLES,
        train_embeddings=f"{POOL_EMBEDDINGS}/train.safetensors",
        query_examples=join(OF_DATA, "examples/{split}.jsonl"),
        query_embeddings=join(POOL_EMBEDDINGS, "{split}.safetensors"),
    output:
        pools=join(OF_POOLS, "pools/{split}.jsonl"),
        manifest=join(OF_POOLS, "pools/{split}.run.json"),
    log:
        join(OF_POOLS, "pools/{split}.log.txt"),
    priority: CHAIN
    conda:
        "../../envs/cpu.yaml"
    params:
        spec=identity("sample_pools"),
        files=files(),
    message:
        "Sample a pool of candidates for each query: {wildcards.split}"
    shell:
        "python -m lever_pipe stage sample_pools {params.files:q} --threads {threads} > {log:q} 2>&1"
