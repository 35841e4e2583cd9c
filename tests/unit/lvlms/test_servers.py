"""A model on a server: its requests, the stored answers, and the handling of a server that does not answer."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from endpoint_double import Act, completion, hang, send, serve
from lvlm_world import lvlm_config, world

from lever_pipe.base import storage
from lever_pipe.base.errors import ConfigError, ServerError
from lever_pipe.experiment.job_runtime import LvlmExecution, LvlmServer, Runtime
from lever_pipe.lvlms.asking.answering import LedgerLvlm, open_lvlm
from lever_pipe.lvlms.asking.prompts import Wording
from lever_pipe.lvlms.protocol import ImageSource, LvlmRequest

MODEL = "some/model:3b"


def opened(
    url: str, ledger: Path | None = None, decode: Mapping[str, Any] = MappingProxyType({}), **connection: Any
) -> LedgerLvlm:
    own = {"timeout_seconds": 60.0, "retries": 1, "backoff_seconds": 0.0, "patience_seconds": 0.0, "concurrency": 4}
    own |= connection
    settings = lvlm_config()
    greedy = settings.decode.model_copy(update={"num_beams": 1, **decode})
    settings = settings.model_copy(update={"engine": "served", "decode": greedy})
    images = {
        e.image_digest: world() / "train_images" / e.image for e in storage.read_examples(world() / "train.jsonl")
    }
    execution = LvlmExecution(server=LvlmServer(base_url=url, **own))
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


def reported(text: str | None, reason: str = "stop", message: Mapping[str, Any] = {}, **beyond: Any) -> dict[str, Any]:
    whole = {"role": "assistant", "content": text, **message}
    return {"choices": [{"message": whole, "finish_reason": reason}], "usage": {"prompt_tokens": 2}} | beyond


def displayed(request: dict[str, Any]) -> str:
    """Return the texts and the digests of the images of a request, in their order."""
    texts = []
    for message in request["messages"]:
        for part in message["content"]:
            if part["type"] == "text":
                texts.append(part["text"])
            else:
                kind, _, content = part["image_url"]["url"].partition(";base64,")
                texts.append(f"{kind} {hashlib.sha256(base64.b64decode(content)).hexdigest()}")
    return "\n".join(texts)


def test_a_server_is_shown_each_prompt_once_and_never_again(tmp_path: Path) -> None:
    prompts = requests(6)
    with serve(always=answering(lambda request: reported(displayed(request)))) as double:
        replies = opened(double.url, tmp_path).run([*prompts, *prompts])
        again = opened(double.url, tmp_path)
        assert again.run(prompts) == replies[:6] == replies[6:]
    assert len(double.requests) == 6
    assert again.counters["forwards"] == 0
    for request, reply in zip(prompts, replies[:6], strict=True):
        parts = [part for turn in request.prompt.turns for part in turn.parts]
        expected = [part if isinstance(part, str) else f"data:image/png {part.digest}" for part in parts]
        assert reply.text == "\n".join(expected)
    first = double.requests[0]
    assert (first["model"], first["temperature"], first["max_tokens"]) == (
        MODEL,
        0,
        lvlm_config().decode.max_new_tokens,
    )


@pytest.mark.parametrize(
    "act", [completion("x"), answering(lambda _: reported("x", prompt_logprobs=[])), send(b"{}", status=400)]
)
def test_a_server_without_probabilities_is_refused_before_anything_is_answered(act: Act) -> None:
    with serve(always=act) as double, pytest.raises(ConfigError, match=r"prompt_logprobs.*vllm serve"):
        opened(double.url).run(requests(6, ("a",)))
    assert len(double.requests) <= 4


PROBLEMS: dict[str, tuple[Act, str]] = {
    "a server in trouble": (send(b"oops", status=500), "HTTP 500"),
    "too many requests": (send(b"{}", status=429), "HTTP 429"),
    "garbage": (send(b"<html>"), "no JSON"),
    "no text": (completion(["x"]), "no text"),
    "too large an image": (send(b'{"error": {"message": "image too large"}}', status=413), "HTTP 413.*image too large"),
    "silence": (hang, "no answer in time"),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_what_a_server_does_not_answer_is_told_and_what_it_did_is_kept(name: str, tmp_path: Path) -> None:
    act, problem = PROBLEMS[name]
    lost = pytest.raises(ServerError, match=rf"each of 6 prompts.*none to 2 of them.*{problem}")
    with serve(*[answering(lambda _: reported("x"))] * 4, always=act) as double, lost:
        opened(double.url, tmp_path, concurrency=1, timeout_seconds=0.5).run(requests(6))
    with serve(always=answering(lambda _: reported("x"))) as double:
        assert [reply.text for reply in opened(double.url, tmp_path).run(requests(6))] == ["x"] * 6
    assert len(double.requests) == 2


UNUSABLE: dict[str, tuple[dict[str, Any], str]] = {  # replies of real servers, and the words of their problem
    "only a thought, cut": (reported(None, "length", {"reasoning": "Okay, the"}), "no text"),
    "an open thought": (reported("<think>Okay, the"), "a thought without an end"),
    "an open thought, cut": (reported("<think>Okay, the", "length"), "a thought without an end"),
    "an empty text, billed": (reported("", "length"), "no text"),
    "the answer taken for a thought": (reported(None, "stop", {"reasoning": "red"}), "no text"),
    "a closed thought": (reported("<think>Okay.</think>red"), "a thought before the text.*strip_thoughts"),
    "an opening marker in the prompt": (reported("hello, my reason to </think> red"), "a thought before the text"),
    "a model with other markers": (reported("\u25c1think\u25b7Okay\u25c1/think\u25b7red"), "a thought before the text"),
    "an engine that went to sleep": (reported("re", "abort"), "no reply.*the server broke off"),
    "a request over the engine's limit": (reported("", "error"), "no reply.*the server broke off"),
    "a refusal": (reported(None, "stop", {"refusal": "I cannot"}), "a refusal.*accept_refusals"),
    "a gateway's refusal": (reported("", "refusal"), "a refusal"),
    "a filter": (reported("I am sorry", "content_filter"), "a content filter withheld.*accept_refusals"),
    "a tool call": (reported(None, "tool_calls", {"tool_calls": [{"id": "c"}]}), "a tool call"),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_a_reply_that_is_no_answer_is_counted_named_and_asked_for_again(name: str, tmp_path: Path) -> None:
    body, words = UNUSABLE[name]
    lost = pytest.raises(ServerError, match=rf"each of 6 prompts; found none to 2 of them \(.*{words}")
    with (
        serve(*[answering(lambda _: reported("x"))] * 4, always=answering(lambda _: body)) as double,
        lost as caught,
    ):
        opened(double.url, tmp_path, concurrency=1).run(requests(6))
    prompts = sorted(displayed(request).rpartition("\n")[2] for request in double.requests[4:])
    assert any(f"the first of these prompts ends with {text!r}" in str(caught.value) for text in prompts)
    with serve(always=answering(lambda _: reported("x"))) as double:
        assert [reply.text for reply in opened(double.url, tmp_path).run(requests(6))] == ["x"] * 6
    assert len(double.requests) == 2


@pytest.mark.parametrize(
    ("body", "text", "connection"),
    [
        (reported(" red", "length"), "red", {}),  # models often do not stop; engines of this process cut them, too
        (reported("red", "stop", {"reasoning": "Okay."}), "red", {}),
        (reported("red", "eos_token"), "red", {}),
        (reported("<think>\n</think>\n\nred"), "red", {"strip_thoughts": True}),
        (reported("Okay.</think>re", "length"), "re", {"strip_thoughts": True}),
        (reported(None, "stop", {"refusal": "I cannot"}), "", {"accept_refusals": True}),
        (reported("I am", "content_filter"), "", {"accept_refusals": True}),
    ],
)
def test_a_reply_is_the_text_that_the_settings_permit(
    body: dict[str, Any], text: str, connection: dict[str, bool], caplog: pytest.LogCaptureFixture
) -> None:
    with serve(answering(lambda _: body), always=answering(lambda _: reported("x"))) as double:
        model = opened(double.url, concurrency=1, **connection)
        replies = model.run(requests(3))
    assert sorted(reply.text for reply in replies) == sorted([text, "x", "x"])
    assert model.counters["prompts_refused"] == (not text)
    assert (f"{MODEL} refused 1 of 3 prompts" in caplog.text) == (not text)


def rejection(message: str, param: str | None, code: str | None, status: int = 400) -> Act:
    error = {"message": message, "type": "invalid_request_error", "param": param, "code": code}
    return send(json.dumps({"error": error}).encode(), status=status)


LIMIT = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
WARM = "Unsupported value: 'temperature' does not support 0.0 with this model. Only the default (1) value is supported."
FORBIDDEN = {"type": "extra_forbidden", "loc": ["body", "repetition_penalty"], "msg": "Extra inputs are not permitted"}


@pytest.mark.parametrize(
    ("act", "remedy"),
    [
        (rejection(LIMIT, "max_tokens", "unsupported_parameter"), "token_limit_field: max_completion_tokens"),
        (rejection(LIMIT, None, "invalid_request_body"), "token_limit_field: max_completion_tokens"),  # a gateway
        (rejection(WARM, "temperature", "unsupported_value"), "temperature: null"),
        (rejection(f"code: unsupported_value; message: {WARM}", "temperature", "-4003"), "temperature: null"),
        (rejection("Unrecognized request argument supplied: repetition_penalty", None, None), "repetition_penalty: 1"),
        (send(json.dumps({"detail": [FORBIDDEN]}).encode(), status=422), "repetition_penalty: 1"),
        (rejection("You exceeded your current quota", None, "insufficient_quota", status=429), "quota, then run again"),
        (send(b"{}", status=402), "quota, then run again"),
    ],
)
def test_the_first_rejection_of_what_every_request_holds_ends_the_job_with_its_remedy(act: Act, remedy: str) -> None:
    with serve(always=act) as double, pytest.raises(ServerError, match=remedy):
        opened(double.url, concurrency=1, patience_seconds=300.0).run(requests(6))
    assert len(double.requests) == 1


def test_a_rejection_of_one_prompt_does_not_end_the_job() -> None:
    words = "'max_tokens' is too large: 4. This model's maximum context length is 1024 tokens"
    act = rejection(words, "max_tokens", "context_length_exceeded")
    with (
        serve(act, always=answering(lambda _: reported("x"))) as double,
        pytest.raises(ServerError, match="none to 1 of"),
    ):
        opened(double.url, concurrency=1).run(requests(6))
    assert len(double.requests) == 6


def test_a_model_of_today_is_sent_its_own_name_of_the_limit_and_no_temperature(tmp_path: Path) -> None:
    with serve(always=answering(lambda _: reported("x"))) as double:
        opened(double.url, tmp_path).run(requests(1))
        own = {"token_limit_field": "max_completion_tokens"}
        opened(double.url, tmp_path, {"temperature": None}, **own).run(requests(1))  # no answer of the first
    before, after = (request.keys() for request in double.requests)
    assert before - after == {"max_tokens", "temperature"}
    assert after - before == {"max_completion_tokens"}
