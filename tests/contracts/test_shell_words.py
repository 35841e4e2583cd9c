"""A rule's command takes every value of the configuration, path or wildcard as one word, whatever it contains."""

from __future__ import annotations

import subprocess
from pathlib import Path
from string import Formatter

import pytest
from snakemake.iocontainers import Namedlist, Wildcards
from snakemake.utils import format as render

from lever_pipe.experiment.studies import parse_experiment
from lever_pipe.runtime.sizing import resources_for
from tests.contracts.workflow_model import rules

HOSTILE = (
    "a b", "a'b", 'a"b', "a;touch pwned", "$(touch pwned)", "`touch pwned`", "a\ntouch pwned", "a&touch pwned&", "a|b",
    "a>pwned", "$HOME", "${IFS}", "*", "~", "!!", "\\", "#", "-rf", "--help", "../../x", "a\\'; touch pwned; '", "{x}",
    "\t", "é", "x" * 3000,
)  # fmt: skip
UNQUOTED = {"threads", "resources.device"}  # numbers, and a word that `sizing` chooses


def commands() -> dict[str, str]:
    """Return the command of each rule that has one."""
    return {name: rule.shellcmd for name, rule in rules().items() if rule.shellcmd}


def test_every_value_in_a_command_is_quoted() -> None:
    fields = {
        (name, *part[1:3]) for name, command in commands().items() for part in Formatter().parse(command) if part[1]
    }
    assert {name for name, _, _ in fields} == commands().keys()
    assert {(name, field) for name, field, spec in fields if spec != "q" and field not in UNQUOTED} == set()


def test_what_is_not_quoted_is_a_number_or_a_word() -> None:
    resources_of = resources_for(parse_experiment({}))
    for name in (name for name, command in commands().items() if "{resources.device}" in command):
        threads, resources = resources_of(name)
        assert (type(threads), resources["device"]) in ((int, "cpu"), (int, "cuda"))


def words_of(command: str, folder: Path, **values: object) -> list[str]:
    """Run a command with a `python` that only prints its words, and return the words in its log."""
    text = render(command, **values)
    script = "python() { printf '%s\\0' \"$@\"; }\n" + text
    subprocess.run(["bash", "-euo", "pipefail", "-c", script], cwd=folder, check=True, timeout=20)
    (log,) = [path for path in folder.rglob("*") if path.is_file()]
    return log.read_text(encoding="utf-8").split("\0")[:-1]


@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda text: ascii(text)[:20])
@pytest.mark.parametrize("name", ["answer_prompts", "generate_world"])
def test_a_hostile_value_stays_one_word(tmp_path: Path, name: str, hostile: str) -> None:
    log = "log " + hostile.replace("/", "_")[:200]  # a file name; a path is tried below
    files = Namedlist(fromdict={"a": hostile}), Namedlist(fromdict={"b": [hostile, hostile]})
    words = rules()[name].params.files(Wildcards(fromdict={"arm": "a", "seed": "0"}), *files)
    values = {
        "params": Namedlist(fromdict={"files": words, "asking": ["--ledger", hostile]}),
        "resources": Namedlist(fromdict={"device": "cpu"}),
        "log": Namedlist([log]),
        "threads": 1,
    }
    words = words_of(rules()[name].shellcmd, tmp_path, **values)
    assert words[:7] == ["-m", "lever_pipe", "stage", name, f"a={hostile}", f"b={hostile}", f"b={hostile}"]
    assert "--ledger" not in words or words[words.index("--ledger") + 1] == hostile
    assert [path.name for path in tmp_path.iterdir()] == [log]
