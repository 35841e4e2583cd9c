# The raw files of the documents' study, or those of a data set of the grid, if they are generated. Each split has files
# and jobs of its own: what trains reads nothing of the evaluation's questions.
RAW = f"{RESULTS}/{{raw}}"
LISTING = f"{RAW}/{{split}}.sha256"
WORLD = EXPERIMENT.data.source == "world"
SPLITS = {"train": "train", "eval": "val"}
"""What COCO, whose files the world's are like, calls them."""


GENERATED = {
    "questions": f"{RAW}/OpenEnded_mscoco_{{split}}2014_questions.json",
    "annotations": f"{RAW}/mscoco_{{split}}2014_annotations.json",
    "images": f"{RAW}/{{split}}2014",
}
IMAGES = {f"{split}_images": raw_file("images", split) for split in SPLITS}
TRAIN_IMAGES = {"train_images": IMAGES["train_images"]}
EXAMPLES_OF_SPLIT = f"{OF_DATA}/examples/{{split}}.jsonl"
EXAMPLES = {f"{split}_examples": of_split(EXAMPLES_OF_SPLIT, split) for split in SPLITS}
EXAMPLES_SUMMARY = f"{OF_DATA}/examples/{{split}}.summary.json"
MAIN_IMAGES = {name: image(grid_plan.DOCUMENTS) for name, image in IMAGES.items()}
MAIN_EXAMPLES = {name: in_documents(path) for name, path in EXAMPLES.items()}
EMBEDDED = f"{OF_DATA}/{{embedded}}/{{split}}.safetensors"
EMBEDDINGS_OF_SPLIT = EMBEDDED.replace("{embedded}", "embeddings")
EMBEDDINGS = {
    f"{split}_embeddings": of_split(EMBEDDINGS_OF_SPLIT, split) for split in SPLITS
}
TRAIN_EMBEDDINGS = EMBEDDINGS["train_embeddings"]
# What similarity within pools is measured with.
POOL_EMBEDDINGS = EMBEDDED.replace(
    "{embedded}", "pool_embeddings" if EXPERIMENT.pools.encoder else "embeddings"
)
POOLS_OF_SPLIT = f"{OF_POOLS}/pools/{{split}}.jsonl"
POOLS = {f"{split}_pools": of_split(POOLS_OF_SPLIT, split) for split in SPLITS}


use rule stage as generate_world with:
    output:
        **{
            name: directory(path) if name == "images" else path
            for name, path in GENERATED.items()
        },
        image_listing=LISTING,
        card=f"{RAW}/{{split}}.run.json",
    pathvars:
        beside=f"{RAW}/{{split}}.",
    priority: CHAIN
    params:
        **call("generate_world"),
    message:
        "Generate the world: {wildcards.split} questions, annotations, images"


use rule stage as prepare_examples with:
    input:
        questions=raw_file("questions"),
        annotations=raw_file("annotations"),
        image_listing=listing_of_images,
        train_examples=train_examples_beside,
    output:
        examples=EXAMPLES_OF_SPLIT,
        summary=EXAMPLES_SUMMARY,
        card=f"{OF_DATA}/examples/{{split}}.run.json",
    pathvars:
        beside=f"{OF_DATA}/examples/{{split}}.",
    priority: CHAIN
    params:
        **call("prepare_examples", {"images": raw_file("images")}),
    message:
        "Read the {wildcards.split} questions and check every annotation and image"


use rule stage as embed_examples with:
    input:
        examples=EXAMPLES_OF_SPLIT,
    output:
        embeddings=EMBEDDED,
        card=f"{OF_DATA}/{{embedded}}/{{split}}.run.json",
    pathvars:
        beside=f"{OF_DATA}/{{embedded}}/{{split}}.",
    priority: CHAIN
    conda:
        "../../envs/gpu.yaml"
    resources:
        **room("embed_examples").resources,
    params:
        **call("embed_examples", {"images": raw_file("images"), "encoder": encoder_of}),
    message:
        "Embed images and questions: {wildcards.split}"


use rule stage as sample_pools with:
    input:
        train_examples=EXAMPLES["train_examples"],
        train_embeddings=of_split(POOL_EMBEDDINGS, "train"),
        query_examples=EXAMPLES_OF_SPLIT,
        query_embeddings=POOL_EMBEDDINGS,
    output:
        pools=POOLS_OF_SPLIT,
        card=f"{OF_POOLS}/pools/{{split}}.run.json",
    pathvars:
        beside=f"{OF_POOLS}/pools/{{split}}.",
    priority: CHAIN
    params:
        **call("sample_pools"),
    message:
        "Sample a pool of candidates for each query: {wildcards.split}"
