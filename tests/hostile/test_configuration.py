"""Whatever a configuration file or `--config` holds: refused in our words, at once, or taken as it is written."""

# ruff: noqa: E501 - an entry of a table is a line
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lever_pipe.base.errors import ConfigError
from lever_pipe.base.sections import Section
from lever_pipe.experiment import configuration
from lever_pipe.experiment.studies import Experiment, parse_experiment

ROOT = Path(__file__).parents[2]
WORLD = "presets: {published: {rce: {learning_rate: %s}}}"
# Text of a file -> a part of the message.
REFUSED: dict[str | bytes, str] = {
    # Bytes and shape
    b"": "found no key",
    b"\xff\xfer\x00e\x00": "Save it as UTF-8",
    b"report: {title: \"\xe9t\xe9\"}": "Save it as UTF-8",
    b"report: {title: a\0b}": "expected YAML or JSON",
    "[1, 2]": "found a list",
    "a text": "found a str",
    "data: {n_eval: 8}\n---\ndata: {n_eval: 9}": "another document",
    "data: *nobody": "undefined alias",
    "data: {n_eval: 8": "expected YAML or JSON",
    "? [a, b]\n: 1": "expected YAML or JSON",
    # Tags
    "results: !!python/object/apply:os.system [touch pwned]": "could not determine a constructor",
    "results: !custom x": "could not determine a constructor",
    "results: 2020-01-01": "results: input should be a valid string",
    "__use_yte__: true\nreport: {title: \"?open('pwned', 'w')\"}": "__use_yte__: unknown key",
    # Keys
    "results: a\nresults: b": "the key 'results' twice",
    "data: {n_eval: 8, n_eval: 9}": "the key 'n_eval' twice",
    "pools: &p {size: 64}\ndata: {<<: *p, <<: *p}": "twice",
    '{"results": "a", "results": "b"}': "the key 'results' twice",
    "1: 2": "keys should be strings",
    "Results: a": "Did you mean 'results'",
    "data: {n_evаl: 8}": "Did you mean 'n_eval'",
    "data.n_eval: 8": "unknown key",
    # Numbers
    "data: {n_eval: 800.5}": "data.n_eval",
    "data: {n_eval: 1e3}": "data.n_eval",
    "data: {n_eval: yes}": "must be",
    "data: {n_eval: null}": "data.n_eval",
    '{"data": {"n_eval": NaN}}': "finite",
    WORLD % ".nan": "finite",
    WORLD % "1.0e+400": "learning_rate",
    WORLD % "true": "must be a number",
    # Truth
    "forked_jobs: 1": "must be true or false",
    "forked_jobs: 'true'": "must be true or false",
    "report: {language: no}": "report.language",
    # Contradictions
    "studies: [lever, lever]": "studies: must not repeat",
    "studies: lever": "studies",
    "rl_data: {temperatures: [1.0, 1]}": "rl_data.temperatures: must not repeat",
    "evaluation: {families: {grpo-betas: [published, publishd]}}": "must be one of the arms' presets=['published'], got 'publishd'",
    "evaluation: {families: {grpo-beta: [published, b]}}": "Did you mean 'grpo-betas'",
    "arms: [{preset: published, kl_betas: [0, -0.0]}]": "kl_betas: must not repeat",
    "presets: {published: {grpo: {adaptive_kl: {low: 0.5, high: 0.1}}}}": "low: must be at most high",
    "store: {folder: a}\nresults: a": "must differ from results",
    "store: {folder: a/../b/}\nresults: ./b": "must differ from results",
    # Paths
    **{
        f"results: {text}": "results"
        for text in (
            *("''", "' '", ".", "./", "..", "../..", "/", "~", "~/x", "lever_pipe", "lever_pipe/x", "x/../workflow", "tests"),
            *("./config/x", ".git", ".snakemake/x", ".venv", "README.md", "README.md/x", "config.yaml", "-x", '"a\\nb"'),
            *('"a\\0b"', "'{x}'", "'a<b>'", "loop", "loop/x", "[a]", "{a: b}", "5", "1.5", "null"),
            *("true", '"\\u2028\\n"'),
        )
    },
    **{f"store: {{folder: {text}}}": "store.folder" for text in ("README.md", "docs", ".", "/", "''", "'~nobody at all/x'")},
    f"store: {{folder: {ROOT}/resources/x}}": "of the project (resources)",
    "encoder: {model: '-x'}": "encoder.model",
    "data: {files: {train_images: \"a\\nb\"}}": "data.files.train_images",
    "intention: {execution: {connection: {base_url: 'http://me:secret@host/v1'}}}": "not shown",
}  # fmt: skip

# Words of `--config` -> a part of the message.
REFUSED_WORDS: dict[tuple[str, ...], str] = {
    ("results",): "NAME=VALUE",
    ("=a",): "NAME=VALUE",
    ("results=a", "results=b"): "results twice",
    ("results=lever_pipe",): "of the project",
    ("data={n_eval: 8, n_eval: 9}",): "twice",
    ("data={n_eval: 8",): "expected YAML or JSON",
    ("data=!!python/object/apply:os.system [touch pwned]",): "could not determine a constructor",
    ("nobody=1",): "nobody: unknown key",
    ("report={title: \udcff}",): "",
}

# Text of a file or words -> where, what is taken there, and why that is right.
TAKEN: list[tuple[str | bytes | tuple[str, ...], str, Any, str]] = [
    *((f"data: {{n_eval: {text}}}", "data.n_eval", 800, f"a notation of 800: {text}") for text in ("800", "800.0", "'800'")),
    *((WORLD % text, "presets.published.rce.learning_rate", 1e-5, f"a notation of 1e-5: {text}") for text in (
        "0.00001", "1e-5", "'1e-5'", "1.0e-05",
    )),
    *((f"forked_jobs: {text}", "forked_jobs", False, "YAML 1.1 reads it as false") for text in ("false", "no")),
    *((f"emulate: {text}", "emulate", None, "YAML reads it as null") for text in ("null", "~", "")),
    *((f"report: {{title: {text}}}", "report.title", value, "a text") for text, value in (
        ("'010'", "010"), ("1e5", "1e5"), ("'5'", "5"), ("日本語", "日本語"), ("$(touch pwned); `x` | y", "$(touch pwned); `x` | y"),
        ("'{x}'", "{x}"), ("'# no comment'", "# no comment"), ("'--config'", "--config"), ("'__use_yte__'", "__use_yte__"),
    )),
    *((f"results: {text}", "results", value, "a path like any other") for text, value in (
        ("./a", "./a"), ("a b", "a b"), ("été/日本", "été/日本"), ("$(x);'y'", "$(x);'y'"), ("/tmp/somewhere/x", "/tmp/somewhere/x"),
        ("a~b", "a~b"), ("a/../b", "a/../b"), ("lever_pipe_2", "lever_pipe_2"), ("../elsewhere", "../elsewhere"), ("a*b?", "a*b?"),
    )),
    *((f"store: {{folder: {text}}}", "store.folder", text, "a folder of anybody's") for text in ("~/s", "/tmp/s", "a/b", "results/s")),
    ("store: null", "store", None, "no store"),
    (b"\xef\xbb\xbfresults: a\r\nforked_jobs: no\r\n", "results", "a", "an editor's byte order mark and line ends"),
    ('{"data": {"n_eval": 8e2}}', "data.n_eval", 800, "JSON has this number"),
    ("presets: {published: &p {train_share: 0.5}, b: {<<: *p}}", "presets.b.train_share", 0.5, "a merge key"),
    ("presets: {published: &p {train_share: 0.5}, b: {<<: *p, train_share: 0.6}}", "presets.b.train_share", 0.6, "own keys win"),
    ("presets: {published: &p {train_share: 0.5}, b: *p}", "presets.b.train_share", 0.5, "an alias"),
    ("presets: {published: {}, '01': {}}", "presets.01.train_share", 0.8, "a name of digits, quoted"),
    ("presets: {published: {grpo: {adaptive_kl: {low: 0.1}}}}", "presets.published.grpo.adaptive_kl.low", 0.1, "a window of one point"),
    ("rl_data: {temperatures: [1, 1.0000000000000002]}", "rl_data.temperatures", (1.0, 1.0000000000000002), "neighbours differ"),
    (("results=a b=c",), "results", "a b=c", "all behind the first ="),
    (("lvlm={ask_again: true}",), "lvlm.ask_again", True, "at any depth"),
    (("emulate=",), "emulate", None, "nothing is null, as in a file"),
    (("data={n_eval: 900}", "pools={size: 32}"), "data.n_eval", 900, "several names"),
    (("arms=[{preset: published, kl_betas: [0, 1e-5]}]",), "arms.0.kl_betas", (0.0, 1e-5), "lists"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "README.md").touch()
    (tmp_path / "loop").symlink_to("loop")
    for name in ("lever_pipe", "workflow", "tests", "config", ".git", ".snakemake", ".venv", "docs"):
        (tmp_path / name).symlink_to(ROOT / name)
    yield
    assert not Path("pwned").exists()


def experiment_of(given: str | bytes | tuple[str, ...], *below: Path) -> Experiment:
    """Return what a run with this file, or with these words, would do."""
    path = Path("config.yaml")
    if not isinstance(given, tuple):
        path.write_bytes(given if isinstance(given, bytes) else given.encode())
    files, words = ([*below, path], ()) if not isinstance(given, tuple) else ([*below], given)
    return parse_experiment(configuration.read(files, words).values, source="config.yaml")


def told(given: str | bytes | tuple[str, ...]) -> str:
    """Return the message of the refusal, or what is wrong with it; any other exception fails the test."""
    try:
        found = experiment_of(given)
    except ConfigError as fault:
        parts = (fault.expected, fault.found, fault.do)
        sound = all(part.strip() for part in parts) and len(str(fault)) < 20_000
        return str(fault).encode("utf-8", "replace").decode() if sound else f"NO MESSAGE {parts}"
    return f"TAKEN as {found.model_dump(exclude_unset=True)}"


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    return ((str(key), each) for key, each in (value.items() if isinstance(value, dict) else enumerate(value)))


def at(experiment: Experiment, place: str) -> Any:
    value: Any = experiment
    for key in place.split("."):
        value = getattr(value, key, None) if isinstance(value, Section) else dict(_items(value))[key]
    return value


def test_each_hostile_configuration_is_refused_in_our_words() -> None:
    given = {**REFUSED, **REFUSED_WORDS}
    found = {text: told(text) for text in given}
    wrong = {
        text[:120]: found[text][:300]
        for text, part in given.items()
        if part not in found[text] or "TAKEN" in found[text]
    }
    assert wrong == {}


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    Path("locked").mkdir()
    for path in ("nowhere.yaml", "locked", "loop", "README.md/x", "x" * 5000, "a\0b", ""):
        with pytest.raises(ConfigError) as refusal:
            configuration.read([Path(path)])
        assert "expected a configuration file" in str(refusal.value)


def test_each_unusual_configuration_is_taken_as_it_is_written() -> None:
    wrong = {}
    for given, place, value, reason in TAKEN:
        try:
            found = at(experiment_of(given), place)
        except ConfigError as refusal:
            found = str(refusal)
        if type(found) is not type(value) or found != value:
            wrong[str(given)[:120]] = (found, reason)
    assert wrong == {}
