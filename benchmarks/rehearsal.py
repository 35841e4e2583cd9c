"""A rehearsal of production: the whole workflow of study `lever` with the real parts around random weights.

    python -m benchmarks.rehearsal [--okvqa FOLDER] [--families NAME ...] [--cores N] [--3b]

Tokenizers, chat templates and photographs are the real ones of `make real-parts`; photographs are cut to the sizes that
COCO's images have and stored as JPEG. Questions are OK-VQA's where a folder with its files is named, else easy-VQA's.
The weights are random: what is rehearsed is that files are read, prompts fit, images pass, memory and time hold.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks import real_parts
from lever_pipe.base.errors import DataError
from lever_pipe.base.seeding import ambient_stream, generator

ROOT = Path(__file__).parents[1]
PLACE = ROOT / ".lever_pipe" / "rehearsal"
SIZES = ((640, 480), (480, 640), (640, 427), (500, 375), (427, 640), (640, 640), (640, 360))
"""Width and height: the most frequent of COCO's training images, and a rare one."""
SPLITS = {"train": ("train2014", "train"), "eval": ("val2014", "test")}
"""Split -> its name in OK-VQA's files, and easy-VQA's folder."""
OKVQA_QUESTIONS = "OpenEnded_mscoco_{}_questions.json"
OKVQA_ANNOTATIONS = "mscoco_{}_annotations.json"
ANNOTATORS = 10


@dataclass(frozen=True)
class Rehearsal:
    """One run of the workflow.

    Attributes:
        family: a member of `lvlms`.
        dtype: of the weights.
        n_train: train questions.
        n_eval: evaluation questions.
    """

    family: str
    dtype: str
    n_train: int
    n_eval: int

    @property
    def name(self) -> str:
        """Return what its files are called by."""
        return f"{self.family}_{self.dtype}"


RUNS = (
    Rehearsal("qwen2_5_vl", "float32", 160, 48),
    Rehearsal("qwen2_5_vl", "bfloat16", 160, 48),
    *(Rehearsal(family, "float32", 16, 8) for family in ("internvl", "idefics3", "smolvlm", "qwen3_vl")),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the rehearsals and print a table of them; return 1 where one failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rehearsal", description="A rehearsal of production.")
    parser.add_argument("--okvqa", type=Path, help="folder with OK-VQA's question files; easy-VQA's without it")
    parser.add_argument("--families", nargs="*", default=sorted({run.family for run in RUNS}))
    parser.add_argument("--cores", default="all")
    parser.add_argument("--3b", dest="full", action="store_true", help="two prompts at the full size of Qwen2.5-VL-3B")
    options = parser.parse_args(arguments)
    if options.full:
        full_size(options.okvqa)
        return 0
    lines = []
    for run in RUNS:
        if run.family in options.families:
            lines.append(rehearse(run, options.okvqa, options.cores))
            _say(lines[-1])
    return int(any("failed" in line for line in lines))


def rehearse(run: Rehearsal, okvqa: Path | None, cores: str) -> str:
    """Make the files of a run, run the workflow, and return a line about it."""
    folder = PLACE / run.name
    folder.mkdir(parents=True, exist_ok=True)
    data = write_data(folder / "data", run, okvqa)
    model = folder / f"{run.family}-of-random-weights"  # the report calls it so
    if not (model / "config.json").is_file():
        write_model(run.family, model)
    config = folder / "config.yaml"
    settings = {
        "results": f"results/rehearsal/{run.name}",
        "store": None,
        "data": {"n_eval": run.n_eval, "files": data},
        "rl_data": {"n_queries": min(24, run.n_train // 2)},
        "pools": {"size": min(16, run.n_train // 2)},
        "lvlm": {"model": str(model), "dtype": run.dtype},
        "evaluation": {"samples": sorted({max(1, run.n_eval // 2), run.n_eval})},
    }
    config.write_text(yaml.safe_dump(settings), encoding="utf-8")
    call = [sys.executable, "-m", "snakemake", "--cores", cores, "--configfile", "config/rehearsal.yaml", str(config)]
    begin = time.perf_counter()
    with (folder / "log.txt").open("w", encoding="utf-8") as log:
        status = subprocess.run(call, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, check=False).returncode
    seconds = time.perf_counter() - begin
    if status:
        return f"{run.name}: failed after {seconds:.0f} s; see {folder / 'log.txt'}"
    work = _work(ROOT / "results" / "rehearsal" / run.name)
    asked = "OK-VQA" if okvqa else "easy-VQA"
    return f"{run.name}: {run.n_train}/{run.n_eval} questions of {asked}, {seconds:.0f} s, {work}"


def full_size(okvqa: Path | None) -> None:
    """Tell what two prompts of two demonstrations take at the published size in bfloat16, one by `generate` too."""
    from lever_pipe.base.records import Example, ExampleId
    from lever_pipe.experiment.lvlm_config import PromptSettings
    from lever_pipe.lvlms.asking.answering import open_lvlm
    from lever_pipe.lvlms.asking.prompts import Wording
    from lever_pipe.lvlms.protocol import ImageSource, LvlmOptions, LvlmRequest

    folder = PLACE / "qwen2_5_vl_3b"
    run = Rehearsal("qwen2_5_vl", "bfloat16", 4, 2)
    files = write_data(folder / "data", run, okvqa)
    model = folder / "model"
    if not (model / "config.json").is_file():
        with ambient_stream(0, "rehearsal", "3b"):
            _write_full_qwen2_5_vl(model)
    examples: list[Example] = []
    paths: dict[str, Path] = {}
    for split in SPLITS:
        for row in json.loads(Path(files[f"{split}_questions"]).read_text(encoding="utf-8"))["questions"]:
            path = Path(files[f"{split}_images"]) / f"{row['image_id']:012d}.jpg"
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            paths[digest] = path
            number = ExampleId(len(examples))
            known = {"question_id": row["question_id"], "image_id": row["image_id"], "question": row["question"]}
            asked = Example(
                example_id=number, image=path.name, image_digest=digest, question_type="any", answers=("red",),
                answer="red", **known,
            )  # fmt: skip
            examples.append(asked)
    wording = Wording(PromptSettings(system="Answer with one or two words."))
    requests = [LvlmRequest(wording.prompt(examples[4 + i], examples[2 * i : 2 * i + 2])) for i in range(2)]
    begin = time.perf_counter()
    options = LvlmOptions(dtype="bfloat16", num_beams=3, repetition_penalty=1.05)
    lvlm = open_lvlm("qwen2_5_vl", model, options=options, images=ImageSource(paths), threads=os.cpu_count() or 1)
    loaded = time.perf_counter()
    _say(f"Qwen2.5-VL-3B's shape, bfloat16, random weights: loaded in {loaded - begin:.0f} s")
    ours, counts = lvlm.run(requests), lvlm.counters
    answered = time.perf_counter()
    _say(
        f"2 prompts of {counts['tokens_prefilled']:,.0f} tokens and {counts['images_encoded']:.0f} images, "
        f"{counts['flop'] / 1e12:.1f} TFLOP: {answered - loaded:.0f} s"
    )
    stock = lvlm.stock_answers(requests[:1])
    told = "equal" if stock[0] == ours[0].text else "another answer"
    _say(f"one of them by generate: {time.perf_counter() - answered:.0f} s, {told}")
    _say(f"peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.1f} GiB")


def _say(line: str) -> None:
    """Print a line at once: each takes minutes."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _work(results: Path) -> str:
    """Return what the LVLM did in a run."""
    counts: dict[str, float] = {}
    for path in sorted(results.rglob("counters.json")):
        for name, value in json.loads(path.read_text(encoding="utf-8")).items():
            counts[name] = counts.get(name, 0) + value
    shown = ("prompts_distinct", "tokens_prefilled", "images_encoded", "forwards")
    told = ", ".join(f"{counts.get(name, 0):,.0f} {name.replace('_', ' ')}" for name in shown)
    return f"{told}, {counts.get('seconds', 0):.0f} s in the model"


def write_data(folder: Path, run: Rehearsal, okvqa: Path | None) -> dict[str, str]:
    """Write question, annotation and image files of both splits; return them by their keys in the configuration."""
    files: dict[str, str] = {}
    for split, count in (("train", run.n_train), ("eval", run.n_eval)):
        asked = _okvqa(okvqa, split, count) if okvqa else _easy_vqa(split, count)
        images = folder / f"{split}_images"
        _write_images(images, sorted({row["image_id"] for row in asked}), split)
        question = [{name: row[name] for name in ("question_id", "image_id", "question")} for row in asked]
        answer = [{name: row[name] for name in ("question_id", "image_id", "answers")} for row in asked]
        for kind, rows in (("questions", question), ("annotations", answer)):
            path = folder / f"{split}_{kind}.json"
            path.write_text(json.dumps({kind: rows}), encoding="utf-8")
            files[f"{split}_{kind}"] = str(path)
        files[f"{split}_images"] = str(images)
    return files


def _easy_vqa(split: str, count: int) -> list[dict[str, Any]]:
    """Return questions of easy-VQA, whose one answer all annotators give."""
    path = real_parts.place_of("easy-vqa") / SPLITS[split][1] / "questions.json"
    rows = json.loads(_read(path))
    chosen = generator(0, "rehearsal", split).choice(len(rows), count, replace=False)
    return [_row(number, rows[i][2], rows[i][0], rows[i][1]) for number, i in enumerate(sorted(chosen.tolist()))]


def _okvqa(folder: Path, split: str, count: int) -> list[dict[str, Any]]:
    """Return questions of OK-VQA; where its annotations are not there, words of easy-VQA stand for answers."""
    name = SPLITS[split][0]
    questions = json.loads(_read(folder / OKVQA_QUESTIONS.format(name)))["questions"]
    annotated = folder / OKVQA_ANNOTATIONS.format(name)
    answers = {
        row["question_id"]: row["answers"]
        for row in (json.loads(annotated.read_text(encoding="utf-8"))["annotations"] if annotated.is_file() else [])
    }
    words = _read(real_parts.place_of("easy-vqa") / "answers.txt").split()
    chosen = generator(0, "rehearsal", split).choice(len(questions), count, replace=False)
    found = []
    for i in sorted(chosen.tolist()):
        row = questions[i]
        made = _row(row["question_id"], row["image_id"], row["question"], words[i % len(words)])
        found.append(made | {"answers": answers.get(row["question_id"], made["answers"])})
    return found


def _row(question_id: int, image_id: int, question: str, answer: str) -> dict[str, Any]:
    given = [{"answer_id": i + 1, "answer": answer, "answer_confidence": "yes"} for i in range(ANNOTATORS)]
    return {"question_id": question_id, "image_id": image_id, "question": question, "answers": given}


def _read(path: Path) -> str:
    if not path.is_file():
        raise DataError(f"{path}: expected a file of the rehearsal", found="none", do=f"Call: {real_parts.BRING}")
    return path.read_text(encoding="utf-8")


def _write_images(folder: Path, images: Sequence[int], split: str) -> None:
    """Write a JPEG an image: a piece of a photograph in one of COCO's sizes."""
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    shots = [path for name in ("photographs-skimage", "photographs-matplotlib")
             for path in sorted(real_parts.place_of(name).iterdir())]  # fmt: skip
    photographs = [Image.open(path).convert("RGB") for path in shots]
    for image_id in images:
        path = folder / f"{image_id:012d}.jpg"
        if path.is_file():
            continue
        rng = generator(0, "rehearsal", "image", split, str(image_id))
        whole, (width, height) = photographs[rng.integers(len(photographs))], SIZES[rng.integers(len(SIZES))]
        scale = max(width / whole.width, height / whole.height) * rng.uniform(1.0, 1.6)
        large = whole.resize((int(np.ceil(whole.width * scale)), int(np.ceil(whole.height * scale))))
        left, top = (int(rng.integers(room + 1)) for room in (large.width - width, large.height - height))
        large.crop((left, top, left + width, top + height)).save(path, quality=90)


def write_model(family: str, folder: Path) -> None:
    """Write a folder of a family as `save_pretrained` does: its real tokenizer and chat template, random weights."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    with ambient_stream(0, "rehearsal", family):
        MODELS[family](folder)


TEXT: Mapping[str, Any] = {
    "hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 256, "max_position_embeddings": 32_768, "tie_word_embeddings": True,
}  # fmt: skip
"""A language model that a CPU runs in minutes; the vocabulary is the real one."""
VOCABULARY = 151_936
EYE: Mapping[str, Any] = {
    "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 128,
}  # fmt: skip
"""A vision tower of the same kind."""
ROTARY: Mapping[str, Any] = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [4, 6, 6]}
INTERNVL_TEMPLATE = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n'}}"
    "{% for content in message['content'] %}{% if content['type'] == 'image' %}{{ '<IMG_CONTEXT>\n' }}"
    "{% elif content['type'] == 'text' %}{{ content['text'] }}{% endif %}{% endfor %}{{'<|im_end|>\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{'<|im_start|>assistant\n' }}{% endif %}"
)
"""What the published folders say of texts and images; no registry holds the file."""
TILE_NAMES = ("<global-img>", *(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)))


def _tokenizer(part: str, template: str, *more: str, **named: str) -> Any:
    """Return a real tokenizer with a template, and the special tokens that a family adds to it."""
    from transformers import AutoTokenizer

    # What the tokenizer of another model lacks of the family's tokens is added, as the families themselves did.
    options = {"extra_special_tokens": named} if named else {}
    tokenizer = AutoTokenizer.from_pretrained(real_parts.place_of(part), local_files_only=True, **options)
    tokenizer.add_tokens(list(more), special_tokens=True)
    tokenizer.chat_template = template
    return tokenizer


def _published(name: str) -> str:
    return _read(real_parts.place_of("chat-templates") / f"{name}.jinja")


def _id(tokenizer: Any, text: str) -> int:
    return int(tokenizer.convert_tokens_to_ids(text))


def _save(folder: Path, model: Any, tokenizer: Any, processor: Any) -> None:
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    processor.save_pretrained(folder)


def _seen_by_qwen(tokenizer: Any) -> dict[str, int]:
    return {
        "image_token_id": _id(tokenizer, "<|image_pad|>"),
        "video_token_id": _id(tokenizer, "<|video_pad|>"),
        "vision_start_token_id": _id(tokenizer, "<|vision_start|>"),
        "vision_end_token_id": _id(tokenizer, "<|vision_end|>"),
    }


def _write_qwen2_5_vl(folder: Path) -> None:
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    tokenizer = _tokenizer("tokenizer-qwen2_5", _published("qwen2_5_vl"))
    vision = {"depth": 4, "hidden_size": 64, "intermediate_size": 128, "num_heads": 4, "out_hidden_size": 128}
    config = Qwen2_5_VLConfig(
        text_config={**TEXT, "vocab_size": VOCABULARY, "rope_parameters": ROTARY},
        vision_config=vision | {"fullatt_block_indexes": [1, 3], "window_size": 112},
        tie_word_embeddings=True,
        **_seen_by_qwen(tokenizer),
    )
    processor = Qwen2VLImageProcessorPil(min_pixels=56 * 56, max_pixels=12_845_056)
    _save(folder, Qwen2_5_VLForConditionalGeneration(config), tokenizer, processor)


def _write_full_qwen2_5_vl(folder: Path) -> None:
    """Write the published shape: 3.75 billion random weights in bfloat16, 7.5 GB."""
    import torch
    from transformers import AutoModelForImageTextToText, Qwen2_5_VLConfig
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    tokenizer = _tokenizer("tokenizer-qwen2_5", _published("qwen2_5_vl"))
    text = {
        "hidden_size": 2048, "num_hidden_layers": 36, "num_attention_heads": 16, "num_key_value_heads": 2,
        "intermediate_size": 11_008, "max_position_embeddings": 128_000, "vocab_size": VOCABULARY,
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]},
    }  # fmt: skip
    vision = {
        "depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "out_hidden_size": 2048,
        "fullatt_block_indexes": [7, 15, 23, 31], "window_size": 112,
    }  # fmt: skip
    config = Qwen2_5_VLConfig(
        text_config=text, vision_config=vision, tie_word_embeddings=True, **_seen_by_qwen(tokenizer)
    )
    config.dtype = torch.bfloat16
    model = AutoModelForImageTextToText.from_config(config, dtype=torch.bfloat16)
    _save(folder, model, tokenizer, Qwen2VLImageProcessorPil(min_pixels=56 * 56, max_pixels=12_845_056))


def _write_qwen3_vl(folder: Path) -> None:
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    tokenizer = _tokenizer("tokenizer-qwen3", _published("qwen3_vl"))
    vision = {"depth": 4, "hidden_size": 64, "intermediate_size": 128, "num_heads": 4, "out_hidden_size": 128}
    config = Qwen3VLConfig(
        text_config={**TEXT, "head_dim": 32, "vocab_size": VOCABULARY, "rope_parameters": ROTARY},
        vision_config=vision | {"patch_size": 16, "deepstack_visual_indexes": [1, 2], "num_position_embeddings": 2304},
        tie_word_embeddings=True,
        **_seen_by_qwen(tokenizer),
    )
    processor = Qwen2VLImageProcessorPil(patch_size=16, min_pixels=256 * 256, max_pixels=4096 * 4096)
    _save(folder, Qwen3VLForConditionalGeneration(config), tokenizer, processor)


def _write_internvl(folder: Path) -> None:
    from transformers import InternVLConfig, InternVLForConditionalGeneration
    from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil

    named = {"start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>"}
    named["video_token"] = "<video>"
    tokenizer = _tokenizer("tokenizer-qwen2_5", INTERNVL_TEMPLATE, *named.values(), **named)
    config = InternVLConfig(
        text_config={**TEXT, "model_type": "qwen2", "vocab_size": VOCABULARY},
        vision_config={**EYE, "image_size": [448, 448], "patch_size": [14, 14]},
        image_token_id=_id(tokenizer, "<IMG_CONTEXT>"),
        tie_word_embeddings=True,
    )
    # Published are 12 tiles at most, 3,328 tokens an image; two shots of those are nothing for a CPU.
    processor = GotOcr2ImageProcessorPil(size={"height": 448, "width": 448}, min_patches=1, max_patches=2)
    _save(folder, InternVLForConditionalGeneration(config), tokenizer, processor)


def _write_tiles(folder: Path, kinds: tuple[Any, Any, Any], name: str, start: str, *, side: int, scale: int) -> None:
    """Write a model that sees tiles; no registry holds its tokenizer, so Qwen2.5's has its tokens added."""
    around = ("<image>", "<end_of_utterance>", "<fake_token_around_image>", *TILE_NAMES)
    own = (start,) if start != "<|im_start|>" else ()
    tokenizer = _tokenizer("tokenizer-qwen2_5", _published(name), *own, *around)
    tokenizer.bos_token, tokenizer.eos_token = start, "<end_of_utterance>"
    make_config, make_model, make_processor = kinds
    config = make_config(
        text_config={**TEXT, "model_type": "llama", "vocab_size": VOCABULARY},
        vision_config={**EYE, "image_size": side, "patch_size": 14},
        image_token_id=_id(tokenizer, "<image>"),
        scale_factor=scale,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=True,
    )
    # As with InternVL: published are up to 17 and 13 tiles an image.
    processor = make_processor(size={"longest_edge": 2 * side}, max_image_size={"longest_edge": side})
    _save(folder, make_model(config), tokenizer, processor)
    tokens = (side // 14 // scale) ** 2
    (folder / "processor_config.json").write_text(json.dumps({"image_seq_len": tokens}), encoding="utf-8")


def _write_idefics3(folder: Path) -> None:
    from transformers import Idefics3Config, Idefics3ForConditionalGeneration
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

    kinds = (Idefics3Config, Idefics3ForConditionalGeneration, Idefics3ImageProcessorPil)
    _write_tiles(folder, kinds, "idefics3", "<|begin_of_text|>", side=364, scale=2)


def _write_smolvlm(folder: Path) -> None:
    from transformers import SmolVLMConfig, SmolVLMForConditionalGeneration
    from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

    kinds = (SmolVLMConfig, SmolVLMForConditionalGeneration, SmolVLMImageProcessorPil)
    _write_tiles(folder, kinds, "smolvlm", "<|im_start|>", side=504, scale=4)


MODELS: dict[str, Callable[[Path], None]] = {
    "qwen2_5_vl": _write_qwen2_5_vl,
    "qwen3_vl": _write_qwen3_vl,
    "internvl": _write_internvl,
    "idefics3": _write_idefics3,
    "smolvlm": _write_smolvlm,
}

if __name__ == "__main__":
    raise SystemExit(main())
