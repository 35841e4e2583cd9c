"""Any content of a configuration file or `--config` is refused at once in our words, or taken as written."""

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
    b"results: a\nreport: {title: \"\xe9t\xe9\"}": "config.yaml:2: expected a configuration file, UTF-8 text; found the byte 0xe9",
    "# nothing": "found no key",
    b"report: {title: a\0b}": "expected YAML or JSON",
    "[1, 2]": "found a list",
    "a text": "found a str",
    "data: {n_eval: 8}\n---\ndata: {n_eval: 9}": "another document",
    "results: a\ndata: *nobody": "config.yaml:2: expected YAML or JSON; found undefined alias",
    "data: {n_eval: 8": "expected YAML or JSON",
    "? [a, b]\n: 1": "expected a text as key",
    "data: &a {world: *a}": "an alias of a value that contains it",
    f"results: a\npools: {'[' * 3000}{']' * 3000}": "config.yaml:2: expected at most 100 levels",
    f"data: {'{a: ' * 3000}{'}' * 3000}": "expected at most 100 levels",
    '{"data": ' + "[" * 100_000 + "]" * 100_000 + "}": "expected at most 100 levels",
    "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10 if i else ['x'] * 10)}]\n" for i in range(30)): "config.yaml:5: expected at most 100000 values",
    "".join(f"a{i}: &a{i} [{f'*a{i - 1}' if i else ''}]\n" for i in range(300)): "levels",
    # Tags
    "results: !!python/object/apply:os.system [touch pwned]": "expected values without tags",
    "results: !custom x": "found the tag !custom",
    "studies: !!set {lever, intention}": "expected values without tags",
    "report: {title: !!binary aGk=}": "expected values without tags",
    "report: {title: =}": "Write '='",
    "results: 2026-01-01": "found the date 2026-01-01. A text needs quotes: '2026-01-01'",
    "report:\n  title: 2026-01-01 12:30:00": "config.yaml:2: expected a number or a text",
    "__use_yte__: true\nreport: {title: \"?open('pwned', 'w')\"}": "__use_yte__: unknown key",
    # Keys
    "results: a\nresults: b": "the key 'results' twice",
    "data: {n_eval: 8, n_eval: 9}": "the key 'n_eval' twice",
    "pools: &p {size: 64}\ndata: {<<: *p, <<: *p}": "twice",
    '{"results": "a", "results": "b"}': "the key 'results' twice",
    "1: 2": "Put it in quotes: '1'",
    "presets: {on: {}}": "Put it in quotes: 'on'",
    "presets: {01: {}}": "Put it in quotes: '01'",
    "presets: {2026-01-01: {}}": "Put it in quotes: '2026-01-01'",
    "Results: a": "Did you mean 'results'",
    "data: {n_evаl: 8}": "Did you mean 'n_eval'",
    "data.n_eval: 8": "unknown key",
    # Numbers
    "data: {n_eval: 800.5}": "data.n_eval",
    **{
        f"data: {{n_eval: {text}}}": f"expected a decimal number; found {text}, which YAML 1.1 reads as {read}"
        for text, read in {
            "010": "8", "-010": "-8", "0x10": "16", "0b11": "3", "1_000": "1000", "1:30": "90", "190:20:30": "685230", "1:30.5": "90.5",
            "1_0.5": "10.5", "08": "a text. Write 8", "0o10": "a text and YAML 1.2 as 8", "1_0e3": "a text. Write 10000.0",
        }.items()
    },
    "arms:\n- {preset: published, seeds: [010]}": "config.yaml:2: expected a decimal number; found 010, which YAML 1.1 reads as 8. Write 8; a text needs quotes: '010'",
    "arms: [{preset: published, kl_betas: [0, 1:30]}]": "Write 90; a text needs quotes: '1:30'",
    "data: {n_eval: !!int '010'}": "expected a decimal number",
    f"data: {{n_eval: {'9' * 10_000}}}": "found a number of 10000 characters",
    '{"data": {"n_eval": ' + "9" * 10_000 + "}}": "config.yaml:1: expected numbers of at most 300 digits",
    "data: {n_eval: .inf}": "data.n_eval",
    "data: {n_eval: 1.5e0}": "data.n_eval: must ",
    "report: {title: 1e5}": "report.title: must ",
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
    "studies: [lever, lever]": "studies: must ",
    "studies: lever": "studies",
    "rl_data: {temperatures: [1.0, 1]}": "rl_data.temperatures: must ",
    "evaluation: {families: {grpo-betas: [published, publishd]}}": "must be one of the arms' presets=['published'], got 'publishd'",
    "evaluation: {families: {grpo-beta: [published, b]}}": "Did you mean 'grpo-betas'",
    "arms: [{preset: published, kl_betas: [0, -0.0]}]": "kl_betas: must ",
    "presets: {published: {grpo: {adaptive_kl: {low: 0.5, high: 0.1}}}}": "low: must ",
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
    f"store: {{folder: {ROOT}/resources/x}}": "to the project (resources)",
    "encoder: {model: '-x'}": "encoder.model",
    "data: {files: {train_images: \"a\\nb\"}}": "data.files.train_images",
    "intention: {execution: {connection: {base_url: 'http://me:secret@host/v1'}}}": "not shown",
}  # fmt: skip

# Words of `--config` -> a part of the message.
REFUSED_WORDS: dict[tuple[str, ...], str] = {
    ("results",): "NAME=VALUE",
    ("=a",): "NAME=VALUE",
    ("results=a", "results=b"): "results twice",
    ("data.n_eval=8", "data.n_eval=9"): "data.n_eval twice",
    ("arms[0].seeds=[1]", "arms.0.seeds=[2]"): "arms.0.seeds twice",
    ("data..n_eval=8",): "NAME=VALUE",
    ("data.=8",): "NAME=VALUE",
    ("arms[x]=8",): "NAME=VALUE",
    ("dat.n_eval=8",): "dat: unknown key. Did you mean 'data'",
    ("data.n_evl=8",): "data.n_evl: unknown key. Did you mean 'n_eval'",
    ("data.n_eval=x",): "data.n_eval: must ",
    ("data={}", "data.0=x"): "data.0: unknown key",
    (
        "evaluation.shots.0=1",
    ): "--config evaluation.shots.0: expected a list at evaluation.shots; found none in the files",
    (
        "arms=[{preset: published}]",
        "arms.1.seeds=[0]",
    ): "--config arms.1.seeds: expected a position from 0 to 0 in the list arms; found 1",
    (
        "arms=[{preset: published}]",
        "arms.published.seeds=[0]",
    ): "expected a position from 0 to 0 in the list arms; found published",
    ("arms=[]", "arms.0.seeds=[0]"): "expected entries in the list arms",
    ("results=a", "results.folder=b"): "--config results.folder: expected keys below results; found 'a'",
    ("data.n_eval=010",): "--config data.n_eval: expected a decimal number",
    ("pools=[" + "[" * 3000,): "--config pools: expected at most 100 levels",
    ("results=\udcff",): "--config results: expected YAML or JSON",
    ("results=lever_pipe",): "to the project",
    ("data={n_eval: 8, n_eval: 9}",): "twice",
    ("data={n_eval: 8",): "expected YAML or JSON",
    ("data=!!python/object/apply:os.system [touch pwned]",): "expected values without tags",
    ("nobody=1",): "nobody: unknown key",
    ("report={title: \udcff}",): "",
}

# Text of a file or words -> location, accepted value, and the reason for it.
TAKEN: list[tuple[str | bytes | tuple[str, ...], str, Any, str]] = [
    *((f"data: {{n_eval: {text}}}", "data.n_eval", 800, f"a notation of 800: {text}") for text in ("800", "800.0", "'800'", "8e2", "8.0e2", "+800")),
    *((WORLD % text, "presets.published.rce.learning_rate", 1e-5, f"a notation of 1e-5: {text}") for text in (
        "0.00001", "1e-5", "'1e-5'", "1.0e-05",
    )),
    *((f"forked_jobs: {text}", "forked_jobs", False, "YAML 1.1 reads it as false") for text in ("false", "no")),
    *((f"emulate: {text}", "emulate", None, "YAML reads it as null") for text in ("null", "~", "")),
    *((f"report: {{title: {text}}}", "report.title", value, "a text") for text, value in (
        ("'010'", "010"), ("'1e5'", "1e5"), ("'2026-01-01'", "2026-01-01"), ("1.2.3", "1.2.3"), ("1-2", "1-2"), ("'5'", "5"), ("日本語", "日本語"), ("$(touch pwned); `x` | y", "$(touch pwned); `x` | y"),
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
    (("data.n_eval=900",), "data.n_eval", 900, "a path"),
    (("data.world.n_train=5e3",), "data.world.n_train", 5000, "a path into a section that no file has"),
    (("data={n_eval: 900}", "data.n_eval=901"), "data.n_eval", 901, "the last one counts"),
    (("data.n_eval=900", "data={n_eval: 901}"), "data.n_eval", 901, "the last one counts"),
    (("arms=[{preset: published, seeds: [5]}]", "arms.0.kl_betas=[0, 0.1]"), "arms.0.seeds", (5,), "the rest of an entry stays"),
    (("arms=[{preset: published}]", "arms[0].kl_betas=[0, 0.1]"), "arms.0.kl_betas", (0.0, 0.1), "as messages spell it"),
    (("arms=[{preset: published, kl_betas: [0, 0.2]}]", "arms.0.kl_betas.1=0.1"), "arms.0.kl_betas", (0.0, 0.1), "an entry of a list"),
    (("presets={published: {}, '01': {}}", "presets.01.train_share=0.5"), "presets.01.train_share", 0.5, "a name of digits"),
    (("store=null", "store.folder=s"), "store.folder", "s", "null counts as no key"),
    (("data.world={n_train: 5000}", "data.world.n_eval=900"), "data.world.n_train", 5000, "mappings are merged"),
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
    """Return the plan of a run with this file, or with these words."""
    path = Path("config.yaml")
    if not isinstance(given, tuple):
        path.write_bytes(given if isinstance(given, bytes) else given.encode())
    files, words = ([*below, path], ()) if not isinstance(given, tuple) else ([*below], given)
    return parse_experiment(configuration.read(files, words).values, source="config.yaml")


def reported(given: str | bytes | tuple[str, ...]) -> str:
    """Return the refusal's message, or its shortcomings; any other exception fails the test."""
    try:
        found = experiment_of(given)
    except ConfigError as error:
        parts = (error.expected, error.found, error.do)
        sound = all(part.strip() for part in parts) and len(str(error)) < 20_000
        return str(error).encode("utf-8", "replace").decode() if sound else f"NO MESSAGE {parts}"
    return f"TAKEN as {found.model_dump(exclude_unset=True)}"


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    return ((str(key), each) for key, each in (value.items() if isinstance(value, dict) else enumerate(value)))


def at(experiment: Experiment, location: str) -> Any:
    value: Any = experiment
    for key in location.split("."):
        value = getattr(value, key, None) if isinstance(value, Section) else dict(_items(value))[key]
    return value


def test_each_hostile_configuration_is_refused_in_our_words() -> None:
    given = {**REFUSED, **REFUSED_WORDS}
    found = {text: reported(text) for text in given}
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
    for given, location, value, reason in TAKEN:
        try:
            found = at(experiment_of(given), location)
        except ConfigError as refusal:
            found = str(refusal)
        if type(found) is not type(value) or found != value:
            wrong[str(given)[:120]] = (found, reason)
    assert wrong == {}
