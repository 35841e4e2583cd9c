"""`fetch` against a server on loopback that answers as the hub does to `snapshot_download`."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
import yaml
from safetensors.numpy import save

ENCODER, LVLM = "openai/clip-vit-base-patch32", "Qwen/Qwen2-VL-2B-Instruct"
COMMIT = "c" * 40
WEIGHTS = save({"w": np.arange(50_000, dtype=np.float32)})
SETTINGS = ("config.json", "preprocessor_config.json", "tokenizer_config.json", "tokenizer.json")
TAKEN = {**dict.fromkeys(SETTINGS, b"{}"), "model.safetensors": WEIGHTS, "merges.txt": b"a b"}
LEFT = {"pytorch_model.bin": b"pickle", "tf_model.h5": b"h5", "onnx/model.safetensors": b"onnx", "README.md": b"read"}
KEYS = {"encoder.model": ENCODER, "lvlm.model": LVLM}


@dataclass
class Hub:
    """A hub: its repositories, the requests that it got, and how it fails.

    Attributes:
        repositories: files by name, of each repository.
        cut: how many downloads of weights end after half of the bytes.
        refused: names of files that it refuses.
    """

    repositories: dict[str, dict[str, bytes]]
    requests: list[tuple[str, str, str]] = field(default_factory=list)  # method, path, authorization
    cut: int = 0
    refused: tuple[str, ...] = ()
    url: str = ""

    def downloads(self) -> list[str]:
        """Return the names of the files that were downloaded."""
        return [path.rpartition("/")[2] for method, path, _ in self.requests if method == "GET" and "/resolve/" in path]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path, part = urlsplit(self.path).path, self.headers.get("Range", "")
        self.hub.requests.append((self.command, path, self.headers.get("Authorization", "")))
        words = path.strip("/").split("/")
        name = "/".join(words[2:4] if words[0] == "api" else words[:2])
        files = self.hub.repositories.get(name)
        if files is None:
            self.answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        elif words[0] == "api" and "tree" in words:
            tree = [{"type": "file", "path": f, "size": len(b), "oid": digest(b)} for f, b in files.items()]
            self.answer(200, json.dumps(tree).encode(), {})
        elif words[0] == "api":
            siblings = [{"rfilename": f, "size": len(b), "blobId": digest(b)} for f, b in files.items()]
            self.answer(200, json.dumps({"id": name, "sha": COMMIT, "siblings": siblings}).encode(), {})
        else:
            self.serve(files["/".join(words[4:])], words[-1], part)

    def serve(self, content: bytes, name: str, part: str) -> None:
        headers = {"ETag": f'"{digest(content)}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        if name in self.hub.refused and self.command == "GET":
            self.answer(403, b"", {})
            return
        begin = int(part.removeprefix("bytes=").rstrip("-")) if part else 0
        if part:
            headers["Content-Range"] = f"bytes {begin}-{len(content) - 1}/{len(content)}"
        is_cut = self.command == "GET" and name.endswith(".safetensors") and self.hub.cut > 0
        self.hub.cut -= is_cut
        self.answer(206 if part else 200, content[begin:], headers, cut=is_cut)

    def answer(self, status: int, body: bytes, headers: dict[str, str], *, cut: bool = False) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body[: len(body) // 2] if cut else body)
        self.close_connection = cut


def digest(content: bytes) -> str:
    return hashlib.sha1(content, usedforsecurity=False).hexdigest()


@pytest.fixture
def hub() -> Iterator[Hub]:
    """Return a hub with an encoder and an LVLM."""
    hub = Hub({ENCODER: TAKEN | LEFT, LVLM: TAKEN | LEFT})
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Of", (Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield hub
    server.shutdown()
    server.server_close()


def fetch(hub: Hub, folder: Path, *words: str, lvlm: str = LVLM) -> subprocess.CompletedProcess[str]:
    """Run the tool in a folder: the client reads its environment when it is imported."""
    config = {
        "studies": ["lever"], "encoder": {"model": "models/clip-vit-base-patch32"}, "lvlm": {"model": lvlm},
    }  # fmt: skip
    (folder / "mine.yaml").write_text(yaml.safe_dump(config))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environment |= {"HF_ENDPOINT": hub.url, "HF_TOKEN": "hf_secret", "HF_HOME": str(folder / "home")}
    call = [sys.executable, "-m", "lever_pipe", "fetch", "--configfile", "mine.yaml", *words]
    return subprocess.run(call, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def names(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file() and ".cache" not in p.parts}


def test_absent_models_come_without_pickle_and_whole_ones_stay(hub: Hub, tmp_path: Path) -> None:
    done = fetch(hub, tmp_path)
    assert done.returncode == 0, done.stderr
    for folder in ("models/clip-vit-base-patch32", LVLM):
        assert names(tmp_path / folder) == set(TAKEN)
        assert (tmp_path / folder / "model.safetensors").read_bytes() == WEIGHTS
    assert f"lvlm.model: 6 files, 0.00 GB, of {LVLM} at {COMMIT} into {LVLM}\n" in done.stdout
    assert done.stdout.endswith("Next: lever-pipe doctor --configfile mine.yaml\n")
    assert {token for _, path, token in hub.requests if "Instruct" in path} == {"Bearer hf_secret"}
    assert "hf_secret" not in done.stdout + done.stderr
    hub.requests.clear()
    assert fetch(hub, tmp_path).returncode == 0
    assert hub.requests == []  # no need of a network


def test_a_broken_connection_is_opened_again(hub: Hub, tmp_path: Path) -> None:
    hub.cut = 1
    done = fetch(hub, tmp_path)
    assert done.returncode == 0, done.stderr
    assert hub.downloads().count("model.safetensors") == 3
    assert (tmp_path / "models/clip-vit-base-patch32/model.safetensors").read_bytes() == WEIGHTS
    assert (tmp_path / LVLM / "model.safetensors").read_bytes() == WEIGHTS


def test_a_second_command_asks_only_for_files_that_are_not_whole(hub: Hub, tmp_path: Path) -> None:
    hub.refused = ("merges.txt",)
    done = fetch(hub, tmp_path)
    assert done.returncode == 2
    assert f"lvlm.model: expected {LVLM} on the hub; found HTTP status 403" in done.stderr
    assert "Traceback" not in done.stderr
    weights = [tmp_path / folder / "model.safetensors" for folder in ("models/clip-vit-base-patch32", LVLM)]
    n_kept = sum(path.exists() for path in weights)
    hub.refused = ()
    hub.requests.clear()
    assert fetch(hub, tmp_path).returncode == 0
    assert all(path.read_bytes() == WEIGHTS for path in weights)
    assert hub.downloads().count("model.safetensors") == len(weights) - n_kept


def test_another_repository_and_revision_are_named(hub: Hub, tmp_path: Path) -> None:
    hub.repositories["me/tuned"] = TAKEN
    done = fetch(hub, tmp_path, "--from", "lvlm.model=me/tuned@v2", lvlm="models/mine")
    assert done.returncode == 0, done.stderr
    assert ("GET", "/api/models/me/tuned/revision/v2") in {request[:2] for request in hub.requests}
    assert names(tmp_path / "models/mine") == set(TAKEN)


def test_each_refusal_has_its_remedy_and_stops_no_other_model(hub: Hub, tmp_path: Path) -> None:
    """No safetensors, no such repository, no known repository, a folder of another origin, a wrong word."""
    hub.repositories[LVLM] = {name: content for name, content in (TAKEN | LEFT).items() if name != "model.safetensors"}
    own = tmp_path / "models/clip-vit-base-patch32"
    own.mkdir(parents=True)
    (own / "model.safetensors").write_bytes(WEIGHTS)
    done = fetch(hub, tmp_path)
    assert done.returncode == 2
    assert "encoder.model: models/clip-vit-base-patch32: expected no folder, or an interrupted download" in done.stderr
    assert "found pytorch_model.bin" in done.stderr
    assert f"lever-pipe convert {LVLM}" in done.stderr
    assert names(own) == {"model.safetensors"}
    for lvlm, words, text in (
        ("nobody/nothing", [], "found no such repository"),
        ("models/mine", [], "Name it: --from lvlm.model=OWNER/NAME"),
        ("models/mine", ["--from", "lvml.model=a/b"], "found 'lvml.model=a/b'"),
    ):
        done = fetch(hub, tmp_path, *words, lvlm=lvlm)
        assert done.returncode == 2
        assert text in done.stderr
        assert "Traceback" not in done.stderr
