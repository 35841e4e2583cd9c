"""Replies of a server or a judge: a reply is taken verbatim, or counts as none."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest
from corruption import corrupted, in_time, inputs, law_of, only_reading
from hypothesis import given
from hypothesis import strategies as st
from openai import OpenAI

from lever_pipe.base import chat as chats
from lever_pipe.base.chat import Access, Chat, Connection, UnreadableError
from lever_pipe.base.errors import ServerError
from lever_pipe.base.replies import text_in
from lever_pipe.intention.simulators.openai import read_judgement, read_reply

WORDS = json.dumps({"response": "red \u00e9", "covered_detail_indices": [0, "2"], "is_task_related": True})
BODY = {
    "id": "x", "object": "chat.completion", "created": 1, "model": "m", "usage": {"total_tokens": 3},
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": WORDS}}],
}  # fmt: skip
URL = "http://127.0.0.1:1/v1"
ACCESS = Access(URL, "KEY")
REQUEST = {"model": "m", "messages": []}


def whole_text(completion: dict[str, Any]) -> str:
    return text_in(completion, strips_thoughts=False)


def answered_with(status: int, body: bytes) -> Chat:
    """Return a chat whose server always sends the same reply."""
    chat = Chat(ACCESS, Connection(retries=1, patience_seconds=1), sleep=lambda seconds: None)
    transport = httpx2.MockTransport(lambda _: httpx2.Response(status, content=body))
    client = httpx2.Client(transport=transport)
    chat._client = OpenAI(base_url=URL, api_key=ACCESS.key, max_retries=0, http_client=client)
    return chat


@inputs
@given(body=corrupted(BODY), status=st.sampled_from([200] * 6 + [100, 204, 301, 400, 401, 404, 429, 500, 503, 999]))
def test_an_answer_is_the_servers_words_or_none(body: bytes, status: int) -> None:
    chat = answered_with(status, body)
    taken, words = law_of(lambda: chat.answer(REQUEST, whole_text), names=URL)
    if not taken:
        assert status in chats._REMEDIES
    elif words is not None:
        assert 200 <= status < 300
        choice = only_reading(body)["choices"][0]
        assert words == choice["message"]["content"].strip()
        assert choice.get("finish_reason") not in ("length", "content_filter", "abort")
    else:
        assert chat.counts.failures == 1
        assert "KEY" not in chat.counts.last_error
        assert len(chat.counts.last_error) < 1000


@inputs
@given(
    text=corrupted(json.loads(WORDS)),
    around=st.sampled_from([("", ""), ("so: ", "."), ("{", ""), ("```json\n", "\n```")]),
)
def test_a_judgement_is_what_the_judge_says(text: bytes, around: tuple[str, str]) -> None:
    output = around[0] + text.decode("utf-8", "replace") + around[1]
    for name, read in (("judgement", read_judgement), ("reply", read_reply)):
        with in_time():
            try:
                found: Any = read(output)
            except UnreadableError as error:
                assert len(str(error)) < 1000
                continue
        if name == "reply":
            assert found
            assert found == found.strip()
            found.encode()
        else:
            assert all(type(index) is int and index >= 0 for index in found.indices)
            truth = json.loads(
                output[output.find("{") : output.rfind("}") + 1]
            )  # the published rule, of equal keys the last
            assert found.related == bool(truth.get("is_task_related", True))


def test_a_remedy_never_shows_the_key() -> None:
    with pytest.raises(ServerError) as refusal:
        answered_with(401, b"KEY").answer(REQUEST, whole_text)
    assert "KEY" not in str(refusal.value)
