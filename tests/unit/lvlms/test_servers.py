"""A model behind a server: what it is asked, what is kept, and what becomes of a server that does not answer."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from endpoint_double import Act, hang, say, send, serve
from lvlm_world import lvlm_config, world

from lever_pipe.base import storage
from lever_pipe.base.chat import Connection
from lever_pipe.base.errors import ConfigError, ServerError
from lever_pipe.experiment.lvlm_config import LvlmExecution
from lever_pipe.experiment.stage_configs import Runtime
from lever_pipe.lvlms.asking.answering import LedgerLvlm, open_lvlm
from lever_pipe.lvlms.asking.prompts import Wording
from lever_pipe.lvlms.protocol import ImageSource, LvlmRequest

MODEL = "some/model:3b"
END = [3.0, 4.0]
"""Log-probabilities of what the double's template writes behind an answer: the end of a turn and a line feed."""


def opened(url: str, ledger: Path | None = None, **connection: Any) -> LedgerLvlm:
    own = {"timeout_seconds": 60.0, "retries": 1, "backoff_seconds": 0.0, "concurrency": 4} | connection
    settings = lvlm_config()
    greedy = settings.decode.model_copy(update={"num_beams": 1})
    settings = settings.model_copy(update={"member": "served", "decode": greedy})
    images = {
        e.image_digest: world() / "train_images" / e.image for e in storage.read_examples(world() / "train.jsonl")
    }
    execution = LvlmExecution(server=Connection(base_url=url, **own))
    return open_lvlm(settings, Path(MODEL), ImageSource(images), Runtime(ledger=str(ledger or ""), lvlm=execution))


def requests(count: int, answers: tuple[str, ...] = ()) -> list[LvlmRequest]:
    train = storage.read_examples(world() / "train.jsonl")
    wording = Wording(lvlm_config().prompt)
    return [LvlmRequest(wording.prompt(train[i], train[i + 1 : i + 3][: i % 3]), answers) for i in range(count)]


def answering(make: Callable[[dict[str, Any]], dict[str, Any]]) -> Act:
    """Return an act that makes its completion of the request."""

    def act(handler: Any, request: dict[str, Any], released: Any) -> None:
        send(json.dumps(make(request)).encode())(handler, request, released)

    return act


def told(text: str, **beyond: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    return {"choices": [{"message": message, "finish_reason": "stop"}], "usage": {"prompt_tokens": 2}} | beyond


def shown(request: dict[str, Any]) -> str:
    """Return the texts and the digests of the images of a request, in their order."""
    said = []
    for message in request["messages"]:
        for part in message["content"]:
            if part["type"] == "text":
                said.append(part["text"])
            else:
                kind, _, content = part["image_url"]["url"].partition(";base64,")
                said.append(f"{kind} {hashlib.sha256(base64.b64decode(content)).hexdigest()}")
    return "\n".join(said)


def test_a_server_is_shown_each_prompt_once_and_never_again(tmp_path: Path) -> None:
    asked = requests(6)
    with serve(always=answering(lambda request: told(shown(request)))) as double:
        replies = opened(double.url, tmp_path).run([*asked, *asked])
        again = opened(double.url, tmp_path)
        assert again.run(asked) == replies[:6] == replies[6:]
    assert len(double.requests) == 6
    assert again.counters["forwards"] == 0
    for request, reply in zip(asked, replies[:6], strict=True):
        parts = [part for turn in request.prompt.turns for part in turn.parts]
        expected = [part if isinstance(part, str) else f"data:image/png {part.digest}" for part in parts]
        assert reply.text == "\n".join(expected)
    first = double.requests[0]
    assert (first["model"], first["temperature"], first["max_tokens"]) == (
        MODEL,
        0,
        lvlm_config().decode.max_new_tokens,
    )


def of_tokens(request: dict[str, Any]) -> dict[str, Any]:
    """Two tokens are the prompt, each letter of an answer is one, and END stands behind an answer that has ended."""
    last = request["messages"][-1]
    if last["role"] == "user":
        return told("x")
    letters = [float(ord(letter)) for letter in last["content"]]
    values = [2.0, *letters, *([] if request["continue_final_message"] else END)]
    return told("", prompt_logprobs=[None, *({"7": {"logprob": -value}} for value in values)])


def test_a_given_answer_has_the_probabilities_of_its_own_tokens() -> None:
    with serve(always=answering(of_tokens)) as double:
        replies = opened(double.url).run(requests(3, ("ab", "c")))
    own = ((-float(ord("a")), -float(ord("b")), -END[0]), (-float(ord("c")), -END[0]))
    assert [reply.token_log_probs for reply in replies] == [own] * 3


@pytest.mark.parametrize("act", [say("x"), answering(lambda _: told("x", prompt_logprobs=[])), send(b"{}", status=400)])
def test_a_server_without_probabilities_is_refused_before_anything_is_answered(act: Act) -> None:
    with serve(always=act) as double, pytest.raises(ConfigError, match=r"prompt_logprobs.*vllm serve"):
        opened(double.url).run(requests(6, ("a",)))
    assert len(double.requests) <= 4


FAULTS: dict[str, tuple[Act, str]] = {
    "a server in trouble": (send(b"oops", status=500), "HTTP 500"),
    "too many requests": (send(b"{}", status=429), "HTTP 429"),
    "garbage": (send(b"<html>"), "no JSON"),
    "no text": (say(["x"]), "no text"),
    "too large an image": (send(b'{"error": {"message": "image too large"}}', status=413), "HTTP 413.*image too large"),
    "silence": (hang, "no answer in time"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_a_server_does_not_answer_is_told_and_what_it_did_is_kept(name: str, tmp_path: Path) -> None:
    act, fault = FAULTS[name]
    told_of = pytest.raises(ServerError, match=rf"each of 6 prompts.*none to 2 of them.*{fault}")
    with serve(*[answering(lambda _: told("x"))] * 4, always=act) as double, told_of:
        opened(double.url, tmp_path, concurrency=1, timeout_seconds=0.5).run(requests(6))
    with serve(always=answering(lambda _: told("x"))) as double:
        assert [reply.text for reply in opened(double.url, tmp_path).run(requests(6))] == ["x"] * 6
    assert len(double.requests) == 2


@pytest.mark.parametrize(
    ("connection", "n_asked"), [({"most_requests": 3}, 3), ({"most_tokens": 100}, 2), ({"most_tokens": 101}, 3)]
)
def test_a_limit_ends_the_asking(connection: dict[str, int], n_asked: int) -> None:
    act = answering(lambda _: told("x", usage={"prompt_tokens": 45, "total_tokens": 50}))
    with serve(always=act) as double, pytest.raises(ServerError, match=r"most_.*Raise it"):
        opened(double.url, concurrency=1, **connection).run(requests(6))
    assert len(double.requests) == n_asked


def test_a_refusal_is_an_answer_without_words_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    refused = {"choices": [{"message": {"content": None, "refusal": "I cannot"}, "finish_reason": "stop"}]}
    with serve(answering(lambda _: refused), always=answering(lambda _: told("x"))) as double:
        replies = opened(double.url, concurrency=1).run(requests(3))
    assert sorted(reply.text for reply in replies) == ["", "x", "x"]
    assert f"{MODEL} refused 1 of 3 prompts" in caplog.text
