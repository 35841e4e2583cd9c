RAW = f"{RESULTS}/world"
FILES = EXPERIMENT.data.files
WORLD = EXPERIMENT.data.source == "world"

if WORLD:
    IMAGES = {"train_images": f"{RAW}/train2014", "eval_images": f"{RAW}/val2014"}
    QUESTIONS = {
        "train_questions": f"{RAW}/OpenEnded_mscoco_train2014_questions.json",
        "train_annotations": f"{RAW}/mscoco_train2014_annotations.json",
        "eval_questions": f"{RAW}/OpenEnded_mscoco_val2014_questions.json",
        "eval_annotations": f"{RAW}/mscoco_val2014_annotations.json",
    }
else:
    IMAGES = {"train_images": FILES.train_images, "eval_images": FILES.eval_images}
    QUESTIONS = {
        "train_questions": FILES.train_questions,
        "train_annotations": FILES.train_annotations,
        "eval_questions": FILES.eval_questions,
        "eval_annotations": FILES.eval_annotations,
    }

TRAIN_IMAGES = {"train_images": IMAGES["train_images"]}
# Digests of the images: a trigger that image folders themselves cannot be.
IMAGE_LISTING = [f"{RAW}/images.sha256"] if WORLD else []
EXAMPLES_SUMMARY = f"{LEVER}/examples/summary.json"
EXAMPLES = {
    "train_examples": f"{LEVER}/examples/train.jsonl",
    "eval_examples": f"{LEVER}/examples/eval.jsonl",
}
EMBEDDINGS = f"{LEVER}/embeddings/embeddings.safetensors"
POOLS = {
    "train_pools": f"{LEVER}/pools/train.jsonl",
    "eval_pools": f"{LEVER}/pools/eval.jsonl",
}


if WORLD:

    use rule stage as generate_world with:
        output:
            **QUESTIONS,
            train_images=directory(IMAGES["train_images"]),
            eval_images=directory(IMAGES["eval_images"]),
            image_listing=IMAGE_LISTING[0],
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
        image_listing=IMAGE_LISTING,
    output:
        **EXAMPLES,
        summary=EXAMPLES_SUMMARY,
        card=f"{LEVER}/examples/run.json",
    pathvars:
        beside=f"{LEVER}/examples/",
    priority: CHAIN
    params:
        **call("prepare_examples", IMAGES),
    message:
        "Read the questions and check every annotation and image"


use rule stage as embed_examples with:
    input:
        **EXAMPLES,
    output:
        embeddings=EMBEDDINGS,
        card=f"{LEVER}/embeddings/run.json",
    pathvars:
        beside=f"{LEVER}/embeddings/",
    priority: CHAIN
    conda:
        "../../envs/gpu.yaml"
    resources:
        **room("embed_examples").resources,
    params:
        **call("embed_examples", {**IMAGES, "encoder": EXPERIMENT.encoder.model}),
    message:
        "Embed images and questions"


use rule stage as sample_pools with:
    input:
        **EXAMPLES,
        embeddings=EMBEDDINGS,
    output:
        **POOLS,
        card=f"{LEVER}/pools/run.json",
    pathvars:
        beside=f"{LEVER}/pools/",
    priority: CHAIN
    params:
        **call("sample_pools"),
    message:
        "Sample a pool of candidates for each query"
