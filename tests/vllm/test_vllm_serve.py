"""Plugin `served` has from `vllm serve` what the packed engine answers."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.error import URLError

import pytest
from lvlm_world import LVLM
from test_vllm import GIVEN, TOLERANCE, opened, replies_with, requests

from lever_pipe.base.errors import ServerError
from lever_pipe.experiment.job_runtime import LvlmExecution, LvlmServer, Runtime

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("default")]
NAME = "tiny"
OWN = ("--dtype", "float32", "--enforce-eager", "--gpu-memory-utilization", "0.1", "--generation-config", "vllm")
PATIENCE_S = 300


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server of the embedded LVLM."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    address, log = f"http://127.0.0.1:{port}", tmp_path_factory.mktemp("server") / "log"
    # The module of `vllm serve`; the command itself looks for a package of that name, which the CPU build lacks.
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", LVLM, "--served-model-name", NAME]
    command += [*OWN, "--host", "127.0.0.1", "--port", port]
    alone = os.environ | {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    with log.open("w") as output, subprocess.Popen(command, stdout=output, stderr=output, env=alone) as server:
        try:
            for _ in range(PATIENCE_S):
                assert server.poll() is None, log.read_text()[-2000:]
                try:
                    urllib.request.urlopen(f"{address}/health", timeout=1).close()
                    break
                except (URLError, OSError):
                    time.sleep(1)
            yield f"{address}/v1"
        finally:
            server.terminate()


def runtime(url: str) -> Runtime:
    return Runtime(lvlm=LvlmExecution(server=LvlmServer(base_url=url, concurrency=64)))


@pytest.mark.parametrize("penalty", [1.0, 1.05])
def test_answers_are_equal(url: str, penalty: float) -> None:
    search = {"num_beams": 1, "repetition_penalty": penalty}
    ours = opened(replies_with("served", **search), runtime(url), Path(NAME)).run(requests())
    theirs = opened(replies_with("qwen2_5_vl", **search)).run(requests())
    assert [reply.text for reply in ours] == [reply.text for reply in theirs]


def test_given_answers_have_the_same_probabilities(url: str) -> None:
    prompts = requests(100, GIVEN)
    ours = opened(replies_with("served", num_beams=1), runtime(url), Path(NAME)).run(prompts)
    theirs = opened(replies_with("qwen2_5_vl", num_beams=1)).run(prompts)
    for one, other in zip(ours, theirs, strict=True):
        for mine, its in zip(one.token_log_probs, other.token_log_probs, strict=True):
            assert mine == pytest.approx(its, abs=TOLERANCE)


def test_a_name_that_the_server_does_not_know_is_told(url: str) -> None:
    with pytest.raises(ServerError, match=r"HTTP 404.*model's name"):
        opened(replies_with("served", num_beams=1), runtime(url), Path("another")).run(requests(5))
