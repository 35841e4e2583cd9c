"""Whether a chat template writes a system text, or adds one, for templates that people have met."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lever_pipe.base.chat_templates import ChatTemplate

PARTS = "{% for part in m['content'] %}{{ '<image>' if part['type'] == 'image' else part['text'] }}{% endfor %}"
TURN = "<|im_start|>{{ m['role'] }}\n" + PARTS + "<|im_end|>\n"
LOOP = "{% for m in messages %}TURN{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
PLAIN = LOOP.replace("TURN", TURN)
ALTERNATING = (
    "{{ bos_token + '' }}{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{{ '[INST] ' if m['role'] == 'user' }}" + PARTS + "{{ ' [/INST]' if m['role'] == 'user' else '</s>' }}{% endfor %}"
)
REFUSING = {
    "gemma 2": "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    + PLAIN,
    "mistral 0.2 (transformers 28366)": ALTERNATING,
    "llama 3.2 vision (llama-cookbook 774)": PLAIN.replace(
        "{% for m in messages %}",
        "{% if messages[0]['role'] == 'system' and messages[1]['content'][0]['type'] == 'image' %}"
        "{{ raise_exception('Prompting with images is incompatible with system messages.') }}{% endif %}"
        "{% for m in messages %}",
    ),
    "ministral 3 (opencode 5034)": PLAIN.replace(
        "<|im_start|>{{ m['role'] }}",
        "{% if m['role'] not in ('user', 'assistant') %}{{ raise_exception('Only user, assistant and tool roles are "
        "supported, got ' + m['role']) }}{% endif %}<|im_start|>{{ m['role'] }}",
    ),
}
DROPPING = {
    "roles that it knows": LOOP.replace("TURN", "{% if m['role'] in ('user', 'assistant') %}" + TURN + "{% endif %}"),
    "behind the first (unsloth 989)": LOOP.replace("TURN", "{% if m['role'] != 'system' %}" + TURN + "{% endif %}"),
}
OWN_SYSTEM = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
ADDING = {
    "qwen2.5-vl": "{% if messages[0]['role'] != 'system' %}" + OWN_SYSTEM + "{% endif %}" + PLAIN,
    "vicuna": "{% if messages[0]['role'] != 'system' %}A chat between a user and an assistant. {% endif %}"
    "{% for m in messages %}{{ m['role'].upper() + ': ' if m['role'] != 'system' }}" + PARTS + " {% endfor %}",
}
KEEPING = {
    "plain": PLAIN,
    "with a beginning": "<|begin_of_text|>" + PLAIN,
    "marked turns": PLAIN.replace("<|im_end|>\n", "{% generation %}<|im_end|>\n{% endgeneration %}"),
    "of a day": "{% set today = strftime_now('%d %b %Y') %}" + PLAIN,
}


def template_of(text: str) -> ChatTemplate:
    return ChatTemplate(text, (("bos_token", "<s>"),))


@pytest.mark.parametrize(("name", "text"), REFUSING.items())
def test_a_refused_system_turn_is_a_problem_and_none_is_sound(name: str, text: str) -> None:
    assert template_of(text).problem_of_system("be brief").startswith("one that refuses a system turn (")
    assert template_of(text).problem_of_system("") == template_of(text).problem_of_system(None) == ""


@pytest.mark.parametrize(("name", "text"), DROPPING.items())
def test_a_dropped_system_text_is_a_problem_and_none_is_sound(name: str, text: str) -> None:
    assert template_of(text).problem_of_system("be brief") == "one that leaves the system text out"
    assert template_of(text).problem_of_system("") == template_of(text).problem_of_system(None) == ""


@pytest.mark.parametrize(("name", "text"), ADDING.items())
def test_an_added_text_is_a_problem_where_none_is_wanted(name: str, text: str) -> None:
    assert template_of(text).problem_of_system("").startswith("one that adds its own (")
    assert template_of(text).problem_of_system(" be brief\n") == template_of(text).problem_of_system(None) == ""


@pytest.mark.parametrize(("name", "text"), KEEPING.items())
def test_a_template_that_keeps_the_text_is_sound(name: str, text: str) -> None:
    assert {template_of(text).problem_of_system(system) for system in ("be brief", "", None)} == {""}


@pytest.mark.parametrize("text", ["{{ 1 / 0 }}", "{% for %}", "{{ raise_exception('no images') }}"])
def test_what_fails_at_more_than_the_system_turn_is_left_to_other_checks(text: str) -> None:
    assert {template_of(text).problem_of_system(system) for system in ("be brief", "", None)} == {""}


def test_a_template_is_found_where_the_library_finds_it(tmp_path: Path) -> None:
    assert ChatTemplate.of(tmp_path) is None
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "of the processor"}))
    assert ChatTemplate.of(tmp_path) == ChatTemplate("of the processor")
    several = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    settings = {"bos_token": {"content": "<s>"}, "eos_token": "</s>", "pad_token": None, "chat_template": several}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    tokens = (("bos_token", "<s>"), ("eos_token", "</s>"))
    assert ChatTemplate.of(tmp_path) == ChatTemplate("a", tokens)
    assert ChatTemplate.of(tmp_path, "tool_use") == ChatTemplate("b", tokens)
    (tmp_path / "chat_template.jinja").write_text("own")
    assert ChatTemplate.of(tmp_path) == ChatTemplate("own", tokens)
