"""A rehearsal of production: the whole workflow of study `lever` with the real parts and random weights.

    python -m benchmarks.rehearsal [--okvqa FOLDER] [--families NAME ...] [--cores N] [--3b]

Tokenizer, chat template and photographs are the real ones of `make real-parts`; photographs are cut to the sizes of
COCO's images and stored as JPEG. Questions come from OK-VQA if a folder with its files is given, else from easy-VQA.
The weights are random: the rehearsal tests file reading, prompt lengths, image processing, memory and time.
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
from lever_pipe.base.seeding import generator
from lever_pipe.base.torch_streams import ambient_stream

ROOT = Path(__file__).parents[1]
WORK_FOLDER = ROOT / ".lever_pipe" / "rehearsal"
SIZES = ((640, 480), (480, 640), (640, 427), (500, 375), (427, 640), (640, 640), (640, 360))
"""Width and height: the most frequent sizes of COCO's training images, and a rare one."""
SPLITS = {"train": ("train2014", "train"), "eval": ("val2014", "test")}
"""Split -> its name in OK-VQA's files, and easy-VQA's folder."""
OKVQA_QUESTIONS = "OpenEnded_mscoco_{}_questions.json"
OKVQA_ANNOTATIONS = "mscoco_{}_annotations.json"
ANNOTATORS = 10


@dataclass(frozen=True)
class Rehearsal:
    """One run of the workflow.

    Attributes:
        family: a plugin of `lvlms`.
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
        """Return the name of its files."""
        return f"{self.family}_{self.dtype}"


RUNS = (
    Rehearsal("qwen2_5_vl", "float32", 160, 48),
    Rehearsal("qwen2_5_vl", "bfloat16", 160, 48),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the rehearsals and print a table of them; return 1 if one failed."""
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
            _print(lines[-1])
    return int(any("failed" in line for line in lines))


def rehearse(run: Rehearsal, okvqa: Path | None, cores: str) -> str:
    """Make the files of a run, run the workflow, and return a line about it."""
    folder = WORK_FOLDER / run.name
    folder.mkdir(parents=True, exist_ok=True)
    data = write_data(folder / "data", run, okvqa)
    model = folder / f"{run.family}-of-random-weights"  # the name in the report
    # Written once and reused by later rehearsals.
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
    source = "OK-VQA" if okvqa else "easy-VQA"
    return f"{run.name}: {run.n_train}/{run.n_eval} questions of {source}, {seconds:.0f} s, {work}"


def full_size(okvqa: Path | None) -> None:
    """Print the time of two 2-shot prompts at the published size in bfloat16, and of one with `generate`."""
    from lever_pipe.base.records import Example, ExampleId
    from lever_pipe.experiment.job_runtime import Runtime
    from lever_pipe.experiment.lvlm import AnswerSettings, PromptSettings
    from lever_pipe.lvlms.asking.answering import open_lvlm
    from lever_pipe.lvlms.asking.prompts import Wording
    from lever_pipe.lvlms.protocol import ImageSource, LvlmRequest

    folder = WORK_FOLDER / "qwen2_5_vl_3b"
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
            query = Example(
                example_id=number, image=path.name, image_digest=digest, question_type="any", answers=("red",),
                answer="red", **known,
            )  # fmt: skip
            examples.append(query)
    wording = Wording(PromptSettings(system="Answer with one or two words."))
    requests = [LvlmRequest(wording.prompt(examples[4 + i], examples[2 * i : 2 * i + 2])) for i in range(2)]
    begin = time.perf_counter()
    settings, runtime = AnswerSettings(engine="qwen2_5_vl"), Runtime(threads=os.cpu_count() or 1)
    lvlm = open_lvlm(settings, model, ImageSource(paths), runtime)
    loaded = time.perf_counter()
    _print(f"Qwen2.5-VL-3B's shape, bfloat16, random weights: loaded in {loaded - begin:.0f} s")
    ours, counts = lvlm.run(requests), lvlm.counters
    answered = time.perf_counter()
    _print(
        f"2 prompts of {counts['tokens_prefilled']:,.0f} tokens and {counts['images_encoded']:.0f} images: "
        f"{answered - loaded:.0f} s"
    )
    stock = open_lvlm(settings.model_copy(update={"engine": "hf"}), model, ImageSource(paths), runtime)
    comparison = "equal" if stock.run(requests[:1])[0].text == ours[0].text else "another answer"
    _print(f"one of them by generate: {time.perf_counter() - answered:.0f} s, {comparison}")
    _print(f"peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.1f} GiB")


def _print(line: str) -> None:
    """Print a line without buffering, because each takes minutes."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _work(results: Path) -> str:
    """Return the LVLM's work in a run."""
    counts: dict[str, float] = {}
    for path in sorted(results.rglob("counters.json")):
        for name, value in json.loads(path.read_text(encoding="utf-8")).items():
            counts[name] = counts.get(name, 0) + value
    printed = ("prompts_distinct", "tokens_prefilled", "images_encoded", "forwards")
    work = ", ".join(f"{counts.get(name, 0):,.0f} {name.replace('_', ' ')}" for name in printed)
    return f"{work}, {counts.get('seconds', 0):.0f} s in the model"


def write_data(folder: Path, run: Rehearsal, okvqa: Path | None) -> dict[str, str]:
    """Write question, annotation and image files of both splits; return them by their keys in the configuration."""
    files: dict[str, str] = {}
    for split, count in (("train", run.n_train), ("eval", run.n_eval)):
        questions = _okvqa(okvqa, split, count) if okvqa else _easy_vqa(split, count)
        images = folder / f"{split}_images"
        _write_images(images, sorted({row["image_id"] for row in questions}), split)
        question = [{name: row[name] for name in ("question_id", "image_id", "question")} for row in questions]
        answer = [{name: row[name] for name in ("question_id", "image_id", "answers")} for row in questions]
        for kind, rows in (("questions", question), ("annotations", answer)):
            path = folder / f"{split}_{kind}.json"
            path.write_text(json.dumps({kind: rows}), encoding="utf-8")
            files[f"{split}_{kind}"] = str(path)
        files[f"{split}_images"] = str(images)
    return files


def _easy_vqa(split: str, count: int) -> list[dict[str, Any]]:
    """Return questions of easy-VQA; all annotators give its single answer."""
    path = real_parts.folder_of("easy-vqa") / SPLITS[split][1] / "questions.json"
    rows = json.loads(_read(path))
    chosen = generator(0, "rehearsal", split).choice(len(rows), count, replace=False)
    return [_row(number, rows[i][2], rows[i][0], rows[i][1]) for number, i in enumerate(sorted(chosen.tolist()))]


def _okvqa(folder: Path, split: str, count: int) -> list[dict[str, Any]]:
    """Return questions of OK-VQA; without its annotations, words of easy-VQA serve as answers."""
    name = SPLITS[split][0]
    questions = json.loads(_read(folder / OKVQA_QUESTIONS.format(name)))["questions"]
    annotated = folder / OKVQA_ANNOTATIONS.format(name)
    answers = {
        row["question_id"]: row["answers"]
        for row in (json.loads(annotated.read_text(encoding="utf-8"))["annotations"] if annotated.is_file() else [])
    }
    words = _read(real_parts.folder_of("easy-vqa") / "answers.txt").split()
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
    """Write one JPEG for each image: a crop of a photograph in one of COCO's sizes."""
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    shots = [path for name in ("photographs-skimage", "photographs-matplotlib")
             for path in sorted(real_parts.folder_of(name).iterdir())]  # fmt: skip
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
"""A language model that a CPU runs in minutes, with the real vocabulary size."""
VOCABULARY = 151_936
ROTARY: Mapping[str, Any] = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [4, 6, 6]}


def _tokenizer() -> Any:
    """Return the real tokenizer with the published template."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(real_parts.folder_of("tokenizer-qwen2_5"), local_files_only=True)
    tokenizer.chat_template = _read(real_parts.folder_of("chat-templates") / "qwen2_5_vl.jinja")
    return tokenizer


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

    tokenizer = _tokenizer()
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

    tokenizer = _tokenizer()
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


MODELS: dict[str, Callable[[Path], None]] = {
    "qwen2_5_vl": _write_qwen2_5_vl,
}

if __name__ == "__main__":
    raise SystemExit(main())
