# The raw files of the documents' study, or those of a data set of the grid, if they are generated.
RAW = f"{RESULTS}/{{raw}}"
LISTING = f"{RAW}/images.sha256"
WORLD = EXPERIMENT.data.source == "world"


GENERATED = {
    "train_questions": f"{RAW}/OpenEnded_mscoco_train2014_questions.json",
    "train_annotations": f"{RAW}/mscoco_train2014_annotations.json",
    "eval_questions": f"{RAW}/OpenEnded_mscoco_val2014_questions.json",
    "eval_annotations": f"{RAW}/mscoco_val2014_annotations.json",
    "train_images": f"{RAW}/train2014",
    "eval_images": f"{RAW}/val2014",
}
IMAGES = {name: raw_file(name) for name in ("train_images", "eval_images")}
QUESTIONS = {name: raw_file(name) for name in GENERATED if name not in IMAGES}
TRAIN_IMAGES = {"train_images": IMAGES["train_images"]}
EXAMPLES_SUMMARY = f"{OF_DATA}/examples/summary.json"
EXAMPLES = {
    "train_examples": f"{OF_DATA}/examples/train.jsonl",
    "eval_examples": f"{OF_DATA}/examples/eval.jsonl",
}
MAIN_IMAGES = {name: raw_file(name)(grid_plan.DOCUMENTS) for name in IMAGES}
MAIN_EXAMPLES = {name: in_documents(path) for name, path in EXAMPLES.items()}
EMBEDDINGS = f"{OF_DATA}/embeddings/embeddings.safetensors"
POOLS = {
    "train_pools": f"{OF_POOLS}/pools/train.jsonl",
    "eval_pools": f"{OF_POOLS}/pools/eval.jsonl",
}


use rule stage as generate_world with:
    output:
        **{name: GENERATED[name] for name in QUESTIONS},
        train_images=directory(GENERATED["train_images"]),
        eval_images=directory(GENERATED["eval_images"]),
        image_listing=LISTING,
        card=f"{RAW}/run.json",
    pathvars:
        beside=f"{RAW}/",
    priority: CHAIN
    params:
        **call("generate_world"),
    message:
        "Generate the world: questions, annotations, images"


use rule stage as prepare_examples with:
    input:
        **QUESTIONS,
        image_listing=listing_of_images,
    output:
        **EXAMPLES,
        summary=EXAMPLES_SUMMARY,
        card=f"{OF_DATA}/examples/run.json",
    pathvars:
        beside=f"{OF_DATA}/examples/",
    priority: CHAIN
    params:
        **call("prepare_examples", IMAGES),
    message:
        "Read the questions and check every annotation and image"


use rule stage as embed_examples with:
    input:
        **EXAMPLES,
    output:
        embeddings=f"{OF_DATA}/{{embedded}}/embeddings.safetensors",
        card=f"{OF_DATA}/{{embedded}}/run.json",
    pathvars:
        beside=f"{OF_DATA}/{{embedded}}/",
    priority: CHAIN
    conda:
        "../../envs/gpu.yaml"
    resources:
        **room("embed_examples").resources,
    params:
        **call("embed_examples", {**IMAGES, "encoder": encoder_of}),
    message:
        "Embed images and questions"


use rule stage as sample_pools with:
    input:
        **EXAMPLES,
        embeddings=(
            EMBEDDINGS
            if EXPERIMENT.pools.encoder is None
            else EMBEDDINGS.replace("embeddings/", "pool_embeddings/")
        ),
    output:
        **POOLS,
        card=f"{OF_POOLS}/pools/run.json",
    pathvars:
        beside=f"{OF_POOLS}/pools/",
    priority: CHAIN
    params:
        **call("sample_pools"),
    message:
        "Sample a pool of candidates for each query"
